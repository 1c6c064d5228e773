"""The reading side of backfills: one phase, in which some readers fetch chunks from one view of the source.

Each reader has a connection of its own and takes one span after the other; what it has read waits in a queue that holds
one chunk a reader. So a source that allows it is read by several connections at once, memory holds at most two chunks a
reader, and whoever writes the chunks down is free to poll in between. Readers on other machines: `spark_copying.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sidecar import codec, faults
from sidecar.backfill import Chunk, pages
from sidecar.clock import Clock
from sidecar.connector import SourceConnector
from sidecar.errors import SidecarError, SourceUnavailable, StateUnavailable
from sidecar.model import Job, Memory, Page, Position, Scope, Tracked, Watermark
from sidecar.polls import ahead, behind, twins
from sidecar.running.stopping import breaking_off

if TYPE_CHECKING:
    import pyarrow as pa

log_ = logging.getLogger("sidecar")

MIN_CHUNK, MAX_CHUNK = 500, 200_000
FIRST_CHUNK = 20_000
"""Rows of the first chunk, where nothing is said of its size; later ones go by the time that it took."""

TARGET = 0.5
"""Seconds that reading one chunk should take, where nothing is said of its size."""


@dataclass(frozen=True, slots=True)
class Work:
    """A span to be read, from its first page on; with an adaptive size, later pages may ask for more or fewer rows.

    `reached` is that of the view in which it is (`Horizon.reaches`). `began`: since when (microseconds UTC) it is being
    read.
    """

    job: str
    part: int
    span: int
    page: Page
    low: int
    memory: Memory
    adaptive: bool
    era: str | None = None
    reached: int | None = None
    began: int | None = None


@dataclass(frozen=True, slots=True)
class Viewed:
    """A part of a table in one view: what the log has after `low` may be newer; `mark` is from before its chunks."""

    tracked: Tracked
    scope: Scope
    low: int
    mark: Watermark
    reached: int | None

    def works(self, job: Job) -> Iterator[Work]:
        """Yield what is to be read next where *job* stands."""
        mark, size = self.mark, self.tracked.chunk_size
        for number, page in pages(self.tracked, job, self.scope, size or FIRST_CHUNK):
            yield Work(job.id, job.part, number, page, self.low, mark.memory, size is None, mark.era, self.reached)


class Failed(Exception):
    """A table could not be read on."""

    def __init__(self, table: str, error: SidecarError) -> None:
        super().__init__(str(error))
        self.table, self.error = table, error

    @property
    def is_its_own(self) -> bool:
        """Whether it is about the table, and others can be read on: not about the source, or the place of the log."""
        return not isinstance(self.error, SourceUnavailable | StateUnavailable)


Ready: TypeAlias = Chunk | Callable[[], Chunk] | Failed
"""What has been read: in memory, or to be fetched once it is its turn; or why no more of a table is."""


class Copying:
    """One phase of copying, from a view of the source that is held until `close`; `lead` is what holds it.

    *shared*: all reads see one instant, even where the source's snapshots do not hold one.
    """

    def __init__(self, connect: Callable[[], SourceConnector], clock: Clock, readers: int, *, shared: bool) -> None:
        self._connect, self._clock, self._readers = connect, clock, readers
        self._stack = contextlib.ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._connectors: list[SourceConnector] = []
        self._chunks: queue.Queue[Ready | BaseException | None] = queue.Queue(max(1, readers))
        self._works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._inline: Iterator[Ready] | None = None
        self._left: set[str] = set()
        self._limits: dict[str, int] = {}
        self._reading = 0
        self._joining, self._deciding = 0, threading.Lock()
        self._all_joined = threading.Event()
        self.is_over = False
        """Whether all has been read, and handed on."""
        self.began = clock.monotonic()
        try:
            self.lead = connect()
            self._name: str | None = None
            self._hold(shared=shared)
        except BaseException:
            self._stack.close()
            raise

    def _hold(self, *, shared: bool) -> None:
        """Hold the view of `lead`, which is nobody else's, until `close`."""
        self._stack.callback(self.lead.close)
        if shared or (self._readers > 1 and self.lead.shares_views):
            self._name = self._stack.enter_context(self.lead.copying())
        else:
            self._stack.enter_context(self.lead.snapshot())

    def begin(self, works: Sequence[Work]) -> None:
        """Begin to read *works*, in their order."""
        for work in works:
            self._works.put(work)
        self.is_over = not works
        if not self.lead.reads_ahead:
            self._inline = self._all(self.lead)
            return
        count = min(self._readers if self._name is not None else 1, len(works))
        # What was begun before is over, and has left its connections.
        self._connectors = self._connectors or [self.lead]
        for _ in range(count - len(self._connectors)):
            other = self._connect()
            self._stack.callback(other.close)
            self._connectors.append(other)
        self._joining = count
        self._all_joined.clear()
        readers = enumerate(self._connectors[:count])
        self._start([functools.partial(self._local, connector, number > 0) for number, connector in readers])

    def leave(self, table: str) -> None:
        """Read no more of *table*, and go on with the others; some of its chunks may still come."""
        self._left.add(table)

    def next(self, timeout: float) -> Chunk | None:
        """Return the next chunk, once it has been read; None if none is after *timeout* seconds, or ever (`is_over`).

        What went wrong while reading is raised here.
        """
        found: Ready | BaseException | None
        if self._inline is not None:
            found = next(self._inline, None)
            self.is_over = found is None
        elif self.is_over:
            return None
        else:
            try:
                found = self._chunks.get(timeout=max(timeout, 0.001))
            except queue.Empty:
                return None
            if found is None:
                self._reading -= 1
                self.is_over = self._reading == 0
        if isinstance(found, BaseException):
            raise found
        return found if found is None or isinstance(found, Chunk) else found()

    def close(self) -> None:
        """Stop reading, and let go of the view and the connections. What has been read and not handed on is dropped."""
        self._stop.set()
        with breaking_off(self._stop, self._cancel) if self._threads else contextlib.nullcontext():
            for thread in self._threads:
                while thread.is_alive():
                    with contextlib.suppress(queue.Empty):
                        self._chunks.get_nowait()
                    thread.join(0.01)
        self._stack.close()

    def _cancel(self) -> None:
        for connector in self._connectors:
            connector.cancel()

    def _start(self, readers: Sequence[Callable[[], Iterator[Ready]]]) -> None:
        """Let each of *readers* read in a thread of its own."""
        self._reading = len(readers)
        for number, reader in enumerate(readers):
            thread = threading.Thread(target=self._read, args=(reader,), name=f"sidecar-copy-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, reader: Callable[[], Iterator[Ready]]) -> None:
        """Hand on all that *reader* reads, and what went wrong; its last word is None."""
        try:
            for ready in reader():
                self._put(ready)
        except BaseException as error:
            # Raised where the chunk is waited for.
            self._put(error)
        finally:
            self._put(None)

    def _joined(self, connector: SourceConnector, view: contextlib.ExitStack) -> bool:
        """Hold the lead's view in *view*, if a connection is to be had; without it, the other readers do it all."""
        try:
            view.enter_context(connector.join(self._name or ""))
        except SidecarError as error:
            if not self._stop.is_set():
                log_.warning("a backfill goes on with fewer connections: %s", error)
            return False
        return True

    def _local(self, connector: SourceConnector, joins: bool) -> Iterator[Ready]:
        with contextlib.ExitStack() as view:
            is_joined = not joins or self._joined(connector, view)
            self._await_others()
            if is_joined:
                yield from self._all(connector)

    def _await_others(self) -> None:
        """Wait until each reader has its connection, or none: before that, a connector cannot tell what is left of them
        for its own ends.
        """
        with self._deciding:
            self._joining -= 1
            if not self._joining:
                self._all_joined.set()
        while not self._all_joined.wait(0.1) and not self._stop.is_set():
            pass

    def _next_work(self) -> Work | None:
        """Return the next span that nobody reads yet; None if there is none, or there is no time for it."""
        with contextlib.suppress(queue.Empty):
            while not self._stop.is_set():
                work = self._works.get_nowait()
                if work.page.tracked.name not in self._left:
                    return dataclasses.replace(work, began=self._clock.now())
        return None

    def _all(self, connector: SourceConnector) -> Iterator[Ready]:
        known: set[str] = set()
        while (work := self._next_work()) is not None:
            tracked = work.page.tracked
            try:
                if tracked.name not in known:
                    # What the connector has found out about the table's cursors is in its memory.
                    with failing(tracked.name):
                        connector.horizon(tracked, work.memory)
                    known.add(tracked.name)
                yield from self._span(connector, work)
            except Failed as failed:
                if not failed.is_its_own:
                    raise
                self.leave(tracked.name)
                yield failed

    def _span(self, connector: SourceConnector, work: Work) -> Iterator[Chunk]:
        """Yield the chunks of *work*; how large they have become by its end, the table's next span goes on with."""
        name, page = work.page.tracked.name, work.page
        page = dataclasses.replace(page, limit=first(work, self._limits.get(name)))
        after: Page | None = page
        while after is not None:
            page, began = after, self._clock.monotonic()
            with failing(name):
                data, reached = self._rows(connector, work, page)
            # Not what comes after: a chunk may wait long for its turn, and tells nothing of the source by that.
            seconds = self._clock.monotonic() - began
            faults.point("chunk-read")
            yield chunk_of(dataclasses.replace(work, reached=reached), page, data)
            if self._stop.is_set() or name in self._left:
                return
            after = following(work, page, data, seconds)
            self._limits[name] = page.limit if after is None else after.limit

    def _rows(self, connector: SourceConnector, work: Work, page: Page) -> tuple[pa.Table, int | None]:
        """Return *page*'s rows, and what the view in which they were read reaches."""
        return twins.read(connector, page), work.reached

    def _put(self, what: Ready | BaseException | None) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._chunks.put(what, timeout=0.1)
                return


class Borrowing(Copying):
    """The same by *lead*, a connector that polls use as well, where the source has no connection for another one.

    A chunk is read when it is asked for, between polls, in a view of its own.
    """

    def __init__(self, lead: SourceConnector, clock: Clock) -> None:
        super().__init__(lambda: lead, clock, 1, shared=False)

    def _hold(self, *, shared: bool) -> None:
        del shared

    def begin(self, works: Sequence[Work]) -> None:
        for work in works:
            self._works.put(work)
        self._inline = self._all(self.lead)

    def _rows(self, connector: SourceConnector, work: Work, page: Page) -> tuple[pa.Table, int | None]:
        with connector.snapshot():
            # The connection may have been lost since, and the next one have found another server.
            view = connector.horizon(page.tracked, work.memory)
            behind.refuse(connector, page.tracked.name, work.reached, view)
            return twins.read(connector, page), view.reaches


@contextlib.contextmanager
def failing(table: str) -> Iterator[None]:
    """Say of what goes wrong inside which table it is about."""
    try:
        yield
    except SidecarError as error:
        raise Failed(table, error) from error


def chunk_of(work: Work, page: Page, data: pa.Table) -> Chunk:
    """Return *data*, which was read of *work* as *page*, as it is handed on."""
    told = (work.low, work.era, work.reached, work.began)
    return Chunk(page.tracked.name, work.job, work.part, work.span, page, data, *told)


def following(work: Work, page: Page, data: pa.Table, seconds: float) -> Page | None:
    """Return the page after *page*, of which *data* was read in *seconds*; None at the end of its span."""
    if len(data) < page.limit:
        return None
    after: Position = codec.position(data.slice(len(data) - 1), page.tracked.key)
    limit = adapted(page.limit, seconds) if work.adaptive else work.page.limit
    if limit > page.limit:
        # Quickly back to what is usual, where only a first look has made it small.
        limit = max(limit, work.page.limit)
    return dataclasses.replace(page, after=after, limit=min(limit, ahead.room(page.limit, data)))


def first(work: Work, known: int | None) -> int:
    """Return how many rows the first chunk of *work* may have, if its table's last one could have *known*: few, before
    it has been seen how wide they are.
    """
    size = ahead.FIRST if known is None else known
    return size if work.adaptive and known is not None else min(work.page.limit, size)


def adapted(limit: int, seconds: float) -> int:
    """Return how many rows the next chunk should have, after one of *limit* rows that took *seconds* to read."""
    if seconds > 2 * TARGET:
        return max(MIN_CHUNK, limit // 2)
    if seconds < TARGET / 2:
        return min(MAX_CHUNK, limit * 2)
    return limit
