"""The server's texts as Arrow's values, exactly: what a type cannot hold is named, or becomes NULL where that is asked.

Nested values are taken apart into one flat array of texts for each of their leaves, and each is cast in one call.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from connectors import postgres_nested as nested
from connectors.postgres_literals import Values, is_time
from connectors.postgres_types import Kind, Wire

Rows = npt.NDArray[np.int64]
T = TypeVar("T")


class Misfit(Exception):
    """A value that its column's type cannot hold: in which row of the page, what it is, and what to do about it."""

    def __init__(self, row: int, what: str, advice: str) -> None:
        super().__init__(what)
        self.row, self.what, self.advice = row, what, advice


@dataclass
class Sieve:
    """What becomes of NaN, infinities and far-away times: an error, or NULL in the *rows* that it collects."""

    column: str
    infinity: str = "error"
    rows: list[int] = field(default_factory=list)

    def strain(self, values: pa.Array, odd: pa.Array, rows: Rows, type_: pa.DataType) -> pa.Array:
        """Return *values* with NULL where *odd*; Misfit where that is not asked."""
        if not pc.any(odd).as_py():
            return values
        places = rows[np.flatnonzero(pc.fill_null(odd, False).to_numpy(zero_copy_only=False))]
        if self.infinity != "null":
            what = "a time that is infinite or outside the years 1 to 9999" if is_time(type_) else "NaN or infinity"
            raise Misfit(int(places[0]), f"holds {what}, which no {type_} can carry", advice(self.column))
        self.rows += np.unique(places).tolist()
        return pc.if_else(pc.fill_null(odd, False), pa.scalar(None, values.type), values)


def advice(column: str, *, key: bool = False) -> str:
    """Return what there is to do about NaN, an infinity or a far-away time in *column*; a *key* cannot be NULL."""
    null = "" if key else f'{{ {_name(column)} = "null" }} or '
    return f'Say infinity = {null}{{ {_name(column)} = "keep as string" }}'


def final(values: Values, wire: Wire) -> tuple[Values, list[int]]:
    """Return *values* as the final type, and the rows in which something had to be NULL; Misfit names what is lost."""
    if wire.kind is None:
        if pa.types.is_binary(wire.final) and pa.types.is_string(values.type):
            return _chunks(values, lambda chunk, _: _unhex(chunk)), []
        return values if values.type == wire.final else pc.cast(values, wire.final), []
    kind, sieve = wire.kind, Sieve(wire.name, wire.infinity)
    if kind.shape == "scalar" and pa.types.is_string(wire.final) and not (kind.is_numeric and wire.infinity == "null"):
        return values if values.type == wire.final else pc.cast(values, wire.final), []
    if pa.types.is_floating(values.type):
        if wire.infinity != "null":
            return values, []
        return _chunks(values, lambda chunk, rows: _finite(chunk, rows, sieve)), sieve.rows

    def decoded(chunk: pa.Array, rows: Rows) -> pa.Array:
        return _decode(pc.cast(chunk, pa.string()), kind, wire.final, rows, sieve)

    return _chunks(values, decoded), sorted(set(sieve.rows))


def _chunks(values: Values, decode: Callable[[pa.Array, Rows], pa.Array]) -> Values:
    if not isinstance(values, pa.ChunkedArray):
        return decode(values, np.arange(len(values), dtype=np.int64))
    found, at = [], 0
    for chunk in values.chunks or [pa.array([], values.type)]:
        found.append(decode(chunk, np.arange(at, at + len(chunk), dtype=np.int64)))
        at += len(chunk)
    return pa.chunked_array(found)


def _decode(texts: pa.Array, kind: Kind, type_: pa.DataType, rows: Rows, sieve: Sieve) -> pa.Array:
    if kind.shape == "array":
        return _lists(texts, kind, type_, rows, sieve)
    if kind.shape == "record":
        return _structs(texts, kind, type_, rows, sieve)
    if kind.shape == "map":
        return _maps(texts, rows, sieve)
    if kind.is_numeric:
        return _numerics(texts, type_, rows, sieve)
    return _scalars(texts, type_, rows, sieve)


