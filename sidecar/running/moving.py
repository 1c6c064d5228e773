"""What somebody moves by hand: a position to a value, as the cursor's own number; a log to the columns that there are
now; a damaged one to a new beginning.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar import cursor
from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND
from sidecar.delivering import given
from sidecar.errors import SettingsError
from sidecar.horizon import kind_of
from sidecar.log import consumers, queries
from sidecar.model import CursorKind, Tracked
from sidecar.poll import fresh_watermark
from sidecar.polls import recreated
from sidecar.polls.changes import change_schema
from sidecar.polls.deliveries import NOTHING
from sidecar.state import WatermarkStore

if TYPE_CHECKING:
    from sidecar.project import Sidecar

_SLACK = 300 * SECOND
"""The source's clock may be ahead of this one."""


def closed_at(value: str, tracked: Tracked, kind: CursorKind, now: int) -> int:
    """Return up to where *value* closes *tracked*; SettingsError if it is no value of its cursor, or in the future."""
    closed = cursor.parse(value, tracked, kind)
    if closed is None:
        example = "as the column holds them" if kind in ("number", "real") else "as 2024-05-01T10:00:00Z"
        raise SettingsError(
            f'"{value}" is no value of table "{tracked.name}", column "{tracked.updated_at}"; write it {example}'
        )
    limit = cursor.ceiling(now + _SLACK, tracked, kind)
    if limit is not None and closed > limit and not pa.types.is_date(tracked.cursor_type):
        raise SettingsError(
            f'"{value}" lies in the future ({cursor.show(closed, kind, tracked.unit)}): what is stamped up to then '
            "would not be delivered. Write a time that is past; a day alone stands for its end"
        )
    return closed


def read_as(value: str, tracked: Tracked) -> str | None:
    """Return how *value*, which `closed_at` takes, is understood, where it leaves that open; None where it does not."""
    kind = kind_of(tracked, tracked.passes[0])
    shape = None if kind in ("number", "real") else cursor.zoneless(value)
    if shape is None:
        return None
    zone = "UTC" if kind == "instant" or tracked.timezone is None else tracked.timezone
    end = {"day": ", and stands for the end of its day", "minute": ", and stands for the end of its minute"}
    return f'"{value}" has no zone: it is read as {zone}{end.get(shape, "")}'


def accept_schema(sc: Sidecar, tracked: Tracked) -> list[str]:
    """Let the log of *tracked* go on with the columns that it has now, whatever they were; return what has changed.

    SettingsError if it is the key's or a cursor's.
    """
    store, log = sc.store, sc.log(tracked.name)
    if tracked.name in sc.damaged:
        raise sc.damaged[tracked.name]
    mark, now = store.watermark(tracked.name), change_schema(tracked)
    found = log.changes(now)
    other = [c for c in found if c.kind == "changed" and c.column in (*tracked.key, *tracked.cursors)]
    if other:
        raise SettingsError(
            f'table "{tracked.name}": {other[0]}, and its position is made of it. To begin again: '
            f"sidecar watermark reset {tracked.name}"
        )
    anew = () if mark is None else recreated.changes(mark.born, tracked)
    if anew or (tracked.backfill_added and any(c.kind == "added" for c in found)):
        sc.reset_watermark(tracked.name)
    elif found and mark is not None:
        mark = dataclasses.replace(mark, offset=mark.offset + 1)
        log.append(mark.offset, now.empty_table(), mark, NOTHING, committed=sc.clock.now(), origin="poll")
        store.save(tracked.name, mark, NOTHING)
    return [*map(str, found), *anew]


def give_up(store: WatermarkStore, log: ChangeLog, tracked: Tracked) -> None:
    """Begin *tracked*'s damaged *log* anew behind all that it ever held; consumers go on from there."""
    held = {c: p.acknowledged for (table, c), p in store.positions().items() if table == tracked.name}
    before = store.watermark(tracked.name)
    had = [*held.values(), *queries.positions(log).values()]
    through = max([*(s.offset for s in log.standing()), *had, before.offset if before else 0])
    given.give_up(log, held, through)
    log.drop(through, dataclasses.replace(fresh_watermark(tracked), offset=through), NOTHING)
    for consumer, acknowledged in held.items():
        if acknowledged < through:
            consumers.acknowledge(log, store, consumer, through)
