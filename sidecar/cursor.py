"""Cursor values as comparable integers, and the source's clock as a bound on them.

A cursor column holds instants, zone-less readings of a wall clock, text that says either, or plain numbers. Horizons
compare and subtract, so each value gets one integer: microseconds since the epoch (zone-less: of the reading itself),
or the number as it is. Positions keep the column's own values; nothing here is written back to the source.
"""

from __future__ import annotations

import functools
import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.clock import SECOND, instant, micros
from sidecar.errors import SettingsError
from sidecar.model import INFINITY, CursorKind, Tracked, Unit

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

Count: TypeAlias = Unit | Literal["julian"]
"""What a number that is a time may count."""

NONE = -(2**63)
"""Stands for NULL in arrays of comparable integers; below every cursor value, `-infinity` included."""

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DAY = 86_400 * SECOND
_DIGITS: dict[int, Unit] = {9: "s", 10: "s", 12: "ms", 13: "ms", 15: "us", 16: "us", 18: "ns", 19: "ns"}
_JULIAN, _JULIAN_EPOCH = (2_378_497, 2_500_000), 2_440_587.5
_FEW = 16
"""Values that are read one by one sooner than Arrow is asked."""
_YEAR_ONE = -62_135_596_800 * SECOND  # Python's first; earlier times are none to `from_text`
_YEAR_10000 = 253_402_300_800 * SECOND
_CALENDAR, _FINER = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]|$)", re.ASCII), re.compile(r"[.,]\d{7}")
_NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  readings have no zone


def kind(type_: pa.DataType, where: str) -> CursorKind:
    """Return what a column of *type_* holds as a cursor; SettingsError if it can be none."""
    found = _kind(type_)
    if found is None:
        raise SettingsError(f"{where}: a column of type {type_} cannot be a cursor; choose a timestamp or an integer")
    return found


@functools.cache
def _kind(type_: pa.DataType) -> CursorKind | None:
    if pa.types.is_timestamp(type_):
        return "instant" if type_.tz else "reading"
    if pa.types.is_date(type_):
        return "reading"
    if pa.types.is_integer(type_):
        return "number"
    if pa.types.is_floating(type_):
        return "real"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "text"
    return None


def comparable(values: pa.ChunkedArray | pa.Array, timezone: str | None = None) -> Integers:
    """Return one integer a value, in the order in which the values stand in time; NULL is `NONE`.

    A date counts as its last microsecond: the day is over only then. Text that is no time is `INFINITY`.
    """
    type_ = values.type
    if pa.types.is_timestamp(type_):
        ints = pc.cast(values, pa.timestamp("us", type_.tz), safe=False)
    elif pa.types.is_date(type_):
        days = pc.cast(pc.cast(values, pa.date32()), pa.int32())
        ints = pc.add(pc.multiply(pc.cast(days, pa.int64()), DAY), DAY - 1)
    elif pa.types.is_floating(type_):
        return _from_reals(values)
    elif pa.types.is_integer(type_):
        ints = pc.cast(values, pa.int64())
    else:
        return _from_text(values, timezone)
    return _filled(ints)


def unit_of(number: float) -> Count | None:
    """Return what *number* counts if it is a time: `s`, `ms`, `us`, `ns` since 1970, of the years 1973 to 2286, or
    `julian` days, of 1800 to 2132. None if it is none. They do not overlap.
    """
    if not 0 <= number < 10**19:
        return None
    return "julian" if _JULIAN[0] <= number < _JULIAN[1] else _DIGITS.get(len(str(int(number))))


def from_number(text: str, timezone: str | None = None) -> int | None:
    """Return the instant that a number counts, as a reading of *timezone* if that is given; None if it is no time."""
    try:
        number = Decimal(text)
        unit = unit_of(number) if number.is_finite() else None  # type: ignore[arg-type]
    except ArithmeticError:
        return None
    if unit is None:
        return None
    at = (number - Decimal(_JULIAN_EPOCH)) * DAY if unit == "julian" else number * SECOND / PER_SECOND[unit]
    return _reading(int(at), ZoneInfo(timezone)) if timezone else int(at)


