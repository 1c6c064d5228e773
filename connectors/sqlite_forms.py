"""In which forms a cursor column holds its times, asked of the file: numbers or text, in which unit, texts whose digits
are another clock's, texts that are no times.

A form may appear at any time, in the middle of what is there. What would be passed over for it is looked for at each
poll, or is an error with an example of each.
"""

from __future__ import annotations

import contextlib
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from connectors import sqlite_ranges as ranges_
from connectors.sqlite_query import column
from connectors.sqlite_ranges import UNITS, Range
from sidecar import cursor
from sidecar.clock import SECOND, Clock
from sidecar.errors import SettingsError
from sidecar.model import Scalar, Tracked
from sidecar.sql import quoted

Key: TypeAlias = tuple[str, str]
"""A table and its column."""

_SHARE = 20
"""A look is made again once so many times as long as it took have gone by."""

_YEARS = [f"{year:04}-" for year in range(1753, 10_000)]


def numbers_or_text(connection: sqlite3.Connection, tracked: Tracked, name: str) -> str:
    """Return `text`, or the unit of the column's numbers, '' if they are no times; SettingsError if it holds both, or
    two units.
    """
    find = _Finder(connection, tracked, name)
    # Numbers stand before text, and '' is the first text.
    number = find("{c} < ?", "")
    if number is None:
        return "text"
    say = f'table "{tracked.name}": cursor column "{name}" (declared {_declared(tracked, name) or "without a type"})'
    text = find("{c} >= ?", "", last=False)
    if text is not None:
        raise SettingsError(
            f"{say} holds numbers and text, for example {number!r} and {text!r}: they have no common order in time. "
            "Write one form in all rows, or choose another cursor column"
        )
    greatest = find(f"{{c}} < {UNITS['ns'][1]} AND ({_among(UNITS)})")
    unit = cursor.unit_of(greatest) if isinstance(greatest, (int, float)) else None
    if unit is None:
        return ""
    other = _of_another(find, unit)
    if other is not None:
        raise SettingsError(
            f"{say} counts time in two units, for example {other!r} and {greatest!r}. Write one unit in all rows, or "
            "choose another cursor column"
        )
    return unit


def check_unit(connection: sqlite3.Connection, tracked: Tracked, name: str) -> None:
    """Raise SettingsError if numbers that count `updated_at_unit`s stand beside some that count a greater unit, and are
    less for it: they would be taken for long ago.
    """
    if tracked.unit is None:
        return
    find = _Finder(connection, tracked, name)
    other = _of_another(find, tracked.unit)
    if other is not None:
        example = find(f"{{c}} >= {UNITS[tracked.unit][0]} AND {{c}} < {UNITS[tracked.unit][1]}")
        beside = "" if example is None else f", beside {example!r}"
        raise SettingsError(
            f'table "{tracked.name}": cursor column "{name}" holds {other!r}{beside}: a time in another unit than '
            f'updated_at_unit = "{tracked.unit}", which would be taken for long ago. Write one unit in all rows, or '
            "choose another cursor column"
        )


def strays(connection: sqlite3.Connection, tracked: Tracked, name: str, low: str) -> list[Range]:
    """Return where below *low*, between the years, there are texts that begin like none: by an index, year by year."""
    c, found, at = column(tracked, name), [], ranges_.FIRST_YEAR
    least = f"SELECT min({c}) FROM {quoted(tracked.name)} WHERE {c} >= "
    # What begins with a year and a dash is passed by in one step.
    sql = (
        f"WITH RECURSIVE year(first) AS ({least} ?1 AND {c} < ?2 UNION ALL SELECT ({least} substr(year.first, 1, 5)"
        f" || char(1114111) AND {c} < ?2) FROM year WHERE substr(year.first, 5, 1) = '-') SELECT first FROM year"
    )
    while at < low:
        *_, (first,) = connection.execute(sql, (at, low)).fetchall()
        if not isinstance(first, str):
            break
        following = bisect_right(_YEARS, first)
        at = min(_YEARS[following], low) if following < len(_YEARS) else low
        found.append(Range(first, at))
    return found


