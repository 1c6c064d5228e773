"""What is remembered of delivered rows: records of eight integers, column-wise, and what is asked of many at once.

`(KEY, REST)` stand for the row's key, `(CONTENT, MORE)` for its content. `UPDATED`, `DELETED`, `CREATED` are the values
at which a pass meets the row, NONE where it never does; `VERSION` is its number in sources that number versions, which
then stands in place of all these. NONE in all four says that nothing is remembered of the key (any more).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sidecar.cursor import NONE, Flags, Integers
from sidecar.model import PassName, Watermark

Records: TypeAlias = npt.NDArray[np.int64]
"""Of shape (8, n): each field is contiguous, for they are compared and compressed one by one."""

Keys: TypeAlias = npt.NDArray[np.int64]
"""Of shape (2, n)."""

KEY, REST, CONTENT, MORE, UPDATED, DELETED, CREATED, VERSION = range(8)
_FIELDS = 8
_LITTLE = np.dtype("<i8")


def nothing(keys: Keys) -> Records:
    """Return records which say that nothing is remembered of *keys*."""
    found = np.zeros((_FIELDS, keys.shape[1]), dtype=np.int64)
    found[:CONTENT] = keys
    found[UPDATED:] = NONE
    return found


NOTHING = nothing(np.zeros((2, 0), dtype=np.int64))


def count(records: Records) -> int:
    return int(records.shape[1])


def says_nothing(records: Records) -> Flags:
    """Return which records say that nothing is remembered."""
    found: Flags = (records[UPDATED:] == NONE).all(axis=0)
    return found


def same(some: Records, others: Records) -> Flags:
    """Return which of *some* are of the same content, or version, as the record of *others* at the same place."""
    found: Flags = (some[CONTENT:] == others[CONTENT:]).all(axis=0)
    return found


def joined(parts: Sequence[Records]) -> Records:
    return np.concatenate(parts, axis=1) if parts else NOTHING


def limits(closed: Mapping[PassName, int | None], floor: int | None) -> Integers:
    """Return up to which values, field by field from UPDATED on, no later poll can meet a row again."""
    values = [closed.get("updated"), closed.get("deleted"), closed.get("created")]
    floors = None if floor is None else floor - 1
    return np.array([NONE if v is None else v for v in (*values, floors)], dtype=np.int64)


def limits_of(mark: Watermark) -> Integers:
    return limits(mark.closed(), mark.since)


def expired(records: Records, limit: Integers) -> Flags:
    """Return which records no later poll can meet; NONE is below every limit."""
    found: Flags = np.logical_and.reduce(records[UPDATED:] <= limit[:, None], axis=0)
    return found


def ordered(records: Records) -> Records:
    """Return *records* as `find` wants them."""
    order = np.argsort(records[KEY], kind="stable")
    return records[:, order]


def find(records: Records, keys: Keys) -> npt.NDArray[np.intp]:
    """Return where in *records*, which are `ordered`, each of *keys* stands; -1: nowhere."""
    size = count(records)
    found = np.full(keys.shape[1], -1, dtype=np.intp)
    if not size:
        return found
    at = np.searchsorted(records[KEY], keys[KEY])
    left = np.flatnonzero(at < size)
    while len(left):
        # More than one turn only where two digests are alike in their first half.
        left = left[records[KEY, at[left]] == keys[KEY, left]]
        hit = records[REST, at[left]] == keys[REST, left]
        found[left[hit]] = at[left[hit]]
        left = left[~hit]
        at[left] += 1
        left = left[at[left] < size]
    return found


def pack(records: Records) -> bytes:
    """Return *records* as bytes; most fields are alike in most records, and so take no room."""
    size = count(records)
    raw = records.astype(_LITTLE, copy=False).tobytes()
    return size.to_bytes(8, "big") + (pa.compress(raw, codec="zstd", asbytes=True) if size else b"")


def unpack(packed: bytes) -> Records:
    """Return what `pack` was given; ValueError for anything else."""
    size = int.from_bytes(packed[:8], "big")
    if len(packed) < 8 or (size == 0) != (len(packed) == 8) or size > len(packed) * 2**16:
        raise ValueError("not what was remembered")
    if not size:
        return NOTHING
    try:
        raw = pa.decompress(packed[8:], size * _FIELDS * 8, codec="zstd", asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(str(error)) from error
    if len(raw) != size * _FIELDS * 8:
        raise ValueError("what was remembered is cut short")
    return np.frombuffer(raw, _LITTLE).reshape(_FIELDS, size).astype(np.int64, copy=False)


def as_bytes(keys: Keys) -> list[bytes]:
    """Return *keys* as values that a dictionary takes."""
    raw = np.ascontiguousarray(keys.T).astype(_LITTLE, copy=False).tobytes()
    return [raw[at : at + 16] for at in range(0, len(raw), 16)]
