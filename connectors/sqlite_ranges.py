"""Which stretches of a cursor column, in SQLite's own order, hold the values above a closed one. Pure.

A text column sorts by bytes, and that is not the order of time: on one day `2024-05-01 23:00` stands before
`2024-05-01T01:00`, for a blank sorts before a T, and `…T08:00:00-05:00` before the earlier `…T09:00:00Z`. So what is
above a closed value lies in several stretches. Each is one search in an index; together they hold every row above it,
and few at or below it, which the core drops by exact comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from sidecar.clock import SECOND, instant
from sidecar.cursor import DAY, in_unit
from sidecar.model import Scalar

FIRST_EPOCH, FIRST_JULIAN = 10**8, 2_378_497
"""Numbers below (before March 1973 in seconds, 1800 in Julian days) are no times in a column declared for times."""

UNITS: dict[str, tuple[int, int]] = {
    "julian": (FIRST_JULIAN, 2_500_000),
    "s": (FIRST_EPOCH, 10**10),
    "ms": (10**11, 10**13),
    "us": (10**14, 10**16),
    "ns": (10**17, 10**19),
}
"""From which number to below which one each unit counts times, in ascending order. What lies between is no time."""

_HOUR = 3600 * SECOND
FARTHEST = 14 * _HOUR
"""No zone is farther from UTC than this."""

# 0001-01-01 is what an unset time looks like in .NET; it is a time, and a table may be full of it.
FIRST_YEAR = "1753-"
_NO_TIMES = (("", "0001-01-01"), ("0001-01-02", FIRST_YEAR))
_Z = " OR substr({c}, -1) IN ('Z', 'z', 'C')"
_OLDEST = -6_847_804_800 * SECOND  # 1753-01-01


class Range(NamedTuple):
    """Cursor values from `low` (itself left out if `beyond`) to below `high`, in the column's order, none of them NULL.

    `only` narrows them further: a condition over `{c}`, with its values.
    """

    low: Scalar = None
    high: Scalar = None
    beyond: bool = False
    only: str = ""
    values: tuple[Scalar, ...] = ()

    def sql(self, column: str, parameters: list[Scalar]) -> str:
        """Return the condition on *column* (quoted), appending its values to *parameters*."""
        within = self.within(column, parameters)
        if not self.only:
            return within
        parameters.extend(self.values)
        # The plus keeps the planner from making two searches, and a sort, of an OR.
        return f"{within} AND ({self.only.replace('{c}', f'+{column}')})"

    def within(self, column: str, parameters: list[Scalar]) -> str:
        """Return the part of that condition which an index answers by one search."""
        terms = []
        if self.low is not None:
            terms.append(f"{column} {'>' if self.beyond else '>='} ?")
            parameters.append(self.low)
        if self.high is not None:
            terms.append(f"{column} < ?")
            parameters.append(self.high)
        return " AND ".join(terms) or f"{column} IS NOT NULL"


def after(ranges: Sequence[Range], value: Scalar) -> list[Range]:
    """Return what of *ranges* lies beyond *value*."""
    found = []
    for each in ranges:
        if each.high is not None and each.high <= value:  # type: ignore[operator]
            continue
        if each.low is None or each.low <= value:  # type: ignore[operator]
            found.append(each._replace(low=value, beyond=True))
        else:
            found.append(each)
    return found


def integers(closed: int | None) -> list[Range]:
    """Return where an integer column is above *closed*."""
    return [Range()] if closed is None else [Range(closed, beyond=True)]


def reals(closed: int | None) -> list[Range]:
    """Return where a real column is above *closed*, which counts millionths."""
    if closed is None:
        return [Range()]
    value = closed / SECOND
    return [Range(value - max(1 / SECOND, abs(value) * 1e-15), beyond=True)]


def counts(closed: int | None, unit: str, timezone: str | None) -> list[Range]:
    """Return where numbers that count *unit*s are above *closed* (microseconds, of UTC or of *timezone*'s clock), or no
    times at all.
    """
    if closed is None:
        return [Range()]
    try:
        bound = in_unit(closed - _ahead(closed, timezone), unit)
    except OverflowError:
        return [Range()]
    # Where a column holds but one unit, what is below its times is none.
    first = UNITS[unit][0]
    return [Range()] if bound < first else [Range(None, first), Range(bound, beyond=True)]


def texts(
    closed: int | None, timezone: str | None, *, offsets: bool, strays: Sequence[Range] | None = None
) -> list[Range]:
    """Return where text is above *closed* (microseconds, of UTC or of *timezone*'s clock), or is no time at all.

    *offsets* says that values are there whose digits are not those of that clock: every value since the day before is
    then looked at, in the index alone where there is one. *strays* are where between the years texts stand that are no
    times; if nobody has looked, every text that is no year's is let through.
    """
    if closed is None or closed < _OLDEST:
        return [Range()]
    odd = [Range(low, high) for low, high in _NO_TIMES]
    try:
        low = _lowest(closed, timezone, offsets=offsets)
        day, minute, second = _words(closed)
        following = _words(closed + 24 * _HOUR)[0]
        # A day alone stands for its last instant. Where that is closed, it is not met again at each poll.
        least = f"{day} " if closed % DAY == DAY - 1 else day
        over = "T".join(_words(closed + SECOND)[::2])
    except OverflowError:
        return [*odd, Range("9999-12-31")]
    odd += [Range(FIRST_YEAR, low, only="substr({c}, 5, 1) <> '-'")] if strays is None else strays
    weeks = Range(f"{int(day[:4]) - 1:04}-W5", f"{int(day[:4]) - 1:04}-X")
    if day[5:] <= "01-04" and low >= str(weeks.high):
        # The last week of a year, by its number, reaches into the next one.
        odd = sorted([*odd, weeks], key=lambda each: str(each.low))
    if offsets:
        only = (
            f"CASE WHEN {zoned(timezone)} THEN coalesce(CAST(strftime('%s', {{c}}) AS INTEGER) >= ?, 1) "
            "ELSE substr({c}, 6, 1) = 'W' OR "
            "({c} >= ? AND (substr({c}, 14, 1) || substr({c}, 17, 1) <> '::' OR substr({c}, 12, 8) >= ?)) END"
        )
        # What SQLite cannot read as a time is let through: the core decides.
        values = ((closed - _ahead(closed, timezone)) // SECOND, least, second)
        return [*odd, Range(low, following, only=only, values=values), Range(following)]
    found = [Range(least, f"{day} 0")]
    for sign, end in ((" ", f"{day}T"), ("T", over)):
        # 'D HH:MM' stands for the whole minute; 'D HHMM' stands before 'D HH:'.
        hour, at = f"{day}{sign}{minute[:2]}", f"{day}{sign}{minute}"
        found += [Range(f"{hour}0", f"{hour}:"), Range(at, f"{at}:")]
        # At midnight the next second is of another day.
        following = f"{day}{sign}{over[11:]}" if over.startswith(day) else end
        found += _within(f"{day}{sign}{second}", closed % SECOND, following, end)
    # Apart from those of the closed second, all are above: nearly all that a poll finds, and not a look at each.
    return [*odd, *found, Range(over)]


def lowest(closed: int | None, timezone: str | None, *, offsets: bool) -> str | None:
    """Return a text at or below every time above *closed*; arguments as those of `texts`."""
    if closed is None or closed < _OLDEST:
        return None
    try:
        return _lowest(closed, timezone, offsets=offsets)
    except OverflowError:
        return "9999-12-31"


def _lowest(closed: int, timezone: str | None, *, offsets: bool) -> str:
    day = _words(closed)[0]
    return min(day, _hour(closed - _ahead(closed, timezone) - FARTHEST)) if offsets else day


def _within(second: str, micros: int, following: str, end: str) -> list[Range]:
    """Return where, below *end*, texts are above *micros* of *second*, whose next one is *following*."""
    # Digit by digit, a fraction that is greater is the greater text, however many digits there are. A comma stands
    # before the point, whatever follows.
    point = f"{second}.{micros:06}"
    same = f"{point}Z", f"{second}Z"
    above = Range(point, following, beyond=True, only="{c} NOT IN (?, ?)", values=same)
    return [
        Range(f"{second},", f"{second}-", beyond=True),
        above,
        *([Range(following, end)] if following < end else []),
    ]


def zoned(timezone: str | None) -> str:
    """Return a condition over `{c}`: its digits are not those of the clock by which it is compared.

    Put so that it costs a fifth of a GLOB; a date's own dashes do not count.
    """
    signs = "instr(substr({c}, 12), '-') OR instr(substr({c}, 12), '+')"
    return f"length({{c}}) > 11 AND ({signs}{_Z if timezone else ''})"


def behind(timezone: str | None) -> str:
    """Return a condition over `{c}`: its digits may be behind those of its clock, so that a bound would miss it."""
    # Ahead is no matter: such rows are read, and dropped. Under a zone ahead of UTC, a Z is behind.
    # Most end in a Z, and are told by that in a third of the time.
    return zoned(timezone) if timezone else "{c} NOT LIKE '%Z' AND length({c}) > 11 AND instr(substr({c}, 12), '-')"


def window(closed: int, timezone: str | None) -> tuple[str, str] | None:
    """Return the two texts between which such values could lie above *closed*, and be missed; None if it is no time of
    a calendar.
    """
    try:
        day, minute, _ = _words(closed)
        # The minute itself is read in part.
        return _hour(closed - _ahead(closed, timezone) - FARTHEST), f"{day}T{minute};"
    except OverflowError:
        return None


def ceiling(at_most: int) -> str | None:
    """Return a text above everything that is a time at or below *at_most*; None if there is none."""
    try:
        return _words(at_most + 2 * 24 * _HOUR)[0]
    except OverflowError:
        return None


def _words(micros: int) -> tuple[str, str, str]:
    text = instant(micros).isoformat(timespec="seconds")
    return text[:10], text[11:16], text[11:19]


def _hour(micros: int) -> str:
    return f"{instant(micros):%Y-%m-%d %H}"


def _ahead(closed: int, timezone: str | None) -> int:
    """Return how far *timezone*'s clock is ahead of UTC at most, around the reading *closed*."""
    if timezone is None:
        return 0
    zone = ZoneInfo(timezone)
    around = (instant(closed + shift * _HOUR).astimezone(zone).utcoffset() for shift in (-36, 0, 36))
    return max(offset or timedelta() for offset in around) // timedelta(microseconds=1)
