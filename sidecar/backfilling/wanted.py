"""Which backfill each table is to have: the one under way, the oldest that was asked for, or what the settings want.

A request is a file (`requests.py`), and a backfill under way a part of its table's watermark: what holds where the two
do not say the same, after a crash or a cancellation, is decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar import backfill
from sidecar.backfilling.requests import Request, Requests
from sidecar.errors import SidecarError, StateDamaged, counted
from sidecar.model import ALL, Tracked, Watermark
from sidecar.polls.deliveries import NOTHING

if TYPE_CHECKING:
    from sidecar.project import Sidecar

log_ = logging.getLogger("sidecar")


class Wanted:
    """The backfills that a project is to make, and their watermarks."""

    def __init__(self, sidecar: Sidecar, requests: Requests, failed: Callable[[str, SidecarError], None]) -> None:
        self._sidecar, self.requests, self._failed = sidecar, requests, failed
        self._under_way: set[str] | None = None
        self._looked_at: set[tuple[str, str | None]] = set()
        self._resting: set[str] = set()

    def new_round(self) -> None:
        """Try again what has failed before."""
        self._resting.clear()

    def rests(self, table: str) -> None:
        """Leave *table* alone for the rest of this round."""
        self._resting.add(table)

    def request(self, tracked: Tracked) -> Request | None:
        """Return the request that *tracked* is to be backfilled by: the one under way, or else the oldest."""
        name, store = tracked.name, self._sidecar.store
        if self._under_way is None:
            marks = {table: store.watermark(table) for table in store.tables()}
            self._under_way = {table for table, mark in marks.items() if mark is not None and mark.job is not None}
        found = [] if name in self._resting else self._open(name)
        if name in self._resting or name in self._sidecar.damaged:
            return None
        if name in self._under_way:
            return self._running(tracked, found)
        asked = name, tracked.backfill_version
        if not found and asked in self._looked_at:
            return None
        mark = store.watermark(name)
        if self.is_to_be_begun(tracked, mark):
            return self._automatic(name)
        if mark is None or backfill.is_new(mark):
            # Its first poll says what there was before, or reads all of it.
            return None
        for request in found:
            if request.id != mark.finished:
                return request
            # The process ended between the two halves of the ending.
            self.requests.end(request, "done", self._sidecar.clock.now())
        self._looked_at.add(asked)
        if tracked.backfill_version not in (None, mark.version):
            return self._automatic(name)
        return None

    def is_to_be_begun(self, tracked: Tracked, mark: Watermark | None) -> bool:
        """Return whether *tracked*, which stands at *mark*, waits for its first backfill."""
        if not tracked.auto_backfill or not backfill.is_new(mark):
            return False
        return backfill.can_read(self._sidecar.connector, tracked)

    def save(self, table: str, mark: Watermark) -> None:
        """Store *mark* as where *table* stands."""
        self._sidecar.store.save(table, mark, NOTHING)
        if self._under_way is not None:
            (self._under_way.discard if mark.job is None else self._under_way.add)(table)

    def stands(self, tracked: Tracked, request: Request) -> bool:
        """Return whether *request* has not been cancelled; if it has, its backfill is over."""
        if self.requests.stands(request.id, tracked.name):
            return True
        store = self._sidecar.store
        mark = store.watermark(tracked.name)
        if mark is not None and mark.job is not None and mark.job.id == request.id:
            self._drop(tracked.name, mark)
        return False

    def refuse(self, table: str) -> None:
        """End the backfill that *table* waits for now: it cannot be made."""
        tracked, mark = self._sidecar.tracked.get(table), self._sidecar.store.watermark(table)
        request = None if tracked is None else self.request(tracked)
        if request is None:
            return
        job = mark.job if mark is not None and mark.job is not None and mark.job.id == request.id else None
        if mark is not None and job is not None:
            self.save(table, backfill.ended(mark))
        done = {} if job is None else {"began": job.at, "read": job.read, "written": job.written}
        self.requests.end(request, "refused", self._sidecar.clock.now(), **done)

    def _automatic(self, table: str) -> Request:
        for request in self.requests.open(table):
            if request.scope == ALL and not request.purge:
                return request
        return self.requests.ask(table, self._sidecar.clock.now(), kind="automatic")

    def _open(self, table: str) -> list[Request]:
        """Return the requests for *table*; none where one cannot be read, which is said, and the table rests."""
        try:
            return self.requests.open(table)
        except StateDamaged as error:
            self._resting.add(table)
            self._failed(table, error)
            return []

    def _running(self, tracked: Tracked, found: list[Request]) -> Request | None:
        name = tracked.name
        mark = self._sidecar.store.watermark(name)
        assert self._under_way is not None
        if mark is None or mark.job is None:
            self._under_way.discard(name)
            return None
        for request in found:
            if request.id == mark.job.id and request.running:
                return request
        is_first = mark.job.closed is not None or (tracked.consistent and mark.finished is None)
        ending = self.requests.ending(mark.job.id, name)
        if is_first and ending is None:
            # The folder of requests was lost, and with it nothing that the watermark does not say.
            return self.requests.keep(Request(mark.job.id, name, mark.job.at, "automatic", running=True))
        if ending == "done":
            # The state was lost, and the last segment, which it was rebuilt from, does not know of the end.
            self.save(name, backfill.ended(mark))
        else:
            self._drop(name, mark)
        return None

    def _drop(self, table: str, mark: Watermark) -> None:
        job = mark.job
        assert job is not None
        in_log = counted(job.written, "row of it is", "rows of it are")
        self.save(table, backfill.ended(mark))
        log_.warning("table=%s backfill=%s cancelled: %s in the log", table, job.id, in_log)