def _scalars(texts: pa.Array, type_: pa.DataType, rows: Rows, sieve: Sieve) -> pa.Array:
    if is_time(type_):
        # ISO: a year of four digits and nothing behind the time is of the years 1 to 9999.
        odd = pc.invert(pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d+)?(\+00)?)?$"))
        return _cast(sieve.strain(texts, odd, rows, type_), type_, rows)
    if pa.types.is_floating(type_):
        return _finite(_cast(texts, type_, rows), rows, sieve)
    if pa.types.is_boolean(type_):
        words = pc.replace_substring_regex(pc.replace_substring_regex(texts, "^t$", "true"), "^f$", "false")
        return _cast(words, type_, rows)
    if pa.types.is_binary(type_):
        return _unhex(pc.utf8_slice_codeunits(texts, 2))
    return texts if type_ == texts.type else _cast(texts, type_, rows)


def _cast(texts: pa.Array, type_: pa.DataType, rows: Rows) -> pa.Array:
    """Return *texts* as *type_*; Misfit names the first that is none."""
    try:
        return pc.cast(texts, type_)
    except pa.ArrowInvalid:
        for at in range(len(texts)):
            try:
                pc.cast(texts[at : at + 1], type_)
            except pa.ArrowInvalid:
                raise Misfit(int(rows[at]), f"holds a text that is no {type_}", _CHANGED) from None
        raise


def _finite(values: pa.Array, rows: Rows, sieve: Sieve) -> pa.Array:
    """Return floating-point numbers, which hold NaN and infinities by themselves: they go only where that is asked."""
    return sieve.strain(values, pc.invert(pc.is_finite(values)), rows, values.type) if _asks(sieve) else values


def _asks(sieve: Sieve) -> bool:
    return sieve.infinity == "null"


_DIGITS = 38
_CHANGED = "If its type has changed meanwhile, run again"
_SPECIAL = pa.array(["NaN", "Infinity", "-Infinity"], pa.string())


def _numerics(texts: pa.Array, type_: pa.DataType, rows: Rows, sieve: Sieve) -> pa.Array:
    if pa.types.is_decimal(type_) or _asks(sieve):
        texts = sieve.strain(texts, pc.is_in(texts, _SPECIAL), rows, type_)
    if pa.types.is_decimal(type_):
        return _decimals(texts, type_, rows, sieve)
    if not pa.types.is_floating(type_):
        return texts
    found = pc.cast(texts, type_)
    over = pc.and_(pc.is_inf(found), pc.invert(pc.is_in(texts, _SPECIAL)))
    if pc.any(over).as_py():
        at = pc.index(over, pa.scalar(True)).as_py()
        raise _loss(texts[at].as_py(), "a double", rows[at], sieve)
    return found


def _decimals(texts: pa.Array, type_: pa.DataType, rows: Rows, sieve: Sieve) -> pa.Array:
    # Arrow's cast wraps around at 128 bits, without a word, for texts of more digits than that.
    if (pc.max(pc.utf8_length(texts)).as_py() or 0) <= _DIGITS:
        try:
            return pc.cast(texts, type_)
        except pa.ArrowInvalid:
            # Something is lost, or the last digits are zeros: one by one, then.
            pass
    least = decimal.Decimal(1).scaleb(-type_.scale)
    found: list[decimal.Decimal | None] = []
    with decimal.localcontext(decimal.Context(prec=max(type_.precision, 1), traps=[])) as context:
        for at, text in enumerate(texts.to_pylist()):
            value = None if text is None else decimal.Decimal(text).quantize(least, context=context)
            if value is not None and value != decimal.Decimal(text):
                raise _loss(text, str(type_), rows[at], sieve)
            found.append(value)
    return pa.array(found, type_)


def _loss(text: str, type_: str, row: np.int64, sieve: Sieve) -> Misfit:
    value = text if len(text) <= 60 else f"{text[:40]}… ({len(text)} characters)"
    advice_ = f'Say numeric = {{ {_name(sieve.column)} = "string" }}, or a type that holds it'
    return Misfit(int(row), f"holds {value}, which {type_} cannot carry without loss", advice_)


