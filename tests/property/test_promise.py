"""G1 to G3, held against writers that do everything a writer may: a Hypothesis state machine on real databases.

Transactions stay open, roll back, use savepoints; stamps share ticks and come from clocks that are slow within
lookback; rows are soft-deleted with and without a new stamp, and restored; polls are cut between any two pages; the
process is restarted with its state or without. A failure prints the steps, which can be pasted into a test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

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
from tests.property.world import KEYS, LOOKBACK, Follower, Open, PostgresWorld, SQLiteWorld, World
from tests.servers import Database

SETTINGS = settings(
    max_examples=200 if os.environ.get("SIDECAR_SOAK") else 12,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

writers = st.integers(0, 2)
keys = st.sampled_from(KEYS)
skews = st.sampled_from([0, 0, 1, 5, 20])


class Promise(RuleBasedStateMachine):
    """Writers and a follower, interleaved at random."""

    make: ClassVar[Callable[[], World]]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make()
        self.follower = Follower(self.world)
        self.version = 0
        self.open: dict[int, Open] = {}
        self.quiet_since_poll = False

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.follower.close()
            self.world.close()

    # -- writers -------------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(0, 8))
    def rows_that_were_there_before(self, count: int) -> None:
        for key in list(KEYS)[:count]:
            self._write(0, key, skew=0, how="bump", at=self.world.clock.now() - 3600 * SECOND)

    @rule(seconds=st.sampled_from([0.000001, 0.1, 0.9, 5, 40, 70, 4000]))
    def time_passes(self, seconds: float) -> None:
        if self.world.writers == 1 and self.open and seconds > 1:
            # One writer at a time: nothing tells a poll that its transaction is open, so lookback has to cover it.
            seconds = 1
        self.world.clock.advance(seconds)

    @rule(writer=writers, key=keys, skew=skews)
    def a_transaction_begins_with_a_write(self, writer: int, key: int, skew: int) -> None:
        writer %= self.world.writers
        if writer in self.open or self._busy(key):
            return
        self.world.execute(writer, "BEGIN")
        self.open[writer] = Open(self.world.clock.now())
        self._write(writer, key, skew, "bump")

    @rule(
        writer=writers, key=keys, skew=skews, how=st.sampled_from(["bump", "bump", "delete", "bare-delete", "restore"])
    )
    def a_row_is_written(self, writer: int, key: int, skew: int, how: str) -> None:
        writer %= self.world.writers
        if self.world.writers == 1 or writer in self.open or not self._busy(key):
            if self._busy(key, but=writer):
                return
            self._write(writer, key, skew, how)

    @precondition(lambda self: self.open)
    @rule(writer=writers)
    def a_savepoint_is_set(self, writer: int) -> None:
        transaction = self.open.get(writer % self.world.writers)
        if transaction is not None:
            self.world.execute(writer % self.world.writers, f"SAVEPOINT s{len(transaction.savepoints)}")
            transaction.savepoints.append(set(transaction.touched))

    @precondition(lambda self: self.open)
    @rule(writer=writers)
    def a_savepoint_is_rolled_back(self, writer: int) -> None:
        transaction = self.open.get(writer % self.world.writers)
        if transaction is not None and transaction.savepoints:
            transaction.savepoints.pop()
            self.world.execute(writer % self.world.writers, f"ROLLBACK TO s{len(transaction.savepoints)}")

    @precondition(lambda self: self.open)
    @rule(writer=writers, how=st.sampled_from(["COMMIT", "COMMIT", "ROLLBACK"]))
    def a_transaction_ends(self, writer: int, how: str) -> None:
        if self.open.pop(writer % self.world.writers, None) is not None:
            self.world.execute(writer % self.world.writers, how)

    # -- the follower --------------------------------------------------------------------------------------------------

    @rule()
    def a_poll(self) -> None:
        self.follower.poll()

    @rule(pages=st.integers(1, 4))
    def a_poll_that_is_cut_short(self, pages: int) -> None:
        self.follower.poll(pages)

    @rule(lose_state=st.booleans())
    def a_restart(self, lose_state: bool) -> None:
        self.follower.restart(lose_state=lose_state)

    @rule()
    def settle(self) -> None:
        """Let every writer finish and poll once more: now the folded log is the source (G1)."""
        for writer in list(self.open):
            self.a_transaction_ends(writer, "COMMIT")
        self.follower.poll()
        folded, source = self.follower.fold(), self.world.content()
        wrong = {k: (folded.get(k), source.get(k)) for k in KEYS if folded.get(k) != source.get(k)}
        assert not wrong, f"log and source differ, by key: {wrong}"

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

    def _busy(self, key: int, but: int | None = None) -> bool:
        return any(key in t.touched for w, t in self.open.items() if w != but)

    def _write(self, writer: int, key: int, skew: int, how: str, at: int | None = None) -> None:
        transaction = self.open.get(writer)
        began = transaction.began if transaction else self.world.clock.now()
        assert skew * SECOND < LOOKBACK // 2
        stamp = self.world.stamp((began if at is None else at) - skew * SECOND)
        self.version += 1
        if transaction:
            transaction.touched.add(key)
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


def held(make: Callable[[], World], how: settings = SETTINGS) -> None:
    """Run the machine on worlds that *make* makes."""
    machine = type("PromiseOn", (Promise,), {"make": staticmethod(make)})
    run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize("form", ["text-s", "text-us", "epoch-s", "epoch-ms", "counter"])
def test_the_promise_holds_on_sqlite(form: str) -> None:
    held(lambda: SQLiteWorld(form))


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "bigint"])
def test_the_promise_holds_on_postgres(pg: Database, kind: str) -> None:
    held(lambda: PostgresWorld(pg.reader_url, pg.connect, kind))
