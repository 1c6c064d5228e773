"""Tables that are written anew, or replaced, while an older view waits for them: to that, they are empty."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import sidecar
from sidecar.clock import SystemClock
from tests.cases.harness import Project, Row, wait_for
from tests.servers import Connection, Database, make

COLUMNS = "id bigint, n int, created_at timestamptz DEFAULT now(), updated_at timestamptz DEFAULT now()"
TABLE = f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id))"
PARTS = (
    f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (100) TO (10000)",
)
ANEW = {
    "altered": ([TABLE], ["ALTER TABLE t ALTER n TYPE bigint"]),
    "emptied and filled": (
        [TABLE],
        ["CREATE TEMP TABLE held AS TABLE t", "TRUNCATE t", "INSERT INTO t SELECT * FROM held"],
    ),
    "replaced": (
        [TABLE],
        ["CREATE TABLE t_new (LIKE t INCLUDING ALL)", "INSERT INTO t_new SELECT * FROM t",
         "GRANT SELECT ON t_new TO PUBLIC", "ALTER TABLE t RENAME TO t_old", "ALTER TABLE t_new RENAME TO t"],
    ),
    "a partition of it": (
        PARTS,
        ["CREATE TEMP TABLE held AS TABLE t_1", "TRUNCATE t_1", "INSERT INTO t_1 SELECT * FROM held"],
    ),
    "what a view shows": (
        [f"CREATE TABLE held ({COLUMNS}, PRIMARY KEY (id))", "CREATE VIEW t AS SELECT * FROM held"],
        ["CREATE TEMP TABLE kept AS TABLE held", "TRUNCATE held", "INSERT INTO held SELECT * FROM kept"],
    ),
}  # fmt: skip
TABLES = pytest.mark.parametrize(("setup", "anew"), ANEW.values(), ids=list(ANEW))
OLD = "SELECT g, g, '2024-05-01Z', '2024-05-01Z' FROM generate_series"


def while_written_anew(pg: Database, anew: Sequence[str], poll: Callable[[], dict[str, list[Row]]]) -> None:
    """Run *poll* once *anew* has been done and not committed; commit it when the poll waits for that."""
    writer, watcher = pg.connect(autocommit=False), pg.connect()
    for statement in anew:
        writer.execute(statement.encode())
    thread = threading.Thread(target=poll)
    thread.start()
    waits = wait_for(lambda: bool(watcher.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()), 4.0)
    writer.commit()
    thread.join()
    assert waits


@TABLES
def test_a_purge_that_waited_for_a_table_deletes_nothing(
    pg: Database, tmp_path: Path, setup: Sequence[str], anew: Sequence[str]
) -> None:
    make(pg.connect(), *setup, f"INSERT INTO {'held' if 'VIEW' in setup[-1] else 't'} {OLD}(1, 50) g", "ANALYZE")
    project = Project(tmp_path, pg.reader_url, {"t": {"primary_key": ["id"]}})
    project.poll()
    assert project.cli("backfill", "t", "--purge").code == 0
    while_written_anew(pg, anew, project.poll)
    assert project.results["t"].error is None
    assert sorted(project.merged("t", "id")) == [*range(1, 51)]
    assert [row for row in project.rows("t") if row["_change_type"] == "delete"] == []


@pytest.mark.parametrize(("setup", "anew"), [ANEW[name] for name in ("altered", "a partition of it")])
def test_a_row_that_commits_late_is_delivered_by_the_poll_after_one_that_waited(
    pg: Database, tmp_path: Path, setup: Sequence[str], anew: Sequence[str]
) -> None:
    owner, late, clock = pg.connect(), pg.connect(autocommit=False), SystemClock()
    make(owner, *setup, "INSERT INTO t VALUES (1, 1)")
    project = Project(tmp_path, pg.reader_url, {"t": {"primary_key": ["id"], "lookback": "100ms"}})
    project.poll()
    late.execute("INSERT INTO t VALUES (2, 2)")
    clock.sleep(0.01)
    make(owner, "INSERT INTO t VALUES (3, 3)")
    for _ in range(2):
        project.poll()
        clock.sleep(0.15)
    late.commit()
    while_written_anew(pg, anew, project.poll)
    project.poll()
    assert sorted(project.merged("t", "id")) == [1, 2, 3]


def reload(owner: Connection, table: str, *, older: bool) -> None:
    """Empty *table* and fill it again, in two transactions as many jobs do it."""
    make(owner, f"CREATE TEMP TABLE kept AS TABLE {table}", f"TRUNCATE {table}")
    back = "- interval '1 day'" if older else ""
    make(owner, f"INSERT INTO {table} SELECT id, n + 1, created_at, updated_at {back} FROM kept", "DROP TABLE kept")


@pytest.mark.parametrize(("setup", "part"), [([TABLE], "t"), (PARTS, "t_1")], ids=["a table", "a partition"])
def test_a_load_under_older_stamps_is_told_once_and_a_purging_backfill_brings_it(
    pg: Database, tmp_path: Path, setup: Sequence[str], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = pg.connect()
    make(owner, *setup, "INSERT INTO t SELECT g, g FROM generate_series(1, 50) g", f"GRANT SELECT ON {part} TO PUBLIC")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    project.poll()
    project.poll()
    reload(owner, part, older=True)
    with sidecar.open(project.path) as sc:
        for _ in range(2):
            sc.poll()
            make(owner, "UPDATE t SET updated_at = now() WHERE id = 7")
    told = [r.getMessage() for r in caplog.records if "was emptied" in r.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(f'table "t": {part} was emptied (TRUNCATE)')
    assert told[0].endswith("sidecar backfill t --purge")
    assert project.cli("backfill", "t", "--purge").code == 0
    project.poll()
    found = owner.execute("SELECT id, n FROM t").fetchall()
    assert {key: row["n"] for key, row in project.merged("t", "id").items()} == dict(found)


@pytest.mark.parametrize("what", ["VACUUM FULL t", "CREATE INDEX ON t (n)", "REINDEX TABLE t"])
def test_a_file_that_is_only_put_in_order_is_no_reason_for_a_word(
    pg: Database, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = pg.connect()
    make(owner, TABLE, "INSERT INTO t SELECT g, g FROM generate_series(1, 50) g", "VACUUM FULL t")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    project.poll()
    make(owner, what, "ALTER TABLE t SET (fillfactor = 70)", "UPDATE t SET n = 0, updated_at = now() WHERE id = 1")
    assert [row["id"] for row in project.poll()["t"]] == [1]
    assert "was emptied" not in caplog.text
