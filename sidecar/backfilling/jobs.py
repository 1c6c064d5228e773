"""The backfills of a project: how far each may go before polls have their turn, and how it ends.

Which are to be made is decided in `wanted.py`; what reads is in `copying.py`, what merges in `backfill.py`. Where a
backfill stands is part of its table's watermark: so it outlives any process, and goes on where its last chunk ended.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from sidecar import backfill, faults
from sidecar.backfill import Chunk, Passed
from sidecar.backfilling import purge
from sidecar.backfilling.copying import FIRST_CHUNK, Borrowing, Copying, Failed, Viewed, Work, failing
from sidecar.backfilling.requests import Request, Requests
from sidecar.backfilling.throttle import EVERY, Throttle
from sidecar.backfilling.wanted import Wanted
from sidecar.config import source
from sidecar.connector import Source, SourceConnector, connect
from sidecar.errors import SchemaChanged, SettingsError, SidecarError, SourceUnavailable, about, counted
from sidecar.log import recovery
from sidecar.model import ALL, Job, Page, Tracked, Watermark
from sidecar.poll import Step, check_settings, fresh_watermark, looked, positioned, with_added
from sidecar.polls import quarantine
from sidecar.polls.changes import check_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sidecar.project import Sidecar

log_ = logging.getLogger("sidecar")

PHASE = 60.0
"""Seconds for which one view of the source is held, where nobody asked for a consistent copy."""

WAIT = 0.5
"""Seconds for which a chunk is waited for before looking whether to stop."""

SPANS = 4
"""So many spans a reader: one that turns out longer than the others does not leave the rest idle for long."""

ATTEMPTS = 4

_NOTHING = Step("", 0, 0, None, done=False)


class Jobs:
    """The backfills of one open project. `work` does as much as there is time for; all else is quick."""

    def __init__(
        self,
        sidecar: Sidecar,
        stop: threading.Event,
        failed: Callable[[str, SidecarError], None],
        looked_anew: Callable[[str], bool],
        session: Callable[[], SparkSession],
    ) -> None:
        self._sidecar, self._stop, self._failed, self._looked_anew = sidecar, stop, failed, looked_anew
        self._session = session
        self.requests = Requests(sidecar.settings.state.path, sidecar.clock)
        self._wanted = Wanted(sidecar, self.requests, failed)
        self._throttle = Throttle(sidecar.settings.backfill, sidecar.clock)
        self._copying: Copying | None = None
        self._copied: dict[str, tuple[Tracked, Request, Passed]] = {}
        self._views: dict[str, Viewed] = {}
        self._described: dict[str, Tracked] = {}
        self._out: dict[str, SidecarError] = {}
        self._limit, self._is_shared = PHASE, False
        self._has_ended_a_phase = False
        self._attempts = 0

    # -- what is to be done --------------------------------------------------------------------------------------------

    def new_round(self) -> None:
        """Try again what has failed before."""
        self._wanted.new_round()
        self._attempts = 0
        for table, error in self._out.items():
            # Tried again once the others have been copied.
            self._failed(table, error)

    def holds(self, tracked: Tracked, mark: Watermark | None) -> bool:
        """Return whether polls of *tracked*, which stands at *mark*, have to wait: until its first backfill has begun,
        or while a consistent copy of it is made.
        """
        if tracked.consistent and self._copying is not None and tracked.name in self._copied:
            return True
        return self._wanted.is_to_be_begun(tracked, mark)

    def waiting(self, names: Iterable[str] | None = None) -> list[Tracked]:
        """Return the tables, of *names* if given, that have a backfill under way or to be begun."""
        return [
            t for t in self._sidecar.tracked.values() if (names is None or t.name in names) and self._wanted.request(t)
        ]

    # -- the work ------------------------------------------------------------------------------------------------------

    def work(self, until: float | None, names: Iterable[str] | None = None) -> Iterator[Step]:
        """Copy until the clock says *until* (None: until all is done); each step yielded is durable.

        With *until*, it ends with a phase that has lasted long enough, too: polls may have waited for that.
        """
        clock = self._sidecar.clock
        self._has_ended_a_phase = False
        while not self._stop.is_set() and (until is None or clock.monotonic() < until):
            try:
                step = self._step(until, names)
            except Failed as failed:
                self._give_way(failed)
                continue
            if step is None:
                return
            if step.rows_read or step.done:
                yield step
            if self._has_ended_a_phase and until is not None:
                return

    def cancel(self) -> None:
        """Have what is being asked of the source, ahead of a copy or for it, break off; from any thread."""
        if (copying := self._copying) is not None:
            copying.lead.cancel()

    def keep_to(self, tables: Mapping[str, Tracked]) -> None:
        """Stop reading if a table is followed otherwise, by *tables*, than it was when that began."""
        # Not at each look: a chunk that takes longer than a round would never be there.
        if any(tables.get(name) != self._described[name] for name in self._copied):
            self.close()

    def close(self) -> None:
        """Stop reading; what has been read and not written down is read again next time."""
        copying, self._copying = self._copying, None
        self._copied, self._views, self._out = {}, {}, {}
        if copying is not None:
            copying.close()

    def _leave(self, table: str) -> None:
        """Copy no more of *table* in this phase. Others that are to be of one instant keep their view; else it ends."""
        if not self._is_shared or self._copying is None or table not in self._copied:
            self.close()
            return
        self._copying.leave(table)
        del self._copied[table]

    def _step(self, until: float | None, names: Iterable[str] | None) -> Step | None:
        """Make one chunk durable, or wait for one; None if there is nothing to be done."""
        clock, copying = self._sidecar.clock, self._copying
        if copying is None and not self.waiting(names):
            return None
        if self._throttle.pauses(self._sidecar.connector.strain):
            self.close()
            self._throttle.wait(until, self._stop)
            return _NOTHING
        if self._throttle.is_ahead:
            end = None if copying is None else copying.began + self._limit
            if end is not None and clock.monotonic() >= end:
                self.close()
                end = None
            look = clock.monotonic() + EVERY
            self._throttle.wait(min(t for t in (until, end, look) if t is not None), self._stop)
            return _NOTHING
        if copying is None:
            return self._new_phase(names)
        left = WAIT if until is None else max(0.0, until - clock.monotonic())
        chunk = copying.next(min(left, WAIT))
        if chunk is None:
            if copying.is_over and not self._goes_on(copying):
                self.close()
            return _NOTHING
        return self._merged(chunk, copying) if chunk.table in self._copied else _NOTHING

    def _goes_on(self, copying: Copying) -> bool:
        """Begin in the same view with the next part of each scope that comes in parts; return whether there is one."""
        marks = ((table, self._sidecar.store.watermark(table)) for table in self._copied)
        jobs = [(table, mark.job) for table, mark in marks if mark is not None and mark.job is not None]
        works = [work for table, job in jobs if job.part for work in self._views[table].works(job)]
        if works:
            with failing(works[0].page.tracked.name):
                copying.begin(works)
        return bool(works)

    def _merged(self, chunk: Chunk, copying: Copying) -> Step:
        """Make *chunk* durable, and what follows from it: the end of its backfill, or that of the phase."""
        clock = self._sidecar.clock
        tracked, request, passed = self._copied[chunk.table]
        log, store = self._sidecar.log(chunk.table), self._sidecar.store
        if not self._wanted.stands(tracked, request):
            self._leave(chunk.table)
            return Step(chunk.table, 0, 0, None, done=True)
        fits = functools.partial(check_schema, tracked, log)
        with failing(chunk.table):
            step = backfill.write(
                chunk, log, store, scope=request.scope, clock=clock, fits=fits, passed=passed, held=passed.held
            )
        if step is None:
            self.close()
            return _NOTHING
        self._attempts = 0
        self._throttle.wrote(step.rows_read)
        if step.done:
            with failing(chunk.table):
                self._finish(tracked, request)
            self._copied.pop(chunk.table)
        if clock.monotonic() - copying.began > self._limit:
            self.close()
            self._has_ended_a_phase = True
        return step

    # -- phases --------------------------------------------------------------------------------------------------------

    def _new_phase(self, names: Iterable[str] | None) -> Step | None:
        """Take a view of the source, and begin to read what is to be copied from it; None if there is nothing."""
        found = [
            (t, r) for t in backfill.parents_first(self.waiting(names)) if (r := self._wanted.request(t)) is not None
        ]
        if not found:
            return None
        settings = self._sidecar.settings.backfill
        settled: list[tuple[Tracked, Request]] = []
        lows: dict[str, int] = {}
        for tracked, request in found:
            with failing(tracked.name):
                settled.append((self._sidecar.settled(tracked), request))
                # Before the view is taken: what polls deliver from here on may be newer than it.
                lows[tracked.name] = self._sidecar.log(tracked.name).last()
        shared, self._is_shared = any(t.consistent for t, _ in settled), False
        self._limit = settings.copy_phase / 1_000_000 if shared else PHASE
        with failing(settled[0][0].name):
            copying = self._copy(shared=shared)
        self._copying = copying
        works: list[Work] = []
        for tracked, request in settled:
            with failing(tracked.name):
                job = self._job(copying.lead, tracked, request)
                if job is not None and backfill.is_done(job, request.scope):
                    self._finish(tracked, request)
                    continue
            if job is None:
                continue
            mark = self._sidecar.store.watermark(tracked.name)
            assert mark is not None
            self._described[tracked.name] = self._sidecar.tracked[tracked.name]
            self._copied[tracked.name] = tracked, request, Passed(tracked, self._sidecar.log(tracked.name))
            low = min(job.began, lows[tracked.name]) if tracked.consistent else lows[tracked.name]
            with failing(tracked.name):
                reached = copying.lead.horizon(tracked, mark.memory).reaches
            self._views[tracked.name] = Viewed(tracked, request.scope, low, mark, reached)
            works += self._views[tracked.name].works(job)
        with failing(settled[0][0].name):
            copying.begin(works)
        self._is_shared = shared
        return _NOTHING

    def _copy(self, *, shared: bool) -> Copying:
        settings, clock = self._sidecar.settings.backfill, self._sidecar.clock
        if settings.engine == "local":
            try:
                return Copying(self._connect, clock, settings.parallelism, shared=shared)
            except SourceUnavailable as error:
                if shared:
                    raise
                log_.warning(
                    "a backfill reads by the connection that polls have, as it gets none of its own: %s", error
                )
                return Borrowing(self._sidecar.connector, clock)
        from sidecar.backfilling.spark_copying import Abroad, SparkCopying

        abroad = Abroad(self._source(), self._session, lambda table: self._sidecar.log(table).staging)
        return SparkCopying(self._connect, clock, settings.parallelism, abroad, shared=shared)

    def _source(self) -> Source:
        return source(self._sidecar.settings, self._sidecar.clock)

    def _connect(self) -> SourceConnector:
        return connect(self._source())

    def _job(self, connector: SourceConnector, tracked: Tracked, request: Request) -> Job | None:
        log, store = self._sidecar.log(tracked.name), self._sidecar.store
        recovery.settle(log, store)
        mark = store.watermark(tracked.name)
        if mark is not None and mark.job is not None and not self._wanted.stands(tracked, request):
            return None
        backfill.refuse_columns_gone(tracked, request.scope)
        if request.purge:
            self._sees_all(connector, tracked)
        if mark is not None:
            check_settings(tracked, mark)  # how far it has come is said by its key
            # Before a chunk of the new columns: a poll after it would not find them new.
            mark = with_added(connector, tracked, log, store, mark)
        if mark is not None and not backfill.is_new(mark):
            # A chunk's versions are those of this view: under another numbering they would say nothing of polls.
            mark, _ = looked(connector, tracked, log, store, mark)
        if mark is not None and (mark.job is not None or mark.finished == request.id):
            return mark.job
        return self._begin(connector, tracked, request)

    def _sees_all(self, connector: SourceConnector, tracked: Tracked) -> None:
        """Raise SettingsError if rows of *tracked* may be hidden from a purge; what it has read is then read anew."""
        try:
            purge.refuse_hidden(connector, tracked)
        except SettingsError:
            # Else it would end, once nothing is hidden any more, with what it has not been shown.
            mark = self._sidecar.store.watermark(tracked.name)
            if mark is not None and mark.job is not None:
                self._wanted.save(tracked.name, dataclasses.replace(mark, job=None))
            raise

    def _begin(self, connector: SourceConnector, tracked: Tracked, request: Request) -> Job | None:
        """Begin with *request*, in the view that *connector* holds; None if it has been cancelled."""
        mark, now = self._sidecar.store.watermark(tracked.name), self._sidecar.clock.now()
        settles = request.purge or request.kind == "quarantined"
        job = Job(request.id, mark.offset if mark else 0, now, version=tracked.backfill_version, settles=settles)
        if request.scope == ALL:
            expected, readers = connector.estimate(tracked), self._sidecar.settings.backfill.parallelism
            page = Page(tracked, backfill.WHOLE, {}, None, tracked.chunk_size or FIRST_CHUNK)
            is_small = readers == 1 or (expected is not None and expected <= 2 * page.limit)
            keys = () if is_small else connector.split(page, SPANS * readers)
            job = dataclasses.replace(job, spans=backfill.spans(keys), expected=expected)
        else:
            expected = backfill.keys_asked_for(tracked, request.scope)
            job = dataclasses.replace(job, version=mark.version if mark else None, expected=expected)
        if backfill.is_new(mark) and (mark is None or request.scope == ALL):
            mark = positioned(connector, tracked, mark or fresh_watermark(tracked), connector.horizon(tracked, None))
            if not tracked.consistent and request.scope == ALL:
                # Its polls begin here, and deliver the rest.
                job = dataclasses.replace(job, closed=mark.closed(), since=mark.since)
        assert mark is not None
        if not self.requests.begin(request):
            return None
        self._wanted.save(tracked.name, dataclasses.replace(mark, job=job))
        faults.point("backfill-begun")
        return job

    # -- the end -------------------------------------------------------------------------------------------------------

    def _finish(self, tracked: Tracked, request: Request) -> None:
        store, clock = self._sidecar.store, self._sidecar.clock
        if request.purge:
            self._sees_all(self._sidecar.connector, tracked)
        mark = store.watermark(tracked.name)
        assert mark is not None
        assert mark.job is not None
        job = mark.job
        if request.purge:
            log, connector = self._sidecar.log(tracked.name), self._sidecar.connector
            mark = purge.unseen(
                connector, tracked, log, store, mark, scope=request.scope, now=clock.now(), empty=request.empty
            )
        if request.kind == "quarantined" or request.scope == ALL:
            # What could not be kept this time, either, is set aside anew. After a purge, which may be refused.
            quarantine.clear(self._sidecar.log(tracked.name), tracked.key, request.scope, job.began)
        self._wanted.save(tracked.name, backfill.ended(mark))
        faults.point("backfill-finished")
        ended = clock.now()
        self.requests.end(request, "done", ended, began=job.at, read=job.read, written=job.written)
        if job.read:
            ms = (ended - job.at) // 1000
            log_.info("table=%s rows=%d offset=%d backfill=done ms=%d", tracked.name, job.written, mark.offset, ms)
        if (absent := _absent(request, job)) is not None:
            missed, asked = absent
            told = f"{missed:,} of {counted(asked, 'key')}"
            log_.warning("table=%s backfill=done: %s not found in the source", tracked.name, told)

    def _give_way(self, failed: Failed) -> None:
        """Let go of a phase in which a table failed, or of that table: what may pass is tried again, else the table
        rests for a round, or for as long as the others keep their view.
        """
        table, error = failed.table, failed.error
        self._leave(table) if failed.is_its_own else self.close()
        self._attempts += 1
        if isinstance(error, SourceUnavailable) and self._attempts < ATTEMPTS and not self._stop.is_set():
            log_.warning("%s Trying again.", about(table, error))
            self._sidecar.clock.sleep(0.2 * 2**self._attempts, self._stop)
            return
        if isinstance(error, SettingsError | SchemaChanged) and self._attempts < ATTEMPTS and self._looked_anew(table):
            return
        if isinstance(error, backfill.Refused):
            self._wanted.refuse(table)
        self._wanted.rests(table)
        if self._copying is not None:
            self._out[table] = error
        self._failed(table, error)


def _absent(request: Request, job: Job) -> tuple[int, int] | None:
    """Return how many of the keys that somebody asked for *job* has not met, and of how many; None if it has met all.

    A purge asks for such keys as well, and says nothing.
    """
    among = request.scope.among
    if among is None or request.kind != "requested" or request.purge or request.scope.where is not None:
        return None
    asked = len(among.values)
    return (asked - job.read, asked) if job.read < asked else None
