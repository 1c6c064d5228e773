"""The rows that a mirror holds of some keys, and changes of these keys → the rows that it holds of them afterwards.

Pure functions: they know nothing of where the rows are. Whatever the changes are cut into, the end is the same.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.mirrors.keys import Keys
from sidecar.mirrors.newest import BACKFILL, Integers, Named, are_in_order, last_of_each, ordered, taken
from sidecar.model import DELETE
from sidecar.polls.evolution import conformed

Flags: TypeAlias = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).min
"""A time before any."""

TIME = pa.timestamp("us", "UTC")


class Changes:
    """Changes, each key's in the order in which they count, as the mirror's `columns`, and their keys as numbers."""

    def __init__(self, data: pa.Table, named: Named, key: tuple[str, ...], columns: pa.Schema) -> None:
        self.named, self.columns = named, columns
        self.rows = self._own(data)
        self.keys = Keys(key, self.rows)
        if not are_in_order(self.keys.codes, data.column(named.version).to_numpy()):
            data = ordered(data, named)
            self.rows = self._own(data)
            self.keys = Keys(key, self.rows)
        self.codes = self.keys.codes
        self.times = _micros(data.column(named.timestamp))
        self.versions: Integers = data.column(named.version).cast(pa.int64()).to_numpy()
        self.are_deletes = _flags(pc.equal(data.column(named.change_type), DELETE))
        self.are_images = _flags(pc.equal(data.column(named.origin), BACKFILL)) & ~self.are_deletes

    def __len__(self) -> int:
        return len(self.codes)

    def twice(self) -> pa.Table:
        """Return the keys that stand more than once under one offset, which no log has."""
        order = np.lexsort((self.versions, self.codes))
        codes, versions = self.codes[order], self.versions[order]
        again = np.flatnonzero((codes[1:] == codes[:-1]) & (versions[1:] == versions[:-1])) + 1
        return self.rows.select(self.keys.columns).take(pa.array(order[again]))

    def _own(self, data: pa.Table) -> pa.Table:
        wanted = {*self.columns.names}
        return conformed(data.select([n for n in data.column_names if n in wanted]), self.columns)

    def above(self, offsets: Integers) -> Changes:
        """Return those with an offset above that of their key in *offsets*, which are by the key's number."""
        newer = self.versions > offsets[self.codes]
        if newer.all():
            return self
        found = copy.copy(self)
        found.rows = self.rows.filter(pa.array(newer))
        for name in ("codes", "times", "versions", "are_deletes", "are_images"):
            setattr(found, name, getattr(self, name)[newer])
        return found


@dataclass(frozen=True, slots=True)
class Held:
    """What a mirror holds of some changes' keys: the number of each row's key, and the rows (as far as asked for).

    `ended`, by the key's number: the latest time at which a version that is over has ended, or NEVER. With history,
    the rows are the current versions only.
    """

    codes: Integers
    rows: pa.Table | None
    ended: Integers


@dataclass(frozen=True, slots=True)
class After:
    """What becomes of it: which of the held rows are `gone`, the `rows` that come, and the numbers of their keys.

    `versions`: the offset of the change as of which each row is as it is. A version that has ended stands before those
    that follow it.
    """

    gone: Flags
    rows: pa.Table
    codes: Integers
    versions: Integers


def replaced(changes: Changes, held: Held) -> After:
    """Type 1: of each key its newest row, none where that is deleted. The held rows' content plays no part."""
    newest = last_of_each(changes.codes)
    newest = newest[~changes.are_deletes[newest]]
    gone = np.ones(len(held.codes), bool)
    return After(gone, taken(changes.rows, newest), changes.codes[newest], changes.versions[newest])


def marked(changes: Changes, held: Held) -> After:
    """Type 1, deleted rows staying: with the time of the delete, and the last values that are known of them.

    A deleted row that the mirror has never held comes in marked, too: whether a poll has seen it alive is chance.
    """
    assert held.rows is not None
    newest = last_of_each(changes.codes)
    values = set(changes.columns.names) - set(changes.keys.columns)
    is_bare = changes.are_deletes.copy()
    for name in values:
        is_bare &= _flags(changes.rows.column(name).is_null())
    # A delete that knows no more than the key: the values are those of the change before it, or the held row's.
    source = np.full(changes.keys.count, -1, dtype=np.int64)
    source[held.codes] = np.arange(len(held.codes)) + len(changes)
    known = np.flatnonzero(~is_bare)
    source[changes.codes[known]] = known
    codes = changes.codes[newest]
    places = np.where(is_bare[newest] & (source[codes] >= 0), source[codes], newest)
    rows = pa.concat_tables([changes.rows, held.rows.select(changes.columns.names)]).take(places)
    when = pa.array(changes.times[newest], mask=~changes.are_deletes[newest]).cast(TIME)
    rows = rows.append_column(pa.field(changes.named.deleted_at, TIME), when)
    return After(np.ones(len(held.codes), bool), rows, codes, changes.versions[newest])


