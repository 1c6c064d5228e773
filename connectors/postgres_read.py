"""One page of rows, by one of two readers that run the same SELECT and whose answers go through the same casts.

COPY on the held connection costs about a millisecond and gives real errors: it reads what polls find. connectorx needs
ten milliseconds for a connection of its own and then reads twice as fast (3M orders: 1.0 times a COPY to /dev/null,
against 2.1): it reads on, under the exported snapshot and for several pages at once, where page after page is full.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from pyarrow import csv

from connectors import postgres_keys as keys
from connectors import postgres_literals as literals
from connectors import postgres_scope as scope
from connectors.postgres_answer import finish
from connectors.postgres_query import Statements, cursor_column, source
from connectors.postgres_rewritten import Files
from connectors.postgres_room import ROOM
from connectors.postgres_session import Session
from connectors.postgres_types import Wire
from connectors.postgres_view import BEGIN, View
from sidecar import codec
from sidecar.errors import SettingsError, SidecarError
from sidecar.model import ALL, CURSOR, Page, Position

log = logging.getLogger("sidecar")

BULK = 10_000
"""Rows of full pages in one go after which more are expected, and connectorx reads them."""

CHUNK = 20_000
"""Rows of one page from which connectorx makes up for its connection at once, where a part of a table is sure to have
so many (50,000 orders: 90 ms against 167; 10,000: 29 against 27)."""

_AHEAD_ROWS, _AHEAD_BYTES = 50_000, 64 << 20
"""What connectorx reads at once: enough to make up for its connection, and no more than is easily held."""


_CHEAP_SECONDS = 2.0
"""A failure of connectorx that took longer, such as a login it tries for half a minute, is not risked again."""


class Unparsed(Exception):
    """Arrow cannot parse what COPY gave; the message says where, without the value."""


@dataclass
class _Run:
    """Full pages of one pass, one after the other in one snapshot, and what has been read of the next ones."""

    view: View
    page: Page
    rows: int = 0
    width: int = 1
    after: Position | None = None
    ahead: pa.Table | None = None
    over: bool = False
    """Whether nothing follows what has been read."""
    last: pa.Table | None = None
    before: Position | None = None
    """The last row that was given, and what it follows: of keys that may not be unique, a page looks one row further,
    and the next one begins with that row."""

    def goes_on(self, view: View, page: Page) -> bool:
        is_next = page.after == self.after or (self.last is not None and page.after == self.before)
        return view is self.view and is_next and _any_page(page) == self.page

    def back_to(self, after: Position | None) -> None:
        """Stand behind *after*, from where the run goes on."""
        if after != self.after:
            assert self.last is not None
            self.ahead, self.after = pa.concat_tables([self.last, self.ahead]) if self.ahead else self.last, after

    def lacks(self, limit: int) -> bool:
        """Return whether more must be read for a page of *limit* rows: pages may grow from one to the next."""
        return self.ahead is None or (not self.over and len(self.ahead) < limit)

    def end(self) -> Position | None:
        """Return where what has been read ends."""
        return self._position(self.ahead) if self.ahead else self.after

    def add(self, rows: pa.Table, asked: int) -> None:
        """Take *rows*, which follow what was there, and which were *asked* for."""
        self.ahead = pa.concat_tables([self.ahead, rows]) if self.ahead else rows
        self.over = len(rows) < asked

    def take(self, limit: int) -> pa.Table:
        """Return the next page, and leave what follows it."""
        assert self.ahead is not None
        found, self.ahead = self.ahead.slice(0, limit), self.ahead.slice(limit)
        self.rows += len(found)
        if len(found):
            self.after = self._position(found)
            self.width = max(1, found.nbytes // len(found))
        self.before = self.last = None
        if len(found) > 1 and not self.page.tracked.key_is_unique:
            # Taken, not sliced, which would keep the whole page.
            self.before, self.last = self._position(found.slice(0, len(found) - 1)), found.take([len(found) - 1])
        return found

    def _position(self, rows: pa.Table) -> Position:
        cursor = CURSOR if CURSOR in rows.column_names else self.page.scan.cursor
        names = (*((cursor,) if self.page.scan.cursor and cursor else ()), *self.page.tracked.key)
        return codec.position(rows.slice(len(rows) - 1), names)

    def worth(self, limit: int) -> int:
        """Return how many rows to read at once: whole pages."""
        return limit * max(1, min(_AHEAD_ROWS, _AHEAD_BYTES // self.width) // limit)


def _any_page(page: Page) -> Page:
    return dataclasses.replace(page, after=None, limit=0)


def _is_large(page: Page) -> bool:
    """Return whether a page is sure to be a large one: a part of a table that has other parts, too."""
    part = page.after is not None or page.until is not None
    return page.limit >= CHUNK and page.scan.name == "all" and part and page.scope == ALL


class Reader:
    """Reads pages through a session, and remembers what it learnt about tables on the way."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._careful: set[str] = set()
        self._checked: set[tuple[str, str]] = set()
        self._files = Files(session)
        self._run: _Run | None = None
        self._connectorx_works = True
        self._resting = False

    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows; see `SourceConnector.read`."""
        tracked = page.tracked
        if page.scan.cursor is not None:
            cursor_column(tracked, page.scan.cursor)
        with self._session.snapshot(tracked.name) as view:
            run, self._run = self._run, None
            if run is None or not run.goes_on(view, page):
                run = _Run(view, _any_page(page), after=page.after)
                self._files.look(page, view)
                self._check(page)
            run.back_to(page.after)
            if run.lacks(page.limit):
                self._read_on(run, page)
            found = run.take(page.limit)
            keys.refuse_nulls(self._session, Statements(page, view.xmax), found)
            self._run = run if len(found) == page.limit else None
        return found

    def _read_on(self, run: _Run, page: Page) -> None:
        """Read what *page* lacks, and more where more is expected."""
        if not page.tracked.key_is_unique:
            # Behind the last row that is held, its key would not come a second time.
            run.ahead = None
        rows, asked = self._following(run, page)
        if run.ahead and run.ahead.schema != rows.schema:
            # What is there was read before times were met that take more care.
            run.ahead = None
            rows, asked = self._following(run, page)
        run.add(rows, asked)

    def _following(self, run: _Run, page: Page) -> tuple[pa.Table, int]:
        """Return rows from where *run* ends, and how many were asked for."""
        held = len(run.ahead) if run.ahead else 0
        page = dataclasses.replace(page, after=run.end() if held else page.after, limit=page.limit - held)
        statements = Statements(page, run.view.xmax)
        keys.refuse_hidden_nulls(self._session, statements, first=not run.rows and not held)
        if run.rows >= BULK or _is_large(page):
            # How wide rows are is known once there are some.
            more = dataclasses.replace(page, limit=max(page.limit, run.worth(page.limit) if run.rows else 0))
            rows = self.bulk(dataclasses.replace(statements, page=more))
            if rows is not None:
                return rows, more.limit
        return self.page(statements), page.limit

    def _check(self, page: Page) -> None:
        """Raise SettingsError if the scope's condition is none, or the one that means "deleted"; asked once."""
        name = page.tracked.name
        for where in (page.scope.where, page.tracked.deleted_when):
            if where is not None and (name, where) not in self._checked:
                scope.check_condition(self._session, name, source(page.tracked), where)
                self._checked.add((name, where))

    def forget(self) -> None:
        """Let go of what was read ahead: its snapshot is over. connectorx gets another chance if that is cheap."""
        self._run = None
        self._files.forget()
        self._resting = False
        ROOM.left_by(self._session)

    def page(self, statements: Statements) -> pa.Table:
        """Return the page by COPY: its rows, or why there are none."""
        return self._page(statements, self._by_copy)

    def bulk(self, statements: Statements) -> pa.Table | None:
        """Return the page by connectorx, the same to the bit; None where it cannot, and COPY has to.

        Its errors have no SQLSTATE and its panics are no Exceptions. Asking again by COPY gives the data or a reason.
        """
        if not self._connectorx_works or self._resting or self._session.url() is None:
            return None
        if not ROOM.is_had_by(self._session):
            self._resting = True
            return None
        self._session.export()
        begun = self._session.clock.monotonic()
        try:
            return self._page(statements, self._by_connectorx)
        except SidecarError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            self._resting = True
            self._connectorx_works = self._session.clock.monotonic() - begun < _CHEAP_SECONDS
            log.debug("connectorx failed (%s); reading on by COPY", type(error).__name__)
            return None

    def _page(self, statements: Statements, ask: Callable[[Statements, Sequence[Wire]], pa.Table]) -> pa.Table:
        """Return the page as *ask* answers it, in final types.

        Times that a final type cannot hold are rare and only SQL can tell about them, at a price. So a page is read
        again with care where one is met, and so are that table's later pages.
        """
        name = statements.tracked.name
        if name not in self._careful:
            wires = statements.wires(careful=False)
            with contextlib.suppress(Unparsed):
                raw = ask(statements, wires)
                if not any(literals.is_time(v.type) and literals.beyond(v) for v in raw.columns):
                    return finish(statements, wires, raw)
            if not any(literals.is_time(w.final) for w in wires):
                raise SettingsError(f'table "{name}": a page cannot be read as what its columns are declared')
            self._careful.add(name)
        wires = statements.wires(careful=True)
        try:
            raw = ask(statements, wires)
        except Unparsed as error:
            raise SettingsError(f'table "{name}": a page cannot be read: {error}') from None
        return finish(statements, wires, raw)

    def _by_copy(self, statements: Statements, wires: Sequence[Wire]) -> pa.Table:
        return self.copied(statements, statements.select(wires, as_csv=True), wires)

    def copied(self, statements: Statements, select: str, wires: Sequence[Wire]) -> pa.Table:
        """Return what *select* selects, as CSV, for *wires*: columns c0, c1, …"""
        names = [f"c{n}" for n in range(len(wires))]
        with (
            self._errors(statements.page),
            self._session.connection.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT csv)") as copy,
        ):
            pieces = list(copy)
        if not pieces:
            return pa.table([pa.array([], w.csv) for w in wires], names=names)
        # One piece is one row, and a block must hold the longest.
        block = max(1 << 20, 2 * max(map(len, pieces)))
        # Behind a line that is skipped: where a file begins with the bytes of a text's U+FEFF, Arrow takes them for a
        # mark of its encoding.
        text = b"".join([b"-\n", *pieces])
        try:
            return csv.read_csv(
                pa.BufferReader(text),
                read_options=csv.ReadOptions(
                    column_names=names,
                    skip_rows=1,
                    block_size=min(block, 2**31 - 1),
                    # One block is parsed sooner than other threads are told of it.
                    use_threads=len(text) > block,
                ),
                parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                convert_options=csv.ConvertOptions(
                    column_types={name: w.csv for name, w in zip(names, wires, strict=True)},
                    null_values=[""],
                    true_values=["t"],
                    false_values=["f"],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise Unparsed(_of(error, wires)) from None

    @contextlib.contextmanager
    def _errors(self, page: Page) -> Iterator[None]:
        """Turn the driver's errors into Sidecar's. What is wrong with a value is wrong with a condition's value."""
        where = page.scope.where
        with self._session.errors(page.tracked.name):
            try:
                yield
            except psycopg.Error as error:
                if where is None or (error.sqlstate or "")[:2] not in ("21", "22", "42", "P0"):
                    raise
                raise scope.refused(error, self._session, page.tracked.name, where) from None

    def _by_connectorx(self, statements: Statements, wires: Sequence[Wire]) -> pa.Table:
        import connectorx

        url = self._session.url()
        assert url is not None
        steps = [self._session.pins(), BEGIN, f"SET TRANSACTION SNAPSHOT '{self._session.export()}'"]
        select = statements.select(wires, as_csv=False)
        self._session.lends = True
        try:
            found = connectorx.read_sql(url, select, return_type="arrow", pre_execution_query=steps)
        finally:
            self._session.lends = False
        assert isinstance(found, pa.Table)
        return found


def _of(error: pa.ArrowInvalid, wires: Sequence[Wire]) -> str:
    """Return what Arrow says, without the value that it says it of."""
    text = str(error)
    for n in range(len(wires) - 1, -1, -1):
        text = text.replace(f"column #{n}:", f'column "{wires[n].name}":')
    return text.split(": invalid value")[0].split("value '")[0].strip()
