"""Reading ahead: the next page is fetched while the last one is made durable. Two pages in memory, never more.

How many rows a page may have is the settings' affair; how many bytes, memory's. Nobody knows how wide rows are before
some are read, so a table's first page is a small one, and so is that of a poll that was interrupted: it may have been
for want of memory. Another poll begins as the rows of the last one let it, and pages grow as far as the one before was
narrow.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from sidecar.connector import SourceConnector
from sidecar.model import Page
from sidecar.polls import twins

if TYPE_CHECKING:
    import pyarrow as pa


FIRST, GROWTH = 100, 16
"""Rows of a first page, and how many times as many the next one may have: 100, 1,600, 25,600."""

KNOWN = 2_000
"""Rows of a poll's first page, where the last rows were narrow: the next ones need not be."""

ROOM = 64 << 20
"""Bytes that one page should take in memory. Several times that is needed while it is read and written."""


def room(limit: int, rows: pa.Table) -> int:
    """Return how many rows the page may have that follows *rows*, of which at most *limit* had been asked for."""
    if not len(rows):
        return limit
    return max(1, min(limit * GROWTH, ROOM * len(rows) // max(1, int(rows.nbytes))))


def width(rows: pa.Table) -> int:
    """Return how many bytes a row of *rows* has, to the next power of two: what is kept is to change rarely."""
    return 1 << (int(rows.nbytes) // max(1, len(rows))).bit_length()


class Reader:
    """Reads a connector's pages, one at a time; the one that is expected next, ahead, if the connector allows it.

    *known*: how wide the last rows were, if that may be relied on.
    """

    def __init__(self, connector: SourceConnector, known: int | None) -> None:
        self._connector = connector
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: tuple[Page, Future[pa.Table]] | None = None
        self._room = FIRST if known is None else max(1, min(KNOWN, ROOM // known))

    def limit(self, most: int) -> int:
        """Return how many rows the next page may have, of *most* that are wanted."""
        return min(most, self._room)

    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows."""
        rows = self._rows(page)
        self._room = room(page.limit, rows)
        return rows

    def _rows(self, page: Page) -> pa.Table:
        expected, self._ahead = self._ahead, None
        if expected is None:
            return twins.read(self._connector, page)
        asked, future = expected
        # Never two reads at once: one that turns out not to be wanted is waited for.
        rows = future.result()
        return rows if asked == page else twins.read(self._connector, page)

    def is_empty(self, page: Page) -> bool:
        """Return whether *page* has no rows. What it has, or why it cannot be read, is kept for `read`."""
        found: Future[pa.Table] = Future()
        try:
            found.set_result(twins.read(self._connector, page))
        except Exception as error:
            # Whatever it is, of a connector of somebody's own: the page before is none the worse for it.
            found.set_exception(error)
        is_empty = found.exception() is None and not len(found.result())
        self._ahead = None if is_empty else (page, found)
        return is_empty

    def expect(self, page: Page) -> None:
        """Begin to read *page*, which is asked for next."""
        if self._connector.reads_ahead:
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="sidecar-read")
            self._ahead = page, self._pool.submit(twins.read, self._connector, page)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A poll may be dropped between two pages: what is under way must be over before its snapshot is.
        self._ahead = None
        if self._pool is not None:
            self._pool.shutdown(wait=True)
