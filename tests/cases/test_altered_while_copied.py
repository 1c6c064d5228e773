"""What happens to a table, or is asked of it, while its existing rows are being copied: combinations, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sidecar
from sidecar.clock import FakeClock, SystemClock
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