def versioned(changes: Changes, held: Held) -> After:
    """Type 2: every version, each valid from its change until the next one of its key.

    A backfill's image that equals the current version is none. Times of a key never go backwards: a change that claims
    to be older than the one before it counts as made at the same time.
    """
    assert held.rows is not None
    named, count = changes.named, len(held.codes)
    # The current version stands before the changes of its key.
    codes = np.concatenate([held.codes, changes.codes])
    order = np.argsort(codes, kind="stable")
    codes = codes[order]
    rows = pa.concat_tables([held.rows.select(changes.columns.names), changes.rows]).take(order)
    times = np.concatenate([_micros(held.rows.column(named.valid_from)), changes.times])[order]
    versions = np.concatenate([np.zeros(count, np.int64), changes.versions])[order]
    is_delete = np.concatenate([np.zeros(count, bool), changes.are_deletes])[order]
    is_image = np.concatenate([np.zeros(count, bool), changes.are_images])[order]

    follows = np.concatenate([[False], codes[1:] == codes[:-1]])
    lives_before = follows & np.concatenate([[False], ~is_delete[:-1]])
    # Of an image that equals the change before it, it does not matter whether that one was left out itself.
    is_again = np.zeros(len(codes), bool)
    asked = np.flatnonzero(is_image & lives_before)
    is_again[asked] = equal(rows.take(asked - 1), rows.take(asked))
    keep = np.flatnonzero(~is_again & ~(is_delete & ~lives_before))

    codes, times, is_delete, kept = codes[keep], times[keep], is_delete[keep], order[keep]
    versions = versions[keep]
    times = _never_backwards(codes, np.maximum(times, held.ended[codes]))
    ends = np.concatenate([codes[1:] == codes[:-1], [False]])
    until, ended_by = np.concatenate([times[1:], [0]]), np.concatenate([versions[1:], [0]])
    # A held version that nothing follows stays as it is.
    written = np.flatnonzero(~is_delete & (ends | (kept >= count)))
    gone = np.zeros(count, bool)
    gone[kept[written][kept[written] < count]] = True
    start = pa.array(times[written]).cast(TIME)
    end = pa.array(until[written], mask=~ends[written]).cast(TIME)
    out = rows.take(keep[written])
    for name, column in ((named.valid_from, start), (named.valid_to, end), (named.is_current, end.is_null())):
        out = out.append_column(name, column)
    return After(gone, out, codes[written], np.where(ends, ended_by, versions)[written])


def equal(some: pa.Table, others: pa.Table) -> Flags:
    """Return which rows of two tables of the same columns are the same; a NULL is one, and so is a NaN."""
    same = np.ones(len(some), bool)
    for name in some.column_names:
        a, b = some.column(name), others.column(name)
        if pa.types.is_nested(a.type):
            same &= np.fromiter(
                (repr(x) == repr(y) for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)), bool, len(same)
            )
            continue
        alike = pc.fill_null(pc.equal(a, b), False)
        alike = pc.or_(alike, pc.and_(a.is_null(nan_is_null=True), b.is_null(nan_is_null=True)))
        if pa.types.is_floating(a.type):
            alike = pc.and_(alike, pc.equal(a.is_null(), b.is_null()))
        same &= _flags(alike)
    return same


def _never_backwards(codes: Integers, times: Integers) -> Integers:
    """Return the running maximum of *times* within each run of equal *codes*, which are sorted."""
    values, ranks = np.unique(times, return_inverse=True)
    # Whoever comes later has a greater code, so that no maximum reaches across.
    highest = np.maximum.accumulate(codes * max(1, len(values)) + ranks)
    found: Integers = values[highest % max(1, len(values))] if len(values) else times
    return found


def _micros(column: pa.ChunkedArray) -> Integers:
    found: Integers = column.cast(TIME).cast(pa.int64()).to_numpy()
    return found


def _flags(column: pa.ChunkedArray | pa.Array) -> Flags:
    found: Flags = np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column).astype(
        bool
    )
    return found
