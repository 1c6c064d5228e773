"""A follower that backfills as well: the real jobs, of which a test says when a chunk is read, and when it is written.

What differs from a run is who decides: there it is threads and a queue, here it is the test. Views are held by
connections of their own, so a chunk is as old as its view by the time it is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from sidecar import backfill
from sidecar.backfill import Chunk
from sidecar.backfilling import jobs
from sidecar.backfilling.copying import Copying, Failed, Work
from sidecar.backfilling.jobs import Jobs
from sidecar.backfilling.requests import Ended, Request
from sidecar.changelog import ChangeLog
from sidecar.config import BackfillSettings
from sidecar.connector import SourceConnector
from sidecar.errors import SidecarError
from sidecar.model import ALL, DELETE, Job, Scope, Tracked
from tests.property.world import Follower, World

READERS = 2


class Kill(BaseException):
    """The process ends here."""


class Held(Copying):
    """A phase whose readers read when they are told to; what they have read waits until it is asked for."""

    def begin(self, works: Sequence[Work]) -> None:
        for work in works:
            self._works.put(work)
        connectors = [self.lead]
        while self._name is not None and len(connectors) < min(self._readers, len(works)):
            other = self._connect()
            self._stack.callback(other.close)
            self._stack.enter_context(other.join(self._name))
            connectors.append(other)
        # Where a view cannot be shared each page has its own, and one connection stands for several.
        self._reads = [self._all(connectors[n % len(connectors)]) for n in range(READERS)]
        self._ready: list[list[Chunk | Failed]] = [[] for _ in self._reads]
        self.turn = 0
        self.is_over = not works

    def read(self, reader: int) -> None:
        """Let *reader* read its next chunk; what went wrong comes up where it is asked for."""
        try:
            chunk = next(self._reads[reader], None)
        except Failed as failed:
            self._ready[reader].append(failed)
        else:
            self._ready[reader] += [chunk] if isinstance(chunk, Chunk | Failed) else []

    def next(self, timeout: float) -> Chunk | None:
        for reader in ((self.turn + n) % READERS for n in range(READERS)):
            if not self._ready[reader]:
                self.read(reader)
            if self._ready[reader]:
                found = self._ready[reader].pop(0)
                if isinstance(found, Failed):
                    raise found
                return found
        self.is_over = True
        return None


@dataclass
class Opened:
    """What jobs ask of an open project."""

    copier: Copier
    settings: Any
    damaged: dict[str, SidecarError] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.copier, name)

    @property
    def clock(self) -> Any:
        return self.copier.world.clock

    @property
    def tracked(self) -> dict[str, Tracked]:
        return {self.copier.tracked.name: self.copier.tracked}

    def log(self, table: str) -> ChangeLog:
        return self.copier.log

    def settled(self, tracked: Tracked) -> Tracked:
        return tracked


class Told(Jobs):
    """Jobs of one world that tell of what they begin and finish."""

    def __init__(self, copier: Copier, opened: Any) -> None:
        def no_session() -> NoReturn:
            raise AssertionError("chunks are read here")

        super().__init__(opened, threading.Event(), copier.failed, lambda _: False, no_session)
        self._copier = copier

    def _connect(self) -> SourceConnector:
        return self._copier.world.connector()

    def _begin(self, connector: SourceConnector, tracked: Tracked, request: Request) -> Job | None:
        mark = self._sidecar.store.watermark(tracked.name)
        if backfill.is_new(mark):
            self._copier.firsts.add(request.id)
        self._copier.begins(request)
        return super()._begin(connector, tracked, request)

    @property
    def phase(self) -> Held | None:
        assert self._copying is None or isinstance(self._copying, Held)
        return self._copying


class Copier(Follower):
    """A follower with backfills, each of which goes on by a chunk at a time."""

    def __init__(self, world: World, change: Callable[[Tracked], Tracked]) -> None:
        super().__init__(world)
        self.tracked = change(self.tracked)
        self.firsts: set[str] = set()
        """The requests that were a table's first backfill."""
        self.begins: Callable[[Request], None] = lambda _: None
        self.errors: list[SidecarError] = []
        self.jobs = self._jobs()

    def _jobs(self) -> Told:
        settings = SimpleNamespace(
            backfill=BackfillSettings(parallelism=READERS), state=SimpleNamespace(path=self.folder)
        )
        return Told(self, Opened(self, settings))

    def waits(self) -> bool:
        return self.jobs.holds(self.tracked, self.store.watermark(self.tracked.name))

    def failed(self, table: str, error: SidecarError) -> None:
        self.errors.append(error)

    # -- what a test lets happen ---------------------------------------------------------------------------------------

    def ask(self, scope: Scope = ALL, *, purge: bool = False) -> Request:
        """Ask for a backfill."""
        # Requests of one microsecond are in no order that could be repeated.
        self.world.clock.advance(0.000001)
        return self.jobs.requests.ask(self.tracked.name, self.world.clock.now(), scope=scope, purge=purge, empty=purge)

    def cancel(self) -> list[Request]:
        """Cancel all that has not ended."""
        found = self.jobs.requests.open(self.tracked.name)
        for request in found:
            self.jobs.requests.end(request, "cancelled", self.world.clock.now())
        return found

    def ended(self) -> list[Ended]:
        return self.jobs.requests.ended(self.tracked.name)

    def take_view(self) -> None:
        """Begin a phase, if none is under way and there is something to do."""
        self.drop()
        if self.jobs.phase is None:
            with self._quick():
                try:
                    self.jobs._step(None, None)
                except Failed as failed:
                    self.jobs._give_way(failed)

    def read_chunk(self, reader: int) -> None:
        """Let a reader of the phase under way read on; polls may be under way meanwhile."""
        phase = self.jobs.phase
        if phase is not None and not phase.is_over:
            with self._quick():
                phase.read(reader)

    def write_chunk(self, reader: int = 0) -> bool:
        """Write the next chunk of *reader*, or else of another; return whether there was one."""
        self.drop()
        if self.jobs.phase is not None:
            self.jobs.phase.turn = reader
        with self._quick():
            work = self.jobs.work(None)
            step = next(work, None)
        self._watch()
        return step is not None

    def kill_at_save(self, reader: int, *, lose_state: bool) -> None:
        """End the process between a chunk's segment and its watermark, and come back."""
        self.take_view()
        with patch.object(self.store, "save", side_effect=Kill), contextlib.suppress(Kill):
            self.write_chunk(reader)
        self.restart(lose_state=lose_state)

    def finish(self) -> None:
        """Do all that is asked for."""
        self.jobs.new_round()
        while self.write_chunk():
            pass

    def restart(self, *, lose_state: bool) -> None:
        self.jobs.close()
        super().restart(lose_state=lose_state)
        self.jobs = self._jobs()

    def close(self) -> None:
        self.jobs.close()
        super().close()

    @contextlib.contextmanager
    def _quick(self) -> Iterator[None]:
        # Values of a scope come in several parts, and so does the table.
        with patch.object(jobs, "Copying", Held), patch.object(backfill, "TOGETHER", 2), patch.object(jobs, "SPANS", 1):
            yield

    def _watch(self) -> None:
        if self.store.watermark(self.tracked.name) is not None:
            super()._watch()

    # -- what came of it -----------------------------------------------------------------------------------------------

    def job_of(self, offset: int) -> Job | None:
        """Return the backfill that was under way when segment *offset* was written."""
        metadata = self.log.metadata(offset)
        assert metadata is not None
        return metadata.watermark.job

    def alive(self) -> dict[int, int]:
        """Return the log folded by key, without what is deleted: key → version."""
        return {row["id"]: row["v"] for row in self.folded().values() if row["_change_type"] != DELETE}

    def folded(self) -> dict[int, dict[str, Any]]:
        return {row["id"]: row for row in self.changes()}
