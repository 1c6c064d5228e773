"""What happens to a table, or is asked of it, while its existing rows are being copied: combinations, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sidecar
from sidecar.clock import FakeClock, SystemClock, iso
from sidecar.poll import Step
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make


def copy(runner: Runner, chunks: int) -> None:
    """Copy so many *chunks*, and let go of the view."""
    work = runner._jobs.work(None)
    for _ in range(chunks):
        next(work)
    runner._jobs.close()


@pytest.mark.parametrize("what", ["ALTER TABLE t ALTER v TYPE bigint", "UPDATE t SET v = v + 100"])
def test_rows_that_are_written_anew_with_the_stamps_they_had_come_all_the_same(
    pg: Database, tmp_path: Path, what: str
) -> None:
    """All of one stamp, as after an import: at first that is above what is closed, and soon it is not."""
    owner = pg.connect()
    make(owner, "CREATE TABLE t (id int PRIMARY KEY, v int, updated_at timestamptz NOT NULL)")
    make(owner, "INSERT INTO t SELECT n, n, now() - interval '1 hour' FROM generate_series(1, 100) n", "ANALYZE t")
    more = {"chunk_size": 10, "lookback": "100ms"}
    project = Project(tmp_path, pg.reader_url, {"t": more}, backfill={"parallelism": 1})
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        copy(runner, 2)
        for _ in range(3):
            runner.catch_up(sc.tracked["t"])
            SystemClock().sleep(0.15)
        make(owner, "UPDATE t SET v = 7, updated_at = now() WHERE id IN (5, 55, 95)")
        runner.catch_up(sc.tracked["t"])
        SystemClock().sleep(0.15)
        make(owner, what)
        runner.catch_up(sc.tracked["t"])
        assert runner.run(once=True, interval=1.0) == 0
    found: list[Any] = [row["id"] for row in project.rows("t")]
    assert set(found) == set(range(1, 101))
    assert found.count(77) == 1


def test_a_row_that_is_dated_back_before_its_chunk_is_read_comes_with_that(
    sqlite_db: SQLiteFile, tmp_path: Path, clock: FakeClock
) -> None:
    """Polls do not meet what is stamped below what they have closed; but the row itself was there, and is."""
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")
    s1.executemany("INSERT INTO t VALUES (?, 'first', '2024-01-01 10:00:00')", [(n,) for n in range(1, 10)])
    s1.execute("INSERT INTO t VALUES (10, 'first', '2024-01-02 10:00:00')")
    project = Project(tmp_path, sqlite_db.url, {"t": {"chunk_size": 2}})
    with sidecar.open(project.path, clock=clock) as sc:
        runner = Runner(sc)
        copy(runner, 1)
        for _ in range(3):
            runner.catch_up(sc.tracked["t"])
            clock.advance(120)
        s1.execute("UPDATE t SET v = 'second', updated_at = '2024-01-02 09:59:59' WHERE id = 8")
        runner.catch_up(sc.tracked["t"])
        assert runner.run(once=True, interval=1.0) == 0
    rows = project.rows("t")
    assert sorted(row["id"] for row in rows) == list(range(1, 11))
    assert [row["v"] for row in rows if row["id"] == 8] == ["second"]


ACCOUNTS = "CREATE TABLE {} (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, updated_at TEXT NOT NULL)"


def bank(db: SQLiteFile, folder: Path, **third: Any) -> Project:
    """Two tables that have 600 between them, to be copied as of one instant, and one that is read in between."""
    db.connection.execute("PRAGMA journal_mode = WAL")
    for name in ("a", "m", "z"):
        db.connection.execute(ACCOUNTS.format(name))
        rows = [(n, 100, "2024-01-02 10:00:00" if n == 3 else "2024-01-01 10:00:00") for n in (1, 2, 3)]
        db.connection.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
    one_instant = {"chunk_size": 1, "consistent": True}
    return Project(folder, db.url, {"a": one_instant, "m": {"chunk_size": 1, **third}, "z": one_instant})


def transfer(db: SQLiteFile) -> None:
    """Move money from z to a: who has read a before, and reads z after, misses it."""
    stamp = iso(SystemClock().now())
    db.connection.execute("BEGIN")
    db.connection.execute(f"UPDATE a SET balance = balance + 50, updated_at = '{stamp}' WHERE id = 1")
    db.connection.execute(f"UPDATE z SET balance = balance - 50, updated_at = '{stamp}' WHERE id = 3")
    db.connection.execute("COMMIT")


def copied_until(runner: Runner, table: str) -> Iterator[Step]:
    """Copy until a chunk of *table* has been written; return what goes on from there."""
    work = runner._jobs.work(None)
    for step in work:
        if step.table == table:
            return work
    raise AssertionError(f"no chunk of {table}")


def copied_sum(project: Project) -> int:
    """Return what the copies of a and z hold, polls left out."""
    rows = [row for table in ("a", "z") for row in project.rows(table) if row["_origin"] == "backfill"]
    assert len(rows) == 6
    return sum(row["balance"] for row in rows)


@pytest.mark.parametrize("ends_by", ["being cancelled", "failing", "failing to be read"])
def test_a_table_that_ends_beside_copies_of_one_instant_leaves_them_that(
    sqlite_db: SQLiteFile, tmp_path: Path, ends_by: str
) -> None:
    project = bank(sqlite_db, tmp_path)
    if ends_by == "failing":
        sqlite_db.connection.execute("UPDATE m SET balance = 'none' WHERE id = 2")
    if ends_by == "failing to be read":
        sqlite_db.connection.execute("DROP TABLE m")
        sqlite_db.connection.execute("CREATE TABLE m (id TEXT PRIMARY KEY, balance INTEGER, updated_at TEXT NOT NULL)")
        rows = [("1", 1, "2024-01-01 10:00:00"), (b"\x01", 1, "2024-01-01 10:00:00")]
        sqlite_db.connection.executemany("INSERT INTO m VALUES (?, ?, ?)", rows)
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        work = copied_until(runner, "m")
        transfer(sqlite_db)
        if ends_by == "being cancelled":
            assert sc.cancel_backfill("m")
        for _ in work:
            pass
        runner._jobs.close()
        assert copied_sum(project) == 600
        assert [row["id"] for row in project.rows("m")][:1] in ([1], ["1"])
        code = runner.run(once=True, interval=1.0)
        assert code == (0 if ends_by == "being cancelled" else 2)
    newest = [*project.merged("a", "id").values(), *project.merged("z", "id").values()]
    assert sum(row["balance"] for row in newest) == 600


def test_what_fails_beside_copies_of_one_instant_is_told_by_each_round_and_tried_again_afterwards(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    project = bank(sqlite_db, tmp_path)
    sqlite_db.connection.execute("UPDATE m SET balance = 'none' WHERE id = 2")
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        work = copied_until(runner, "m")
        next(step for step in work if step.table == "z")
        sqlite_db.connection.execute("UPDATE m SET balance = 100 WHERE id = 2")
        runner._begin_round()
        assert "balance" in str({s.table: s.error for s in sc.status()}["m"])
        for _ in work:
            pass
        assert runner.run(once=True, interval=1.0) == 0
        assert {s.table: s.error for s in sc.status()}["m"] is None
    assert sorted(project.merged("m", "id")) == [1, 2, 3]


def test_what_is_altered_beside_copies_of_one_instant_leaves_them_that(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    project = bank(sqlite_db, tmp_path)
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        work = copied_until(runner, "m")
        transfer(sqlite_db)
        sqlite_db.connection.execute("CREATE INDEX m_by_time ON m (updated_at, id)")
        sqlite_db.connection.execute("UPDATE m SET balance = 7, updated_at = '2024-01-03 10:00:00' WHERE id = 1")
        runner.catch_up(sc.tracked["m"])
        for _ in work:
            pass
        runner._jobs.close()
    assert copied_sum(project) == 600
