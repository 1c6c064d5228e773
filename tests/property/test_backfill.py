"""Backfills beside polls, held against the promise: a Hypothesis state machine on real databases.

What writers do is in `test_promise.py`. Here a table's existing rows come chunk by chunk: chunks of several readers are
read at one time and written at another, polls go on in between or are cut, the process is killed or robbed of its
state, backfills of all sorts are asked for and cancelled, rows vanish and their keys come back.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sidecar import backfill
from sidecar.backfilling.requests import Request
from sidecar.clock import SECOND
from sidecar.model import ALL, DELETE, Among, Scope
from tests.property.copier import READERS, Copier
from tests.property.postgres_world import PostgresWorld, Relation, Sessions
from tests.property.sqlite_world import SQLiteWorld
from tests.property.test_promise import SETTINGS as PROMISE
from tests.property.test_promise import Promise, PromiseOnPostgres, held, keys, shapes, skews, writers
from tests.property.world import KEYS, Knows
from tests.servers import Database, make

SETTINGS = settings(PROMISE, max_examples=200 if os.environ.get("SIDECAR_SOAK") else 8, stateful_step_count=50)
ON_POSTGRES = settings(SETTINGS, max_examples=200 if os.environ.get("SIDECAR_SOAK") else 4)

readers = st.integers(0, READERS - 1)
some_keys = st.lists(keys, min_size=1, max_size=5, unique=True)


class Backfill(Promise):
    """Writers, a follower, and its backfills, interleaved at random."""

    consistent: ClassVar[bool] = False

    follower: Copier

    def __init__(self) -> None:
        super().__init__()
        self.follower.close()
        self.follower = Copier(
            self.world, lambda t: dataclasses.replace(t, chunk_size=2, consistent=type(self).consistent)
        )
        self.follower.begins = self._begins
        self.revision = 0
        self.vanished: set[int] = set()
        self.absent: dict[str, set[int]] = {}
        """By backfill, the keys that the source did not have when it began, and that nobody has written since."""

    def teardown(self) -> None:
        try:
            self._finish()
            self.follower.finish()
            self.a_poll()
            self.follower.ask(purge=True)
            self.follower.finish()
            self.a_poll()
            source = {key: v for key, (v, gone) in self.world.content().items() if not gone}
            assert self.follower.alive() == source, "after a purge the log is the source, keys and all"
            self.each_version_stands_in_order()
        finally:
            self.follower.close()
            self.world.close()

    # -- writers -------------------------------------------------------------------------------------------------------

    @initialize(count=st.integers(4, len(KEYS)), shape=shapes, begun=st.booleans())
    def rows_that_were_there_before(self, count: int, shape: int, begun: bool) -> None:
        for key in list(KEYS)[:count]:
            # Some below what polls begin above, some not.
            self._write(0, key, self.world.clock.now() - (3600 + key % 3 * 300) * SECOND, "bump", shape + key)
        if begun:
            self.a_view_is_taken()

    @rule(writer=writers, key=keys)
    def a_row_vanishes(self, writer: int, key: int) -> None:
        """A hard delete, which no poll sees."""
        free = [w for w in range(self.world.writers) if w not in self.open]
        is_shared = any(key in transaction.shared for transaction in self._under_way())
        if free and not is_shared and not self._busy(key) and key in self.world.content():
            self.world.execute(free[0], f"DELETE FROM {self.world.heap} WHERE id = {key}")
            self.vanished.add(key)

    def _write(self, writer: int, key: int, at: int, how: str, shape: int) -> None:
        super()._write(writer, key, at, how, shape)
        for absent in self.absent.values():
            absent.discard(key)

    def _begins(self, request: Request) -> None:
        under_way = {key for transaction in self._under_way() for key in transaction.touched}
        self.absent.setdefault(request.id, set(KEYS) - self.world.content().keys() - under_way)

    # -- backfills -----------------------------------------------------------------------------------------------------

    @rule()
    def a_view_is_taken(self) -> None:
        self.follower.take_view()

    @rule(reader=readers)
    def a_chunk_is_read(self, reader: int) -> None:
        self.follower.read_chunk(reader)

    @rule(reader=readers)
    def a_chunk_is_written(self, reader: int) -> None:
        self.follower.write_chunk(reader)

    @rule(reader=readers, key=keys, skew=skews, shape=shapes, polls=st.integers(0, 2), writer=writers)
    def a_chunk_is_written_late(self, reader: int, key: int, skew: int, shape: int, polls: int, writer: int) -> None:
        """Between its view and its writing, rows have been written and polled."""
        self.follower.take_view()
        self.follower.read_chunk(reader)
        for more in range(3):
            self.a_row_is_written(writer, (key + more) % len(KEYS), skew, "bump", shape)
        for _ in range(polls):
            self.a_poll()
        self.a_chunk_is_written(reader)

    @rule()
    def all_backfills_are_done(self) -> None:
        self.follower.finish()
        self.a_poll()

    @rule(some=some_keys, purge=st.booleans())
    def keys_are_asked_for(self, some: list[int], purge: bool) -> None:
        self.follower.ask(Scope(among=Among(("id",), tuple((key,) for key in some))), purge=purge)

    @rule(odd=st.integers(0, 1), some=st.none() | some_keys)
    def a_condition_is_asked_for(self, odd: int, some: list[int] | None) -> None:
        among = None if some is None else Among(("id",), tuple((key,) for key in some))
        self.follower.ask(Scope(f"v % 2 = {odd} -- those", among))

    @rule(purge=st.booleans())
    def all_is_asked_for(self, purge: bool) -> None:
        self.follower.ask(purge=purge)

    @rule()
    def a_version_is_set(self) -> None:
        self.revision += 1
        self.follower.tracked = dataclasses.replace(self.follower.tracked, backfill_version=str(self.revision))

    @precondition(lambda self: self.follower.jobs.requests.open(self.follower.tracked.name))
    @rule(sure=st.integers(0, 3))
    def backfills_are_cancelled(self, sure: int) -> None:
        if not sure:
            self.follower.cancel()

    @rule(reader=readers, lose_state=st.booleans())
    def a_kill_while_a_chunk_is_written(self, reader: int, lose_state: bool) -> None:
        self.follower.kill_at_save(reader, lose_state=lose_state)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @rule()
    def a_poll(self) -> None:
        """A complete poll leaves what the log has as it is in the source; all of it, once a backfill has ended (G1)."""
        self.follower.drop()
        if self.follower.waits():
            return
        self.follower.poll()
        folded, source = self.follower.fold(), self.world.content()
        wrong = {k: (folded.get(k), v) for k, v in source.items() if folded.get(k) != v}
        if not self.is_whole:
            wrong = {k: v for k, v in wrong.items() if k in folded}
        assert not wrong, f"log and source differ, by key: {wrong}"
        left = {k for k in folded.keys() - source.keys() if not folded[k][1]}
        assert left <= self.vanished
        for ended in self.follower.ended():
            if ended.request.purge and ended.ending == "done":
                among = ended.request.scope.among
                wanted = KEYS if among is None else {value[0] for value in among.values}
                assert not left & self.absent[ended.request.id] & {*wanted}, "purged"

    @property
    def is_whole(self) -> bool:
        """Whether the last backfill of all rows has ended well, or the first poll has read them."""
        if not backfill.can_read(self.follower.connector, self.follower.tracked):
            return True
        ended = [e for e in self.follower.ended() if e.request.scope == ALL]
        return bool(ended) and any(e.ending == "done" for e in ended)

    @invariant()
    def each_version_stands_once_and_in_order(self) -> None:
        """G2 and G3: for one key no version is before an older one; and none comes twice but by a backfill, once by
        each, that was asked for.
        """
        self.each_version_stands_in_order()

    def each_version_stands_in_order(self) -> None:
        last: dict[Any, tuple[int, int]] = {}
        delivered: set[tuple[Any, ...]] = set()
        for row in self.follower.changes():
            key, at = row["id"], row["_commit_version"]
            version, offset = last.get(key, (0, 0))
            job = self.follower.job_of(at)
            asked = row["_origin"] == "backfill" and job is not None and job.id not in self.follower.firsts
            told = f"key {key}: version {row['v']} after {version}, by {row['_origin']} in segment {at}"
            assert row["v"] > version or (asked and row["v"] == version), told
            assert at > offset, f"key {key} twice in segment {offset}"
            last[key] = (row["v"], at)
            if asked and job is not None:
                one = (job.id, key, row["v"], row["_change_type"] == DELETE)
                assert one not in delivered, f"{told}: twice by one backfill"
                delivered.add(one)


class BackfillOnPostgres(Backfill, PromiseOnPostgres):
    """And what only PostgreSQL does."""

    @rule(key=keys, shape=shapes)
    def the_server_fails_over_while_chunks_wait(self, key: int, shape: int) -> None:
        """What they say of versions is over: the key's next one gets the number that its last one had."""
        self.all_backfills_are_done()
        self.a_row_is_written(0, key, 0, "bump", shape)
        self.a_poll()
        self.follower.ask()
        self.follower.take_view()
        for number in range(len(KEYS)):
            self.follower.read_chunk(number % READERS)
        self.the_server_fails_over(1, seen=True, writers_too=False)
        self.a_poll()
        for number in range(len(KEYS) // 2):
            self.a_chunk_is_written(number % READERS)
        self.a_row_is_written(0, key, 0, "bump", shape)
        self.a_poll()


def consistent(machine: type[Backfill]) -> type[Backfill]:
    return type(machine.__name__, (machine,), {"consistent": True})


# Looking for the shortest failure takes minutes.
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.parametrize("form", ["text-us", "epoch-s", "datetime-mixed"])
def test_backfills_beside_polls_keep_the_promise_on_sqlite(form: str) -> None:
    held(Backfill, lambda: SQLiteWorld(form), SETTINGS)


def test_copies_of_one_instant_keep_the_promise_on_sqlite() -> None:
    held(consistent(Backfill), lambda: SQLiteWorld("text-us"), SETTINGS)


@pytest.mark.parametrize(
    ("kind", "relation", "knows", "one_instant"),
    [
        ("timestamptz", "table", "numbers", False),
        ("bigint", "partitioned", "sessions", False),
        ("timestamptz", "table", "sessions", True),
        ("timestamp", "view", "numbers", False),
    ],
)
def test_backfills_beside_polls_keep_the_promise_on_postgres(
    pg: Database, kind: str, relation: Relation, knows: Knows, one_instant: bool
) -> None:
    sessions = Sessions(pg)
    if knows == "sessions":
        make(sessions.admin, f'GRANT pg_read_all_stats TO "{pg.reader}"')
    machine = consistent(BackfillOnPostgres) if one_instant else BackfillOnPostgres
    held(machine, lambda: PostgresWorld(sessions, kind, relation, knows), ON_POSTGRES)
