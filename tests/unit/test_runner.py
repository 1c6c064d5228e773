"""The runner: one table or sink that fails does not hold the others, and a failed batch is given again as it was."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar import LogTruncated, SettingsError, Sidecar
from sidecar.clock import SECOND, FakeClock
from sidecar.delivering.delivery import Delivery
from sidecar.delivering.feeding import Lanes
from sidecar.mirrors.mirror import MirrorSink
from sidecar.poll import Step
from sidecar.polls.deliveries import NOTHING
from sidecar.runner import Runner
from sidecar.state import ConsumerPosition
from tests.unit import test_custom_connector as custom
from tests.unit.test_custom_connector import Lists, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lists, registered = custom.lists, custom.registered
pytestmark = pytest.mark.usefixtures("registered")

SETTINGS = """
[source]
url = "lists://here"
[state]
path = "state"
"""

FUNCTIONS = """
taken, failing = [], set()

def first(frame, batch):
    take("first", frame, batch)

def second(frame, batch):
    take("second", frame, batch)

def take(name, frame, batch):
    if name in failing:
        raise RuntimeError(f"{name} is away")
    ids = sorted(row["id"] for row in frame.collect())
    taken.append((name, batch.table, batch.first, batch.last, batch.replay, ids))
"""


def rows(clock: FakeClock, *ids: int) -> list[Row]:
    return [{"id": n, "created_at": clock.now(), "updated_at": clock.now(), "deleted_at": None} for n in ids]


def project(folder: Path, clock: FakeClock, more: str) -> Sidecar:
    (folder / "sidecar.toml").write_text(SETTINGS + more)
    return sidecar.open(folder / "sidecar.toml", clock=clock)


@pytest.fixture
def functions(tmp_path: Path) -> Iterator[Any]:
    """A module of sinks beside the settings."""
    before = list(sys.path)
    (tmp_path / "sinks_of_a_user.py").write_text(FUNCTIONS)
    sys.path.insert(0, str(tmp_path))
    import importlib

    importlib.invalidate_caches()
    yield importlib.import_module("sinks_of_a_user")
    sys.path[:] = before
    sys.modules.pop("sinks_of_a_user", None)


SINKS = """
[tables.a]
[tables.b]
[sinks.first]
foreach = "sinks_of_a_user:first"
[sinks.second]
foreach = "sinks_of_a_user:second"
"""


def test_a_sink_that_fails_holds_no_other_and_gets_the_same_batch_again(
    spark: SparkSession, lists: Lists, clock: FakeClock, tmp_path: Path, functions: Any
) -> None:
    a, b = lists.table("a", rows=rows(clock, 1)), lists.table("b", rows=rows(clock, 2))
    functions.failing.add("first")
    with project(tmp_path, clock, SINKS) as opened:
        assert opened.run(spark, once=True) == 6
        assert functions.taken == [("second", "a", 1, 1, False, [1]), ("second", "b", 1, 1, False, [2])]
        assert opened.store.position("a", "first") == ConsumerPosition(0, 1)
        errors = {s.table: s.error or "" for s in opened.status()}
        place = "sinks_of_a_user.py, line 12, in take"
        assert f'sink "first", table "a", offsets 1 to 1: {place}: RuntimeError: first is away' in errors["a"]
        assert 'table "b"' in errors["b"]
    functions.taken.clear()
    functions.failing.clear()
    a += rows(clock, 3)
    del b[:]
    with project(tmp_path, clock, SINKS) as opened:
        assert opened.run(spark, once=True) == 0
        # The batch that failed comes again with the same bounds, what has come since in one of its own.
        assert functions.taken == [
            ("first", "a", 1, 1, True, [1]),
            ("first", "a", 2, 2, False, [3]),
            ("second", "a", 2, 2, False, [3]),
            ("first", "b", 1, 1, True, [2]),
        ]
        assert {s.table: s.error for s in opened.status()} == {"a": None, "b": None}
        assert {s.table: s.positions for s in opened.status()}["a"] == {"first": 2, "second": 2}
        functions.taken.clear()
        assert opened.run(spark, once=True) == 0
        assert functions.taken == []


def test_a_failure_that_stays_the_same_is_said_once_a_minute(
    lists: Lists,
    clock: FakeClock,
    tmp_path: Path,
    functions: Any,
    spark: SparkSession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lists.table("a", rows=rows(clock, 1))
    lists.table("b")
    functions.failing.add("first")
    with project(tmp_path, clock, SINKS) as sc:
        sc.poll()
        delivery, said = Delivery(sc, spark, threading.Event()), list[int]()
        for seconds in (0, 5, 50, 10, 5):
            clock.advance(seconds)
            delivery.deliver(sc.tracked["a"], delivery.sinks)
            said.append(caplog.text.count("first is away"))
        assert said == [1, 1, 1, 2, 2]
        assert "first is away" in {s.table: s.error or "" for s in sc.status()}["a"]


def test_the_feed_begins_with_the_oldest_change_that_is_there(
    lists: Lists, clock: FakeClock, tmp_path: Path, spark: SparkSession
) -> None:
    table = lists.table("a", rows=rows(clock, 1))
    with project(tmp_path, clock, "[tables.a]\n") as sc:
        for _ in range(3):
            sc.poll()
            clock.advance(3600)
            table.extend(rows(clock, len(table) + 1))
        log, mark = sc.log("a"), sc.watermark("a")
        assert mark is not None
        log.drop(1, mark, NOTHING)
        assert sorted(r["id"] for r in sc.dataframe(spark, "a").collect()) == [2, 3]
        with pytest.raises(LogTruncated):
            sc.dataframe(spark, "a", since=0)
        for wrong in (-1, "1", 1.0, True):
            with pytest.raises(SettingsError, match="an offset is a whole number from 0 on"):
                sc.dataframe(spark, "a", since=wrong)  # type: ignore[arg-type]


def test_a_log_of_many_segments_is_delivered_in_batches_that_are_bounded(
    lists: Lists, clock: FakeClock, tmp_path: Path, functions: Any, spark: SparkSession
) -> None:
    lists.table("a", rows=rows(clock, 1, 2, 3, 4, 5))
    lists.table("b", rows=rows(clock, 6))
    with project(tmp_path, clock, SINKS.replace("[tables.a]", "[tables.a]\npage_size = 2")) as sc:
        sc.poll()
        stop = threading.Event()
        delivery = Delivery(sc, spark, stop, batch_bytes=1)
        functions.failing.add("second")
        delivery.deliver(sc.tracked["a"], delivery.sinks)
        assert functions.taken == [("first", "a", n, n, False, ids) for n, ids in ((1, [1, 2]), (2, [3, 4]), (3, [5]))]
        assert list(delivery.failures) == [("a", "second")]
        functions.taken.clear()
        functions.failing.clear()
        # What was begun is given again as it was, whatever a batch may hold by now.
        again = Delivery(sc, spark, stop)
        again.deliver(sc.tracked["a"], again.sinks)
        assert functions.taken == [("second", "a", 1, 1, True, [1, 2]), ("second", "a", 2, 3, False, [3, 4, 5])]
        assert sc.store.position("a", "second") == ConsumerPosition(3)


def test_a_table_that_fails_holds_no_other(lists: Lists, clock: FakeClock, tmp_path: Path) -> None:
    lists.table("a", rows=[{"id": 1, "updated_at": clock.now()}])
    lists.table("b", rows=rows(clock, 1))
    a = lists.rows["a"]
    a[0]["id"] = None
    with project(tmp_path, clock, "[tables.a]\n[tables.b]\n") as opened:
        assert opened.run(once=True) == 2
        assert {s.table: s.error for s in opened.status()}["b"] is None
        assert [r["id"] for r in opened.log("b").rows()] == [1]
        a[0]["id"] = 1
        assert opened.run(once=True) == 0
        assert [r["id"] for r in opened.log("a").rows()] == [1]


def test_a_poll_raises_the_first_failure_after_all_have_had_their_turn(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("a", rows=rows(clock, 1))
    lists.rows["a"][0]["id"] = None
    lists.table("b", rows=rows(clock, 1))
    with project(tmp_path, clock, "[tables.a]\n[tables.b]\n") as opened:
        with pytest.raises(SettingsError, match='table "a": key column "id" holds a NULL'):
            opened.poll()
        assert opened.log("b").last() == 1
        assert opened.poll(["b"])["b"].rows == 0
        with pytest.raises(SettingsError, match='table "c" is not followed; followed are: a, b'):
            opened.poll(["c"])


def test_without_anything_new_no_spark_is_started(lists: Lists, clock: FakeClock, tmp_path: Path) -> None:
    lists.table("a")
    lists.table("b")
    with project(tmp_path, clock, SINKS) as opened:
        runner = Runner(opened)
        assert runner.run(once=True, interval=5) == 0
        assert runner.spark is None


def test_a_runner_that_is_told_to_stop_ends_after_its_page_and_goes_on_from_there(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("a", rows=rows(clock, *range(10)))
    stop, seen = threading.Event(), list[int]()

    def after(step: Any) -> None:
        seen.append(step.rows_written)
        if len(seen) == 2:
            stop.set()

    with project(tmp_path, clock, "[tables.a]\npage_size = 2\n") as opened:
        assert opened.run(once=False, stop=stop, on_step=after) == 0
        assert seen == [2, 2]
        assert [s.backfill is not None for s in opened.status()] == [True]
    with project(tmp_path, clock, "[tables.a]\npage_size = 2\n") as opened:
        opened.poll()
        assert [r["id"] for r in opened.log("a").rows()] == list(range(10))
        assert [s.backfill is not None for s in opened.status()] == [False]


def test_the_loop_rests_for_its_interval_and_finds_what_has_come(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    table = lists.table("a", rows=rows(clock, 1))
    stop, began = threading.Event(), clock.now()

    class Restless(FakeClock):
        def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
            super().sleep(seconds, until)
            table.extend(rows(self, len(table) + 1))
            if len(table) == 4:
                stop.set()

    own = Restless(began)
    with project(tmp_path, own, "[tables.a]\n") as opened:
        assert opened.run(interval=5, stop=stop) == 0
        assert own.now() == began + 15 * SECOND
        assert [r["id"] for r in opened.log("a").rows()] == [1, 2, 3]


def test_retention_is_kept_and_a_sink_that_lags_is_waited_for(
    spark: SparkSession, lists: Lists, clock: FakeClock, tmp_path: Path, functions: Any
) -> None:
    table = lists.table("a", rows=rows(clock, 1))
    lists.table("b")
    more = SINKS.replace("[tables.a]", 'retention = "1h"\nbases = false\n[tables.a]')
    functions.failing.add("first")
    with project(tmp_path, clock, more) as opened:
        for n in range(2, 5):
            opened.run(spark, once=True)
            clock.advance(7200)
            table += rows(clock, n)
        assert opened.log("a").floor() == 0
        functions.failing.clear()
        assert opened.run(spark, once=True) == 0
        assert opened.log("a").floor() == 3
        assert [r["id"] for r in opened.log("a").rows(3)] == [4]


def test_a_round_is_one_log_line_a_table(
    lists: Lists, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = lists.table("a", rows=rows(clock, 1, 2))
    with project(tmp_path, clock, "[tables.a]\n") as opened, caplog.at_level(logging.INFO, "sidecar"):
        opened.run(once=True)
        table.extend(rows(clock, 3))
        clock.advance(1.8)
        opened.run(once=True)
        opened.run(once=True)
    assert [m for m in caplog.messages if m.startswith("table=a rows")] == [
        "table=a rows=2 offset=1 backfill=done ms=0",
        "table=a rows=1 offset=2 lag_s=1.8 ms=0",
    ]


def test_while_existing_rows_are_read_a_sink_gets_batches_that_are_full(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("a", rows=rows(clock, 1, 2, 3, 4, 5))
    mirror = '[tables.a]\npage_size = 2\n[sinks.copy]\nformat = "delta"\nmode = "mirror"\npath = "mirror"\n'
    with project(tmp_path, clock, mirror) as sc:
        sc.poll()
        a, one = sc.tracked["a"], sc.log("a").path(1).stat().st_size
        delivery = Delivery(sc, None, threading.Event(), batch_bytes=one + 1)
        lanes = Lanes()
        with contextlib.closing(lanes):
            delivery.ask_for_full(a, lanes)
            lanes.finish()
            assert sc.store.position("a", "copy").acknowledged == 2, "the third segment waits for a fourth"
            delivery.ask(a, lanes)
            lanes.finish()
            assert sc.store.position("a", "copy").acknowledged == 3


def test_a_mirror_s_batch_is_no_larger_than_what_it_can_hold_in_memory(
    lists: Lists, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lists.table("a", rows=rows(clock, 1, 2, 3))
    mirror = '[tables.a]\npage_size = 1\n[sinks.copy]\nformat = "delta"\nmode = "mirror"\npath = "mirror"\n'
    with project(tmp_path, clock, mirror) as sc:
        sc.poll()
        delivery = Delivery(sc, None, threading.Event())
        (sink,) = delivery.sinks
        assert isinstance(sink, MirrorSink)
        assert sink.batch_bytes == 32 << 20
        delivery.deliver(sc.tracked["a"], [dataclasses.replace(sink, batch_bytes=1)])
        assert [f"offsets={n}-{n} " in caplog.text for n in (1, 2, 3)] == [True] * 3


def test_spark_starts_while_existing_rows_are_read_and_what_keeps_it_from_that_is_said_by_the_first_batch(
    lists: Lists, clock: FakeClock, tmp_path: Path, functions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del functions
    lists.table("a", rows=rows(clock, *range(40)))
    more = '[tables.a]\nchunk_size = 2\n[sinks.one]\nforeach = "sinks_of_a_user:first"\n'
    more += more.partition("[sinks.one]")[2].join(("[sinks.two]", ""))
    asked, chunks = threading.Event(), []

    def session(**_: object) -> SparkSession:
        asked.set()
        raise RuntimeError("no Java here")

    monkeypatch.setattr("sidecar.lake.spark.session", session)
    with project(tmp_path, clock, more) as sc:

        def on_step(step: Step) -> None:
            # The thread that starts it needs a moment.
            chunks.append(step.done or asked.wait(5))

        code = sc.run(once=True, on_step=on_step)
        assert code == 6
        assert len(chunks) >= 20
        assert chunks[0]
        one, two = sc.store.notes()["a"].splitlines()
        assert ('sink "one"' in one, 'sink "two"' in two) == (True, True)
        assert "no Java here" in one
