"""Fan-out: when a row of a parent changes, its children are delivered again, through a backfill of just those rows.

A child is a consumer of its parent's log, with a position of its own there: so a crash loses no change, and retention
waits. The request is durable before the position moves; one that is made twice is done twice, and that does no harm.

No change is lost between the two first loads. The position begins where the parent's log ends before the child's first
rows are read: what the log holds by then is older than these. What polls deliver after it is a change. Of what the
parent's backfills deliver after it, that is one which the next poll would deliver: it is remembered, lest that does;
and so is what a purge deletes.
Before polls have begun, where the source has no versions of rows, nothing tells a change from what was there; but then
parents have been read before their children, and all that was read of them is older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec, faults
from sidecar.backfill import ORIGIN, can_read, has_begun
from sidecar.backfilling.requests import Requests
from sidecar.changelog import ChangeLog
from sidecar.clock import Clock
from sidecar.connector import SourceConnector
from sidecar.errors import SettingsError, SidecarError
from sidecar.log import consumers
from sidecar.model import DELETE, METADATA, Among, Position, Refresh, Scope, Tracked
from sidecar.polls import deliveries, rows
from sidecar.state import WatermarkStore

if TYPE_CHECKING:
    from sidecar.project import Sidecar


def consumer(child: str) -> str:
    """Return the name under which *child* follows a parent's log; no sink can be called so."""
    return f"refresh of {child}"


