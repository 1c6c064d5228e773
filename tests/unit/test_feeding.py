"""The sinks' own thread: it takes what is asked for, in order, and says what it died of."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.clock import FakeClock
from sidecar.delivering.feeding import Feeding
from tests.unit import test_custom_connector as custom
from tests.unit import test_runner as runners
from tests.unit.test_custom_connector import Lists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

lists, registered, functions = custom.lists, custom.registered, runners.functions
pytestmark = pytest.mark.usefixtures("registered")


class Slow:
    """Takes a table when it is told to."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.feeding = Feeding()

    def ask(self, name: str) -> None:
        self.feeding.ask(name, functools.partial(self._take, name))

    def _take(self, name: str) -> None:
        self.begun.release()
        assert self.go_on.acquire(timeout=30)
        self.taken.append(name)


@pytest.fixture
def slow() -> Iterator[Slow]:
    found = Slow()
    yield found
    found.go_on.release(100)
    found.feeding.close()


def test_what_is_asked_for_twice_while_it_waits_is_done_once(slow: Slow) -> None:
    slow.ask("a")
    assert slow.begun.acquire(timeout=30)
    for name in ("b", "c", "b", "a", "b"):  # the a that is under way may not have seen what came now
        slow.ask(name)
    slow.go_on.release(4)
    slow.feeding.finish()
    assert slow.taken == ["a", "b", "c", "a"]


def test_what_was_not_begun_is_left_when_it_is_closed(slow: Slow) -> None:
    slow.ask("a")
    assert slow.begun.acquire(timeout=30)
    slow.ask("b")
    slow.go_on.release()
    slow.feeding.close()
    assert slow.taken == ["a"]


def test_what_it_dies_of_is_raised_where_somebody_waits_for_it() -> None:
    def die() -> None:
        raise LookupError("of this")

    feeding = Feeding()
    feeding.ask("a", die)
    with pytest.raises(LookupError, match="of this"):
        feeding.finish()
    with pytest.raises(LookupError, match="of this"):
        feeding.ask("b", die)
    with pytest.raises(LookupError, match="of this"):
        feeding.close()


WAITS = """
import threading
begun, go_on, taken = threading.Event(), threading.Event(), []

def take(frame, batch):
    begun.set()
    assert go_on.wait(60)
    taken.extend(row["id"] for row in frame.collect())
"""


def test_polls_go_on_while_a_sink_takes_its_time(
    spark: SparkSession, lists: Lists, tmp_path: Path, functions: Any, clock: FakeClock
) -> None:
    (tmp_path / "sinks_that_wait.py").write_text(WAITS)
    stop, source = threading.Event(), lists.table("a", rows=runners.rows(clock, 1))
    lengths: list[int] = []

    class Restless(FakeClock):
        def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
            import sinks_that_wait  # type: ignore[import-not-found]

            super().sleep(seconds, until)
            assert sinks_that_wait.begun.wait(60)
            lengths.append(opened.log("a").last())
            source.extend(runners.rows(self, len(source) + 1))
            if len(source) == 4:
                sinks_that_wait.go_on.set()
                stop.set()

    sink = '[tables.a]\n[sinks.slow]\nforeach = "sinks_that_wait:take"\n'
    with runners.project(tmp_path, Restless(clock.now()), sink) as opened:
        assert opened.run(spark, stop=stop) == 0
        assert lengths == [1, 2, 3]
        assert opened.run(spark, once=True) == 0
        assert opened.store.position("a", "slow").acknowledged == opened.log("a").last() == 4
    import sinks_that_wait

    assert sorted(sinks_that_wait.taken) == [1, 2, 3, 4]


def test_a_mirror_waits_for_no_sink_that_needs_spark(
    spark: SparkSession, lists: Lists, tmp_path: Path, functions: Any, clock: FakeClock
) -> None:
    (tmp_path / "sinks_before_a_mirror.py").write_text(WAITS)
    stop = threading.Event()
    lists.table("a", rows=runners.rows(clock, 1))

    class Patient(FakeClock):
        def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
            import sinks_before_a_mirror  # type: ignore[import-not-found]

            super().sleep(seconds, until)
            assert sinks_before_a_mirror.begun.wait(60)
            tries = (threading.Event().wait(0.1) for _ in range(100))
            assert any(opened.store.position("a", "lake").acknowledged for _ in tries)
            stop.set()
            sinks_before_a_mirror.go_on.set()

    sinks = '[sinks.a_slow]\nforeach = "sinks_before_a_mirror:take"\n'
    sinks += '[sinks.lake]\nformat = "delta"\nmode = "mirror"\npath = "lake"\n'
    with runners.project(tmp_path, Patient(clock.now()), "[tables.a]\n" + sinks) as opened:
        assert opened.run(spark, stop=stop) == 0


def test_whoever_interrupts_a_run_waits_for_no_batch_and_no_other_is_begun(
    spark: SparkSession, lists: Lists, tmp_path: Path, functions: Any, clock: FakeClock
) -> None:
    (tmp_path / "sinks_for_ever.py").write_text(WAITS)
    source = lists.table("a", rows=runners.rows(clock, 1))

    class Hasty(FakeClock):
        def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
            import sinks_for_ever  # type: ignore[import-not-found]

            super().sleep(seconds, until)
            assert sinks_for_ever.begun.wait(60)
            if len(source) == 2:
                raise KeyboardInterrupt
            source.extend(runners.rows(self, 2))

    sink = '[tables.a]\n[sinks.slow]\nforeach = "sinks_for_ever:take"\n'
    with runners.project(tmp_path, Hasty(clock.now()), sink) as opened:
        with pytest.raises(KeyboardInterrupt):
            opened.run(spark)
        import sinks_for_ever

        feeder = next(thread for thread in threading.enumerate() if thread.name == "sidecar-sinks")
        assert sinks_for_ever.taken == []
        sinks_for_ever.go_on.set()
        feeder.join(10)
        assert not feeder.is_alive()
        assert opened.store.position("a", "slow").acknowledged == 1
        assert opened.log("a").last() == 2
