"""A base before retention drops what is in it: when it is written, when it is tried again, and what goes for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import StateDamaged
from sidecar.lake import compaction
from sidecar.log import bases, recovery
from sidecar.model import INSERT, UPDATE
from sidecar.state import MemoryWatermarkStore
from tests.conftest import SQLiteFile
from tests.unit.told_logs import append, no_source, read, truncated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def at_once(name: str, work: Callable[[], None]) -> None:
    del name
    work()


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path / "log", "t")


@pytest.fixture
def any_byte_is_worth_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FIRST_BYTES", 0)


def kept(log: ChangeLog) -> MemoryWatermarkStore:
    store = MemoryWatermarkStore()
    recovery.recover(log, store)
    return store


def test_retention_goes_no_further_than_a_base(
    spark: SparkSession, log: ChangeLog, any_byte_is_worth_a_base: None
) -> None:
    for id_ in range(5):
        append(log, (INSERT, id_, 0))
    store, retained = kept(log), compaction.Compaction(lambda: spark, lambda table: no_source(), at_once, FakeClock())
    assert retained.retain(log, store, [], before=31) == 3
    assert (log.floor(), bases.offsets(log)) == (3, [3])
    assert [len(read(spark, log, at)) for at in (3, 4, 5)] == [3, 4, 5]
    assert retained.retain(log, store, [], before=31) == 0


def test_a_base_is_written_anew_only_once_there_is_as_much_to_drop(
    spark: SparkSession, log: ChangeLog, any_byte_is_worth_a_base: None
) -> None:
    append(log, *((INSERT, n, hash(str(n))) for n in range(5000)))
    store = kept(log)
    retained = compaction.Compaction(lambda: spark, lambda table: no_source(), at_once, FakeClock())
    append(log, (UPDATE, 1, 1))
    recovery.recover(log, store)
    assert retained.retain(log, store, [], before=10**9) == 1
    for _ in range(3):
        append(log, (UPDATE, 1, 2))
    recovery.recover(log, store)
    assert retained.retain(log, store, [], before=10**9) == 0
    append(log, *((UPDATE, n, hash(str(n))) for n in range(4000)))
    append(log, (UPDATE, 1, 3))
    recovery.recover(log, store)
    assert retained.retain(log, store, [], before=10**9) == 5
    assert (log.floor(), bases.offsets(log)) == (6, [6])
    assert len(read(spark, log)) == 5000


def test_below_some_megabytes_no_base_is_written_and_nothing_is_dropped(log: ChangeLog) -> None:
    for id_ in range(5):
        append(log, (INSERT, id_, 0))

    def no_spark() -> Any:
        raise AssertionError("Spark was started")

    retained = compaction.Compaction(no_spark, lambda table: no_source(), at_once, FakeClock())
    assert retained.retain(log, kept(log), [], before=10**9) == 0
    assert log.floor() == 0


def test_a_log_that_no_base_can_be_made_of_is_shortened_all_the_same(
    spark: SparkSession, log: ChangeLog, any_byte_is_worth_a_base: None
) -> None:
    for id_ in range(5):
        append(log, (INSERT, id_, 0))
    truncated(log, 2)
    retained = compaction.Compaction(lambda: spark, lambda table: no_source(), at_once, FakeClock())
    assert retained.retain(log, kept(log), [], before=10**9) == 2
    assert (log.floor(), bases.offsets(log)) == (4, [])


def test_a_base_that_fails_is_tried_again_later_and_later_until_it_can_be_written(
    log: ChangeLog, clock: FakeClock, any_byte_is_worth_a_base: None
) -> None:
    for id_ in range(5):
        append(log, (INSERT, id_, 0))
    tried: list[float] = []

    def session() -> SparkSession:
        tried.append(clock.monotonic())
        return cast("SparkSession", None)

    (log.folder / "_bases").write_text("in the way")
    store, retained = kept(log), compaction.Compaction(session, lambda table: no_source(), at_once, clock)
    for _ in range(40):
        failed = len(tried)
        try:
            retained.retain(log, store, [], before=10**9)
        except StateDamaged:
            assert len(tried) == failed + 1, "each failure is said once"
        assert retained.failures.keys() == {"t"}
        clock.advance(10)
    assert tried == [0, 60, 180]


def test_a_base_that_fails_shows_in_the_exit_code(
    sqlite_db: SQLiteFile, tmp_path: Path, any_byte_is_worth_a_base: None
) -> None:
    stamp = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    path = tmp_path / "sidecar.toml"
    path.write_text(f'[source]\nurl = "{sqlite_db.url}"\n[state]\nretention = "1us"\n[tables.t]\nlookback = "1us"\n')
    for _ in range(3):
        sqlite_db.connection.execute(f"INSERT INTO t (updated_at) VALUES ({stamp})")
        with sidecar.open(path) as sc:
            sc.poll()
            bases_are_at = sc.log("t").folder / "_bases"
    bases_are_at.write_text("in the way")
    # One is to be written only once the sink, too, has everything, which is the end of the run.
    path.write_text(path.read_text() + '[sinks.lake]\nformat = "delta"\nmode = "mirror"\npath = "lake"\n')
    with sidecar.open(path) as sc:
        # Spark is not come to: the base fails before.
        assert sc.run(cast("SparkSession", object()), once=True) == 5
        assert sc.status()[0].error is not None
