"""Retention: the oldest segments go when every consumer is past them and the settings' time is over."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar import rows
from sidecar.changelog import ChangeLog
from sidecar.model import Watermark
from sidecar.state import WatermarkStore


def drop_old(log: ChangeLog, store: WatermarkStore, consumers: Iterable[str], before: int) -> int:
    """Drop *log*'s segments committed before *before* (microseconds UTC) that all *consumers* have; return how many.

    What a rebuild of the state would need of them is first written beside the log. The newest segment always stays; so
    does one with rows that the source may show again, where it numbers its versions: should it number them anew, only
    what the log holds of a row tells that it has been delivered.
    """
    mark = store.watermark(log.table)
    if mark is None:
        return 0
    limit = min((store.position(log.table, c).acknowledged for c in consumers), default=mark.offset)
    through = 0
    for segment in log.list(log.floor())[:-1]:
        if segment.offset > limit:
            break
        metadata = log.metadata(segment.offset)
        if metadata is None or metadata.committed >= before:
            break
        if mark.era is not None and _may_return(log, store, mark, segment.offset):
            break
        through = segment.offset
    return log.drop(through, mark, dict(store.remembered(log.table))) if through else 0


def _may_return(log: ChangeLog, store: WatermarkStore, mark: Watermark, offset: int) -> bool:
    """Return whether the source may show again what segment *offset* has delivered."""
    expired = rows.expired(mark.closed(), mark.since)
    delivered = {key: value for key, value in log.remembered(offset).items() if value and not expired(value)}
    return store.recall(log.table, list(delivered)) != [None] * len(delivered)
