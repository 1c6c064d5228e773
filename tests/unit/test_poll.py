"""The poll, one property at a time: durable steps, order, failovers, interruptions, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, FakeClock
from sidecar.connector import Source
from sidecar.errors import SchemaChanged, SettingsError, SourceUnavailable
from sidecar.log import recovery
from sidecar.model import Column, Horizon, Memory, Page, Tracked
from sidecar.poll import poll, rest
from sidecar.polls import deliveries
from sidecar.polls.changes import check_schema
from sidecar.state import MemoryWatermarkStore, WatermarkStore
from tests.unit import test_custom_connector as custom
from tests.unit.test_custom_connector import STAMPS, ListConnector, Lists, Row, drain, followed, opened
from tests.unit.test_poll_machine import Killed, MortalStore

lists = custom.lists


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path / "log", "t")


@pytest.fixture
def store() -> MemoryWatermarkStore:
    return MemoryWatermarkStore()


def at(clock: FakeClock, *ids: int) -> list[Row]:
    return [{"id": n, "created_at": clock.now(), "updated_at": clock.now(), "deleted_at": None} for n in ids]


def test_each_step_is_durable_and_says_what_it_did(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    lists.table("t", rows=at(clock, 1, 2, 3))
    connector = opened(clock)
    steps = []
    for step in poll(connector, followed(connector, "t", page_size=2), log, store):
        steps.append((step.rows_read, step.rows_written, step.offset, step.done))
        mark = store.watermark("t")
        assert mark is not None
        assert mark.offset == log.last()
    written = [s for s in steps if s[2] is not None]
    assert [s[:3] for s in written] == [(2, 2, 1), (1, 1, 2)]
    assert [s[3] for s in steps] == [False] * (len(steps) - 1) + [True]


def test_passes_without_rows_share_the_write_of_the_one_before(lists: Lists, clock: FakeClock, log: ChangeLog) -> None:
    class Counting(MemoryWatermarkStore):
        saves = 0

        def save(self, *arguments: Any, **named: Any) -> None:
            self.saves += 1
            super().save(*arguments, **named)

    rows_, store = lists.table("t", rows=at(clock, 1)), Counting()
    connector = opened(clock)
    drain(connector, followed(connector, "t"), log, store)
    clock.advance(3600)
    rows_ += at(clock, 2)
    store.saves = 0
    (step,) = poll(connector, followed(connector, "t"), log, store)
    assert (step.rows_written, step.done) == (1, True)
    assert store.saves == 1
    found = log.metadata(log.last())
    assert found is not None
    assert found.watermark == store.watermark("t")


@pytest.mark.parametrize("error", [SourceUnavailable("out of reach"), KeyError("of a connector of one's own")])
def test_a_pass_that_cannot_be_read_takes_nothing_from_the_one_before(
    lists: Lists,
    clock: FakeClock,
    log: ChangeLog,
    store: MemoryWatermarkStore,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    rows_, connector = lists.table("t", rows=at(clock, 1, 2)), opened(clock)
    tracked = followed(connector, "t")
    drain(connector, tracked, log, store)
    clock.advance(3600)
    drain(connector, tracked, log, store)
    rows_[0] |= {"deleted_at": clock.now()}
    rows_ += at(clock, 3)
    read, asked = connector.read, []

    def broken(page: Page) -> pa.Table:
        asked.append(page.scan.name)
        # The first time, for the greatest value that there is.
        if asked.count("deleted") > 1:
            raise error
        return read(page)

    with monkeypatch.context() as patched:
        patched.setattr(connector, "read", broken)
        steps = poll(connector, tracked, log, store)
        assert next(steps).rows_written == 1
        with pytest.raises(type(error)):
            next(steps)
    assert [r["id"] for r in log.rows(1)] == [3]
    assert [(r["id"], r["_change_type"]) for r in drain(connector, tracked, log, store)] == [(1, "delete")]


def test_a_poll_that_stood_still_for_a_day_closes_what_it_could_when_it_began(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=at(clock, 1, 2, 3))
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=1)
    steps = poll(connector, tracked, log, store)
    next(steps)
    steps.close()
    first = store.watermark("t")
    assert first is not None
    assert first.progress is not None
    began = first.progress
    clock.advance(86_400)
    rows_ += at(clock, 9)
    steps = poll(connector, tracked, log, store)
    for _ in steps:
        mark = store.watermark("t")
        assert mark is not None
        if mark.progress is None:
            break
        assert mark.progress.horizon == began.horizon
        assert mark.progress.closing["updated"].closed == began.closing["updated"].closed
    assert mark is not None
    assert mark.closed()["updated"] == began.closing["updated"].closed
    assert mark.polled == began.horizon.now
    steps.close()


@pytest.mark.parametrize("crash", [None, "in mid-poll", "between segment and state"])
def test_after_a_failover_nothing_is_lost_nothing_repeated_and_the_restore_is_named(
    lists: Lists, clock: FakeClock, log: ChangeLog, caplog: pytest.LogCaptureFixture, crash: str | None
) -> None:
    store, last = MortalStore(), {"number": 100}

    def numbered(*found: Row) -> list[Row]:
        for row in found:
            last["number"] += 1
            row["version"] = last["number"]
        return list(found)

    rows_ = lists.table("t", rows=numbered(*at(clock, 1, 2, 3)))
    lists.floor, lists.era = lambda: last["number"] - 1, "old"
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=1)
    assert len(drain(connector, tracked, log, store)) == 3
    clock.advance(1)
    # The new server has the same rows under numbers of its own, below and among the old ones.
    lists.era = "new"
    for row, number in zip(rows_, (5, 6, 101), strict=True):
        row["version"] = number
    rows_[2] |= {"updated_at": clock.now(), "version": 103}  # the very number under which key 3 was delivered
    rows_ += [row | {"version": 7} for row in at(clock, 4)]
    last["number"] = 103
    before = log.last()
    if crash == "in mid-poll":
        steps = poll(connector, tracked, log, store)
        next(steps)
        next(steps)
        steps.close()
    elif crash is not None:
        store.doomed = True
        with pytest.raises(Killed):
            drain(connector, tracked, log, store)
        store.doomed = False
        recovery.recover(log, store)
    drain(connector, tracked, log, store)
    assert sorted(int(str(r["id"])) for r in log.rows(before)) == [3, 4]
    assert 'table "t": the server was restored or failed over' in caplog.text
    assert drain(connector, tracked, log, store) == []
    mark = store.watermark("t")
    assert mark is not None
    assert (mark.era, mark.doubt) == ("new", None)


def test_a_number_of_before_a_failover_is_never_taken_for_one_of_after(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=[row | {"version": 100 + int(str(row["id"]))} for row in at(clock, 1, 2, 3)])
    floor = {"is": 102}
    lists.floor, lists.era = lambda: floor["is"], "old"
    connector = opened(clock)
    tracked = followed(connector, "t")
    assert len(drain(connector, tracked, log, store)) == 3
    # All as it was, under other numbers; the first two are recent there and remembered, the third is not.
    lists.era, floor["is"] = "new", 6
    for row, number in zip(rows_, (6, 7, 5), strict=True):
        row["version"] = number
    assert drain(connector, tracked, log, store) == []
    clock.advance(1)
    rows_[2] |= {"updated_at": clock.now(), "version": 103}  # as key 3 was delivered by the old server
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [3]


def test_what_a_failover_left_as_it_was_is_known_to_the_log_alone(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=[row | {"version": 100 + int(str(row["id"]))} for row in at(clock, 1, 2, 3)])
    lists.floor, lists.era = lambda: 6, "old"
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=2)
    assert len(drain(connector, tracked, log, store)) == 3
    lists.era = "new"
    for row, number in zip(rows_, (6, 7, 8), strict=True):
        row["version"] = number
    assert drain(connector, tracked, log, store) == []
    rows_ += [row | {"version": 9} for row in at(clock, 4)]
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [4]
    store = MemoryWatermarkStore()
    recovery.recover(log, store)
    assert drain(connector, tracked, log, store) == []


def test_a_restore_in_the_middle_of_a_first_poll_is_noticed_by_what_that_poll_has_seen(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    following = {"is": 200}

    class Counting(ListConnector):
        """Knows of a restore only by numbers that have gone back."""

        def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
            known: Any = memory or {"next": 0, "restores": 0}
            restores = known["restores"] + (known["next"] > following["is"])
            kept = {"next": following["is"], "restores": restores}
            return dataclasses.replace(super().horizon(tracked, memory), memory=kept, era=f"#{restores}")

    rows_ = lists.table("t", rows=[row | {"version": 100 + int(str(row["id"]))} for row in at(clock, 1, 2, 3)])
    lists.floor = lambda: 0
    connector = Counting(Source("lists://here", clock=clock))
    tracked = followed(connector, "t", page_size=1)
    steps = poll(connector, tracked, log, store)
    next(steps)
    steps.close()
    following["is"] = 50
    for row, number in zip(rows_, (11, 12, 13), strict=True):
        row["version"] = number
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [2, 3]
    assert drain(connector, tracked, log, store) == []


def test_a_row_that_returns_to_an_earlier_content_is_delivered_again(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    far = clock.now() + 10**15
    rows_ = lists.table("t", rows=[{"id": 1, "updated_at": far}, *at(clock, 2)])
    connector = opened(clock)
    tracked = followed(connector, "t")
    assert len(drain(connector, tracked, log, store)) == 2
    rows_[0]["updated_at"] = clock.now()
    clock.advance(3600)
    rows_ += at(clock, 3)
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [1, 3]
    rows_[0]["updated_at"] = far
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [1]


def test_a_soft_delete_that_both_passes_see_is_one_change(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=at(clock, 1, 2, 3))
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=2)
    for _ in range(2):
        drain(connector, tracked, log, store)
        clock.advance(3600)
    rows_[0] |= {"updated_at": clock.now(), "deleted_at": clock.now()}
    rows_[1] |= {"deleted_at": clock.now()}
    found = drain(connector, tracked, log, store)
    assert [(r["id"], r["_change_type"], r["_origin"]) for r in found] == [
        (1, "delete", "poll"),
        (2, "delete", "soft_delete"),
    ]
    for _ in range(3):
        clock.advance(61)
        assert drain(connector, tracked, log, store) == []


def test_a_position_made_under_other_columns_is_refused(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    lists.table("t", rows=at(clock, 1))
    connector = opened(clock)
    drain(connector, followed(connector, "t"), log, store)
    for changed in ({"updated_at": "created_at"}, {"deleted_at": None}, {"key": ("id", "created_at")}):
        with pytest.raises(SettingsError, match=r'table "t": its position was made under .*watermark reset t'):
            drain(connector, followed(connector, "t", **changed), log, store)
    drain(connector, followed(connector, "t", lookback=1, page_size=7), log, store)


def test_a_column_of_another_type_is_for_somebody_to_decide(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    lists.table("t", (*STAMPS, Column("v", "", pa.int64())), at(clock, 1))
    connector = opened(clock)
    tracked = followed(connector, "t")
    check_schema(tracked, log)
    drain(connector, tracked, log, store)
    check_schema(tracked, log)
    lists.columns["t"] = (*lists.columns["t"][:-1], Column("v", "", pa.string()))
    with pytest.raises(SchemaChanged, match=r'column "v" was int64 and is string now'):
        check_schema(followed(connector, "t"), log)
    check_schema(followed(connector, "t", columns=lists.columns["t"][:-1]), log)


def remembered(store: WatermarkStore) -> int:
    return sum(map(deliveries.count, store.remembered("t")))


def test_what_cannot_return_is_forgotten_once_there_is_much_of_it(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=at(clock, *range(1500)))
    connector = opened(clock)
    tracked = followed(connector, "t")
    drain(connector, tracked, log, store)
    assert remembered(store) == 1500
    clock.advance(3600)
    rows_ += at(clock, *range(1500, 1600))
    drain(connector, tracked, log, store)
    clock.advance(3600)
    rows_ += at(clock, *range(1600, 3200))
    assert len(drain(connector, tracked, log, store)) == 1600
    assert remembered(store) == 1600
    assert drain(connector, tracked, log, store) == []
    clock.advance(3600)
    assert drain(connector, tracked, log, store) == []


def test_many_rows_of_one_timestamp_are_forgotten_by_the_poll_that_closes_it(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    lists.table("t", rows=at(clock, *range(1500)))
    connector = opened(clock)
    tracked = followed(connector, "t")
    drain(connector, tracked, log, store)
    clock.advance(3600)
    assert drain(connector, tracked, log, store) == []
    assert remembered(store) == 0


def test_what_has_stood_for_long_enough_is_closed_without_being_read(
    lists: Lists, clock: FakeClock, log: ChangeLog, store: MemoryWatermarkStore
) -> None:
    rows_ = lists.table("t", rows=at(clock, 1, 2, 3))
    connector = Pulsing(Source("lists://here", clock=clock))
    tracked = followed(connector, "t")
    rest(connector, tracked, store, 0)
    assert store.watermark("t") is None
    assert len(drain(connector, tracked, log, store)) == 3
    rest(connector, tracked, store, 0)
    assert remembered(store) == 3
    clock.advance(3600)
    last, reads = clock.now() - 3600 * SECOND, lists.reads
    Pulsing.beats[:] = [1]
    rest(connector, tracked, store, 0)
    assert remembered(store) == 3, "something was written while it was asked"
    rest(connector, tracked, store, 1)
    mark = store.watermark("t")
    assert mark is not None
    assert mark.closed()["updated"] == last
    assert remembered(store) == 0
    rows_ += at(clock, 4)
    assert [r["id"] for r in drain(connector, tracked, log, store)] == [4]
    assert lists.reads == reads + len(tracked.passes)


class Pulsing(ListConnector):
    """Says that something has changed when it is told to."""

    beats: ClassVar[list[int]] = [0]

    def greatest(self, page: Page, at_most: int | None) -> int | None:
        reads = self.lists.reads
        try:
            return super().greatest(page, at_most)
        finally:
            self.lists.reads = reads

    def pulse(self) -> object:
        return self.beats[-1]
