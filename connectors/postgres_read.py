"""One page of rows: its SELECT, and the two readers that run it.

COPY on the held connection costs about a millisecond and gives real errors: it reads the first page of a pass, so every
small poll. connectorx reads twice as fast (1M orders: 1.0 times a COPY to /dev/null against 2.1) but needs ten
milliseconds for a connection of its own: it reads the pages that follow a full one, under the exported snapshot. Both
run the same SELECT, and what either hands over goes through the same casts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from connectors import postgres_types as types
from connectors.postgres_query import ODD, Statements, column, cursor_column
from connectors.postgres_session import BEGIN, Session, View
from connectors.postgres_types import Values, Wire
from sidecar import codec
from sidecar.errors import SettingsError, SidecarError
from sidecar.model import CURSOR, DELETED, VERSION, Page, Pass, Tracked

log = logging.getLogger("sidecar")

BULK = 10_000
"""Rows of a page from which on connectorx serves it; below, its connection costs more than it saves."""


class Reader:
    """Reads pages through a session, and remembers what it learnt about tables on the way."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._careful: set[str] = set()
        self._full: tuple[View, str, Pass] | None = None
        self._connectorx_works = True

    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows; see `SourceConnector.read`."""
        tracked = page.tracked
        statements = Statements(tracked, page)
        if page.scan.cursor is not None:
            cursor_column(tracked, page.scan.cursor)
        with self._session.snapshot(tracked.name) as view:
            if page.after is None:
                self._refuse_null_keys(statements, view.xmax)
            stretch = (view, tracked.name, page.scan)
            found = self.page(statements, view.xmax, bulk=page.limit >= BULK and self._full == stretch)
            self._full = stretch if len(found) >= page.limit else None
        return found

    def page(self, statements: Statements, xmax: int, *, bulk: bool) -> pa.Table:
        """Return the page by COPY, or (*bulk*) by connectorx if that works: the same rows, columns and types.

        Times that a final type cannot hold are rare and only SQL can tell about them, at a price. So a page is read
        again with care where one is met, and so are that table's later pages.
        """
        name = statements.tracked.name
        found = None if name in self._careful else self._attempt(statements, xmax, bulk=bulk, careful=False)
        if found is None:
            self._careful.add(name)
            found = self._attempt(statements, xmax, bulk=bulk, careful=True)
        assert found is not None
        return found

    def _attempt(self, statements: Statements, xmax: int, *, bulk: bool, careful: bool) -> pa.Table | None:
        """Return the page, or None if it holds a time that only the careful SELECT can tell about."""
        wires = statements.wires(xmax, careful=careful)
        raw = self._by_connectorx(statements.select(wires, xmax, as_csv=False)) if bulk else None
        if raw is None:
            select = statements.select(wires, xmax, as_csv=True)
            raw = self._by_copy(select, wires, statements.tracked.name, careful=careful)
        if raw is None or (not careful and any(types.is_time(v.type) and types.beyond(v) for v in raw.columns)):
            return None
        return finish(statements, wires, raw, xmax)

    def _by_copy(self, select: str, wires: Sequence[Wire], table: str, *, careful: bool) -> pa.Table | None:
        """Return the answer by COPY on the held connection; None if it holds a time that Arrow cannot parse."""
        session = self._session
        with session.errors(table), session.connection.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT csv)") as copy:
            pieces = list(copy)
        names = [f"c{n}" for n in range(len(wires))]
        if not pieces:
            return pa.table([pa.array([], w.csv) for w in wires], names=names)
        # One piece is one row, and a block must hold the longest.
        block = max(1 << 20, 2 * max(map(len, pieces)))
        data = pa.BufferReader(b"".join(pieces))
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
            if not careful and any(types.is_time(w.csv) for w in wires):
                return None
            raise SettingsError(f'table "{table}": a page cannot be read: {_of(error, wires)}') from None

    def _by_connectorx(self, select: str) -> pa.Table | None:
        """Return the answer by connectorx under the exported snapshot; None where it cannot, and COPY has to.

        Its errors have no SQLSTATE, and its panics are no Exceptions. Asking again by COPY gives the data or a reason.
        """
        url = self._session.url() if self._connectorx_works else None
        if url is None:
            return None
        import connectorx

        steps = [self._session.pins(), BEGIN, f"SET TRANSACTION SNAPSHOT '{self._session.export()}'"]
        try:
            found = connectorx.read_sql(url, select, return_type="arrow", pre_execution_query=steps)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
                raise
            self._connectorx_works = False
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
    odd = columns.pop(ODD, None)
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
