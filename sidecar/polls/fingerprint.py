"""128 bits for each row's content: equal only where values and kinds of values are.

A row is written down as a head of nine bytes a column, which tells the kind of value and the value itself or its
length, and then what has a length. So 1, 1.0, '1' and b'1' stay apart, and no value can pass for parts of two. Integers
of all widths are one kind, as are reals, and so is all that counts a unit of time: a column that grows changes no row.
Arrow does all of it a column at a time, but for the hash itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec
from sidecar.polls.deliveries import Keys

_HEAD = np.dtype([("kind", "u1"), ("value", "<i8")])
_NULL, _FLAG, _NUMBER, _REAL, _TEXT, _BYTES, _OTHER = b"n?ifsbr"
_BITS = 128 // 8


def digests(columns: Sequence[pa.ChunkedArray], count: int) -> Keys:
    """Return a digest of each of the *count* rows of *columns*, as two integers."""
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
    found = [blake2b(data[a:b], digest_size=_BITS).digest() for a, b in itertools.pairwise(offsets)]
    return np.frombuffer(b"".join(found), "<i8").reshape(count, 2).T.astype(np.int64)


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
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return _taken_apart(column.cast(type_.value_type))
    if pa.types.is_null(type_):
        return _NULL, np.zeros(len(column), dtype=np.int64), None
    if pa.types.is_boolean(type_):
        return _FLAG, _numbers(column), None
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        return _NUMBER, _numbers(column), None
    if pa.types.is_temporal(type_) and not pa.types.is_interval(type_):
        return _NUMBER, _numbers(column.cast(pa.int32()) if type_.bit_width == 32 else column), None
    if pa.types.is_floating(type_):
        reals = column.cast(pa.float64()).fill_null(0.0).to_numpy().copy()
        reals[np.isnan(reals)] = np.nan  # one of its many forms
        return _REAL, reals.view(np.int64), None
    kind = _TEXT
    if pa.types.is_decimal(type_):
        column = pc.cast(column, pa.string())
    elif _is_bytes(type_):
        kind = _BYTES
    elif not _is_text(type_):
        texts = [None if value is None else repr(value) for value in codec.plain(column)]
        kind, column = _OTHER, pa.chunked_array([pa.array(texts, pa.string())])
    rest = _whole(column.cast(pa.large_binary()))
    ends = np.frombuffer(rest.buffers()[1], np.int64, len(rest) + 1, rest.offset * 8) if len(rest) else _NO_ENDS
    return kind, np.diff(ends), rest


_NO_ENDS = np.zeros(1, dtype=np.int64)


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return *column*'s values; under a NULL, whatever lies there in memory."""
    whole = _whole(column.cast(pa.int64()))
    return np.frombuffer(whole.buffers()[1] or b"", np.int64)[whole.offset : whole.offset + len(whole)]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _is_text(type_: pa.DataType) -> bool:
    return any(is_(type_) for is_ in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(type_: pa.DataType) -> bool:
    of = pa.types
    return any(is_(type_) for is_ in (of.is_binary, of.is_large_binary, of.is_fixed_size_binary, of.is_binary_view))
