"""Large pages by connectorx, which reads and makes Arrow in a third of the time that Python takes for its objects.

What connectorx would get wrong it is not asked for. It takes a column's type from its first row: so before the rows it
is given one that says of which storage class each column's values are, as the page before had them, which Python read;
a value of any other is then an error. An integer that no double is becomes such a value. Parameters, which it has
none of, are put in as literals. Where it fails, Python reads the page, and says what is the matter.
"""

from __future__ import annotations

import dataclasses
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from connectors import sqlite_types as types
from connectors.sqlite_apart import Apart
from connectors.sqlite_file import File
from connectors.sqlite_query import Statement, names
from connectors.sqlite_rows import from_columns
from sidecar import codec
from sidecar.model import ALL, Page, Position, Scalar, Tracked

LEAST = 10_000
"""Rows of a page from which it makes up for asking."""

_ROWS, _BYTES = 25_000, 8 << 20
"""What is asked for at once, as far as is known: beside a page, either process holds some copies of so much."""

MANY = 200_000
"""Rows that a table has at least, as far as is known, for which a process is started."""

_PATIENCE = 3
"""So many failures in a table, one after the other, and it is asked no more."""

_FIRST = {int: "0", float: "0.0", str: "''", bytes: "X''"}
_EXACT = (
    f"CASE WHEN {{c}} NOT BETWEEN -{types.EXACT} AND {types.EXACT} AND typeof({{c}}) = 'integer' THEN '' ELSE {{c}} END"
)
_PARTS = re.compile(r'"(?:[^"]|"")*"|\'(?:[^\']|\'\')*\'|\?')

Asking = Callable[[sqlite3.Connection, Page, Callable[[str, str], str]], Sequence[Statement]]
"""What returns a page's SELECTs, given what is selected of each column."""


@dataclass(slots=True)
class _Known:
    """What is known of a table: the class of each column's values by name, None if it is not one alone."""

    classes: dict[str, type | None] = field(default_factory=dict)
    may_be: bool = False
    failures: int = 0
    at_once: int = 5_000
    """Rows."""

    def fails(self) -> None:
        self.failures += 1
        self.may_be = self.failures < _PATIENCE