def in_unit(at: int, unit: str) -> float:
    """Return the greatest number of *unit*s, of 64 bits, that is not above the microsecond *at*."""
    if unit == "s" and at % SECOND:
        return at / SECOND
    if unit != "julian":
        return max(-(2**63), min(-(-(at + 1) * PER_SECOND[unit] // SECOND) - 1, 2**63 - 1))
    # Doubles of this size are about 40 microseconds apart: a step or two from the quotient.
    found = math.nextafter(at / DAY + _JULIAN_EPOCH, -math.inf)
    while (above := from_number(repr(following := math.nextafter(found, math.inf)))) is not None and above <= at:
        found = following
    return found


def from_text(value: str, timezone: str | None = None) -> int | None:
    """Return the instant that *value* names, or, without a zone in it, its reading; None if it is no time.

    With *timezone*, values that carry an offset become readings of that zone, so that one column has one order. A
    number is the instant that it counts.
    """
    text = value.strip()
    if len(text) < 10 or text[4] != "-":
        return from_number(text, timezone)
    text = _iso(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is not None:
        if timezone is None:
            return micros(moment)
        try:
            moment = moment.astimezone(ZoneInfo(timezone)).replace(tzinfo=None)
        except OverflowError:
            return None
    found = (moment - _NAIVE_EPOCH) // timedelta(microseconds=1)
    if len(text) == 10:
        return found + DAY - 1
    return found + 60 * SECOND - 1 if len(text) == 16 else found


def _iso(text: str) -> str:
    """Return *text*, a time as other languages print it, as ISO 8601."""
    if text.endswith(" UTC"):
        # Ruby writes `… UTC`, Go `… +0000 UTC`.
        text = text[:-4] if text[-9:-8] in ("+", "-") else text[:-4] + "Z"
    if (len(text) > 20 and text[-6] == " ") or text[-7:-6] == " ":
        # An offset that stands apart, as Go and Sequelize write it.
        date, _, offset = text.rpartition(" ")
        text = date + offset if offset[:1] in ("+", "-") else text
    return text


def exact_text(value: str) -> tuple[int, bool] | None:
    """Return the microsecond that the text *value* names, and whether it carries a zone; None if it names none.

    Not where it stands as a cursor: a date is the beginning of its day here. What is finer than a microsecond, or no
    time of the years 1 to 9999 UTC, is none.
    """
    text = _iso(value.strip())
    if "\0" in text or not _CALENDAR.match(text) or _FINER.search(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return (moment - _NAIVE_EPOCH) // timedelta(microseconds=1), False
    at = micros(moment)
    return (at, True) if is_calendar(at) else None


def is_calendar(at: int) -> bool:
    """Return whether the microsecond *at* lies in the years 1 to 9999, which Python, Arrow's texts and Spark share."""
    return _YEAR_ONE <= at < _YEAR_10000


def is_sure(number: int | Decimal) -> bool:
    """Return whether *number*, an epoch of some unit, is of 2001 or later by its digits, and so of no other unit."""
    return len(str(int(number))) in (10, 13, 16, 19)


def exact_number(text: str) -> int | None:
    """Return the microsecond that a number counts; None if it is no time, or one between two microseconds.

    Nor is it one where its digits leave two answers: seconds of the year 9999 look like milliseconds of 1978.
    Julian days are doubles about 40 microseconds apart, so a microsecond tells each of them.
    """
    at = from_number(text)
    if at is None:
        return None
    number = Decimal(text)
    unit = unit_of(number)  # type: ignore[arg-type]
    if unit != "julian" and not is_sure(number):
        return None
    return at if unit == "julian" or number * SECOND == Decimal(at) * PER_SECOND[unit or "s"] else None


def bound(at: int, tracked: Tracked, kind_: CursorKind) -> int | None:
    """Return the least cursor value that a writer may still take at or after the instant *at*.

    None where the column has no relation to a clock. For zone-less readings under a `timezone`, an hour that the clocks
    will run through again counts: the bound is the least local reading still to come.
    """
    if kind_ in ("number", "real"):
        return at * per_second(tracked.unit, kind_) // SECOND if tracked.unit else None
    if kind_ == "instant" or tracked.timezone is None:
        return at
    return least_reading(at, ZoneInfo(tracked.timezone))


def ceiling(at: int, tracked: Tracked, kind_: CursorKind) -> int | None:
    """Return the greatest cursor value that a right clock may have written by the instant *at*; None: unknown."""
    if kind_ in ("reading", "text") and tracked.timezone is not None:
        return _reading(at, ZoneInfo(tracked.timezone))
    return bound(at, tracked, kind_)


def span(micros_: int, tracked: Tracked, kind_: CursorKind) -> int | None:
    """Return a duration in the column's own units; None where the column has no relation to a clock."""
    if kind_ in ("number", "real"):
        return micros_ * per_second(tracked.unit, kind_) // SECOND if tracked.unit else None
    return micros_


def parse(text: str, tracked: Tracked, kind_: CursorKind) -> int | None:
    """Return the comparable integer of a value that a person has typed, or None if it is none."""
    if kind_ not in ("number", "real"):
        return from_text(text, tracked.timezone)
    try:
        found = int(text) if kind_ == "number" else round(float(text) * SECOND)
        return found if abs(found) < INFINITY - 1 else None
    except (ValueError, OverflowError):
        return None


def zoneless(text: str) -> Literal["day", "minute", "time"] | None:
    """Return of what length is the time that the *text* of a person names without a zone; None if it names none so."""
    found = _iso(text.strip())
    try:
        if len(found) < 10 or found[4] != "-" or datetime.fromisoformat(found).tzinfo is not None:
            return None
    except ValueError:
        return None
    return "day" if len(found) == 10 else "minute" if len(found) == 16 else "time"


def per_second(unit: Unit, kind_: CursorKind) -> int:
    """Return how many of a column's comparable integers make a second; reals count in millionths."""
    return PER_SECOND[unit] * (SECOND if kind_ == "real" else 1)


def least_reading(at: int, zone: ZoneInfo) -> int:
    """Return the least wall-clock reading of *zone* at any instant from *at* on.

    Readings fall only where clocks are set back, by at most a day; so only transitions within the next day matter.
    """
    least = _reading(at, zone)
    if _offset(at, zone) == _offset(at + DAY, zone):
        return least
    low, high = at, at + DAY
    while high - low > SECOND:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(middle, zone) == _offset(low, zone) else (low, middle)
    return min(least, _reading(high - high % SECOND, zone))


def greatest_within(values: Integers, at_most: int | None) -> int | None:
    """Return the greatest value that is neither NULL, nor INFINITY, nor above *at_most*."""
    limit = INFINITY - 1 if at_most is None else at_most
    inside = values[(values != NONE) & (values <= limit)]
    return int(inside.max()) if len(inside) else None


def _reading(at: int, zone: ZoneInfo) -> int:
    return at + _offset(at, zone)


def _offset(at: int, zone: ZoneInfo) -> int:
    try:
        shift = instant(at).astimezone(zone).utcoffset()
    except OverflowError:
        return 0
    return (shift or timedelta()) // timedelta(microseconds=1)


def _filled(ints: pa.ChunkedArray | pa.Array) -> Integers:
    """Return *ints*, 64 bits each, NULL as `NONE`."""
    whole = ints.combine_chunks() if isinstance(ints, pa.ChunkedArray) else ints
    if not whole.null_count:
        # to_numpy makes pyarrow import pandas, where it is installed: longer than all the rest of an idle run.
        return np.frombuffer(whole.buffers()[1] or b"", np.int64)[whole.offset : whole.offset + len(whole)]
    array: Integers = pc.fill_null(whole.view(pa.int64()), NONE).to_numpy(zero_copy_only=False)
    return array


def _from_reals(values: pa.ChunkedArray | pa.Array) -> Integers:
    """Return reals in millionths; what is no finite 64-bit number of them is a time that moves nothing."""
    raw = values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy()
    scaled = np.round(raw.astype(np.float64) * SECOND)
    inside = np.abs(scaled) < 9.2e18
    found: Integers = np.where(inside, scaled, 0).astype(np.int64)
    found[~inside] = INFINITY
    found[np.isneginf(raw.astype(np.float64))] = NONE + 1
    found[
        values.is_null().to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.is_null().to_numpy()
    ] = NONE
    return found


def _from_text(values: pa.ChunkedArray | pa.Array, timezone: str | None) -> Integers:
    fast = uniform(values, timezone) if len(values) > _FEW else None
    if fast is not None:
        return fast
    found = [
        NONE if v is None else INFINITY if (t := from_text(v, timezone)) is None else t for v in values.to_pylist()
    ]
    return np.array(found, dtype=np.int64)


def uniform(values: pa.ChunkedArray | pa.Array, timezone: str | None) -> Integers | None:
    """Return what `from_text` says of *values* if they are all of one complete form, else None.

    Arrow reads the same ISO forms a hundred times as fast, but a column at a time.
    """
    shortest = pc.min(pc.binary_length(values)).as_py()
    if shortest is None or shortest < 19:
        return None
    first = values.drop_null()[0].as_py()
    zone = "UTC" if first.endswith("Z") or first[-6] in "+-" else None
    if zone and timezone:
        return None
    try:
        found = _filled(pc.cast(values, pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        return None
    return found if found[found != NONE].min() >= _YEAR_ONE else None


def show(value: int | None, kind_: CursorKind, unit: Unit | None = None) -> str:
    """Return a comparable integer as a person reads it: ISO 8601, `Z` where it is an instant, or the number."""
    if value is None:
        return "-"
    if kind_ in ("number", "real"):
        if unit is None:
            return str(value) if kind_ == "number" else str(value / SECOND)
        at = value * SECOND // per_second(unit, kind_)
    else:
        at = value
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    except OverflowError:
        return "infinity" if value == INFINITY else str(value)
    text = moment.replace(tzinfo=None).isoformat()
    return text if kind_ in ("reading", "text") else text + "Z"
