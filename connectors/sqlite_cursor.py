"""What a cursor column really holds, and therefore where its values above a closed one are.

The declaration promises little: a DATETIME column holds text in one application and milliseconds in the next. Each
question here is asked of an index, costs microseconds, and is asked once a pass.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from connectors import sqlite_forms as forms
from connectors import sqlite_ranges as ranges_
from connectors import sqlite_types as types
from connectors.sqlite_query import column, members, page_statements
from connectors.sqlite_ranges import Range
from sidecar import cursor
from sidecar.errors import SettingsError
from sidecar.model import ALL, Memory, Page, Position, Scalar, Tracked
from sidecar.sql import quoted

if TYPE_CHECKING:
    from connectors.sqlite_file import File

log = logging.getLogger("sidecar")

_FEW, _CHUNK = 8, 200
_DATE = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9]([.,][0-9]{1,9})?)?"
_READING = f"^{_DATE}([ T]{_TIME})?$"
_UTC = f"^{_DATE}([ T]{_TIME}Z?)?$"
_OFFSET = "[0-9]{2}(:?[0-9]{2}){0,2}( UTC)?"
_ZONED = f"^{_DATE}.[0-9:.,]+ ?([Zz]|UTC|[-+]{_OFFSET})$"
_BEHIND = f"^.{{11}}.*-{_OFFSET}$"


class Cursors:
    """The cursor columns of one source, as far as they are known. Knows nothing that could not be asked again."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._holds: dict[tuple[str, str], str] = {}
        self._shifted: set[tuple[str, str]] = set()
        self._ordered: dict[tuple[object, ...], bool] = {}
        self._warned: set[tuple[str, str, str]] = set()
        self._looks = forms.Looks(file.source.clock)

    @property
    def path(self) -> Path:
        return self._file.path

    def ranges(self, connection: sqlite3.Connection, page: Page) -> tuple[list[Range], bool]:
        """Return the stretches in which *page*'s rows are, and whether an index yields them in order."""
        indexed = self.indexed(connection, page)
        name = page.scan.cursor
        if name is None:
            return [Range()], indexed
        closed = page.closed.get(page.scan.name)
        holds = self.holds(connection, page, name)
        if holds != "text":
            return _numbers(holds, closed, page.tracked.timezone), indexed
        # Without an index every value is looked at anyway.
        offsets = closed is not None and (not indexed or self._is_shifted(connection, page, name, closed))
        strays = None
        if indexed and (low := ranges_.lowest(closed, page.tracked.timezone, offsets=offsets)) is not None:
            strays = forms.strays(connection, page.tracked, name, low)
        return ranges_.texts(closed, page.tracked.timezone, offsets=offsets, strays=strays), indexed

    def raw(self, connection: sqlite3.Connection, page: Page, position: Position | None) -> Position | None:
        """Return *position* as it stands in the file: a number that was delivered as text is one again."""
        if position is None:
            return None
        tracked, found = page.tracked, []
        columns = ((page.scan.cursor,) if page.scan.cursor else ()) + tracked.key
        for name, value in zip(columns, position, strict=True):
            number = types.number(value)
            if number is not value and name == page.scan.cursor:
                found.append(value if self.holds(connection, page, name) == "text" else number)
            elif number is not value and types.keeps_numbers(_declared(tracked, name)):
                found.append(number if _is_number(connection, tracked, name, number, value) else value)
            else:
                found.append(value)
        return tuple(found)

    def holds(self, connection: sqlite3.Connection, page: Page, name: str) -> str:
        """Return what the cursor column *name* holds: `integer`, `real`, `text`, a unit of time for numbers in a column
        that arrives as string, or nothing for numbers that are no times.
        """
        tracked = page.tracked
        described = tracked.table.column(name)
        assert described is not None
        if pa.types.is_integer(described.arrow) or pa.types.is_floating(described.arrow):
            if page.after is None:
                forms.check_unit(connection, tracked, name)
            return "integer" if pa.types.is_integer(described.arrow) else "real"
        if not types.keeps_numbers(described.type):
            return "text"
        known = self._holds.get((tracked.name, name))
        if page.after is None or known is None:
            known = self._holds[(tracked.name, name)] = forms.numbers_or_text(connection, tracked, name)
        return known

    def indexed(self, connection: sqlite3.Connection, page: Page) -> bool:
        """Return whether SQLite reads the pass in order by an index; asked again whenever the schema changes."""
        version = connection.execute("PRAGMA schema_version").fetchone()[0]
        key = (self._file.generation, version, page.tracked.name, page.scan, page.tracked.key)
        if key not in self._ordered:
            self._ordered[key] = not any("USE TEMP B-TREE FOR ORDER BY" in line for line in plan(connection, page))
        return self._ordered[key]

    def greatest(self, connection: sqlite3.Connection, page: Page, at_most: int | None) -> int | None:
        """Return the greatest comparable value of *page*'s rows not above *at_most*, or a lower one that is there."""
        name, tracked = page.scan.cursor, page.tracked
        assert name is not None
        described = tracked.table.column(name)
        assert described is not None
        closed, holds = page.closed.get(page.scan.name), self.holds(connection, page, name)
        if holds == "text" and closed is not None and self.indexed(connection, page):
            self._is_shifted(connection, page, name, closed)
        low, top = self._ends(holds, page, at_most)
        order, count = column(tracked, name), _FEW
        home = {"integer": (int,), "real": (float, int), "text": (str,)}.get(holds, (int, float))
        while True:
            parameters: list[Scalar] = []
            terms = [Range(low, top).sql(order, parameters), *members(page, parameters)]
            rows = connection.execute(
                f"SELECT {order} FROM {quoted(tracked.name)} WHERE {' AND '.join(terms)} ORDER BY {order} DESC LIMIT ?",
                (*parameters, count),
            ).fetchall()
            values = [v for (v,) in rows if isinstance(v, home)]
            if holds == "text":
                found = _latest(values, tracked.timezone, at_most)
            else:
                stamps = cursor.comparable(types.array(values, described.arrow), tracked.timezone)
                found = cursor.greatest_within(stamps, at_most)
            if found is not None:
                return found if closed is None or found > closed else None
            if len(rows) < count:
                return None
            top, count = rows[-1][0], _CHUNK

    def recalled(self, tracked: Tracked, memory: Memory) -> Memory:
        """Take over what *memory* says of text columns that hold offsets; return it as it stands.

        A table that was never polled is not looked through for them: each row is seen as it is read, and each poll
        looks at what it could miss.
        """
        texts = [p.cursor for p in tracked.passes if p.cursor and _is_text(tracked, p.cursor)]
        if not texts:
            return None
        known = memory.get("offsets") if memory and memory.get("timezone") == tracked.timezone else None
        if isinstance(known, list):
            self._shifted |= {(tracked.name, name) for name in texts if name in known}
        return {
            "offsets": [n for n in dict.fromkeys(texts) if (tracked.name, n) in self._shifted],
            "timezone": tracked.timezone,
        }

    def saw(self, page: Page, data: pa.Table) -> None:
        """Take note of offsets in a page's cursor columns, and warn of the first text there that is no time."""
        tracked = page.tracked
        for scan in tracked.passes if page.scan.cursor is None else (page.scan,):
            if scan.cursor is not None and _is_text(tracked, scan.cursor) and len(data):
                self._saw(tracked, scan.cursor, data)

    def _saw(self, tracked: Tracked, name: str, data: pa.Table) -> None:
        values = data.column(name)
        odd = _unlike(values, _READING if tracked.timezone else _UTC)
        if odd is None:
            return
        rest = values.filter(odd)
        zoned = pc.match_substring_regex(rest, _ZONED)
        if pc.any(pc.match_substring_regex(rest, _ZONED if tracked.timezone else _BEHIND)).as_py():
            self._shifted.add((tracked.name, name))
        for index, value in zip(
            pc.indices_nonzero(odd).filter(pc.invert(zoned)).to_pylist(),
            rest.filter(pc.invert(zoned)).to_pylist(),
            strict=True,
        ):
            listed = name == tracked.deleted_at and value in tracked.not_deleted
            if listed:
                continue
            if cursor.from_number(value) is not None and self._told(tracked, name) == "text":
                raise SettingsError(
                    f'table "{tracked.name}": cursor column "{name}" holds a number as text, {value!r} (key: '
                    f"{key_of(tracked, data, index)}): texts and numbers have no common order in time. Write numbers "
                    "into a column that is declared for them, or choose another cursor column"
                )
            if cursor.from_text(value, tracked.timezone) is None:
                self._warn(tracked, name, key_of(tracked, data, index))
                return

    def _told(self, tracked: Tracked, name: str) -> str:
        """Return what the column *name* holds, now that a number has been seen in it: it may have been empty when that
        was asked, and in a first poll that is resumed nobody has asked yet.
        """
        known = self._holds.get((tracked.name, name), "text")
        if known == "text" and types.keeps_numbers(_declared(tracked, name)):
            with self._file.reading(tracked.name) as connection:
                known = self._holds[(tracked.name, name)] = forms.numbers_or_text(connection, tracked, name)
        return known

    def _warn(self, tracked: Tracked, name: str, key: str) -> None:
        if (tracked.name, name, key) not in self._warned:
            self._warned.add((tracked.name, name, key))
            log.warning(
                'table "%s": cursor column "%s" holds a text that is no time (first key: %s). Such rows are delivered, '
                "but move nothing, and are read again at each poll; correct the value",
                tracked.name, name, key,
            )  # fmt: skip

    def _ends(self, holds: str, page: Page, at_most: int | None) -> tuple[Scalar, Scalar]:
        """Return bounds in the column's order of every time above closed and not above *at_most*; offsets that nobody
        has met yet apart.
        """
        closed, tracked = page.closed.get(page.scan.name), page.tracked
        if holds == "text":
            is_shifted = (tracked.name, page.scan.cursor) in self._shifted
            least = ranges_.lowest(closed, tracked.timezone, offsets=is_shifted)
            return least, None if at_most is None else ranges_.ceiling(at_most)
        low = _numbers(holds, closed, tracked.timezone)[-1].low
        if at_most is None:
            return low, ""
        if holds == "integer":
            return low, at_most + 1
        if holds == "real":
            return low, at_most / 1e6 + max(1e-6, abs(at_most / 1e6) * 1e-15)
        # A reading may be behind the instant, by as much as a zone is.
        return low, cursor.in_unit(at_most + ranges_.FARTHEST, holds) + 1 if holds else ""

    def _is_shifted(self, connection: sqlite3.Connection, page: Page, name: str, closed: int) -> bool:
        """Return whether the column holds values whose digits are behind its clock's, as far as is known.

        All are looked at of which one could lie above *closed* and be missed, whoever has written it meanwhile; where
        they are many, not at each poll (`settled`).
        """
        tracked = page.tracked
        key = (tracked.name, name)
        if key in self._shifted or not self._looks.are_due(key, closed):
            return key in self._shifted
        if (window := ranges_.window(closed, tracked.timezone)) is not None:
            with self._looks.made(key, self._state(connection), closed):
                if forms.holds_behind(connection, tracked, name, window):
                    self._shifted.add(key)
        return key in self._shifted

    def settled(self, connection: sqlite3.Connection, tracked: Tracked) -> int:
        """Return until when it is known in which forms *tracked*'s cursor columns hold their times, once a poll has
        looked that begins now: what has come since may have been passed over, and is not to be closed.
        """
        texts = {p.cursor for p in tracked.passes if p.cursor and _is_text(tracked, p.cursor)}
        state = self._state(connection) if texts else None
        return min(
            (self._looks.settled((tracked.name, n), state) for n in texts if (tracked.name, n) not in self._shifted),
            default=self._file.source.clock.now(),
        )

    def _state(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Return what is another one once anything has been written."""
        return self._file.generation, connection.execute("PRAGMA data_version").fetchone()[0]


def _latest(texts: Sequence[str], timezone: str | None, at_most: int | None) -> int | None:
    """Return the latest time of *texts* that is not above *at_most*: few are looked at, and Arrow takes longer."""
    times = (cursor.from_text(text, timezone) for text in texts)
    return max((t for t in times if t is not None and (at_most is None or t <= at_most)), default=None)


def _numbers(holds: str, closed: int | None, timezone: str | None) -> list[Range]:
    """Return where the values of a column that *holds* numbers are above *closed*."""
    if holds == "integer":
        return ranges_.integers(closed)
    if holds == "real":
        return ranges_.reals(closed)
    return ranges_.counts(closed, holds, timezone) if holds else [Range()]


def plan(connection: sqlite3.Connection, page: Page) -> list[str]:
    """Return SQLite's plan for a page in the middle of *page*'s pass, a line each."""
    # EXPLAIN runs nothing, so it never notices a new schema: a real statement does, and the version in the text keeps
    # an old EXPLAIN from being taken out of the statement cache.
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    page = dataclasses.replace(page, scope=ALL)
    version = connection.execute("PRAGMA schema_version").fetchone()[0]
    stretch = [Range(0 if page.scan.cursor is None else "2024-01-01")]
    statement = next(page_statements(page, stretch, None, indexed=True))
    sql = f"EXPLAIN QUERY PLAN /* {version} */ {statement.sql}"
    rows = connection.execute(sql, (*statement.parameters, page.limit)).fetchall()
    return [str(row[3]) for row in rows]


def odd_deletions(tracked: Tracked, data: pa.Table) -> None:
    """Raise SettingsError for a `deleted_at` that is neither NULL, nor a time, nor listed in `not_deleted`.

    Frameworks write '0000-00-00 00:00:00' or 0 for "not deleted": taken for a time, it would delete every row.
    """
    name = tracked.deleted_at
    if name is None or not len(data):
        return
    values = data.column(name)
    if values.null_count == len(values):
        return
    if _is_text(tracked, name):
        odd = _unlike(values, _UTC)
        listed = {s if isinstance(s, str) else repr(s) for s in tracked.not_deleted}
        wrong = (
            (i, v)
            for i, v in (
                ()
                if odd is None
                else zip(pc.indices_nonzero(odd).to_pylist(), values.filter(odd).to_pylist(), strict=True)
            )
            if v not in listed and cursor.from_text(v, tracked.timezone) is None
        )
    else:
        zeros = pc.fill_null(pc.equal(values, 0), False)
        wrong = ((i, 0) for i in pc.indices_nonzero(zeros).to_pylist() if 0 not in tracked.not_deleted)
    for index, value in wrong:
        shown = f'"{value}"' if isinstance(value, str) else str(value)
        raise SettingsError(
            f'table "{tracked.name}": {tracked.name}.{name} holds {shown}, which is no time (first key: '
            f"{key_of(tracked, data, index)}). If it means that the row is not deleted, say so: "
            f'[tables.{tracked.name}] not_deleted = [{shown}]. If the column is a flag: deleted_when = "{name} = …"'
        )


def key_of(tracked: Tracked, data: pa.Table, row: int) -> str:
    """Return the key of *row* as messages show it."""
    return ", ".join(f"{name}={data.column(name)[row].as_py()!r}" for name in tracked.key)


def _unlike(values: pa.ChunkedArray, pattern: str) -> pa.ChunkedArray | None:
    """Return which values do not match, NULL where they are; None if all do."""
    if len(values) <= _FEW and all(value is None or re.fullmatch(pattern, value) for value in values.to_pylist()):
        return None
    odd = pc.invert(pc.match_substring_regex(values, pattern))
    return odd if pc.any(odd).as_py() else None


def _is_text(tracked: Tracked, name: str) -> bool:
    described = tracked.table.column(name)
    return described is not None and bool(pa.types.is_string(described.arrow))


def _declared(tracked: Tracked, name: str) -> str:
    described = tracked.table.column(name)
    assert described is not None
    return described.type


def _is_number(connection: sqlite3.Connection, tracked: Tracked, name: str, number: Scalar, text: Scalar) -> bool:
    """Return whether the key part that was delivered as *text* stands in the file as *number*."""
    where = column(tracked, name)

    def exists(condition: str, value: Scalar) -> bool:
        sql = f"SELECT 1 FROM {quoted(tracked.name)} WHERE {where} {condition} ? LIMIT 1"
        return connection.execute(sql, (value,)).fetchone() is not None

    if exists("=", number):
        return True
    # Gone since it was delivered: where numbers are, they come first, so that nothing is passed over.
    return not exists("=", text) and exists("<", "")
