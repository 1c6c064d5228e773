"""What a purge makes of a backfill: deletes for what the log has and the source has no more, and of nothing else."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sidecar
from sidecar.backfilling import purge
from sidecar.lake import compaction
from sidecar.model import Column, Table, Tracked
from sidecar.polls import deliveries, rows
from sidecar.project import Sidecar
from sidecar.runner import Runner
from tests.cases.harness import Project, kinds
from tests.conftest import SQLiteFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLD = "2024-05-01 10:00:00"


def purged(project: Project, **scope: Any) -> list[tuple[Any, ...]]:
    """Return the deletes of a backfill with a purge."""
    with sidecar.open(project.path) as sc:
        sc.request_backfill("items", purge=True, **scope)
    found = project.poll()["items"]
    return kinds([row for row in found if row["_change_type"] == "delete"], "id")


def interrupted(sc: Sidecar) -> None:
    """Backfill a chunk, and no more."""
    stop = threading.Event()
    Runner(sc, stop=stop, on_step=lambda _: stop.set()).poll()


@pytest.fixture
def items(tmp_path: Path, sqlite_db: SQLiteFile) -> Project:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, n INTEGER, updated_at TEXT NOT NULL, deleted_at TEXT)")
    s1.executemany("INSERT INTO items VALUES (?, ?, ?, NULL)", [(n, n, OLD) for n in range(8)])
    return Project(tmp_path, sqlite_db.url, {"items": {"chunk_size": 3}})


def test_only_what_is_gone_is_purged(items: Project, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"UPDATE items SET deleted_at = '{OLD}' WHERE id IN (1, 2)")
    items.poll()
    s1.execute("DELETE FROM items WHERE id IN (2, 3, 4)")
    # 2 stands in the log as deleted already; 1 is there, and flagged.
    assert purged(items) == [("delete", 1), ("delete", 3), ("delete", 4)]
    last = {row["id"]: row["_change_type"] for row in items.rows("items")}
    assert {key for key, kind in last.items() if kind == "delete"} == {1, 2, 3, 4}


def test_a_purge_of_keys_is_of_these_alone(items: Project, sqlite_db: SQLiteFile) -> None:
    items.poll()
    sqlite_db.connection.execute("DELETE FROM items WHERE id IN (3, 4)")
    assert purged(items, keys=["4", "5", "99"]) == [("delete", 4)]
    assert purged(items) == [("delete", 3)]


def test_a_purged_key_that_comes_back_as_it_was_is_delivered(items: Project, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    # Stamped in the future: no poll closes it, so it is remembered as long as it is there.
    s1.execute("INSERT INTO items VALUES (100, 1, '2999-01-01 00:00:00', NULL)")
    items.poll()
    items.poll()
    s1.execute("DELETE FROM items WHERE id = 100")
    assert purged(items) == [("delete", 100)]
    s1.execute("INSERT INTO items VALUES (100, 1, '2999-01-01 00:00:00', NULL)")
    assert [row["id"] for row in items.poll()["items"]] == [100]


def test_a_purge_spans_columns_that_have_changed(items: Project, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    items.poll()
    s1.execute("ALTER TABLE items ADD COLUMN more TEXT")
    s1.execute(f"INSERT INTO items VALUES (50, 1, '{OLD}', NULL, 'm')")
    items.poll()
    s1.execute("DELETE FROM items WHERE id IN (0, 50)")
    assert purged(items) == [("delete", 0), ("delete", 50)]
    found = {r["id"]: (r["n"], r["more"]) for r in items.rows("items") if r["_change_type"] == "delete"}
    assert found == {0: (0, None), 50: (1, "m")}, "a delete carries the last row that was known"


def test_rows_that_are_set_aside_are_not_purged(items: Project, sqlite_db: SQLiteFile) -> None:
    items.tables = {"items": {"chunk_size": 3, "on_bad_value": "quarantine"}}
    items.write()
    items.poll()
    sqlite_db.connection.execute("UPDATE items SET n = 'x' WHERE id = 5")
    sqlite_db.connection.execute("DELETE FROM items WHERE id = 6")
    assert purged(items) == [("delete", 6)]


def test_a_purge_is_of_what_retention_has_left(items: Project, sqlite_db: SQLiteFile) -> None:
    items.poll()
    sqlite_db.connection.execute(f"INSERT INTO items VALUES (50, 1, '{OLD}', NULL)")
    items.poll()
    items.write(state={"path": "state", "retention": "1us", "bases": False})
    assert items.cli("run", "--once").code == 0
    with sidecar.open(items.path, read_only=True) as sc:
        assert sc.log("items").floor() > 0
    sqlite_db.connection.execute("DELETE FROM items WHERE id = 50")
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", purge=True)
        floor = sc.log("items").floor()
    found = [r for r in items.poll()["items"] if r["_change_type"] == "delete"]
    assert [r["id"] for r in found] == [50]
    assert floor


def test_a_purge_is_of_what_stands_in_a_base_as_well(
    spark: SparkSession, items: Project, sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FIRST_BYTES", 0)
    items.poll()
    sqlite_db.connection.execute(f"INSERT INTO items VALUES (50, 1, '{OLD}', NULL)")
    items.poll()
    items.write(state={"path": "state", "retention": "1us"})
    with sidecar.open(items.path) as sc:
        assert sc.run(spark, once=True) == 0
        assert sc.log("items").floor() > 2
    items.write(state={"path": "state"})
    sqlite_db.connection.execute("DELETE FROM items WHERE id IN (0, 4, 50)")
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", purge=True)
        sc.poll()
        newest = [r for r in sc.log("items").rows(sc.log("items").floor()) if r["_change_type"] == "delete"]
        assert sorted((r["id"], r["n"]) for r in newest) == [(0, 0), (4, 4), (50, 1)]
        assert sorted(r["id"] for r in sc.current(spark, "items").collect()) == [1, 2, 3, 5, 6, 7]


def test_a_row_that_comes_and_goes_while_a_purge_is_under_way_is_purged(items: Project, sqlite_db: SQLiteFile) -> None:
    items.poll()
    s1 = sqlite_db.connection
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", purge=True)
        interrupted(sc)
    s1.executemany("INSERT INTO items VALUES (?, 1, '2024-05-02 10:00:00', NULL)", [(50,), (51,)])
    s1.execute("UPDATE items SET n = 9, updated_at = '2024-05-02 10:00:00' WHERE id IN (1, 6, 7)")
    with sidecar.open(items.path) as sc:
        Runner(sc).catch_up(sc.tracked["items"])
    # 1 is of a chunk that is behind, 6 and 50 of one that is still to come.
    s1.execute("DELETE FROM items WHERE id IN (1, 6, 50)")
    s1.execute("INSERT INTO items VALUES (6, 10, '2024-05-03 10:00:00', NULL)")
    found = items.poll()["items"]
    assert [row["id"] for row in found if row["_change_type"] == "delete"] == [1, 50]
    assert {key: row["n"] for key, row in items.merged("items", "id").items()} == {
        **{n: n for n in (0, 2, 3, 4, 5)},
        6: 10,
        7: 9,
        51: 1,
    }


@pytest.mark.parametrize("looks_first", ["poll", "backfill"])
def test_a_purge_outlives_a_new_column_that_brings_all_rows_again(
    items: Project, sqlite_db: SQLiteFile, looks_first: str
) -> None:
    items.tables = {"items": {"chunk_size": 3, "backfill_added": True}}
    items.write()
    items.poll()
    # By now no poll would read the other rows again by itself.
    sqlite_db.connection.execute("INSERT INTO items VALUES (8, 8, '2024-05-02 10:00:00', NULL)")
    items.poll()
    s1 = sqlite_db.connection
    s1.execute("DELETE FROM items WHERE id IN (1, 7)")
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", purge=True)
        interrupted(sc)
    s1.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    if looks_first == "poll":
        with sidecar.open(items.path) as sc:
            Runner(sc).catch_up(sc.tracked["items"])
    items.poll()
    items.poll()
    assert {key: row["color"] for key, row in items.merged("items", "id").items()} == dict.fromkeys(
        (0, 2, 3, 4, 5, 6, 8), "red"
    )


def test_a_new_column_brings_all_rows_again_though_a_backfill_meets_it_first(
    items: Project, sqlite_db: SQLiteFile
) -> None:
    items.tables = {"items": {"chunk_size": 3, "backfill_added": True}}
    items.write()
    items.poll()
    # By now no poll would read the other rows again by itself.
    sqlite_db.connection.execute("INSERT INTO items VALUES (8, 8, '2024-05-02 10:00:00', NULL)")
    items.poll()
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    with sidecar.open(items.path) as sc:
        sc.request_backfill("items", keys=[3])
    found = items.poll()["items"]
    assert sorted((row["id"], row["color"]) for row in found) == [(n, "red") for n in range(9)]


def test_shares_of_a_purge_are_alike_for_numbers_too() -> None:
    columns = (Column("id", "bigint", pa.int64(), nullable=False),)
    tracked = Tracked(Table("t", ("t",), columns, ("id",)), ("id",), "updated_at", columns=columns)
    values = pa.table({"id": pa.array(range(10_000), pa.int64())})
    keys = deliveries.as_bytes(rows.keys_of(tracked, values))
    counts = Counter(purge.share_of(key, 8) for key in keys)
    assert len(counts) == 8
    assert max(counts.values()) < 2 * min(counts.values())
