"""How large chunks are: by what reading them takes, and for all spans of a table that one reader reads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pyarrow as pa

from sidecar.backfill import WHOLE
from sidecar.backfilling.copying import TARGET, Copying, Work
from sidecar.clock import FakeClock
from sidecar.connector import Source, SourceConnector
from sidecar.model import Column, Page, Span, Table, Tracked

COLUMNS = (Column("id", "", pa.int64(), nullable=False), Column("u", "", pa.timestamp("us", "UTC")))
TRACKED = Tracked(Table("t", ("t",), COLUMNS, ("id",)), ("id",), "u", columns=COLUMNS)


class Numbers(SourceConnector):
    """The numbers from 0 on, each with a duration that it takes to be read."""

    scheme = "numbers"

    def __init__(self, clock: FakeClock, seconds_a_row: float) -> None:
        super().__init__(Source("numbers://", clock=clock))
        self.clock, self.seconds_a_row = clock, seconds_a_row

    def tables(self) -> list[str]:
        return ["t"]

    def describe(self, table: str) -> Table:
        return TRACKED.table

    def read(self, page: Page) -> pa.Table:
        first = int(str(page.after[0])) + 1 if page.after else 0
        last = int(str(page.until[0])) if page.until else first + page.limit
        found = range(first, min(first + page.limit, last + 1))
        self.clock.advance(len(found) * self.seconds_a_row)
        return pa.table({"id": pa.array(found, pa.int64()), "u": pa.nulls(len(found), COLUMNS[1].arrow)})


def limits(*spans: Span, seconds_a_row: float, adaptive: bool = True) -> list[int]:
    """Return how many rows each chunk is to have, where 1000 are to be read at first."""
    clock = FakeClock()
    copying = Copying(lambda: Numbers(clock, seconds_a_row), clock, 1, shared=False)
    pages = [Page(TRACKED, WHOLE, {}, span.after, 1000, until=span.until) for span in spans]
    copying.begin([Work("j", 0, n, page, 0, None, adaptive) for n, page in enumerate(pages)])
    found = []
    while (chunk := copying.next(0)) is not None:
        found.append(chunk.page.limit)
        # Whoever writes it down takes his time.
        clock.advance(60)
    copying.close()
    return found


def test_a_chunk_that_waits_to_be_written_does_not_make_the_next_one_smaller() -> None:
    found = limits(Span(None, (30_000,)), seconds_a_row=TARGET / 10_000)
    assert found == [100, 1000, 2000, 4000, 8000, 8000, 8000]


def test_the_next_span_begins_with_the_size_that_the_last_one_has_come_to() -> None:
    found = limits(Span(None, (9_999,)), Span((9_999,), (19_999,)), seconds_a_row=TARGET / 10_000)
    assert found == [100, 1000, 2000, 4000, 8000, 8000, 8000]


def test_a_size_that_is_said_stays_once_it_is_seen_how_wide_rows_are() -> None:
    assert limits(Span(None, (2_499,)), seconds_a_row=1.0, adaptive=False) == [100, 1000, 1000, 1000]


def test_no_reader_begins_before_each_has_its_connection_or_none() -> None:
    """A connector may then have found that there is one for its own ends, which another reader was about to take."""
    clock, gate = FakeClock(), threading.Event()

    class Shared(Numbers):
        reads_ahead, shares_views = True, True

        @contextlib.contextmanager
        def copying(self) -> Iterator[str]:
            yield "view"

        @contextlib.contextmanager
        def join(self, name: str) -> Iterator[None]:
            assert gate.wait(20)
            yield

    copying = Copying(lambda: Shared(clock, 0), clock, 2, shared=False)
    pages = [Page(TRACKED, WHOLE, {}, (first,), 1000, until=(first + 9,)) for first in (0, 10)]
    copying.begin([Work("j", 0, n, page, 0, None, adaptive=False) for n, page in enumerate(pages)])
    assert copying.next(0.3) is None
    gate.set()
    assert copying.next(20) is not None
    copying.close()
