"""Backfills beside polls, driven step by step: what each of them does must never undo, repeat or stop the other."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from connectors.sqlite import SQLiteConnector
from sidecar.backfilling.jobs import Jobs
from sidecar.backfilling.requests import Requests
from sidecar.model import Scope, Strain
from sidecar.poll import poll
from sidecar.polls import quarantine
from sidecar.runner import Runner
from tests.cases.filled import OLD, filled, log, now, project, versions
from tests.conftest import SQLiteFile


def test_a_chunk_gives_way_to_what_the_first_poll_has_delivered_since_it_was_read(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    filled(sqlite_db, 6)
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\n") as opened:
        runner = Runner(opened)
        jobs: Jobs = runner._jobs
        work = jobs.work(None)
        next(work)  # chunks 2 and 3 are being read, or have been
        deadline = opened.clock.monotonic() + 5
        assert jobs._copying is not None
        while not jobs._copying._chunks.full() and opened.clock.monotonic() < deadline:
            opened.clock.sleep(0.01)
        sqlite_db.connection.execute("UPDATE t SET v = 'second', updated_at = ? WHERE id = 3", (now(),))
        runner.catch_up(opened.tracked["t"])
        assert versions(opened, 3) == ["second"]
        list(work)
        jobs.close()
        assert versions(opened, 3) == ["second"]
        assert sorted(r["id"] for r in log(opened)) == [1, 2, 3, 4, 5, 6]


def test_a_source_under_strain_holds_no_run_up_that_has_nothing_to_backfill(
    sqlite_db: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(sqlite_db, 2)
    with project(sqlite_db, tmp_path, '[tables.t]\n[backfill]\nmax_replication_lag = "1s"\n') as opened:
        opened.poll()
        monkeypatch.setattr(SQLiteConnector, "strain", lambda self: Strain(replication_lag=60.0))
        sqlite_db.connection.execute("UPDATE t SET v = 'second', updated_at = ? WHERE id = 1", (now(),))
        monkeypatch.setattr("sidecar.backfilling.throttle.Throttle.wait", lambda *_: pytest.fail("waits"))
        opened.poll()
        assert opened.run(once=True) == 0
        assert versions(opened, 1) == ["first", "second"]


def test_a_large_table_is_looked_through_once_and_anew_after_a_failure(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n NUMERIC, updated_at TEXT NOT NULL)")
    s1.execute("INSERT INTO t VALUES (1, 1, ?)", (OLD,))
    with project(sqlite_db, tmp_path) as opened:
        tracked = opened.tracked["t"]
        first = opened.settled(tracked)
        assert opened.settled(tracked) is first, "its first chunk, and its first poll, need not look again"
        s1.execute("INSERT INTO t VALUES (2, 'x', ?)", (OLD,))
        assert opened.run(once=True) == 0 or opened.run(once=True) == 0
        assert sorted((r["id"], r["n"]) for r in log(opened)) == [(1, "1"), (2, "x")]


def test_the_first_rows_decide_the_types_of_a_table_that_was_empty_before(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, free, at DATETIME, updated_at TEXT NOT NULL)")
    with project(sqlite_db, tmp_path) as opened:
        opened.poll()
        s1.execute("INSERT INTO t VALUES (1, 1.5, 'soon', ?)", (OLD,))
        opened.poll()
        assert [(r["free"], r["at"]) for r in log(opened)] == [(1.5, "soon")]


def test_a_file_that_is_gone_in_mid_backfill_fails_its_table_and_not_the_loop(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    filled(sqlite_db, 6)
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\n") as opened:
        runner = Runner(opened)
        next(runner._jobs.work(None))
        runner._jobs.close()
        away = sqlite_db.path.with_name("away.db")
        sqlite_db.path.rename(away)
        assert runner.run(once=True, interval=0.0) != 0
        away.rename(sqlite_db.path)
        assert runner.run(once=True, interval=0.0) == 0
        assert sorted(r["id"] for r in log(opened)) == [1, 2, 3, 4, 5, 6]


def test_a_log_that_is_damaged_in_mid_backfill_fails_its_table_and_not_the_loop(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    filled(sqlite_db, 6)
    filled(sqlite_db, 2, "u")
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\n[tables.u]\n") as opened:
        runner = Runner(opened)
        opened.poll()
        sqlite_db.connection.execute("UPDATE t SET v = 'second', updated_at = ? WHERE id = 1", (now(),))
        opened.poll(["t"])
        opened.log("t").path(1).unlink()
        opened.request_backfill("t", purge=True)
        opened.request_backfill("u")
        assert runner.run(once=True, interval=0.0) != 0
        assert [r["id"] for r in log(opened, "u")] == [1, 2, 1, 2]


def test_a_request_that_cannot_be_read_fails_its_table_and_not_the_loop(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 2)
    filled(sqlite_db, 2, "u")
    with project(sqlite_db, tmp_path, "[tables.t]\n[tables.u]\n") as opened:
        opened.poll()
        opened.request_backfill("u")
        folder = tmp_path / "state" / "backfills" / "t"
        folder.mkdir(exist_ok=True)
        (folder / "0.json").write_text("{")
        assert opened.run(once=True) != 0
        assert [r["id"] for r in log(opened, "u")] == [1, 2, 1, 2]
        assert "not a readable request" in str({s.table: s.error for s in opened.status()}["t"])


def test_only_rows_that_are_read_again_are_set_aside_no_more(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    sqlite_db.connection.execute("CREATE TABLE q (id INTEGER PRIMARY KEY, n INTEGER, updated_at TEXT NOT NULL)")
    sqlite_db.connection.execute("INSERT INTO q VALUES (1, 'one', ?)", (OLD,))
    with project(sqlite_db, tmp_path, '[tables.q]\non_bad_value = "quarantine"\n') as opened:
        opened.poll()
        opened.request_backfill("q", quarantined=True)
        sqlite_db.connection.execute("UPDATE q SET n = 1 WHERE id = 1")
        sqlite_db.connection.execute("INSERT INTO q VALUES (2, 'two', ?)", (now(),))
        runner = Runner(opened)
        runner.catch_up(opened.tracked["q"])
        assert {s.table: s.quarantined for s in opened.status()} == {"q": 2}
        runner.run(once=True, interval=0.0)
        assert {s.table: s.quarantined for s in opened.status()} == {"q": 1}
        assert {(r["id"], r["n"]) for r in log(opened, "q")} == {(1, 1)}


def test_a_row_stays_set_aside_where_polls_meet_it_before_a_new_load_is_over(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, updated_at TEXT NOT NULL)")
    rows = [(1, 1, OLD), (2, "bad", OLD), (3, 3, OLD), (4, "bad", now()), (5, 5, now())]
    sqlite_db.connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    more = '[tables.t]\nchunk_size = 2\non_bad_value = "quarantine"\nlookback = "1h"\n'
    with project(sqlite_db, tmp_path, more) as opened:
        opened.poll()
        opened.reset_watermark("t")
        runner = Runner(opened)
        work = runner._jobs.work(None)
        next(work)
        runner.catch_up(opened.tracked["t"])
        list(work)
        runner._jobs.close()
        runner.catch_up(opened.tracked["t"])
        assert sorted(quarantine.keys(opened.log("t"), ["id"])) == [(2,), (4,)]
        assert sorted(r["id"] for r in log(opened)) == [1, 1, 3, 3, 5, 5]


def test_polls_of_a_consistent_table_have_their_turn_between_two_phases(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 6)
    more = '[tables.t]\nchunk_size = 1\nconsistent = true\n[backfill]\ncopy_phase = "1ms"\n'
    with project(sqlite_db, tmp_path, more) as opened:
        runner = Runner(opened)
        runner._round(3600.0)
        sqlite_db.connection.execute("INSERT INTO t VALUES (0, 'new', ?, ?)", (now(), now()))
        runner._round(3600.0)
        mark = opened.watermark("t")
        assert mark is not None
        assert mark.job is not None
        assert versions(opened, 0) == ["new"]
        assert runner.run(once=True, interval=0.0) == 0
        assert sorted(r["id"] for r in log(opened)) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("table", ["CREATE VIEW s AS SELECT * FROM t", "CREATE TABLE s AS SELECT * FROM t"])
def test_what_a_first_poll_has_read_does_not_come_again_for_a_version_that_was_there_from_the_start(
    sqlite_db: SQLiteFile, tmp_path: Path, table: str
) -> None:
    filled(sqlite_db, 3)
    sqlite_db.connection.execute(table)
    settings = '[tables.s]\nbackfill_version = "v1"\nprimary_key = ["id"]\n'
    with project(sqlite_db, tmp_path, settings) as opened:
        opened.run(once=True)
        opened.run(once=True)
        assert [r["id"] for r in log(opened, "s")] == [1, 2, 3]


def test_a_position_that_is_moved_by_hand_asks_for_no_version_again(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 3)
    with project(sqlite_db, tmp_path, '[tables.t]\nbackfill_version = "v1"\n') as opened:
        opened.run(once=True)
        opened.set_watermark("t", "2024-07-01T00:00:00Z")
        opened.run(once=True)
        assert [r["id"] for r in log(opened)] == [1, 2, 3]


def test_a_part_that_is_asked_for_after_a_reset_does_not_stand_for_the_whole(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    filled(sqlite_db, 3)
    with project(sqlite_db, tmp_path, "[tables.t]\nauto_backfill = false\n") as opened:
        opened.run(once=True)
        opened.reset_watermark("t")
        opened.request_backfill("t", keys=["2"])
        opened.run(once=True)
        assert sorted(r["id"] for r in log(opened)) == [1, 2, 2, 3]


def test_a_row_that_goes_back_to_what_it_was_before_a_backfill_comes_again(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    filled(sqlite_db, 2)
    stamp = now()
    with project(sqlite_db, tmp_path) as opened:
        opened.poll()
        sqlite_db.connection.execute("UPDATE t SET v = 'a', updated_at = ? WHERE id = 1", (stamp,))
        opened.poll()
        sqlite_db.connection.execute("UPDATE t SET v = 'b', updated_at = ? WHERE id = 1", (OLD,))
        opened.request_backfill("t", keys=["1"])
        opened.poll()
        sqlite_db.connection.execute("UPDATE t SET v = 'a', updated_at = ? WHERE id = 1", (stamp,))
        opened.poll()
        assert versions(opened, 1) == ["first", "a", "b", "a"]


def test_a_row_that_comes_back_as_it_was_before_a_purge_comes_again(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 2)
    stamp = now()
    with project(sqlite_db, tmp_path) as opened:
        sqlite_db.connection.execute("INSERT INTO t VALUES (3, 'a', ?, ?)", (stamp, stamp))
        opened.poll()
        sqlite_db.connection.execute("DELETE FROM t WHERE id = 3")
        opened.request_backfill("t", purge=True)
        opened.poll()
        sqlite_db.connection.execute("INSERT INTO t VALUES (3, 'a', ?, ?)", (stamp, stamp))
        opened.poll()
        assert [r["_change_type"] for r in log(opened) if r["id"] == 3] == ["insert", "delete", "insert"]


def test_each_refresh_by_the_same_parent_is_asked_for(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    sqlite_db.connection.execute("CREATE TABLE p (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")
    sqlite_db.connection.execute(
        "CREATE TABLE c (id INTEGER PRIMARY KEY, bill INTEGER, ship INTEGER, updated_at TEXT NOT NULL)"
    )
    sqlite_db.connection.executemany("INSERT INTO p VALUES (?, 'first', ?)", [(1, OLD), (2, OLD)])
    sqlite_db.connection.executemany("INSERT INTO c VALUES (?, ?, ?, ?)", [(10, 1, 2, OLD), (11, 2, 1, OLD)])
    refresh = '[[tables.c.refresh_on]]\ntable = "p"\non = {{ {} = "id" }}\n'
    more = "[tables.c]\n" + refresh.format("bill") + refresh.format("ship") + "[tables.p]\n"
    with project(sqlite_db, tmp_path, more) as opened:
        opened.run(once=True)
        sqlite_db.connection.execute("UPDATE p SET v = 'second', updated_at = ? WHERE id = 1", (now(),))
        opened.run(once=True)
        assert sorted(r["id"] for r in log(opened, "c")) == [10, 10, 11, 11]


@pytest.mark.parametrize("child", ["a", "z"])
def test_a_parent_that_never_stops_changing_does_not_keep_a_run_from_its_end(
    sqlite_db: SQLiteFile, tmp_path: Path, child: str
) -> None:
    # The parent is polled first in one case, last in the other.
    filled(sqlite_db, 2, "p")
    filled(sqlite_db, 2, child)
    more = f'[tables.{child}]\n[[tables.{child}.refresh_on]]\ntable = "p"\non = {{ id = "id" }}\n[tables.p]\n'
    with project(sqlite_db, tmp_path, more) as opened:
        opened.run(once=True)
        polls: list[str] = []

        def busy(step: Any) -> None:
            polls.append(step.table)
            assert len(polls) < 200, "no end"
            sqlite_db.connection.execute("UPDATE p SET updated_at = ? WHERE id = 1", (now(),))

        sqlite_db.connection.execute("UPDATE p SET updated_at = ? WHERE id = 1", (now(),))
        before = len(log(opened, child))
        assert opened.run(once=True, on_step=busy) == 0
        assert [r["id"] for r in log(opened, child)[before:]] == [1]


def test_status_shows_why_a_backfill_fails(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 2)
    with project(sqlite_db, tmp_path) as opened:
        opened.poll()
        Requests(tmp_path / opened.settings.state.path).ask("t", 1, scope=Scope(where="no_such_column = 1"))
        assert opened.run(once=True) != 0
        assert "no_such_column" in str(opened.status()[0].error)
        opened.cancel_backfill("t")
        assert opened.run(once=True) == 0
        assert opened.status()[0].error is None


def test_what_changes_after_a_first_poll_was_interrupted_is_no_row_that_was_there(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    recent = now()
    filled(sqlite_db, 3, at=recent)
    with project(sqlite_db, tmp_path, "[tables.t]\nauto_backfill = false\npage_size = 1\n") as opened:
        first = poll(opened.connector, opened.settled(opened.tracked["t"]), opened.log("t"), opened.store)
        next(first)
        first.close()
        sqlite_db.connection.execute("UPDATE t SET v = 'second', updated_at = ? WHERE id = 3", (now(),))
        opened.poll()
        assert [(r["id"], r["v"]) for r in log(opened)] == [(3, "second")]


def test_another_key_in_mid_backfill_is_said_and_stops_the_table(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 6)
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\n") as opened:
        next(Runner(opened)._jobs.work(None))
    with project(sqlite_db, tmp_path, '[tables.t]\nchunk_size = 2\nprimary_key = ["v", "id"]\n') as opened:
        assert opened.run(once=True) == 2
        assert "sidecar watermark reset t" in str(opened.status()[0].error)


def test_a_cancelled_backfill_stays_cancelled_however_many_others_are(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 6)
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\n") as opened:
        jobs = Runner(opened)._jobs
        next(jobs.work(None))
        jobs.close()
        for n in range(25):
            opened.request_backfill("t", keys=[str(n)])
        assert len(opened.cancel_backfill("t")) == 26
        opened.run(once=True)
        assert [r["id"] for r in log(opened)] == [1, 2, 6]  # the last one is the polls'


def test_a_consistent_copy_goes_on_where_the_folder_of_requests_is_lost(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    filled(sqlite_db, 6)
    with project(sqlite_db, tmp_path, "[tables.t]\nchunk_size = 2\nconsistent = true\n") as opened:
        jobs = Runner(opened)._jobs
        next(jobs.work(None))
        jobs.close()
        shutil.rmtree(tmp_path / "state" / "backfills")
        opened.run(once=True)
        assert sorted(r["id"] for r in log(opened)) == [1, 2, 3, 4, 5, 6]
