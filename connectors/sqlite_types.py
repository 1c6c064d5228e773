"""SQLite values as Arrow: the type from the declaration alone, the values exactly or not at all.

SQLite types values, not columns, so a reader that guesses from the rows changes its mind between two polls, and one
that coerces loses what does not fit. Here the declared type decides, on an empty table too, and a value of another
storage class is an error that names it. Only string columns take numbers, as their exact text.

    declared                                 arrives as
    …INT…                                    int64    (BOOLEAN too: nothing stops a SQLite boolean from being 2)
    REAL, FLOAT, DOUBLE                      float64
    NUMERIC, DECIMAL, MONEY, …               float64  integers only as far as a double holds them exactly
    …CHAR…, CLOB, TEXT                       string
    BLOB                                     binary
    DATE, DATETIME, TIMESTAMP, TIME          string   as stored: SQLite has no such class, and ORMs write many forms
    JSON, UUID, ANY, none, anything else     string
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pyarrow as pa

from sidecar.model import Scalar

EXACT = 2**53
"""Up to here every integer is a double."""

_NUMERIC = ("NUMERIC", "DECIMAL", "NUMBER", "MONEY", "CURRENCY", "FIXED")
_CLASSES = {int: "integer", float: "real", str: "text", bytes: "blob"}
_NOTHING = type(None)


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


def keeps_numbers(declared: str) -> bool:
    """Return whether a column of this declaration that arrives as string may hold numbers all the same."""
    word = declared.upper()
    return pa.types.is_string(arrow(declared)) and not any(w in word for w in ("CHAR", "CLOB", "TEXT"))


def array(values: Sequence[object], type_: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return *values* as Arrow, unchanged; Misfit for the first that *type_* cannot hold."""
    # pa.array([1, 1.5], pa.int64()) is [1, 1]: classes are looked at before anything is converted.
    classes = set(map(type, values))
    classes.discard(_NOTHING)
    home, takes = _HOMES[type_]
    if classes <= {home}:
        return pa.array(values, type_)
    if home is float and classes <= {float, int}:
        with contextlib.suppress(
            pa.ArrowInvalid
        ):  # an integer beyond 2**53: the slow way finds out which, and if it fits
            return pa.array(values, type_)
    if strangers := classes.difference(takes):
        row = next(i for i, v in enumerate(values) if type(v) in strangers)
        raise Misfit(row, f"holds a value of class {class_of(values[row])}, where its type takes {_CLASSES[home]}")
    return pa.array([None if v is None else takes[type(v)](v, i) for i, v in enumerate(values)], type_)


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


_Takes = dict[type, Callable[[object, int], object]]
_HOMES: dict[pa.DataType, tuple[type, _Takes]] = {
    pa.int64(): (int, {int: _same}),
    pa.float64(): (float, {float: _same, int: _double}),
    pa.string(): (str, {str: _same, int: _text, float: _text}),
    pa.binary(): (bytes, {bytes: _same}),
}
