"""Retention: the oldest segments go when every consumer is past them and the settings' time is over."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.changelog import ChangeLog
from sidecar.state import WatermarkStore


def drop_old(log: ChangeLog, store: WatermarkStore, consumers: Iterable[str], before: int) -> int:
    """Drop *log*'s segments committed before *before* (microseconds UTC) that all *consumers* have; return how many.

    What a rebuild of the state would need of them is first written beside the log. The newest segment always stays.
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
        through = segment.offset
    return log.drop(through, mark, dict(store.remembered(log.table))) if through else 0
