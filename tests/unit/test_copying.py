"""How large chunks are: by what reading them takes, and for all spans of a table that one reader reads."""

from __future__ import annotations

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
    """Return how many rows each chunk is to have, the first of them 1000."""
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
    assert found == [1000, 2000, 4000, 8000, 8000, 8000]


def test_the_next_span_begins_with_the_size_that_the_last_one_has_come_to() -> None:
    found = limits(Span(None, (9_999,)), Span((9_999,), (19_999,)), seconds_a_row=TARGET / 10_000)
    assert found == [1000, 2000, 4000, 8000, 8000, 8000]


def test_a_size_that_is_said_stays() -> None:
    assert limits(Span(None, (2_499,)), seconds_a_row=1.0, adaptive=False) == [1000, 1000, 1000]
