"""SQLite values as Arrow: exactly, or not at all.

SQLite types values, not columns, so a reader that guesses from the rows changes its mind between two polls, and one
that coerces loses what does not fit. `arrow` is the type in which a column is read as a key or a cursor: the
declaration alone decides it, on an empty table too. `choices` are those in which it may be delivered instead, where the
declaration leaves that open; `sqlite_settle.py` chooses.

    declared                                 is read as   is delivered as
    …INT…                                    int64        int64
    …BOOL…                                   int64        boolean, int64, float64 or string
    REAL, FLOAT, DOUBLE                      float64      float64
    NUMERIC, DECIMAL, MONEY, …               float64      float64 or string
    …CHAR…, CLOB, TEXT, JSON, UUID, TIME, …  string       string
    BLOB                                     binary       binary
    DATE, DATETIME, TIMESTAMP, …             string       date, timestamp without or with a zone, or string
    ANY, none, anything else                 string       int64, float64, string or binary

Only string columns take numbers, as their exact text.
"""

from __future__ import annotations

import array as buffers
import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from connectors import sqlite_times as times
from sidecar.model import Scalar

EXACT = 2**53
"""Up to here every integer is a double."""

_NUMERIC = ("NUMERIC", "DECIMAL", "NUMBER", "MONEY", "CURRENCY", "FIXED")
_TEXTS = ("JSON", "UUID", "GUID", "STRING", "XML", "ENUM")
_CLASSES = {int: "integer", float: "real", str: "text", bytes: "blob"}
_NOTHING = type(None)
_FEW = 200


@dataclass(frozen=True, slots=True)
class Broken:
    """Text that is no UTF-8, from its byte *at* on."""

    raw: bytes
    at: int


def decoded(raw: bytes) -> str | Broken:
    """Return what SQLite holds as text: as text, if it is."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return Broken(raw, error.start)


class Misfit(Exception):
    """A value that its column's type cannot hold: where it stands, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row, self.reason = row, reason


