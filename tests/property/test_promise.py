"""G1 to G3, held against writers that do everything a writer may: a Hypothesis state machine on real databases.

Transactions stay open, write late, roll back, use savepoints, are prepared; stamps share ticks and come from clocks
that are slow within lookback; rows are soft-deleted with and without a new stamp, restored, locked and frozen; a server
fails over; polls are cut between any two pages; the process is restarted with its state or without.

A failure prints its steps, which can be pasted into a test, and a text in `@reproduce_failure('…', b'…')`: with that in
SIDECAR_EXAMPLE, the same test does the same steps again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import hypothesis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sidecar.clock import SECOND
from sidecar.errors import StateUnavailable
from sidecar.log import recovery
from sidecar.log.storage import StorePath, locate
from tests import stores
from tests.property.postgres_world import PostgresWorld, Relation, Sessions
from tests.property.sqlite_world import FORMS, SHAPES, SQLiteWorld
from tests.property.world import KEYS, LOOKBACK, START, Follower, Knows, Open, World
from tests.servers import Database, make
from tests.stores import KEY, SECRET, Store

SETTINGS = settings(
    max_examples=200 if os.environ.get("SIDECAR_SOAK") else 8,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

K = TypeVar("K")

writers = st.integers(0, 2)
numbers = st.integers(0, 2)
keys = st.sampled_from(KEYS)
skews = st.sampled_from([0, 0, 1, 5, 20])
shapes = st.integers(0, SHAPES - 1)


class Promise(RuleBasedStateMachine):
    """Writers and a follower, interleaved at random."""

    make: ClassVar[Callable[[], World]]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make()
        self.follower = self.follow()
        self.version = 0
        self.greatest = START - 7200 * SECOND
        self.open: dict[int, Open] = {}

    def follow(self) -> Follower:
        return Follower(self.world)

    def teardown(self) -> None:
        try:
            self._finish()
            self.a_poll()
        finally:
            self.follower.close()
            self.world.close()

    # -- writers -------------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(0, 8), shape=shapes)
    def rows_that_were_there_before(self, count: int, shape: int) -> None:
        for key in list(KEYS)[:count]:
            self._write(0, key, self.world.clock.now() - 3600 * SECOND, "bump", shape + key)

    @rule(seconds=st.sampled_from([0.000001, 0.1, 0.9, 5, 40, 70, 4000]))
    def time_passes(self, seconds: float) -> None:
        for transaction in self.open.values() if self.world.knows == "nothing" else ():
            # Nothing tells a poll that it is open. Rows that are later than what was there before are safe, for others
            # lookback has to cover it: but for the tick by which a stamp may be older than it was late.
            if transaction.oldest is not None and transaction.oldest <= transaction.above + SECOND:
                left = transaction.oldest + LOOKBACK - SECOND - self.world.clock.now()
                seconds = min(seconds, left / SECOND)
        self.world.clock.advance(seconds)

    @rule(writer=writers)
    def a_transaction_begins(self, writer: int) -> None:
        writer %= self.world.writers
        if writer not in self.open:
            self.world.begin(writer)
            self.open[writer] = Open(self.world.clock.now(), self.greatest)

    @rule(writer=writers, key=keys, skew=skews, shape=shapes, late=st.booleans())
    def a_transaction_begins_and_writes(self, writer: int, key: int, skew: int, shape: int, late: bool) -> None:
        if writer % self.world.writers not in self.open:
            self.a_transaction_begins(writer)
            if late:
                self.life_goes_on(key + 1, shape, quiet=False)
            self.a_row_is_written(writer, key, skew, "bump", shape)

    @rule(
        writer=writers,
        key=keys,
        skew=skews,
        how=st.sampled_from(["bump", "bump", "delete", "bare-delete", "restore"]),
        shape=shapes,
    )
    def a_row_is_written(self, writer: int, key: int, skew: int, how: str, shape: int) -> None:
        writer %= self.world.writers
        if not self._busy(key, but=writer):
            transaction = self.open.get(writer)
            if transaction is not None and transaction.numbered is None:
                transaction.numbered = self.world.clock.now()
            self._write(writer, key, self._time(transaction, skew * SECOND), how, shape)

    @precondition(lambda self: self.open)
    @rule(number=numbers, key=keys, skew=skews, shape=shapes)
    def a_transaction_writes(self, number: int, key: int, skew: int, shape: int) -> None:
        self.a_row_is_written(self._one_of(self.open, number), key, skew, "bump", shape)

    @precondition(lambda self: self.open)
    @rule(number=numbers, back=st.booleans())
    def a_savepoint_is_set_or_rolled_back(self, number: int, back: bool) -> None:
        writer = self._one_of(self.open, number)
        transaction = self.open[writer]
        if not back:
            self.world.execute(writer, f"SAVEPOINT s{transaction.savepoints}")
            transaction.savepoints += 1
        elif transaction.savepoints:
            transaction.savepoints -= 1
            self.world.execute(writer, f"ROLLBACK TO s{transaction.savepoints}")

    @precondition(lambda self: self.open)
    @rule(number=numbers, how=st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))
    def a_transaction_ends(self, number: int, how: str) -> None:
        writer = self._one_of(self.open, number)
        del self.open[writer]
        self.world.execute(writer, how)

    # -- the follower --------------------------------------------------------------------------------------------------

    @rule()
    def a_poll(self) -> None:
        """A complete poll leaves the folded log as the source is, whatever is still open (G1)."""
        self.follower.poll()
        folded, source = self.follower.fold(), self.world.content()
        wrong = {k: (folded.get(k), source.get(k)) for k in KEYS if folded.get(k) != source.get(k)}
        assert not wrong, f"log and source differ, by key: {wrong}"

    @rule(key=keys, shape=shapes, quiet=st.booleans())
    def life_goes_on(self, key: int, shape: int, quiet: bool) -> None:
        """Beside what is open, rows are written and polled, or polled only, until lookback is over."""
        free = [writer for writer in range(self.world.writers) if writer not in self.open]
        for more in range(3):
            if free and not quiet:
                self.a_row_is_written(free[0], (key + more) % len(KEYS), 0, "bump", shape + more)
            self.a_poll()
            self.time_passes(40)

    @rule(pages=st.integers(1, 4))
    def a_poll_that_is_cut_short(self, pages: int) -> None:
        self.follower.poll(pages)

    @rule()
    def a_page_of_a_poll_that_goes_on(self) -> None:
        self.follower.page()

    @rule(lose_state=st.booleans())
    def a_restart(self, lose_state: bool) -> None:
        self.follower.restart(lose_state=lose_state)

    @invariant()
    def each_version_stands_once_and_in_order(self) -> None:
        """G2 and G3: no version twice, and for one key, later versions at later offsets."""
        last: dict[Any, tuple[int, int]] = {}
        for row in self.follower.changes():
            version, offset = last.get(row["id"], (0, 0))
            assert row["v"] > version, f"key {row['id']}: version {row['v']} after {version}"
            assert row["_commit_version"] > offset, f"key {row['id']} twice in segment {offset}"
            last[row["id"]] = (row["v"], row["_commit_version"])

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        while self.open:
            self.a_transaction_ends(0, "COMMIT")

    def _one_of(self, some: Mapping[K, Open], number: int) -> K:
        return list(some)[number % len(some)]

    def _under_way(self, but: int | None = None) -> list[Open]:
        return [transaction for writer, transaction in self.open.items() if writer != but]

    def _busy(self, key: int, but: int | None = None) -> bool:
        return any(key in transaction.touched for transaction in self._under_way(but))

    def _time(self, transaction: Open | None, skew: int) -> int:
        """Return what the clock of a row's writer says: the transaction's beginning, as far back as is promised."""
        now = self.world.clock.now()
        if transaction is None:
            return now - skew
        at = transaction.began - skew
        if self.world.knows == "sessions":
            return at
        if self.world.knows == "numbers":
            return max(at, (transaction.numbered or now) - LOOKBACK)
        return at if at > transaction.above + SECOND else max(at, now - LOOKBACK // 2)

    def _write(self, writer: int, key: int, at: int, how: str, shape: int) -> None:
        stamp = self.world.stamp(at, shape)
        self.version += 1
        self.greatest = max(self.greatest, at)
        if transaction := self.open.get(writer):
            transaction.touched.add(key)
            transaction.oldest = at if transaction.oldest is None else min(at, transaction.oldest)
        sets = {
            "bump": f"updated_at = {stamp}",
            "delete": f"updated_at = {stamp}, deleted_at = {stamp}",
            "bare-delete": f"deleted_at = {stamp}",
            "restore": f"updated_at = {stamp}, deleted_at = NULL",
        }[how]
        self.world.execute(
            writer,
            f"INSERT INTO t (id, v, created_at, updated_at) VALUES ({key}, {self.version}, {stamp}, {stamp}) "
            f"ON CONFLICT (id) DO UPDATE SET v = {self.version}, {sets}",
        )


class PromiseOnPostgres(Promise):
    """And what only PostgreSQL does."""

    world: PostgresWorld

    def __init__(self) -> None:
        super().__init__()
        self.prepared: dict[str, Open] = {}

    @precondition(lambda self: self.open)
    @rule(number=numbers)
    def a_transaction_is_prepared(self, number: int) -> None:
        writer = self._one_of(self.open, number)
        transaction = self.open.pop(writer)
        self.prepared[self.world.prepare(writer)] = transaction

    @precondition(lambda self: self.prepared)
    @rule(number=numbers, how=st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))
    def a_prepared_transaction_ends(self, number: int, how: str) -> None:
        name = self._one_of(self.prepared, number)
        self.world.end_prepared(name, how)
        del self.prepared[name]

    @precondition(lambda self: self.open)
    @rule(number=numbers, key=keys, how=st.sampled_from(["FOR UPDATE", "FOR SHARE", "FOR KEY SHARE"]))
    def a_row_is_locked(self, number: int, key: int, how: str) -> None:
        writer = self._one_of(self.open, number)
        transaction = self.open[writer]
        if self._busy(key, but=writer):
            return
        # What a foreign key takes: others may write the row, but not lock it.
        shared = how == "FOR KEY SHARE"
        if (shared or not any(key in t.shared for t in self._under_way(writer))) and self.world.lock(writer, key, how):
            transaction.numbered = transaction.numbered or self.world.clock.now()
            (transaction.shared if shared else transaction.touched).add(key)

    @rule(options=st.sampled_from(["FREEZE", "FREEZE", "FREEZE, FULL"]))
    def rows_are_frozen(self, options: str) -> None:
        self.world.vacuum(options)

    @rule(lost=st.integers(0, 12), seen=st.booleans(), writers_too=st.booleans())
    def the_server_fails_over(self, lost: int, seen: bool, writers_too: bool) -> None:
        """Numbers begin again below some that were delivered: on a new timeline, or from an old copy of the disk."""
        self.follower.drop()
        while self.open and writers_too:
            self.a_transaction_ends(0, "ROLLBACK")
        self.world.fail_over(lost if seen else lost + 10_000, seen=seen)

    def _finish(self) -> None:
        super()._finish()
        while self.prepared:
            self.a_prepared_transaction_ends(0, "COMMIT")

    def _under_way(self, but: int | None = None) -> list[Open]:
        return [*super()._under_way(but), *self.prepared.values()]


class StoredFollower(Follower):
    """A follower whose log is in S3, where an answer may be lost: of a write that got there, or of one that did not."""

    def __init__(self, world: World, s3: Store) -> None:
        super().__init__(world, locate(s3.url, {**s3.options, "access_key": KEY, "secret_key": SECRET}))
        recovery.recover(self.log, self.store)
        self._s3 = s3

    def page(self) -> bool:
        try:
            return super().page()
        except StateUnavailable:
            self._steps = None
            recovery.settle(self.log, self.store)
            return super().page()

    def close(self) -> None:
        super().close()
        self._s3.files().delete_dir_contents(self._s3.bucket)


class PromiseInS3(Promise):
    """And a store that does not always answer."""

    s3: ClassVar[Store]
    _put = StorePath.put

    def follow(self) -> Follower:
        return StoredFollower(self.world, self.s3)

    @rule(reached=st.booleans())
    def the_next_write_gets_no_answer(self, reached: bool) -> None:
        def put(self: StorePath, data: bytes) -> StorePath:
            StorePath.put = PromiseInS3._put  # type: ignore[method-assign]
            if reached:
                self.put(data)
            raise StateUnavailable(f"{self}: no answer")

        StorePath.put = put  # type: ignore[method-assign]

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            StorePath.put = PromiseInS3._put  # type: ignore[method-assign]


def held(machine: type[Promise], make_: Callable[[], World], how: hypothesis.settings = SETTINGS) -> None:
    """Run *machine* on worlds that *make_* makes; or again the example that a failure named."""
    named = type(machine.__name__, (machine,), {"make": staticmethod(make_)})
    if example := os.environ.get("SIDECAR_EXAMPLE"):
        named = hypothesis.reproduce_failure(hypothesis.__version__, example.encode())(named)
    run_state_machine_as_test(named, settings=how)


# Looking for the shortest failure takes minutes.
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("form", FORMS)
def test_the_promise_holds_on_sqlite(form: str) -> None:
    held(Promise, lambda: SQLiteWorld(form))


def test_the_promise_holds_for_a_log_in_s3() -> None:
    with stores.store("promise") as s3:
        machine = type("PromiseInOneS3", (PromiseInS3,), {"s3": s3})
        few = settings(SETTINGS, max_examples=SETTINGS.max_examples // 4, stateful_step_count=25)
        held(machine, lambda: SQLiteWorld(next(iter(FORMS))), few)


@pytest.mark.parametrize(
    ("kind", "relation", "knows"),
    [
        ("timestamptz", "table", "numbers"),
        ("timestamp", "partitioned", "numbers"),
        ("bigint", "table", "numbers"),
        ("timestamptz", "view", "numbers"),
        ("timestamptz", "table", "sessions"),
        ("bigint", "partitioned", "sessions"),
        ("timestamp", "view", "sessions"),
    ],
)
def test_the_promise_holds_on_postgres(pg: Database, kind: str, relation: Relation, knows: Knows) -> None:
    sessions = Sessions(pg)
    if knows == "sessions":
        make(sessions.admin, f'GRANT pg_read_all_stats TO "{pg.reader}"')
    held(PromiseOnPostgres, lambda: PostgresWorld(sessions, kind, relation, knows))