class Bulk:
    """What reads large pages of one source's tables, once it has seen a page of each."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._apart: Apart | None = None
        self._known: dict[str, _Known] = {}
        self._asked: Page | None = None
        """What the process reads, if that is still wanted."""
        self._is_asked = False

    def takes(self, page: Page, estimate: Callable[[Tracked], int | None]) -> bool:
        """Return whether `read` is worth a try; *estimate* says about how many rows a table has.

        The first page of a large table is not: what it holds is to be learnt, while the process starts.
        """
        if not _is_large(page) or self._file.is_held:
            return False
        known = self._known.get(page.tracked.name)
        if known is None:
            known = _Known(may_be=self._may_be(page.tracked) and (estimate(page.tracked) or 0) >= MANY)
            self._known[page.tracked.name] = known
        return (
            known.may_be and self._process().is_ready() and bool(known.classes) and None not in known.classes.values()
        )

    def learn(self, page: Page, rows: Sequence[Sequence[object]]) -> None:
        """Take note of what *page*, which Python has read as *rows*, holds."""
        known = self._known.get(page.tracked.name)
        if known is None or not known.may_be or not _is_large(page) or not rows:
            return
        for name, values in zip(names(page.tracked), zip(*rows, strict=True), strict=False):
            found = {*map(type, values)} - {type(None)}
            if (before := known.classes.get(name)) is not None:
                found.add(before)
            known.classes[name] = _class_of(found, _read_as(page.tracked, name))

    def read(self, page: Page, asking: Asking) -> pa.Table | None:
        """Return *page*'s rows as `SourceConnector.read` promises; None if that cannot be done, or not so.

        What comes after is asked for at once: it is read while this is put in order and written down.
        """
        known, left, found = self._known[page.tracked.name], page.limit, []
        while left > 0:
            some = dataclasses.replace(page, limit=min(left, known.at_once))
            asked = self._asked
            if asked is None or asked.limit > left or dataclasses.replace(asked, limit=some.limit) != some:
                self._ask(some, asking, known)
            else:
                some = asked
            rows = self._answer()
            if rows is None:
                known.fails()
                return None
            left -= len(rows)
            is_over = len(rows) < some.limit
            if not is_over:
                after = _position(page.tracked, rows)
                if after is None:
                    # Nor can all of them be read so; and from where they began, they would come again.
                    known.fails()
                    return None
                known.at_once = max(1, min(_ROWS, _BYTES * len(rows) // rows.nbytes))
                page = dataclasses.replace(page, after=after)
                more = dataclasses.replace(page, limit=min(left or page.limit, known.at_once))
                self._ask(more, asking, known)
            data = from_columns(page.tracked, rows.columns)
            if data is None:
                known.fails()
                return None
            found.append(data)
            if is_over:
                break
        known.failures = 0
        return pa.concat_tables(found)

    def begin(self) -> None:
        """Let nothing that was read ahead until now be taken for what is read from now on."""
        self._asked = None

    def rest(self) -> None:
        """End the process, until there is much to be read again; for the thread that reads."""
        if self._apart is not None:
            self._apart.release()
        self._apart = self._asked = None
        self._is_asked = False

    def cancel(self) -> None:
        """Have what is being read break off; from any thread."""
        if (apart := self._apart) is not None:
            apart.close()

    def _process(self) -> Apart:
        if self._apart is None:
            source = self._file.source
            self._apart = Apart(self._file.path, source.clock, source.statement_timeout)
        return self._apart

    def _may_be(self, tracked: Tracked) -> bool:
        """Return whether rows of *tracked* are what is in the file, and nothing that one SQLite makes otherwise than
        another does, by functions.
        """
        if tracked.deleted_when or tracked.table.kind == "view" or not tracked.key_is_unique:
            return False
        if any(types.keeps_numbers(_declared(tracked, name)) for name in tracked.key):
            return False  # a number and its text are looked for row by row
        with self._file.reading(tracked.name) as connection:
            generated = "SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden = 2"
            return connection.execute(generated, (tracked.name,)).fetchone() is None

    def _ask(self, page: Page, asking: Asking, known: _Known) -> None:
        """Have *page* read; what was asked for before is not wanted any more."""
        if self._is_asked:
            self._answer()
        tracked = page.tracked

        def shown(name: str, quoted: str) -> str:
            return _EXACT.replace("{c}", quoted) if known.classes[name] is float else quoted

        with self._file.reading(tracked.name) as connection:
            statements = asking(connection, page, shown)
        selects = [sql for s in statements if (sql := _literal(s, page.limit)) is not None]
        if len(selects) < len(statements) or not self._file.is_in_place():
            return
        wanted = names(tracked)
        classes = [known.classes[name] or str for name in wanted]
        classes += [int] if tracked.deleted_at else []
        first = ", ".join(f"{_FIRST[c]} AS c{n}" for n, c in enumerate(classes))
        rest = " UNION ALL ".join(f"SELECT * FROM ({sql})" for sql in selects)
        # A limit of the whole costs a tenth of all.
        limit = f" LIMIT {page.limit + 1}" if len(selects) > 1 else ""
        self._asked, self._is_asked = page, True
        self._process().ask(f"SELECT {first} UNION ALL {rest}{limit}")

    def _answer(self) -> pa.Table | None:
        """Return the rows that were asked for; None if they could not be read."""
        if not self._is_asked:
            return None
        self._asked, self._is_asked, raw = None, False, self._process().answer()
        # What stands at the path must have been the file that is held open, before and after.
        return None if raw is None or not self._file.is_in_place() else raw.slice(1)


def _position(tracked: Tracked, rows: pa.Table) -> Position | None:
    """Return where *rows*, as they were answered, end; None where their last one needs a closer look."""
    last = from_columns(tracked, rows.slice(len(rows) - 1).columns)
    return None if last is None else codec.position(last, tracked.key)


def _is_large(page: Page) -> bool:
    # Of a table's key no row has two values, so it may be read in parts, each from a state of its own.
    return page.scan.name == "all" and page.limit >= LEAST and page.scope == ALL


def _read_as(tracked: Tracked, name: str) -> pa.DataType:
    return next((c.arrow for c in tracked.columns if c.name == name), types.arrow(_declared(tracked, name)))


def _declared(tracked: Tracked, name: str) -> str:
    described = tracked.table.column(name)
    assert described is not None
    return described.type


def _class_of(found: set[type], type_: pa.DataType) -> type | None:
    """Return the one class as which values of the classes *found* can be read for *type_*; None if there is none."""
    if pa.types.is_floating(type_) and found <= {int, float}:
        return float
    if len(found) > 1:
        return None
    return next(iter(found), types.home(type_))


def _literal(statement: Statement, limit: int) -> str | None:
    """Return *statement* with its values as literals, and *limit* rows; None if one of them is not to be written so."""
    values = [_written(value) for value in (*statement.parameters, limit)]
    if None in values:
        return None
    left = iter(values)
    return _PARTS.sub(lambda part: str(next(left)) if part[0] == "?" else part[0], statement.sql)


def _written(value: Scalar) -> str | None:
    if type(value) is int and abs(value) < 2**63:
        return str(value)
    if isinstance(value, str) and "\0" not in value:
        return "'" + value.replace("'", "''") + "'"
    return f"X'{value.hex()}'" if isinstance(value, bytes) else None