def arrow(declared: str) -> pa.DataType:
    """Return the type in which a column declared as *declared* arrives, whatever it holds."""
    word = declared.upper()
    # "FLOATING POINT" and "POINT" have integer affinity by SQLite's rules, and hold none.
    if "INT" in word.replace("POINT", "") or "BOOL" in word:
        return pa.int64()
    if any(w in word for w in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if "BLOB" in word or "BINARY" in word:
        return pa.binary()
    if any(w in word for w in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    if any(w in word for w in _NUMERIC) or word.split("(")[0].strip() == "DEC":
        return pa.float64()
    return pa.string()


@functools.cache
def choices(declared: str) -> frozenset[pa.DataType]:
    """Return the types between which a column's values decide; none where its declaration does."""
    word, type_ = declared.upper(), arrow(declared)
    if is_time(declared):
        return frozenset({pa.string(), times.READING, times.INSTANT, *([times.DATE] if is_date(declared) else ())})
    if pa.types.is_float64(type_):
        exact = any(w in word for w in ("REAL", "FLOA", "DOUB"))
        return frozenset() if exact else frozenset({type_, pa.string()})
    if pa.types.is_int64(type_):
        is_flag = "BOOL" in word and "INT" not in word
        return frozenset({pa.bool_(), type_, pa.float64(), pa.string()}) if is_flag else frozenset()
    if not keeps_numbers(declared) or any(w in word for w in _TEXTS) or word.split("(")[0].strip() == "TIME":
        return frozenset()
    return frozenset({pa.int64(), pa.float64(), type_, pa.binary()})


def expected(declared: str) -> frozenset[pa.DataType]:
    """Return those of the choices that the declaration leads one to expect."""
    if is_date(declared):
        return frozenset({times.DATE})
    if is_time(declared):
        return frozenset({times.READING, times.INSTANT})
    if pa.types.is_int64(arrow(declared)):
        return frozenset({pa.bool_()})
    return frozenset({pa.float64()}) if pa.types.is_float64(arrow(declared)) else frozenset()


def is_time(declared: str) -> bool:
    """Return whether the declaration promises dates, or dates with a time."""
    word = declared.upper()
    named = "DATETIME" in word or "TIMESTAMP" in word or is_date(declared)
    return named and pa.types.is_string(arrow(declared)) and keeps_numbers(declared)


def is_date(declared: str) -> bool:
    """Return whether the declaration promises dates alone."""
    return declared.strip().upper() == "DATE"


def keeps_numbers(declared: str) -> bool:
    """Return whether a column of this declaration that arrives as string may hold numbers all the same."""
    word = declared.upper()
    return pa.types.is_string(arrow(declared)) and not any(w in word for w in ("CHAR", "CLOB", "TEXT"))


def array(values: Sequence[object], type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return *values* as Arrow, unchanged; Misfit for the first that *type_* cannot hold."""
    found = _whole(values, type_)
    return pa.array([_one(v, i, type_) for i, v in enumerate(values)], type_) if found is None else found


def made(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return *values*, which are all of *type_* or NULL, as Arrow."""
    if not values:
        return pa.nulls(0, type_)
    # pa.array makes pyarrow import pandas, where it is installed. That takes longer than all the rest of a run that
    # finds nothing, which looks at some cursor values alone.
    if len(values) <= _FEW and None not in values and pa.types.is_int64(type_):
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(buffers.array("q", values))])
    if len(values) <= _FEW and None not in values and pa.types.is_string(type_):
        texts = [v.encode() for v in values]
        ends = buffers.array("i", itertools.accumulate(map(len, texts), initial=0))
        return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    return pa.array(values, type_)


def fitted(values: Sequence[object], type_: pa.DataType) -> tuple[pa.Array | pa.ChunkedArray, dict[int, str]]:
    """Return *values* as Arrow, unchanged, or NULL where *type_* cannot hold them: these rows, and why."""
    found = _whole(values, type_)
    if found is not None:
        return found, {}
    kept: list[object] = []
    misfits: dict[int, str] = {}
    for row, value in enumerate(values):
        try:
            kept.append(_one(value, row, type_))
        except Misfit as misfit:
            misfits[row] = str(misfit)
            kept.append(None)
    return pa.array(kept, type_), misfits


def _whole(values: Sequence[object], type_: pa.DataType) -> pa.Array | pa.ChunkedArray | None:
    """Return *values* as *type_*, if it is sure at a glance that all of them fit."""
    if pa.types.is_temporal(type_):
        return times.whole(values, type_)
    # pa.array([1, 1.5], pa.int64()) is [1, 1]: classes are looked at before anything is converted.
    classes = set(map(type, values))
    classes.discard(_NOTHING)
    home, _ = _HOMES[type_]
    if pa.types.is_boolean(type_):
        return None if classes - {int} or set(values) - {0, 1, None} else pa.array(values, pa.int64()).cast(type_)
    if classes <= {home}:
        return made(values, type_)
    if home is float and classes <= {float, int}:
        with contextlib.suppress(
            pa.ArrowInvalid
        ):  # an integer beyond 2**53: the slow way finds out which, and if it fits
            return pa.array(values, type_)
    return None


def _one(value: object, row: int, type_: pa.DataType) -> object:
    """Return *value* as Arrow takes it for *type_*; Misfit if it cannot."""
    if value is None:
        return None
    if isinstance(value, Broken):
        raise Misfit(row, f"holds text that is not valid UTF-8, byte {value.at} ({value.raw[value.at]:#04x})")
    if pa.types.is_temporal(type_):
        found = times.one(value, type_)
        if found is None:
            raise Misfit(row, f"holds a value of class {class_of(value)} that is no {_NAMES[type_]}")
        return found
    home, takes = _HOMES[type_]
    if type(value) not in takes:
        raise Misfit(row, f"holds a value of class {class_of(value)}, where its type takes {_CLASSES[home]}")
    return takes[type(value)](value, row)


def converted(values: times.Values, type_: pa.DataType) -> times.Values | None:
    """Return *values*, all of one storage class, unchanged as *type_*; None if not all of them fit at a glance."""
    if values.type == type_:
        return values
    if pa.types.is_temporal(type_):
        return times.converted(values, type_)
    if pa.types.is_large_binary(values.type) and pa.types.is_binary(type_):
        return values.cast(type_)
    if not pa.types.is_int64(values.type):
        return None
    if pa.types.is_boolean(type_):
        ends = pc.min_max(values)
        return values.cast(type_) if {ends["min"].as_py(), ends["max"].as_py()} <= {0, 1, None} else None
    return values.cast(type_) if pa.types.is_string(type_) else None


def home(type_: pa.DataType) -> type:
    """Return the class of values that are read as *type_*, where there are none to tell."""
    return str if pa.types.is_temporal(type_) else _HOMES[type_][0]


def class_of(value: object) -> str:
    """Return SQLite's word for the storage class of *value*."""
    return _CLASSES.get(type(value), "null")


def number(text: Scalar) -> Scalar:
    """Return the number whose exact text *text* is, or *text* itself where it is none."""
    if not isinstance(text, str):
        return text
    for make in (int, float):
        try:
            found = make(text)
        except ValueError:
            continue
        if repr(found) == text:
            return found
    return text


def _same(value: object, row: int) -> object:
    del row
    return value


def _text(value: object, row: int) -> object:
    del row
    return repr(value)


def _double(value: object, row: int) -> object:
    assert isinstance(value, int)
    if abs(value) > EXACT and int(float(value)) != value:
        raise Misfit(row, "holds an integer that no double holds exactly")
    return float(value)


def _flag(value: object, row: int) -> object:
    if value not in (0, 1):
        raise Misfit(row, "holds an integer that is neither 0 nor 1, in a column that held nothing else")
    return bool(value)


_Takes = dict[type, Callable[[object, int], object]]
_HOMES: dict[pa.DataType, tuple[type, _Takes]] = {
    pa.int64(): (int, {int: _same}),
    pa.float64(): (float, {float: _same, int: _double}),
    pa.string(): (str, {str: _same, int: _text, float: _text}),
    pa.binary(): (bytes, {bytes: _same}),
    pa.bool_(): (int, {int: _flag}),
}
_NAMES = {
    times.DATE: "date",
    times.READING: "time without a zone",
    times.INSTANT: "time with a zone, nor a number that counts time",
}
