"""Reading ahead: the next page is fetched while the last one is made durable. Two pages in memory, never more."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from sidecar.connector import SourceConnector
from sidecar.errors import SidecarError
from sidecar.model import Page
from sidecar.polls import twins

if TYPE_CHECKING:
    import pyarrow as pa


class Reader:
    """Reads a connector's pages, one at a time; the one that is expected next, ahead, if the connector allows it."""

    def __init__(self, connector: SourceConnector) -> None:
        self._connector = connector
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: tuple[Page, Future[pa.Table]] | None = None

    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows."""
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
        except SidecarError as error:
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
