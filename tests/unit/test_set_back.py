"""A source's clock that is set back in the middle of something else: nothing that is stamped since is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.poll import poll
from sidecar.state import MemoryWatermarkStore
from tests.unit import test_custom_connector as custom
from tests.unit.test_custom_connector import Lists, Row, drain, followed, opened

lists = custom.lists
HOUR = 3600.0


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path / "log", "t")


@pytest.fixture
def store() -> MemoryWatermarkStore:
    return MemoryWatermarkStore()


def at(clock: FakeClock, *ids: int) -> list[Row]:
    return [
        {"id": n, "created_at": clock.now(), "updated_at": clock.now(), "deleted_at": None, "version": n} for n in ids
    ]


def test_a_server_that_takes_over_with_a_clock_behind_the_old_one_loses_nothing_of_what_it_stamps(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows = lists.table("t")
    lists.floor, lists.era = lambda: 0, "old"
    connector = opened(clock)
    tracked = followed(connector, "t")
    for number in range(3):
        rows += at(clock, number)
        assert len(drain(connector, tracked, log, store)) == 1
        clock.advance(60)
    lists.era = "new"
    clock.advance(-HOUR)
    for number in range(3, 6):
        rows += at(clock, number)
        assert [row["id"] for row in drain(connector, tracked, log, store)] == [number]
        clock.advance(30)


def test_a_clock_that_is_set_back_while_a_poll_stands_interrupted_loses_nothing_that_it_stamps(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows = lists.table("t", rows=at(clock, 1))
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=1)
    assert len(drain(connector, tracked, log, store)) == 1
    clock.advance(HOUR)
    rows += at(clock, 2, 3, 4)
    steps = poll(connector, tracked, log, store)
    next(steps)
    steps.close()
    clock.advance(60 - HOUR)
    for number in range(5, 8):
        rows += at(clock, number)
        drain(connector, tracked, log, store)
        clock.advance(30)
    assert sorted(int(str(row["id"])) for row in log.rows()) == [1, 2, 3, 4, 5, 6, 7]
