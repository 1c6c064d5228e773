"""Values as literals that PostgreSQL reads back as exactly what they were, and times as comparable integers."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.model import INFINITY, Scalar

Values: TypeAlias = pa.Array | pa.ChunkedArray

MINUS_INFINITY = -INFINITY
"""The cursor value of `-infinity`: above NULL's, below every finite one."""

DAY = 86_400_000_000
DAYS = (-719_162, 2_932_896)
"""0001-01-01 and 9999-12-31: what Python, Arrow's text forms and Spark agree on."""
TOO_FAR = -(2**63)
"""Stands for a time that exceeds 64 bits of microseconds, for the reader to name it; no cursor value is this."""

MICROS = (DAYS[0] * DAY, (DAYS[1] + 1) * DAY - 1)


def is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def holds(type_: pa.DataType, reference: str) -> str:
    """Return the SQL condition that *reference* is a time that *type_* can hold."""
    first, last = (literal(type_, at) for at in (DAYS if pa.types.is_date(type_) else MICROS))
    return f"{reference} BETWEEN {first} AND {last}"


def beyond(values: Values) -> bool:
    """Return whether times stand in *values* that had to be NULL: connectorx decodes infinities to far-away years."""
    ints = pc.cast(values, pa.int32() if pa.types.is_date(values.type) else pa.int64())
    least, greatest = (pc.min_max(ints)[name].as_py() for name in ("min", "max"))
    first, last = DAYS if pa.types.is_date(values.type) else MICROS
    return least is not None and (least < first or greatest > last)


def comparable(type_: pa.DataType, reference: str) -> str:
    """Return SQL for *reference* as Sidecar's comparable integer, exact over the server's whole range.

    The server's last thirty years (294247 to 294276) exceed 64 bits: `TOO_FAR`.
    """
    if pa.types.is_date(type_):
        finite = f"({reference} - '1970-01-01'::date)::int8 * {DAY} + {DAY - 1}"
        limit = "'294247-01-01'::date"
    else:
        finite = (
            f"pg_catalog.date_part('epoch', pg_catalog.date_trunc('second', {reference}))::int8 * 1000000"
            f" + pg_catalog.date_part('microseconds', {reference})::int8 % 1000000"
        )
        limit = "'294247-01-01'::timestamp" if type_.tz is None else "'294247-01-01 00:00:00+00'::timestamptz"
    return (
        f"CASE WHEN {reference} = 'infinity' THEN {INFINITY} WHEN {reference} = '-infinity' THEN {MINUS_INFINITY}"
        f" WHEN {reference} >= {limit} THEN {-INFINITY} - 1::int8 ELSE {finite} END"
    )


def ordinals(values: Values) -> Values:
    """Return times as Sidecar's comparable integers; a date counts as its last microsecond."""
    if pa.types.is_timestamp(values.type):
        return pc.cast(values, pa.int64())
    days = pc.cast(pc.cast(values, pa.int32()), pa.int64())
    return pc.add(pc.multiply(days, DAY), DAY - 1)


def literal(type_: pa.DataType, value: Scalar) -> str:
    """Return *value*, as positions hold it for a column of *type_*, as SQL that compares by that column's own rules.

    A quoted literal takes its type and collation from the column that it is compared with, whether that is a uuid, an
    enum or a domain; integers and times say theirs, so that the column's index serves them.
    """
    if value is None:
        return "NULL"
    if pa.types.is_timestamp(type_):
        return f"{_instant(int(value))}::timestamptz" if type_.tz else f"{_instant(int(value), '')}::timestamp"
    if pa.types.is_date(type_):
        return f"{_date(int(value))}::date"
    if isinstance(value, bytes):
        return _quoted("\\x" + value.hex())
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"'{value}'::int8"
    return _quoted(repr(value) if isinstance(value, float) else value)


def setting(value: Scalar) -> str:
    """Return a value that somebody wrote into the settings as a literal of the type it is compared with."""
    return literal(pa.string(), value) if isinstance(value, bytes | bool) else _quoted(str(value))


def _quoted(text: str) -> str:
    """Return *text* as a literal that reads the same under either setting of `standard_conforming_strings`."""
    doubled = text.replace("'", "''")
    return " E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"


def _instant(micros: int, zone: str = "+00") -> str:
    if micros in (INFINITY, MINUS_INFINITY):
        return "'infinity'" if micros > 0 else "'-infinity'"
    if micros < -210_866_803_200_000_000:  # the server's first instant; a bound below it lies below all finite ones
        return "'-infinity'"
    days, rest = divmod(micros, DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    day, era = _calendar(days)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"'{day} {clock}{zone}{era}'"


def _date(value: int) -> str:
    """Return a date literal from days (a key's part) or a comparable integer (a cursor).

    The latter are all of the form `days * DAY + DAY - 1`. The one day count of that form, -1, names the same day.
    """
    if value in (INFINITY, MINUS_INFINITY):
        return "'infinity'" if value > 0 else "'-infinity'"
    days = value // DAY if value % DAY == DAY - 1 else value
    if days < -2_440_588:  # 4713-11-24 BC
        return "'-infinity'"
    return "'{}{}'".format(*_calendar(days))


def last_day_over(micros: int) -> int:
    """Return the comparable integer of the last day that is over at *micros*: a date counts as its last microsecond."""
    if micros in (INFINITY, MINUS_INFINITY):
        return micros
    return (micros - DAY + 1) // DAY * DAY + DAY - 1


def _calendar(days: int) -> tuple[str, str]:
    """Return the Gregorian date *days* after 1970-01-01, and the era's suffix; Python knows the years 1 to 9999."""
    era, day = divmod(days + 719_468, 146_097)
    year_of_era = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year_of_era + year_of_era // 4 - year_of_era // 100
    shifted = (5 * day + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = era * 400 + year_of_era + (month <= 2)
    text = f"{year if year > 0 else 1 - year:04}-{month:02}-{day - (153 * shifted + 2) // 5 + 1:02}"
    return text, "" if year > 0 else " BC"