def of_parent(parent: str, tables: Iterable[Tracked], held: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Return the consumers that *parent*'s log has among *tables*, and those of *held*, tables with their consumers:
    a child that cannot be followed for now is among these alone.
    """
    found = {consumer(t.name): None for t in tables if any(r.parent == parent for r in t.refresh_on)}
    return [*found | {name: None for table, name in held if table == parent and name.startswith(consumer(""))}]


class FanOut:
    """The children among a project's tables, each with its parents. *poll* brings one table's log up to the source."""

    def __init__(
        self,
        sidecar: Sidecar,
        requests: Requests,
        poll: Callable[[Tracked], object],
        failed: Callable[[str, SidecarError], None],
    ) -> None:
        self._sidecar, self._requests, self._poll, self._failed = sidecar, requests, poll, failed
        self._begun: set[tuple[str, str]] = set()

    def begin(self) -> None:
        """Have new children note where their parents' logs end, before any row of theirs is read."""
        store, connector = self._sidecar.store, self._sidecar.connector
        for child, parent in self._pairs():
            if (child.name, parent) in self._begun:
                continue
            found, mark = self._sidecar.tracked.get(parent), store.watermark(parent)
            if found is not None and (mark is None or mark.polled is None) and not can_read(connector, found):
                # Its first poll reads all of it, and no row of that says whether it is older than the child's.
                self._poll(found)
            try:
                begin(child, parent, self._sidecar.log(parent), store)
            except SidecarError as error:
                self._failed(child.name, error)
            else:
                self._begun.add((child.name, parent))

    def follow(self) -> None:
        """Ask for the rows whose parents have changed; once all parents have been polled."""
        store, requests, clock = self._sidecar.store, self._requests, self._sidecar.clock
        connector = self._sidecar.connector
        for child, parent in self._pairs():
            try:
                found = self._sidecar.tracked[parent]
                log = self._sidecar.log(parent)
                follow(connector, child, found, log, store=store, requests=requests, clock=clock)
            except SidecarError as error:
                self._failed(child.name, error)

    def _pairs(self) -> list[tuple[Tracked, str]]:
        tables = self._sidecar.tracked.values()
        children = (table for table in tables if table.refresh_on)
        return [(child, parent) for child in children for parent in dict.fromkeys(r.parent for r in child.refresh_on)]


def begin(child: Tracked, parent: str, log: ChangeLog, store: WatermarkStore) -> None:
    """Let *child* follow *parent* from the end of its log on, unless it follows it already."""
    if (parent, consumer(child.name)) not in store.positions():
        mark = store.watermark(parent)
        consumers.acknowledge(log, store, consumer(child.name), mark.offset if mark is not None else 0)


def follow(
    connector: SourceConnector,
    child: Tracked,
    parent: Tracked,
    log: ChangeLog,
    *,
    store: WatermarkStore,
    requests: Requests,
    clock: Clock,
) -> int:
    """Ask for the rows of *child* whose *parent* has changed since it was last looked; return how many parents have."""
    mark, name = store.watermark(parent.name), consumer(child.name)
    last = mark.offset if mark is not None else 0
    after = store.position(parent.name, name).acknowledged
    if last <= after:
        return 0
    found = 0
    # All of them before the position moves, which they share.
    for refresh in (r for r in child.refresh_on if r.parent == parent.name):
        values = _values(child, refresh, _forms(connector, parent, refresh, _changes(parent, log, after, last)))
        if values:
            scope = Scope(among=Among(tuple(own for own, _ in refresh.on), values))
            requests.ask(child.name, clock.now(), kind="refresh", scope=scope)
            faults.point("refresh-requested")
        found += len(values)
    consumers.acknowledge(log, store, name, last)
    return found


def _changes(parent: Tracked, log: ChangeLog, after: int, last: int) -> Iterator[pa.Table]:
    """Yield the rows of *parent* that have changed, by its log's segments after *after*, up to *last*."""
    for segment in log.list(after, last):
        metadata = log.metadata(segment.offset)
        if metadata is None or not metadata.rows:
            continue
        standing = metadata.watermark
        if metadata.origin != ORIGIN:
            data = log.get(segment.offset)
        elif has_begun(standing) or (standing.job is not None and standing.job.since is not None):
            data = _changes_met(parent, log, segment.offset)
        else:
            continue
        if data is not None and len(data):
            yield data


def _forms(
    connector: SourceConnector, parent: Tracked, refresh: Refresh, changes: Iterable[pa.Table]
) -> Iterator[pa.Table]:
    """Yield what a reference of *refresh* may be to, for each of *changes*: the values, and their other notation."""
    wanted = list(dict.fromkeys(theirs for _, theirs in refresh.on))
    for data in changes:
        if set(wanted) <= set(data.column_names):
            yield data.select(wanted)
            yield connector.folded(parent, data.select(wanted))
        else:
            yield data


def _changes_met(parent: Tracked, log: ChangeLog, offset: int) -> pa.Table | None:
    """Return what is a change of the rows that a backfill has written as *offset*: what is remembered of, and what a
    purge has deleted, which is forgotten by that.
    """
    found = log.remembered(offset)
    if not deliveries.count(found):
        return None
    is_gone = deliveries.says_nothing(found)
    met, gone = (set(deliveries.as_bytes(found[: deliveries.CONTENT, some])) for some in (~is_gone, is_gone))
    data = log.get(offset)
    if data is None:
        return None
    types = data.column(parent.metadata_prefix + METADATA[0]).to_pylist()
    keys = deliveries.as_bytes(rows.keys_of(parent, data))
    return data.filter(
        pa.array([k in met or (kind == DELETE and k in gone) for k, kind in zip(keys, types, strict=True)], pa.bool_())
    )


def _values(child: Tracked, refresh: Refresh, changes: Iterable[pa.Table]) -> tuple[Position, ...]:
    """Return what the columns of the parents that have changed hold: in the types of the child's, NULLs left out."""
    found: dict[Position, None] = {}
    for data in changes:
        columns = [_typed(child, own, data, theirs, refresh.parent) for own, theirs in refresh.on]
        table = pa.table(columns, names=[own for own, _ in refresh.on]).drop_null()
        found.update(dict.fromkeys(codec.rows(table, table.column_names)))
    return tuple(found)


def _typed(child: Tracked, own: str, data: pa.Table, theirs: str, parent: str) -> pa.ChunkedArray:
    column = child.table.column(own)
    assert column is not None, "settings were held against the table"
    given = data.schema.field(theirs).type if theirs in data.column_names else None
    if given is not None and _is_itself(given, column.arrow):
        return data.column(theirs)
    try:
        return pc.cast(data.column(theirs), column.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        values = data.column(theirs).to_pylist() if given is not None and _is_number(column.arrow) else []
        if values and all(map(_says_a_number, values)):
            return pa.chunked_array([pa.array([_as(v, column.arrow) for v in values], column.arrow)])
        raise SettingsError(
            f'table "{child.name}": refresh_on: column "{theirs}" of table "{parent}" cannot be compared with its '
            f'"{own}" ({column.type or column.arrow}): {error}'
        ) from None


def _is_itself(theirs: pa.DataType, own: pa.DataType) -> bool:
    """Return whether only the source can say what a value of type *theirs* is among those of type *own*: bytes in a
    column that holds texts as well, and what a key of several parts is written as.
    """
    if pa.types.is_nested(own):
        return bool(pa.types.is_string(theirs))
    return bool(pa.types.is_binary(theirs) and pa.types.is_string(own))


def _says_a_number(value: object) -> bool:
    try:
        return value is None or isinstance(value, int | float) or Decimal(str(value)) is not None
    except ArithmeticError:
        return False


def _as(value: int | float | Decimal | str | None, type_: pa.DataType) -> pa.Scalar | None:
    """Return *value* as *type_*; None where it is no number of that type, and so no child's."""
    if value is None or pa.types.is_floating(type_):
        return pa.scalar(value if value is None else float(value), type_)
    try:
        # By its digits: it is asked of the value alone whether it fits, not of all that its own type could hold.
        exact = Decimal(str(value))
        return pa.scalar(int(exact) if pa.types.is_integer(type_) and exact == int(exact) else exact, type_)
    except (pa.ArrowInvalid, ArithmeticError, ValueError):
        return None


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
