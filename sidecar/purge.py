"""After a backfill that was to purge: deletes for the keys that the log holds and the source does not any more.

A key that a finished backfill has seen stands in the log after the offset at which it began: because the backfill
wrote it, or because a poll had; or it was set aside. So a key whose newest change is older than that, and no delete, is
gone from the source.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

import pyarrow as pa

from sidecar import bases, deliveries, faults, quarantine, rows
from sidecar.backfill import ORIGIN, digests
from sidecar.changelog import ChangeLog
from sidecar.changes import change_schema
from sidecar.evolution import conformed, widens
from sidecar.model import DELETE, INSERT, METADATA, Scope, Tracked, Watermark
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")

AT_ONCE = 1_000_000
"""So many keys are held in memory; more are gone through in shares, each of which reads the log anew."""


def unseen(
    tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark, *, scope: Scope, now: int
) -> Watermark:
    """Append a delete for each key in *scope* that the backfill under way has not met; return the watermark after it.

    A delete carries the last row that the log holds of its key. Only a scope of whole keys, or all, can be purged.
    """
    assert mark.job is not None
    began, schema = mark.job.began, change_schema(tracked)
    wanted = None if scope.among is None else digests(tracked, scope.among.columns, scope.among.values)
    met = digests(tracked, tracked.key, list(quarantine.keys(log, tracked.key, began)))
    places, total = _places(log)
    shares, purged = max(1, -(-total // AT_ONCE)), 0
    for share in range(shares):

        def counts(key: bytes, share: int = share) -> bool:
            return share_of(key, shares) == share and (wanted is None or key in wanted) and key not in met

        for place, found in _newest(tracked, places, began, counts).items():
            mark = dataclasses.replace(mark, offset=mark.offset + 1)
            data = _deletes(_rows(tracked, places[place], found), schema, mark.offset, now)
            # Should one come back as it was, it is delivered again.
            forgotten = deliveries.nothing(rows.keys_of(tracked, data))
            log.append(mark.offset, data, mark, forgotten, committed=now, origin=ORIGIN)
            store.save(tracked.name, mark, forgotten)
            faults.point("keys-purged")
            purged += len(data)
    if purged:
        log_.info("table=%s purged=%d: rows that the source does not have any more", tracked.name, purged)
    return mark


def share_of(key: bytes, shares: int) -> int:
    """Return which share *key* falls into. Neighbouring numbers differ in few of their bytes, so all of them count."""
    return crc32(key) % shares


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where rows stand: a segment, or a piece of the base in which those are that retention has dropped."""

    offset: int
    read: Callable[[], pa.Table | None]


def _places(log: ChangeLog) -> tuple[Sequence[_Place], int]:
    """Return where what is known of *log*'s table stands, oldest first, and how many rows that are."""
    floor, found, total = log.floor(), [], 0
    if floor and floor in bases.offsets(log):
        base = bases.load(log, floor)
        total += base.rows
        found += [_Place(floor, read) for read in bases.pieces(base)]
    for segment in log.list(floor):
        metadata = log.metadata(segment.offset)
        total += 0 if metadata is None else metadata.rows
        found.append(_Place(segment.offset, functools.partial(log.get, segment.offset)))
    return found, total


def _newest(
    tracked: Tracked, places: Sequence[_Place], began: int, counts: Callable[[bytes], bool]
) -> Mapping[int, Sequence[int]]:
    """Return where the newest rows stand, by place, of the keys that have not been met since *began*."""
    newest: dict[bytes, tuple[int, int]] = {}
    change_type = tracked.metadata_prefix + METADATA[0]
    for number, place in enumerate(places):
        data = place.read()
        if data is None or not len(data):
            continue
        all_there = change_type not in data.column_names  # a base's
        types = itertools.repeat(INSERT, len(data)) if all_there else data.column(change_type).to_pylist()
        for row, (key, kind) in enumerate(zip(deliveries.as_bytes(rows.keys_of(tracked, data)), types, strict=True)):
            if not counts(key):
                continue
            if kind == DELETE or place.offset > began:
                newest.pop(key, None)
            else:
                newest[key] = number, row
    found: dict[int, list[int]] = {}
    for number, row in sorted(newest.values()):
        found.setdefault(number, []).append(row)
    return found


def _rows(tracked: Tracked, place: _Place, found: Sequence[int]) -> pa.Table:
    """Return the rows *found* at *place* in today's columns; of columns that were of another type, nothing is known."""
    data, schema = place.read(), change_schema(tracked)
    assert data is not None
    same = [
        n for n in data.column_names if n in schema.names and widens(data.schema.field(n).type, schema.field(n).type)
    ]
    return conformed(data.select(same), schema).take(pa.array(found))


def _deletes(found: pa.Table, schema: pa.Schema, offset: int, now: int) -> pa.Table:
    for at, value in enumerate((DELETE, offset, now, ORIGIN)):
        field = schema.field(at)
        found = found.set_column(at, field, pa.repeat(pa.scalar(value, field.type), len(found)))
    return found.cast(schema)
