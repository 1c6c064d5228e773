"""After a backfill that was to purge: deletes for the keys that the log holds and the source does not any more.

A key that a finished backfill has seen stands in the log after the offset at which it began: because the backfill
wrote it, or because a poll had; or it was set aside. So a key whose newest change is older than that, and no delete, is
gone from the source.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

import pyarrow as pa

from sidecar import deliveries, faults, quarantine, rows
from sidecar.backfill import ORIGIN, digests
from sidecar.changelog import ChangeLog
from sidecar.changes import change_schema
from sidecar.evolution import conformed, widens
from sidecar.model import DELETE, METADATA, Scope, Tracked, Watermark
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
    total = sum(m.rows for s in log.list(log.floor()) if (m := log.metadata(s.offset)) is not None)
    shares, purged = max(1, -(-total // AT_ONCE)), 0
    for share in range(shares):

        def counts(key: bytes, share: int = share) -> bool:
            return share_of(key, shares) == share and (wanted is None or key in wanted) and key not in met

        for offset, places in _newest(tracked, log, began, counts).items():
            mark = dataclasses.replace(mark, offset=mark.offset + 1)
            data = _deletes(_rows(tracked, log, offset, places), schema, mark.offset, now)
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


def _newest(
    tracked: Tracked, log: ChangeLog, began: int, counts: Callable[[bytes], bool]
) -> Mapping[int, Sequence[int]]:
    """Return where the newest rows stand, by offset, of the keys that have not been met since *began*."""
    newest: dict[bytes, tuple[int, int]] = {}
    change_type = tracked.metadata_prefix + METADATA[0]
    for segment in log.list(log.floor()):
        data = log.get(segment.offset)
        if data is None or not len(data):
            continue
        types = data.column(change_type).to_pylist()
        for row, (key, kind) in enumerate(zip(deliveries.as_bytes(rows.keys_of(tracked, data)), types, strict=True)):
            if not counts(key):
                continue
            if kind == DELETE or segment.offset > began:
                newest.pop(key, None)
            else:
                newest[key] = segment.offset, row
    found: dict[int, list[int]] = {}
    for offset, row in sorted(newest.values()):
        found.setdefault(offset, []).append(row)
    return found


def _rows(tracked: Tracked, log: ChangeLog, offset: int, places: Sequence[int]) -> pa.Table:
    """Return rows of segment *offset* in today's columns; of columns that were of another type, nothing is known."""
    data, schema = log.get(offset), change_schema(tracked)
    assert data is not None
    same = [
        n for n in data.column_names if n in schema.names and widens(data.schema.field(n).type, schema.field(n).type)
    ]
    return conformed(data.select(same), schema).take(pa.array(places))


def _deletes(found: pa.Table, schema: pa.Schema, offset: int, now: int) -> pa.Table:
    for at, value in enumerate((DELETE, offset, now, ORIGIN)):
        field = schema.field(at)
        found = found.set_column(at, field, pa.repeat(pa.scalar(value, field.type), len(found)))
    return found.cast(schema)
