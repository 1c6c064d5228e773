"""How fast a backfill may go: time is the test's, and the source says how it is."""

from __future__ import annotations

import logging
import threading

import pytest

from sidecar.backfilling.throttle import Throttle
from sidecar.clock import SECOND, FakeClock
from sidecar.config import BackfillSettings
from sidecar.model import Strain

STOP = threading.Event()


def throttle(clock: FakeClock, **settings: int) -> Throttle:
    return Throttle(BackfillSettings.model_construct(**settings), clock)  # type: ignore[arg-type]


def test_rows_come_no_faster_than_they_may(clock: FakeClock) -> None:
    found = throttle(clock, max_rows_per_second=100)
    assert not found.is_ahead
    ahead = []
    for _ in range(10):
        found.wrote(50)
        ahead.append(found.is_ahead)
        found.wait(None, STOP)
        ahead.append(found.is_ahead)
    assert ahead == [True, False] * 10
    assert clock.monotonic() == pytest.approx(5)


def test_time_in_which_nothing_came_is_not_made_up_for(clock: FakeClock) -> None:
    found = throttle(clock, max_rows_per_second=100)
    clock.advance(1000)
    found.wrote(100)
    found.wrote(100)
    found.wait(None, STOP)
    assert clock.monotonic() == pytest.approx(1002)


def test_a_wait_ends_where_polls_have_their_turn(clock: FakeClock) -> None:
    found = throttle(clock, max_rows_per_second=1)
    found.wrote(1000)
    found.wait(clock.monotonic() + 3, STOP)
    assert clock.monotonic() == pytest.approx(3)
    assert found.is_ahead


def test_without_a_limit_nothing_waits_except_for_others_that_wait_for_a_copy(clock: FakeClock) -> None:
    found = throttle(clock)
    found.wrote(10**9)
    assert not found.is_ahead
    for strain, pauses in ((Strain(99, 99, 1.5), False), (Strain(held_up=2.5), True), (Strain(), False)):
        assert found.pauses(lambda strain=strain: strain) == pauses  # type: ignore[misc]
        clock.advance(1)


@pytest.mark.parametrize(
    ("setting", "over", "fine"),
    [
        ("max_replication_lag", Strain(replication_lag=11), Strain(replication_lag=10, lock_wait=99)),
        ("max_lock_wait", Strain(lock_wait=10.5), Strain(replication_lag=99)),
    ],
)
def test_a_source_under_strain_is_left_alone_until_it_is_well(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, setting: str, over: Strain, fine: Strain
) -> None:
    found, answers = throttle(clock, **{setting: 10 * SECOND}), [over, over, fine]
    asked: list[float] = []

    def ask() -> Strain:
        asked.append(clock.monotonic())
        return answers[min(len(asked), 3) - 1]

    with caplog.at_level(logging.INFO, "sidecar"):
        while found.pauses(ask):
            found.wait(None, STOP)
    assert asked == [0, 1, 2], "once a second"
    said = [r.message for r in caplog.records]
    assert len(said) == 2
    assert "max_" in said[0]
    assert said[1] == "backfills go on"


def test_what_a_source_does_not_tell_stops_nothing(clock: FakeClock) -> None:
    found = throttle(clock, max_replication_lag=1, max_lock_wait=1)
    assert not found.pauses(Strain)
