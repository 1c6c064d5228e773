"""One page of rows: its SELECT, and the two readers that run it.

COPY on the held connection costs about a millisecond and gives real errors: it reads the first page of a pass, so every
small poll. connectorx reads twice as fast (1M orders: 1.0 times a COPY to /dev/null against 2.1) but needs ten
milliseconds for a connection of its own: it reads the pages that follow a full one, under the exported snapshot. Both
run the same SELECT, and what either hands over goes through the same casts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from connectors import postgres_types as types
from connectors.postgres_session import BEGIN, Session, translated
from connectors.postgres_types import Values, Wire
from sidecar import codec, sql
from sidecar.errors import SettingsError, SidecarError
from sidecar.model import CURSOR, DELETED, VERSION, Column, Page, Scalar, Tracked
from sidecar.sql import quoted

log = logging.getLogger("sidecar")

_ODD = "sidecar:odd"  # which of a row's times had to be NULL, as their places in the SELECT list

# Versions are compared by age, which is exact up to 2^31 transactions; the margin is for those that begin meanwhile.
_FAR = 2**31 - 2**20

# connectorx serves pages of at least this many rows; below, its connection costs more than it saves.
_BULK = 5_000


def column(tracked: Tracked, name: str) -> Column:
    """Return the described column *name*; SettingsError if the role may not read it, or it is gone."""
    found = tracked.table.column(name)
    if found is None:
        raise SettingsError(f'table "{tracked.name}": no column "{name}" that the role may read')
    return found


def cursor_column(tracked: Tracked, name: str) -> Column:
    """Return the cursor column *name*; SettingsError if its type has no order in time that is kept exactly."""
    found = column(tracked, name)
    if not types.is_time(found.arrow) and not pa.types.is_signed_integer(found.arrow):
        raise SettingsError(
            f'table "{tracked.name}": column "{name}" is {found.type}, which cannot be a cursor; '
            "choose a timestamp, a date or an integer"
        )
    return found


@dataclass(frozen=True)
class Statements:
    """The SQL of one table's pages. Columns stand as `"table"."column"`: ORDER BY takes a bare one for its output."""

    tracked: Tracked
    page: Page

    @property
    def source(self) -> str:
        return source(self.tracked)

    def name(self, column_: str) -> str:
        return f"{quoted(self.tracked.table.path[1])}.{quoted(column_)}"

    @property
    def dialect(self) -> sql.Dialect:
        def bind(name: str, value: Scalar, _: list[Scalar]) -> str:
            return types.literal(column(self.tracked, name).arrow, value)

        def bound(name: str, value: int, _: list[Scalar]) -> str:
            type_ = cursor_column(self.tracked, name).arrow
            return types.literal(type_, types.last_day_over(value) if pa.types.is_date(type_) else value)

        return sql.Dialect(self.name, bind, bound, lambda _: self.gone() or "true")

    def gone(self) -> str | None:
        """Return the condition that `deleted_at` says a row is deleted; None where nothing is to be said."""
        name = self.tracked.deleted_at
        if name is None:
            return None
        told = f"{self.name(name)} IS NOT NULL"
        if values := list(_not_deleted(self.tracked)):
            told += f" AND {self.name(name)} NOT IN ({', '.join(values)})"
        return told

    def deleted(self) -> str | None:
        parts = [p for p in (self.gone(), self.tracked.deleted_when) if p]
        # On lines of their own: a user's condition may end in a comment.
        return "(" + " OR ".join(f"(\n{p}\n)" for p in parts) + ") IS TRUE" if parts else None

    def condition(self, xmax: int | None = None, *, after: bool = True) -> str:
        """Return the page's WHERE; with the snapshot's *xmax*, only versions that may be new since `page.since`."""
        found = sql.where(self.page, self.dialect, after=after)
        since = self.page.since
        if xmax is not None and since is not None and self.versioned and 0 <= xmax - since < _FAR:
            # Rows frozen long ago have an xmin of an earlier round, whose age is negative.
            oldest = f"pg_catalog.age('{since % 2**32}'::xid)"
            found.terms.append(f"pg_catalog.age({self.name('xmin')}) BETWEEN 0 AND {oldest}")
        return found.text()

    @property
    def versioned(self) -> bool:
        return self.tracked.table.kind == "table"

    def columns(self) -> list[Column]:
        """Return the table's columns that a page carries: those delivered, then those that Sidecar needs."""
        tracked = self.tracked
        needed = (*tracked.key, tracked.updated_at, tracked.created_at, tracked.deleted_at)
        names = dict.fromkeys([*(c.name for c in tracked.columns), *(n for n in needed if n is not None)])
        return [column(tracked, n) for n in names]

    def wires(self, xmax: int, *, careful: bool) -> list[Wire]:
        """Return what the SELECT lists. *careful* costs the server time, for times that only SQL can tell about."""
        columns = self.columns()
        found = [types.wire(c, self.name(c.name), careful=careful) for c in columns]
        cursor = self.page.scan.cursor
        if careful and cursor is not None and types.is_time(cursor_column(self.tracked, cursor).arrow):
            expression = types.comparable(column(self.tracked, cursor).arrow, self.name(cursor))
            found.append(Wire(CURSOR, expression, pa.int64(), pa.int64()))
        if self.versioned:
            # The distance to the snapshot's xmax: small, and free of the 32 bits' wraparound.
            age = f"pg_catalog.age({self.name('xmin')})::int8 - pg_catalog.age('{xmax % 2**32}'::xid)"
            found.append(Wire(VERSION, age, pa.int64(), pa.int64()))
        if gone := self.deleted():
            found.append(Wire(DELETED, gone, pa.bool_(), pa.bool_()))
        times = [(n, c) for n, c in enumerate(columns) if types.is_time(c.arrow)]
        if careful and times:
            odd = {n: f"NOT {types.holds(c.arrow, self.name(c.name))}" for n, c in times}
            flags = ", ".join(f"CASE WHEN {test} THEN '{n},' END" for n, test in odd.items())
            text = f"CASE WHEN {' OR '.join(odd.values())} THEN pg_catalog.concat({flags}) END"
            found.append(Wire(_ODD, text, pa.string(), pa.string()))
        return found

    def select(self, wires: Sequence[Wire], xmax: int, *, as_csv: bool) -> str:
        listed = ", ".join(f"{(as_csv and w.csv_expression) or w.expression} AS c{n}" for n, w in enumerate(wires))
        order = sql.order(self.page, self.dialect)
        where = self.condition(xmax)
        return f"SELECT {listed} FROM {self.source} WHERE {where} ORDER BY {order} LIMIT {self.page.limit}"


