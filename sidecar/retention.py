"""Retention: the oldest segments go when every consumer is past them and the settings' time is over."""

from __future__ import annotations

from collections.abc import Iterable

from sidecar import deliveries, queries
from sidecar.changelog import ChangeLog
from sidecar.model import Watermark
from sidecar.state import WatermarkStore


def drop_old(log: ChangeLog, store: WatermarkStore, consumers: Iterable[str], before: int) -> int:
    """Drop *log*'s segments committed before *before* (microseconds UTC) that all *consumers* have; return how many.

    So must all streaming queries that have given a name, unless they have been forgotten (`sidecar watermark forget`).
    What a rebuild of the state would need of them is first written beside the log. The newest segment always stays; so
    does one whose rows are not closed yet, where the source numbers its versions: should it number them anew, only what
    the log holds of a row tells that it has been delivered.
    """
    mark = store.watermark(log.table)
    if mark is None:
        return 0
    had = [store.position(log.table, c).acknowledged for c in consumers]
    limit = min([*had, *queries.positions(log).values()], default=mark.offset)
    if mark.job is not None:
        # What has been delivered since is what its chunks are held against.
        limit = min(limit, mark.job.began)
    through = 0
    for segment in log.list(log.floor())[:-1]:
        if segment.offset > limit:
            break
        metadata = log.metadata(segment.offset)
        if metadata is None or metadata.committed >= before:
            break
        if mark.era is not None and not _is_closed(metadata.watermark, mark):
            break
        through = segment.offset
    return log.drop(through, mark, deliveries.joined(list(store.remembered(log.table)))) if through else 0


def _is_closed(then: Watermark, now: Watermark) -> bool:
    """Return whether all that had been seen as of *then* is closed by *now*; stamps in the future are never seen."""
    seen = then.marks if then.progress is None else then.progress.closing
    closed = now.closed()
    for name, mark in seen.items():
        limit = closed.get(name)
        if mark.greatest and (limit is None or limit < mark.greatest[-1][1]):
            return False
    return True
