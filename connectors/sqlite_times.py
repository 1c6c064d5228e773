"""Times in SQLite's columns as Arrow's: text, epochs and Julian days, exactly or not at all.

Arrow reads complete ISO forms a hundred times as fast as Python, a column at a time, and takes nothing that Python
would read otherwise; what it refuses is looked at value by value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import cursor
from sidecar.clock import SECOND

Values: TypeAlias = "pa.Array | pa.ChunkedArray"

INSTANT, READING, DATE = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NOTHING = type(None)


def one(value: object, type_: pa.DataType) -> int | None:
    """Return *value* as *type_* counts it; None if it is no time, or one that *type_* does not hold as it is."""
    if isinstance(value, (int, float)):
        return cursor.exact_number(repr(value)) if type_ == INSTANT else None
    if not isinstance(value, str):
        return None
    if type_ == DATE:
        return _day(value)
    found = cursor.exact_text(value)
    # A reading without its zone, or an instant whose zone is guessed, would be another time.
    return found[0] if found is not None and found[1] == (type_ == INSTANT) else None


def whole(values: Sequence[object], type_: pa.DataType) -> Values | None:
    """Return *values* as *type_*; None if one of them does not fit, or only `one` can tell."""
    classes = set(map(type, values))
    classes.discard(_NOTHING)
    if not classes:
        return pa.nulls(len(values), type_)
    if classes == {str}:
        return converted(pa.array(values, pa.string()), type_)
    if classes == {int}:
        return converted(pa.array(values, pa.int64()), type_)
    return None


def converted(values: Values, type_: pa.DataType) -> Values | None:
    """Return *values*, texts or integers, as *type_*; None if one of them does not fit, or only `one` can tell."""
    if values.null_count == len(values):
        return pa.nulls(len(values), type_)
    if pa.types.is_string(values.type):
        return _texts(values, type_)
    return _numbers(values) if pa.types.is_int64(values.type) and type_ == INSTANT else None


def _texts(values: Values, type_: pa.DataType) -> Values | None:
    try:
        found = pc.cast(values, type_)
    except pa.ArrowInvalid:
        return None
    # Arrow knows a year 0.
    ends = pc.min_max(pc.cast(found, pa.int32() if type_ == DATE else pa.int64()))
    scale = cursor.DAY if type_ == DATE else 1
    inside = all(cursor.is_calendar(ends[name].as_py() * scale) for name in ("min", "max"))
    return found if inside else None


def _numbers(column: Values) -> Values | None:
    ends = pc.min_max(column)
    unit = cursor.unit_of(ends["min"].as_py())
    if unit is None or unit == "julian" or unit != cursor.unit_of(ends["max"].as_py()):
        return None
    if not cursor.is_sure(ends["min"].as_py()):
        return None
    per = cursor.PER_SECOND[unit]
    if per <= SECOND:
        return pc.cast(pc.multiply(column, SECOND // per), INSTANT)
    nulls = np.array(column.is_null())
    raw = np.array(pc.fill_null(column, 0))
    if (raw % (per // SECOND)).any():
        return None
    return pa.array(raw // (per // SECOND), mask=nulls).cast(INSTANT)


def _day(text: str) -> int | None:
    if not _DAY.fullmatch(text):
        return None
    try:
        return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()
    except ValueError:
        return None


class Forms:
    """An aggregate for SQLite: the type that all values of a column fit. It takes NULLs, numbers, texts as bytes, and a
    text in place of each blob.
    """

    chunk = 10_000

    def __init__(self) -> None:
        self._possible: set[pa.DataType] = {INSTANT, READING, DATE}
        self._units: set[str | None] = set()
        self._values: list[object] = []
        self._seen = False

    def step(self, value: object) -> None:
        if value is None or not self._possible:
            return
        self._values.append(value)
        if len(self._values) >= self.chunk:
            self._look()

    def finalize(self) -> str | None:
        """Return the narrowest type's name; '' if there is none; None without values."""
        self._look()
        if not self._seen:
            return None
        return next((str(t) for t in (DATE, READING, INSTANT) if t in self._possible), "")

    def _look(self) -> None:
        values, self._values = self._values, []
        if not values:
            return
        self._seen = True
        try:
            texts = pa.array([v for v in values if isinstance(v, bytes)], pa.binary()).cast(pa.string()).to_pylist()
        except pa.ArrowInvalid:
            self._possible.clear()
            return
        numbers = [v for v in values if isinstance(v, (int, float))]
        if len(texts) + len(numbers) < len(values) or (texts and numbers):
            self._possible.clear()
        elif numbers:
            self._units |= {cursor.unit_of(n) for n in (min(numbers), max(numbers))}
            self._possible &= {INSTANT} if len(self._units) == 1 else set()
        else:
            # Text beside numbers in another chunk: no unit is a unit of its own.
            self._units.add("text")
            self._possible &= {INSTANT, READING, DATE} if self._units == {"text"} else set()
        for type_ in tuple(self._possible):
            some = texts or numbers
            if whole(some, type_) is None and any(one(v, type_) is None for v in some):
                self._possible.discard(type_)