def holds_behind(connection: sqlite3.Connection, tracked: Tracked, name: str, window: tuple[str, str]) -> bool:
    """Return whether there are texts in *window* (`ranges.window`) that could lie above it, whatever their digits."""
    c = column(tracked, name)
    behind = ranges_.behind(tracked.timezone).replace("{c}", f"+{c}")
    sql = f"SELECT 1 FROM {quoted(tracked.name)} WHERE {c} >= ? AND {c} < ? AND {behind} LIMIT 1"
    return connection.execute(sql, window).fetchone() is not None


@dataclass(frozen=True, slots=True)
class Look:
    """When a column was looked through for what lies above `closed`, how long that took (seconds), and in which state
    the file was.
    """

    at: int
    cost: float
    state: object
    closed: int


class Looks:
    """When to look through columns: at each poll, where that is cheap, and else after a while.

    What has come since the last look is then not to be closed. So it costs a delay, and never a row.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: dict[Key, Look] = {}
        self._due: set[Key] = set()

    def settled(self, key: Key, state: object) -> int:
        """Return until when all that has come has been looked at, once what is due has been."""
        now, last = self._clock.now(), self._last.get(key)
        if last is not None and last.state == state:
            return now
        if last is None or not 0 <= now - last.at < _SHARE * last.cost * SECOND:
            self._due.add(key)
            return now
        return last.at

    def are_due(self, key: Key, closed: int) -> bool:
        # Where less is closed than at the last look, what lies between was none of its business.
        return key in self._due or key not in self._last or closed < self._last[key].closed

    @contextlib.contextmanager
    def made(self, key: Key, state: object, closed: int) -> Iterator[None]:
        """Take note of the look that is made inside, for what lies above *closed*."""
        at, began = self._clock.now(), self._clock.monotonic()
        yield
        self._last[key] = Look(at, self._clock.monotonic() - began, state, closed)
        self._due.discard(key)


class _Finder:
    """Finds a value of one column, deletion's placeholders apart."""

    def __init__(self, connection: sqlite3.Connection, tracked: Tracked, name: str) -> None:
        self._connection, self._table, self._column = connection, quoted(tracked.name), column(tracked, name)
        self._listed: tuple[Scalar, ...] = tracked.not_deleted if name == tracked.deleted_at else ()

    def __call__(self, condition: str, *values: Scalar, last: bool = True) -> Scalar:
        c = self._column
        but = f" AND {c} NOT IN ({', '.join('?' * len(self._listed))})" if self._listed else ""
        order = "DESC" if last else "ASC"
        sql = f"SELECT {c} FROM {self._table} WHERE {condition}{but} ORDER BY {c} {order} LIMIT 1".replace("{c}", c)
        row: Sequence[Scalar] | None = self._connection.execute(sql, (*values, *self._listed)).fetchone()
        return None if row is None else row[0]


def _of_another(find: _Finder, unit: str) -> Scalar:
    """Return a number that counts time in another unit, and is less than those of *unit*."""
    least = UNITS[unit][0]
    lower = [other for other in UNITS if UNITS[other][0] < least]
    if not lower:
        return None
    return find(f"{{c}} >= {ranges_.FIRST_JULIAN} AND {{c}} < {least} AND ({_among(lower)})")


def _among(units: Sequence[str] | dict[str, tuple[int, int]]) -> str:
    # The plus keeps the planner from making a search, and a sort, of each.
    return " OR ".join(f"+{{c}} >= {UNITS[u][0]} AND +{{c}} < {UNITS[u][1]}" for u in units)


def _declared(tracked: Tracked, name: str) -> str:
    described = tracked.table.column(name)
    assert described is not None
    return described.type