def source(tracked: Tracked) -> str:
    return ".".join(quoted(p) for p in tracked.table.path)


def _not_deleted(tracked: Tracked) -> Sequence[str]:
    """Return `not_deleted` as literals. Zero dates are MySQL's: no column here can hold one."""
    values = [v for v in tracked.not_deleted if v is not None and not str(v).startswith("0000-00-00")]
    return [types.setting(v) for v in values]


class Reader:
    """Reads pages through a session, and remembers what it learnt about tables on the way."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._careful: set[str] = set()
        self._followed: tuple[object, ...] | None = None
        self._bulk = True

    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows; see `SourceConnector.read`."""
        tracked = page.tracked
        statements = Statements(tracked, page)
        with self._session.snapshot(tracked.name) as view:
            if page.after is None:
                self._refuse_null_keys(statements, view.xmax)
            bulk = page.after is not None and page.limit >= _BULK and self._followed == self._stretch(page)
            found = None if tracked.name in self._careful else self._attempt(statements, view.xmax, bulk=bulk)
            if found is None:
                self._careful.add(tracked.name)
                found = self._attempt(statements, view.xmax, bulk=bulk, careful=True)
            assert found is not None
            self._followed = self._stretch(page) if len(found) >= page.limit else None
        return found

    def _stretch(self, page: Page) -> tuple[object, ...]:
        """Return what the next page of the same pass in the same snapshot has in common with *page*."""
        return (id(self._session.view), page.tracked.name, page.scan)

    def _attempt(self, statements: Statements, xmax: int, *, bulk: bool, careful: bool = False) -> pa.Table | None:
        """Return the page, or None if it holds a time that only the careful SELECT can tell about."""
        wires = statements.wires(xmax, careful=careful)
        name = statements.tracked.name
        raw = self._by_connectorx(statements.select(wires, xmax, as_csv=False)) if bulk else None
        if raw is None:
            raw = self._by_copy(statements.select(wires, xmax, as_csv=True), wires, name)
        if raw is None or (not careful and any(types.is_time(v.type) and types.beyond(v) for v in raw.columns)):
            return None
        return finish(statements, wires, raw, xmax)

    def _by_copy(self, select: str, wires: Sequence[Wire], table: str) -> pa.Table | None:
        """Return the answer by COPY on the held connection; None if it holds a time that Arrow cannot parse."""
        session = self._session
        pieces: list[bytes] = []
        with session.errors(table), session.connection.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT csv)") as copy:
            pieces.extend(map(bytes, copy))
        names = [f"c{n}" for n in range(len(wires))]
        if not pieces:
            return pa.table([pa.array([], w.csv) for w in wires], names=names)
        # One piece is one row, and a block must hold the longest.
        block = max(1 << 20, 2 * max(map(len, pieces)))
        data = pa.BufferReader(b"".join(pieces))
        del pieces
        try:
            return csv.read_csv(
                data,
                read_options=csv.ReadOptions(column_names=names, block_size=min(block, 2**31 - 1)),
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
            if any(types.is_time(w.csv) for w in wires) and table not in self._careful:
                return None
            raise SettingsError(f'table "{table}": a page cannot be read: {_of(error, wires)}') from None

    def _by_connectorx(self, select: str) -> pa.Table | None:
        """Return the answer by connectorx under the exported snapshot; None where it cannot, and COPY has to.

        Its errors have no SQLSTATE, and its panics are no Exceptions. Asking again by COPY gives the data or a reason.
        """
        url = self._session.url() if self._bulk else None
        if url is None:
            return None
        import connectorx

        steps = [
            BEGIN,
            f"SET TRANSACTION SNAPSHOT '{self._session.export()}'",
            self._session.pins(),
        ]
        try:
            found = connectorx.read_sql(url, select, return_type="arrow", pre_execution_query=steps)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            self._bulk = False
            log.debug("connectorx failed (%s); reading by COPY from here on", type(error).__name__)
            return None
        assert isinstance(found, pa.Table)
        return found

    def _refuse_null_keys(self, statements: Statements, xmax: int) -> None:
        """Raise SettingsError if a row of the pass has a NULL in its key: past a page's end it would never be read."""
        tracked = statements.tracked
        names = [n for n in tracked.key if column(tracked, n).nullable]
        if not names:
            return
        tests = [f"{statements.name(n)} IS NULL" for n in names]
        found = self._session.rows(
            f"SELECT {', '.join(tests)} FROM {statements.source}"
            f" WHERE {statements.condition(xmax)} AND ({' OR '.join(tests)}) LIMIT 1",
            table=tracked.name,
        )
        if found:
            name = next(n for n, missing in zip(names, found[0], strict=True) if missing)
            raise SettingsError(
                f'table "{tracked.name}": key column "{name}" holds a NULL, so rows cannot be told apart by it. '
                "Choose a primary_key of columns that are never NULL."
            )


def finish(statements: Statements, wires: Sequence[Wire], raw: pa.Table, xmax: int) -> pa.Table:
    """Return a reader's answer as the contract wants it: final types, cursor, version, flag; odd times reported."""
    tracked, scan = statements.tracked, statements.page.scan
    columns: dict[str, Values] = {}

    def refuse(name: str, what: str, where: Values) -> SidecarError:
        key = _key(tracked, columns, raw, wires, where)
        return SettingsError(f'table "{tracked.name}": column "{name}" {what} ({key}). {_REFUSED}')

    for values, wire in zip(raw.columns, wires, strict=True):
        if pa.types.is_decimal(wire.final):
            odd = types.not_decimal(values)
            if odd is not None:
                raise refuse(wire.name, f"holds NaN or infinity, which no {wire.final} can carry", odd)
        columns[wire.name] = types.final(values, wire)
    odd = columns.pop(_ODD, None)
    if odd is not None and odd.null_count < len(odd):
        _report(tracked, columns, odd)
    if scan.cursor is not None and CURSOR not in columns:
        values = columns[scan.cursor]
        if types.is_time(values.type):
            columns[CURSOR] = types.ordinals(values)
    if CURSOR in columns:
        far = pc.equal(columns[CURSOR], types.TOO_FAR)
        if pc.any(far).as_py():
            raise refuse(str(scan.cursor), "holds a time after the year 294246, which 64 bits cannot carry", far)
    if VERSION in columns:
        columns[VERSION] = _versions(columns[VERSION], xmax)
    names = [*(c.name for c in statements.columns()), *(n for n in (CURSOR, VERSION, DELETED) if n in columns)]
    return pa.table([columns[n] for n in names], names=names)


_REFUSED = "Correct the value, or leave the column out (columns = …)."


def _versions(ages: Values, xmax: int) -> Values:
    """Return distances to *xmax* as versions; those of rows frozen in an earlier round of ids are lost: 0."""
    versions = pc.subtract(pa.scalar(xmax, pa.int64()), ages)
    return pc.if_else(pc.and_(pc.greater(ages, 0), pc.greater(versions, 0)), versions, pa.scalar(0, pa.int64()))


def _report(tracked: Tracked, columns: dict[str, Values], odd: Values) -> None:
    """Name the times that were delivered as NULL; SettingsError if one is part of a key."""
    names = list(columns)
    rows = [n for n, flags in enumerate(odd.to_pylist()) if flags is not None]
    found: dict[str, list[int]] = {}
    for row in rows:
        for place in odd[row].as_py().rstrip(",").split(","):
            found.setdefault(names[int(place)], []).append(row)
    for name, places in found.items():
        text = (
            f'table "{tracked.name}": column "{name}" holds {len(places)} times on this page that are infinite or '
            "outside the years 1 to 9999"
        )
        if name in tracked.key:
            raise SettingsError(f"{text}; a key must not. Choose another primary_key, or correct the rows.")
        log.warning("%s; they are delivered as NULL (first key: %s)", text, _shown(tracked, columns, places[0]))


def _key(tracked: Tracked, done: dict[str, Values], raw: pa.Table, wires: Sequence[Wire], where: Values) -> str:
    row = pc.index(where, pa.scalar(True)).as_py()
    readable = {w.name: done.get(w.name, v) for w, v in zip(wires, raw.columns, strict=True)}
    return "key: " + _shown(tracked, readable, row)


def _shown(tracked: Tracked, columns: dict[str, Values], row: int) -> str:
    return ", ".join(f"{n}={codec.plain(columns[n].slice(row, 1))[0]!r}" for n in tracked.key)


def _of(error: pa.ArrowInvalid, wires: Sequence[Wire]) -> str:
    """Return what Arrow says, without the value that it says it of."""
    text = str(error)
    for n in range(len(wires) - 1, -1, -1):
        text = text.replace(f"column #{n}:", f'column "{wires[n].name}":')
    return text.split(": invalid value")[0].split("value '")[0].strip()


__all__ = ["Reader", "Statements", "column", "cursor_column", "psycopg", "source", "translated"]