def _lists(texts: pa.Array, kind: Kind, type_: pa.DataType, rows: Rows, sieve: Sieve) -> pa.Array:
    """Return arrays as lists: their elements all in one flat array, and for each dimension where its lists begin."""
    element = kind.parts[0][1]
    flat: list[str | None] = []
    lengths: list[list[int]] = [[] for _ in range(kind.depth)]
    counts = np.zeros(len(texts), dtype=np.int64)
    for at, text in enumerate(texts.to_pylist()):
        if text is None:
            lengths[0].append(0)
            continue
        found, shape = _parsed(sieve, rows[at], nested.array, text, kind.delimiter)
        if found and len(shape) != kind.depth:
            declared = nested.shown([0] * kind.depth)
            what = f"holds an array of {nested.shown(shape)}, and is declared with {declared}"
            raise Misfit(int(rows[at]), what, _as_text(sieve))
        lists = 1
        for level in range(kind.depth):
            length = shape[level] if shape else 0
            lengths[level] += [length] * lists
            lists *= length
        flat += found
        counts[at] = len(found)
    inner = type_
    types = []
    for _ in range(kind.depth):
        types.append(inner)
        inner = inner.value_type
    values = _decode(pa.array(flat, pa.string()), element, inner, np.repeat(rows, counts), sieve)
    for level in reversed(range(kind.depth)):
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths[level])]).astype(np.int32))
        mask = texts.is_null() if level == 0 and texts.null_count else None
        values = pa.ListArray.from_arrays(offsets, values, type=types[level], mask=mask)
    return values


def _structs(texts: pa.Array, kind: Kind, type_: pa.StructType, rows: Rows, sieve: Sieve) -> pa.Array:
    count = len(kind.parts)
    nothing: Sequence[str | None] = [None] * count
    fields: list[list[str | None]] = [[] for _ in kind.parts]
    for at, text in enumerate(texts.to_pylist()):
        found = nothing if text is None else _parsed(sieve, rows[at], nested.record, text, count)
        for values, value in zip(fields, found, strict=True):
            values.append(value)
    arrays = [
        _decode(pa.array(values, pa.string()), part, type_.field(n).type, rows, sieve)
        for n, (values, (_, part)) in enumerate(zip(fields, kind.parts, strict=True))
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=texts.is_null())


def _maps(texts: pa.Array, rows: Rows, sieve: Sieve) -> pa.Array:
    keys: list[str] = []
    values: list[str | None] = []
    ends = [0]
    for at, text in enumerate(texts.to_pylist()):
        if text is not None:
            more = _parsed(sieve, rows[at], nested.pairs, text)
            keys += more[0]
            values += more[1]
        ends.append(len(keys))
    offsets = pa.array(ends, pa.int32())
    found = pa.array(keys, pa.string()), pa.array(values, pa.string())
    return pa.MapArray.from_arrays(offsets, *found, mask=texts.is_null())


def _parsed(sieve: Sieve, row: np.int64, parse: Callable[..., T], *arguments: object) -> T:
    try:
        return parse(*arguments)
    except nested.OtherBounds as error:
        raise Misfit(int(row), f"holds an array that {error}", _as_text(sieve)) from None
    except ValueError as error:
        raise Misfit(int(row), f"holds a text that cannot be taken apart: {error}", _CHANGED) from None


def _as_text(sieve: Sieve) -> str:
    return f'Say arrays = {{ {_name(sieve.column)} = "string" }} to have the server\'s text instead'


def _name(column: str) -> str:
    """Return a column's name as a key of TOML."""
    return column if re.fullmatch(r"[A-Za-z0-9_-]+", column) else json.dumps(column, ensure_ascii=False)


def _unhex(chunk: pa.Array) -> pa.Array:
    """Return hex digits as bytes. All digits are decoded in one call."""
    whole = pc.fill_null(chunk, "")
    lengths = pc.divide(pc.binary_length(whole), 2).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    digits = pc.binary_join(pa.ListArray.from_arrays([0, len(whole)], whole), "")[0].as_py()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(bytes.fromhex(digits))]
    filled = pa.Array.from_buffers(pa.binary(), len(whole), buffers)
    return pc.if_else(chunk.is_valid(), filled, pa.scalar(None, pa.binary()))
