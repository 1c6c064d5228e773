"""Fan-out: when a row of a parent changes, its children are delivered again, through a backfill of just those rows.

A child is a consumer of its parent's log, with a position of its own there: so a crash loses no change, and retention
waits. The request is durable before the position moves; one that is made twice is done twice, and that does no harm.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec, consumers, faults
from sidecar.backfill import ORIGIN
from sidecar.changelog import ChangeLog
from sidecar.clock import Clock
from sidecar.errors import SettingsError
from sidecar.model import METADATA, Among, Position, Refresh, Scope, Tracked
from sidecar.requests import Requests
from sidecar.state import WatermarkStore


def consumer(child: str) -> str:
    """Return the name under which *child* follows a parent's log; no sink can be called so."""
    return f"refresh of {child}"


def of_parent(parent: str, tables: Iterable[Tracked]) -> list[str]:
    """Return the consumers that *parent*'s log has among *tables*."""
    return [consumer(t.name) for t in tables if any(r.parent == parent for r in t.refresh_on)]


def follow(
    child: Tracked, parent: str, log: ChangeLog, *, store: WatermarkStore, requests: Requests, clock: Clock
) -> int:
    """Ask for the rows of *child* whose *parent* has changed since it was last looked; return how many parents have.

    What a parent's own backfill delivers is no change. A child that is new begins with the changes from now on.
    """
    mark, name = store.watermark(parent), consumer(child.name)
    last = mark.offset if mark is not None else 0
    if (parent, name) not in store.positions():
        consumers.acknowledge(log, store, name, last)
        return 0
    after = store.position(parent, name).acknowledged
    if last <= after:
        return 0
    found = 0
    # All of them before the position moves, which they share.
    for refresh in (r for r in child.refresh_on if r.parent == parent):
        values = _changed(child, refresh, log, after, last)
        if values:
            scope = Scope(among=Among(tuple(own for own, _ in refresh.on), values))
            requests.ask(child.name, clock.now(), kind="refresh", scope=scope)
            faults.point("refresh-requested")
        found += len(values)
    consumers.acknowledge(log, store, name, last)
    return found


def _changed(child: Tracked, refresh: Refresh, log: ChangeLog, after: int, last: int) -> tuple[Position, ...]:
    """Return what the columns of the parents that have changed hold: in the types of the child's, NULLs left out."""
    found: dict[Position, None] = {}
    for segment in log.list(after, last):
        metadata = log.metadata(segment.offset)
        data = log.get(segment.offset) if metadata is not None and metadata.origin != ORIGIN and metadata.rows else None
        if data is None:
            continue
        # A poll's segment, too, may hold rows that were there before the parent was followed.
        data = data.filter(pc.not_equal(data.column(child.metadata_prefix + METADATA[3]), ORIGIN))
        columns = [_typed(child, own, data, theirs, refresh.parent) for own, theirs in refresh.on]
        table = pa.table(columns, names=[own for own, _ in refresh.on]).drop_null()
        found.update(dict.fromkeys(codec.rows(table, table.column_names)))
    return tuple(found)


def _typed(child: Tracked, own: str, data: pa.Table, theirs: str, parent: str) -> pa.ChunkedArray:
    column = child.table.column(own)
    assert column is not None, "settings were held against the table"
    try:
        return pc.cast(data.column(theirs), column.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        if theirs in data.column_names and _is_number(data.schema.field(theirs).type) and _is_number(column.arrow):
            return pa.chunked_array([pa.array([_as(v, column.arrow) for v in data.column(theirs)], column.arrow)])
        raise SettingsError(
            f'table "{child.name}": refresh_on: column "{theirs}" of table "{parent}" cannot be compared with its '
            f'"{own}" ({column.type or column.arrow}): {error}'
        ) from None


def _as(value: pa.Scalar, type_: pa.DataType) -> pa.Scalar | None:
    """Return *value* as *type_*; None where it is no number of that type, and so no child's."""
    try:
        return value.cast(type_)
    except pa.ArrowInvalid:
        return None


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
