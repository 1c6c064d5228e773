"""Purges of tables that are shown in part, emptied, or gone: what is not seen is not taken for deleted."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import sidecar
from sidecar.errors import SettingsError
from sidecar.polls import quarantine
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make

OLD, NEW = "2024-05-01 10:00:00Z", "2024-05-02 10:00:00Z"


def begun(project: Project, table: str = "t") -> None:
    """Ask for a purge of *table*, and let its process end after a chunk."""
    with sidecar.open(project.path) as sc:
        sc.request_backfill(table, purge=True)
        stop = threading.Event()
        Runner(sc, stop=stop, on_step=lambda _: stop.set()).poll()


def test_rows_that_were_hidden_for_a_while_are_not_purged(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
    make(s1, f"INSERT INTO t SELECT n, 'v', '{OLD}' FROM generate_series(1, 20) n")
    project = Project(tmp_path, pg.reader_url, {"t": {"chunk_size": 3}}, backfill={"parallelism": 1})
    project.poll()
    begun(project)
    make(s1, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    for _ in range(2):
        found = project.cli("run", "--once")
        assert found.code == 2
        assert "so nothing is purged" in found.text
    # As the message says; and something is gone by now.
    make(s1, "CREATE POLICY all_rows ON t FOR SELECT USING (true)", "DELETE FROM t WHERE id = 20")
    make(s1, f"INSERT INTO t VALUES (21, 'v', '{NEW}')")
    assert project.cli("run", "--once").code == 0
    assert [row["id"] for row in project.rows("t") if row["_change_type"] == "delete"] == [20]
    assert sorted(project.merged("t", "id")) == [*range(1, 20), 21]


ITEMS = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)"


def filled(db: SQLiteFile, count: int) -> None:
    db.connection.executemany("INSERT INTO t VALUES (?, 'v', ?)", [(n, OLD[:-1]) for n in range(1, count + 1)])


def deleted(project: Project) -> list[Any]:
    return sorted(row["id"] for row in project.rows("t") if row["_change_type"] == "delete")


@pytest.mark.parametrize("when", ["before it is read", "while it is read", "while it is read, and filled again"])
def test_a_table_that_is_found_empty_is_purged_only_where_that_is_said(
    tmp_path: Path, sqlite_db: SQLiteFile, when: str
) -> None:
    s1 = sqlite_db.connection
    s1.execute(ITEMS)
    filled(sqlite_db, 9)
    project = Project(tmp_path, sqlite_db.url, {"t": {"chunk_size": 3}})
    project.poll()
    if when == "before it is read":
        assert project.cli("backfill", "t", "--purge").code == 0
    else:
        begun(project)
    s1.execute("DELETE FROM t")
    refused = project.cli("run", "--once")
    assert (refused.code, "sidecar backfill t --purge --empty" in refused.err) == (2, True), refused.text
    assert "refused" in project.cli("backfill", "t", "--list").out
    # Said once; and nothing is left of it that could be done at another time.
    assert project.cli("run", "--once").code == 0
    assert deleted(project) == []
    if when == "while it is read, and filled again":
        filled(sqlite_db, 8)
        assert project.cli("backfill", "t", "--purge").code == 0
        assert project.cli("run", "--once").code == 0
        assert deleted(project) == [9]
    else:
        assert project.cli("backfill", "t", "--purge", "--empty").code == 0
        assert project.cli("run", "--once").code == 0
        assert deleted(project) == [*range(1, 10)]


def test_the_last_row_of_a_table_can_be_purged(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute(ITEMS)
    filled(sqlite_db, 1)
    project = Project(tmp_path, sqlite_db.url, {"t": {}})
    project.poll()
    sqlite_db.connection.execute("DELETE FROM t")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
        with pytest.raises(SettingsError, match="--empty is about a purge of the whole table"):
            sc.request_backfill("t", empty=True)
    project.poll()
    assert deleted(project) == [1]


def test_a_table_that_was_swapped_for_an_empty_one_in_mid_purge_keeps_its_rows(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
    make(s1, f"INSERT INTO t SELECT n, 'v', '{OLD}' FROM generate_series(1, 20) n")
    project = Project(tmp_path, pg.reader_url, {"t": {"chunk_size": 3}}, backfill={"parallelism": 1})
    project.poll()
    begun(project)
    make(s1, "ALTER TABLE t RENAME TO before", "CREATE TABLE t (LIKE before INCLUDING ALL)")
    make(s1, f'GRANT SELECT ON t TO "{pg.reader}"')
    assert project.cli("run", "--once").code == 2
    make(s1, "DROP TABLE t", "ALTER TABLE before RENAME TO t", "DELETE FROM t WHERE id = 20")
    project.poll()
    assert deleted(project) == []
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
    project.poll()
    assert deleted(project) == [20]


def test_what_is_set_aside_stays_so_where_a_purge_is_refused(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute(ITEMS.replace("v TEXT", "v INTEGER"))
    s1.executemany("INSERT INTO t VALUES (?, ?, ?)", [(n, "bad" if n == 3 else n, OLD[:-1]) for n in range(1, 5)])
    project = Project(tmp_path, sqlite_db.url, {"t": {"on_bad_value": "quarantine"}})
    project.poll()
    s1.execute("DELETE FROM t")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
        assert sc.run(once=True) == 2
        assert list(quarantine.keys(sc.log("t"), ("id",))) == [(3,)]
        sc.request_backfill("t", purge=True, empty=True)
        assert sc.run(once=True) == 0
        assert list(quarantine.keys(sc.log("t"), ("id",))) == []
    assert deleted(project) == [1, 2, 4]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("numeric(10,2)", "numeric(12,4)"),
        ("float4", "float8"),
        ("int", "bigint"),
        ("numeric(4,0)", "numeric(9,0)"),
        ("int", "text"),
    ],
)
@pytest.mark.parametrize("key", ["id", "id, more"])
def test_keys_that_were_of_another_type_are_the_same_keys(
    tmp_path: Path, pg: Database, before: str, after: str, key: str
) -> None:
    s1 = pg.connect()
    make(s1, f"CREATE TABLE t (id {before}, more {before}, updated_at timestamptz NOT NULL, PRIMARY KEY ({key}))")
    make(s1, f"INSERT INTO t SELECT n, n, '{OLD}' FROM generate_series(1, 5) n")
    make(s1, f"INSERT INTO t VALUES (6, 6, '{NEW}')")
    project = Project(tmp_path, pg.reader_url, {"t": {}}, backfill={"parallelism": 1})
    project.poll()
    for name in ("id", "more"):
        make(s1, f"ALTER TABLE t ALTER {name} TYPE {after}")
    make(s1, f"DELETE FROM t WHERE id = '3'::{after}")
    with sidecar.open(project.path) as sc:
        if after == "text":
            # The log goes on with keys that are other ones; what it had before is told apart from these.
            sc.reset_watermark("t")
        sc.request_backfill("t", purge=True)
    project.poll()
    assert [int(key) for key in deleted(project)] == ([] if after == "text" else [3])
