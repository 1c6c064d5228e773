"""128 bits for each row's content: equal only where values and kinds of values are.

A row is written down as a head of nine bytes a column, which tells the kind of value and the value itself or its
length, and then what has a length. So 1, 1.0, '1' and b'1' stay apart, and no value can pass for parts of two. Integers
of all widths are one kind, as are reals, and so is all that counts a unit of time: a column that grows changes no row.
Arrow does all of it a column at a time, but for the hash itself, and for a few rows, which are written down one by one.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec
from sidecar.polls.deliveries import Keys

_HEAD = np.dtype([("kind", "u1"), ("value", "<i8")])
_PACKED = struct.Struct("<Bq")
_NULL, _FLAG, _NUMBER, _REAL, _TEXT, _BYTES, _OTHER = b"n?ifsbr"
_BITS = 128 // 8

_FEW = 16
"""Rows that are written down sooner than Arrow is asked."""


def digests(columns: Sequence[pa.ChunkedArray], count: int) -> Keys:
    """Return a digest of each of the *count* rows of *columns*, as two integers."""
    try:
        found = _few(columns) if count <= _FEW else _many(columns, count)
    except UnicodeDecodeError:
        # Bytes in a column of texts, which Arrow takes as they are.
        found = _many(columns, count)
    return np.frombuffer(b"".join(found), "<i8").reshape(count, 2).T.astype(np.int64)


def _few(columns: Sequence[pa.ChunkedArray]) -> list[bytes]:
    cells = [_written(column) for column in columns]
    rows = (b"".join((*(head for head, _ in row), *(rest for _, rest in row))) for row in zip(*cells, strict=True))
    return [blake2b(row, digest_size=_BITS).digest() for row in rows]


def _many(columns: Sequence[pa.ChunkedArray], count: int) -> list[bytes]:
    heads = np.zeros((count, len(columns)), dtype=_HEAD)
    behind: list[pa.Array] = []
    for index, column in enumerate(columns):
        kind, values, rest = _taken_apart(column)
        nulls = column.is_null().to_numpy() if column.null_count else None
        heads["kind"][:, index] = kind if nulls is None else np.where(nulls, _NULL, kind)
        heads["value"][:, index] = values if nulls is None else np.where(nulls, 0, values)
        if rest is not None:
            behind.append(rest)
    offsets, data = _joined(heads.tobytes(), count, len(columns) * _HEAD.itemsize, behind)
    # Anything but a plain list of calls here would cost as much as the hash.
    return [blake2b(data[a:b], digest_size=_BITS).digest() for a, b in itertools.pairwise(offsets)]


def _joined(heads: bytes, count: int, width: int, behind: list[pa.Array]) -> tuple[list[int], memoryview]:
    """Return the rows one after the other, and where each begins."""
    starts = np.arange(count + 1, dtype=np.int64) * width
    if not behind:
        return starts.tolist(), memoryview(heads)
    first = pa.Array.from_buffers(pa.large_binary(), count, [None, pa.py_buffer(starts), pa.py_buffer(heads)])
    rows = pc.binary_join_element_wise(
        first, *behind, pa.scalar(b"", pa.large_binary()), null_handling="replace", null_replacement=b""
    )
    _, offsets, data = rows.buffers()
    return np.frombuffer(offsets, np.int64, count + 1, rows.offset * 8).tolist(), memoryview(data or b"")


def _taken_apart(column: pa.ChunkedArray) -> tuple[int, npt.NDArray[np.int64], pa.Array | None]:
    """Return the kind of *column*'s values, what stands in their heads, and what follows; NULLs are anything."""
    kind, column = _plain(column)
    if kind == _NULL:
        return kind, np.zeros(len(column), dtype=np.int64), None
    if kind in (_FLAG, _NUMBER):
        return kind, _numbers(column), None
    if kind == _REAL:
        reals = (column.fill_null(0.0) if column.null_count else column).to_numpy().copy()
        reals[np.isnan(reals)] = np.nan  # one of its many forms
        return kind, reals.view(np.int64), None
    rest = _whole(column.cast(pa.large_binary()))
    ends = np.frombuffer(rest.buffers()[1], np.int64, len(rest) + 1, rest.offset * 8) if len(rest) else _NO_ENDS
    return kind, np.diff(ends), rest


def _written(column: pa.ChunkedArray) -> list[tuple[bytes, bytes]]:
    """Return by row the head of *column*'s value, and what follows."""
    kind, column = _plain(column)
    values = column.to_pylist()
    if kind in (_FLAG, _NUMBER):
        return [(_NOTHING if v is None else _PACKED.pack(kind, v), b"") for v in values]
    if kind == _REAL:
        return [(_NOTHING if v is None else _PACKED.pack(kind, _bits(v)), b"") for v in values]
    if kind in (_TEXT, _OTHER):
        values = [None if v is None else v.encode() for v in values]
    return [(_NOTHING, b"") if v is None else (_PACKED.pack(kind, len(v)), v) for v in values]


_NOTHING = _PACKED.pack(_NULL, 0)
_NAN = struct.pack("<d", np.nan)


def _bits(value: float) -> int:
    return int.from_bytes(_NAN if math.isnan(value) else struct.pack("<d", value), "little", signed=True)


def _plain(column: pa.ChunkedArray) -> tuple[int, pa.ChunkedArray]:
    """Return the kind of *column*'s values, and these as integers, flags, reals, texts or bytes."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return _plain(column.cast(type_.value_type))
    kind = _kind(type_)
    if kind == _NUMBER and pa.types.is_temporal(type_):
        column = (column.cast(pa.int32()) if type_.bit_width == 32 else column).cast(pa.int64())
    elif kind == _REAL and type_ != pa.float64():
        column = column.cast(pa.float64())
    elif pa.types.is_decimal(type_):
        column = pc.cast(column, pa.string())
    elif kind == _OTHER:
        texts = [None if value is None else repr(value) for value in codec.plain(column)]
        column = pa.chunked_array([pa.array(texts, pa.string())])
    return kind, column


@functools.cache
def _kind(type_: pa.DataType) -> int:
    """Return the kind of values of *type_*, which is no dictionary."""
    if pa.types.is_null(type_):
        return _NULL
    if pa.types.is_boolean(type_):
        return _FLAG
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return _NUMBER
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return _NUMBER
    if pa.types.is_floating(type_):
        return _REAL
    if _is_bytes(type_):
        return _BYTES
    return _TEXT if _is_text(type_) or pa.types.is_decimal(type_) else _OTHER


_NO_ENDS = np.zeros(1, dtype=np.int64)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return *column*'s values; under a NULL, whatever lies there in memory."""
    whole = _whole(column.cast(pa.int64()))
    return np.frombuffer(whole.buffers()[1] or b"", np.int64)[whole.offset : whole.offset + len(whole)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _is_text(type_: pa.DataType) -> bool:
    return any(is_(type_) for is_ in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(type_: pa.DataType) -> bool:
    of = pa.types
    return any(is_(type_) for is_ in (of.is_binary, of.is_large_binary, of.is_fixed_size_binary, of.is_binary_view))
