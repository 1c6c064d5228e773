"""The promise, by state machines over sources of lists: writes of every kind, polls, interruptions, lost state."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, FakeClock, instant
from sidecar.connector import Source
from sidecar.log import recovery, retention
from sidecar.model import Column, PassName, Watermark
from sidecar.poll import Step, poll, rest
from sidecar.polls import deliveries
from sidecar.polls.deliveries import NOTHING, VERSION, Records
from sidecar.polls.rows import keys_of
from sidecar.state import MemoryWatermarkStore
from tests.unit import test_custom_connector as custom
from tests.unit.test_custom_connector import DATABASES, STAMPS, ListConnector, Lists, Row, drain, followed

lists = custom.lists

LOOKBACK = 10 * SECOND
CHOSEN = st.integers(0, 30)
LATE = st.sampled_from((0, 0, 1, SECOND, 5 * SECOND, LOOKBACK - SECOND - 1))
AHEAD = st.sampled_from((1, SECOND, LOOKBACK, 3600 * SECOND, 200 * 365 * 86_400 * SECOND))


class Killed(Exception):
    """Stands for the end of the process, just before the state would be written."""


class MortalStore(MemoryWatermarkStore):
    """A store that can be told to fail before its next save."""

    doomed = False

    def save(
        self, table: str, watermark: Watermark, remembered: Records, *, forget_all: bool = False, lazy: bool = False
    ) -> None:
        if self.doomed:
            raise Killed
        super().save(table, watermark, remembered, forget_all=forget_all, lazy=lazy)


class Follow(RuleBasedStateMachine):
    """Rows that carry instants, told apart by their content."""

    start: ClassVar[int] = 1_714_557_600 * SECOND
    stamps: ClassVar[tuple[Column, ...]] = STAMPS
    versions: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    tracked_as: ClassVar[dict[str, object]] = {}
    new_store: ClassVar[type[MortalStore]] = MortalStore

    def __init__(self) -> None:
        super().__init__()
        # In memory where that is possible: each segment is synced to the disk, and there are thousands.
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.clock = FakeClock(self.start)
        self.lists = Lists()
        DATABASES["lists://machine"] = self.lists
        columns = (*self.stamps, Column("counter", "integer", pa.int64()))
        self.rows = self.lists.table("t", columns)
        self.count = self.number = 0
        self.began: int | None = None
        self.waiting: list[Row] = []
        if self.versions:
            self.lists.settled = lambda: self.clock.now() if self.began is None else self.began
            self.lists.floor = lambda: min((int(r["version"] or 0) for r in self.waiting), default=self.number + 1)
            self.lists.era = "first"
        self.connector = ListConnector(Source("lists://machine", clock=self.clock))
        self.store = self.new_store()
        self.older = self.new_store()
        self.steps: Generator[Step, None, None] | None = None
        self.was_ahead = False
        self.found: list[Row] = []
        self.last = 0
        self.reached: dict[PassName, int | None] = {}

    @initialize(page_size=st.integers(1, 4), generous=st.booleans(), declared=st.booleans())
    def follow(self, page_size: int, generous: bool, declared: bool) -> None:
        self.lists.generous = generous
        # A key that the source does not declare makes the first poll one by cursors, too.
        self.lists.key = ("id",) if declared else ()
        as_ = {"key": ("id",), "lookback": LOOKBACK, **self.tracked_as}
        self.tracked = followed(self.connector, "t", page_size=page_size, **as_)
        self.log = ChangeLog(Path(self.folder.name), "t")

    # -- writers -------------------------------------------------------------------------------------------------------

    def stamp(self, at: int) -> int | str:
        return at

    def write(self, row: Row) -> None:
        """Make *row*, complete, the newest version of its key."""
        row |= self.numbers()
        self.rows[:] = [r for r in self.rows if r["id"] != row["id"]] + [row]

    def numbers(self) -> Row:
        """Return what tells a row's versions apart: for the test, and for Sidecar."""
        self.count, self.number = self.count + 1, self.number + 1
        return {"counter": self.count, "version": self.number}

    def any_row(self, chosen: int) -> Row | None:
        free = [r for r in self.rows if all(r["id"] != w["id"] for w in self.waiting)]
        return dict(free[chosen % len(free)]) if free else None

    def fresh_id(self, low: bool) -> int:
        taken = [int(r["id"] or 0) for r in (*self.rows, *self.waiting)] or [0]
        return min(taken) - 1 if low else max(taken) + 1

    @rule(late=LATE, low=st.booleans(), stamped=st.sampled_from(("both", "both", "both", "created", "none")))
    def insert(self, late: int, low: bool, stamped: str) -> None:
        at = self.stamp(self.clock.now() - late)
        created, updated = (at if stamped != "none" else None), (at if stamped == "both" else None)
        self.write({"id": self.fresh_id(low), "created_at": created, "updated_at": updated, "deleted_at": None})

    @rule(chosen=CHOSEN, late=LATE)
    def update(self, chosen: int, late: int) -> None:
        if (row := self.any_row(chosen)) is not None:
            self.write(row | {"updated_at": self.stamp(self.clock.now() - late)})

    @precondition(lambda self: self.timed)
    @rule(chosen=CHOSEN, ahead=AHEAD)
    def update_ahead_of_time(self, chosen: int, ahead: int) -> None:
        if (row := self.any_row(chosen)) is not None:
            self.was_ahead = True
            self.write(row | {"updated_at": self.stamp(self.clock.now() + ahead)})

    @rule(chosen=CHOSEN)
    def update_what_has_no_stamp(self, chosen: int) -> None:
        row = self.any_row(chosen)
        if row is not None and row["updated_at"] is None and row["created_at"] is None:
            self.write(row)

    @rule(chosen=CHOSEN, late=LATE, stamped=st.booleans())
    def delete_softly(self, chosen: int, late: int, stamped: bool) -> None:
        if (row := self.any_row(chosen)) is not None:
            at = self.stamp(self.clock.now() - late)
            self.write(row | {"deleted_at": at} | ({"updated_at": at} if stamped else {}))

    @rule(chosen=CHOSEN, late=LATE)
    def restore(self, chosen: int, late: int) -> None:
        row = self.any_row(chosen)
        if row is not None and row["deleted_at"] is not None:
            self.write(row | {"deleted_at": None, "updated_at": self.stamp(self.clock.now() - late)})

    @precondition(lambda self: self.versions)
    @rule(chosen=CHOSEN, late=LATE, new=st.booleans())
    def write_in_a_transaction(self, chosen: int, late: int, new: bool) -> None:
        """Stamp a row as of the transaction's beginning; nobody sees it before the commit."""
        began = self.began = self.clock.now() if self.began is None else self.began
        row = None if new else self.any_row(chosen)
        if row is None:
            row = {"id": self.fresh_id(low=False), "created_at": self.stamp(began - late), "deleted_at": None}
        self.waiting.append(row | {"updated_at": self.stamp(began - late)} | self.numbers())

    @precondition(lambda self: self.waiting)
    @rule()
    def commit(self) -> None:
        keys = {r["id"] for r in self.waiting}
        self.rows[:] = [r for r in self.rows if r["id"] not in keys] + self.waiting
        self.waiting, self.began = [], None

    @precondition(lambda self: self.versions and not self.waiting)
    @rule(chosen=CHOSEN, written=st.booleans())
    def move_to_a_server_that_numbers_anew(self, chosen: int, written: bool) -> None:
        self.stop_between_two_pages()
        self.lists.era = f"server {self.count}"
        self.number = 0
        for row in sorted(self.rows, key=lambda r: (int(r["id"] or 0) * 7 + chosen) % 11):
            self.number += 1
            row["version"] = self.number
        if written and (row_ := self.any_row(chosen)) is not None:
            # May be given the very number under which this key was delivered.
            self.number = int(self.store_number(row_)) - 1
            self.write(row_ | {"updated_at": self.stamp(self.clock.now())})
            self.number = max(int(r["version"] or 0) for r in self.rows)

    def store_number(self, row: Row) -> int:
        """Return a version by which *row* was delivered once, if any is remembered."""
        found = self.store.recall("t", keys_of(self.tracked, pa.table({"id": pa.array([row["id"]], pa.int64())})))
        return self.number + 1 if deliveries.says_nothing(found)[0] else int(found[VERSION, 0])

    @rule(seconds=st.sampled_from((0.000001, 0.5, 1, 4, 10, 10.000001, 900)))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    # -- polls ---------------------------------------------------------------------------------------------------------

    @rule(pages=st.integers(1, 6))
    def read_pages(self, pages: int) -> None:
        """Begin a poll, or go on with the one that stands still between two pages."""
        for _ in range(pages):
            self.steps = self.steps or poll(self.connector, self.tracked, self.log, self.store)
            if next(self.steps, None) is None:
                self.steps = None
                break
        self.collect()

    @rule()
    def poll_to_the_end(self) -> None:
        for _ in self.steps or poll(self.connector, self.tracked, self.log, self.store):
            self.collect()
        self.steps = None

    @rule(seconds=st.sampled_from((LOOKBACK // SECOND, 300)))
    def rest(self, seconds: int) -> None:
        """Let all that has been seen stand for the lookback, so that it is closed and forgotten."""
        for _ in range(2):
            self.poll_to_the_end()
            self.clock.advance(seconds)
        self.poll_to_the_end()
        self.forget_what_cannot_return()

    @rule(seconds=st.sampled_from((1, LOOKBACK // SECOND, 300)))
    def rest_without_reading(self, seconds: int) -> None:
        """As a runner does while nothing changes: the poll that was under way may have begun before the last change."""
        for _ in range(2):
            self.poll_to_the_end()
        self.clock.advance(seconds)
        rest(self.connector, self.tracked, self.store, None)

    @rule()
    def stop_between_two_pages(self) -> None:
        if self.steps is not None:
            self.steps.close()
            self.steps = None

    @rule()
    def die_between_the_segment_and_the_state(self) -> None:
        self.stop_between_two_pages()
        self.store.doomed = True
        with pytest.raises(Killed):
            drain(self.connector, self.tracked, self.log, self.store)
        self.store.doomed = False
        recovery.recover(self.log, self.store)
        self.collect()

    @rule()
    def lose_the_state(self) -> None:
        self.stop_between_two_pages()
        self.store = self.new_store()
        recovery.recover(self.log, self.store)
        self.reached = {}
        # A copy of the lost one must not come back: it knows what the log does not, and the log goes on without it.
        self.older = copy.deepcopy(self.store)

    @rule()
    def copy_the_state(self) -> None:
        self.older = copy.deepcopy(self.store)

    @rule()
    def put_back_an_older_state(self) -> None:
        self.stop_between_two_pages()
        self.store = copy.deepcopy(self.older)
        recovery.recover(self.log, self.store)
        self.reached = {}

    @rule()
    def forget_what_cannot_return(self) -> None:
        mark = self.store.watermark("t")
        if mark is not None:
            self.store.save("t", mark, NOTHING)

    @rule()
    def drop_old_segments(self) -> None:
        # A row that nothing closes is told by the log alone once its source has numbered its versions anew: this limit
        # is in docs/guarantees.md.
        if not (self.lists.era and (self.was_ahead or any(row["updated_at"] is None for row in self.rows))):
            retention.drop_old(self.log, self.store, [], before=self.clock.now())

    def collect(self) -> None:
        for segment in self.log.list(self.last):
            changes = self.log.get(segment.offset)
            assert segment.offset == self.last + 1
            assert changes is not None
            self.last = segment.offset
            assert len(set(changes.column("id").to_pylist())) == len(changes), "one key stands twice in a segment"
            self.found += changes.to_pylist()

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def no_version_is_delivered_twice_and_all_in_order(self) -> None:
        newest: dict[object, int] = {}
        for change in self.found:
            counter = change["counter"]
            assert isinstance(counter, int)
            assert counter > newest.get(change["id"], 0), f"{change} came after {newest[change['id']]}"
            newest[change["id"]] = counter

    @invariant()
    def nothing_moves_back(self) -> None:
        mark = self.store.watermark("t")
        closed = {} if mark is None else mark.closed()
        for name, value in self.reached.items():
            now = closed.get(name)
            assert value is None or (now is not None and now >= value), f"{name} moved back"
        self.reached = closed

    def teardown(self) -> None:
        if hasattr(self, "log"):
            if self.waiting:
                self.commit()
            self.poll_to_the_end()
            self.poll_to_the_end()
            self.no_version_is_delivered_twice_and_all_in_order()
            copied = {change["id"]: change for change in self.found}
            assert {k: c["counter"] for k, c in copied.items()} == {r["id"]: r["counter"] for r in self.rows}
            gone = {k for k, c in copied.items() if c["_change_type"] == "delete"}
            assert gone == {r["id"] for r in self.rows if r["deleted_at"] is not None}
            reads = self.lists.reads
            self.poll_to_the_end()
            assert self.log.last() == self.last, f"an idle poll wrote a segment ({self.lists.reads - reads} reads)"
        self.folder.cleanup()


class FollowVersions(Follow):
    """Rows with versions, and transactions that stamp early and commit late."""

    versions = True


class FollowNumbers(Follow):
    """Numbers that have no relation to a clock, but that of the order in which they are drawn."""

    timed = False
    stamps = tuple(dataclasses.replace(c, arrow=pa.int64()) for c in STAMPS)


class FollowLocalText(Follow):
    """Local wall-clock texts, in the night when the clocks run through an hour twice."""

    start = 1_729_990_200 * SECOND + 7  # 2024-10-27T02:50 in Berlin, ten minutes before the hour comes back
    stamps = tuple(dataclasses.replace(c, arrow=pa.string()) for c in STAMPS)
    tracked_as: ClassVar[dict[str, object]] = {"timezone": "Europe/Berlin"}

    def stamp(self, at: int) -> str:
        from zoneinfo import ZoneInfo

        return instant(at).astimezone(ZoneInfo("Europe/Berlin")).strftime("%Y-%m-%d %H:%M:%S.%f")


BUDGET = settings(
    max_examples=40, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
TestFollow = Follow.TestCase
TestFollow.settings = BUDGET
TestFollowVersions = FollowVersions.TestCase
TestFollowVersions.settings = BUDGET
TestFollowNumbers = FollowNumbers.TestCase
TestFollowNumbers.settings = BUDGET
TestFollowLocalText = FollowLocalText.TestCase
TestFollowLocalText.settings = BUDGET


@pytest.mark.parametrize("page_size", [1, 2])
def test_what_an_interrupted_first_poll_has_read_stays_for_a_server_that_numbers_anew(page_size: int) -> None:
    machine = FollowVersions()
    machine.follow(page_size, generous=False, declared=True)
    machine.write_in_a_transaction(0, 0, new=False)
    machine.commit()
    machine.insert(0, low=False, stamped="both")
    machine.rest(10)
    machine.lose_the_state()
    machine.move_to_a_server_that_numbers_anew(0, written=False)
    machine.drop_old_segments()
    machine.read_pages(1)
    machine.no_version_is_delivered_twice_and_all_in_order()
    machine.teardown()
