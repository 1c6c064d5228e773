"""Retention: the oldest segments go when every consumer is past them and the settings' time is over.

Up to which offset that is so is decided here; `compaction` sees to it that the table can still be told afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

from sidecar.changelog import ChangeLog
from sidecar.cursor import NONE
from sidecar.log import queries
from sidecar.model import PassName, Watermark
from sidecar.polls import deliveries
from sidecar.polls.deliveries import CREATED, DELETED, UPDATED, Records
from sidecar.state import WatermarkStore

_STAMPS: tuple[tuple[int, PassName], ...] = ((UPDATED, "updated"), (DELETED, "deleted"), (CREATED, "created"))


def drop_old(log: ChangeLog, store: WatermarkStore, consumers: Iterable[str], before: int) -> int:
    """Drop *log*'s segments committed before *before* (microseconds UTC) that all *consumers* have; return how many."""
    limit = aged(log, store, before)
    # Who needs it is not asked where nothing is old enough: of a store that would be a listing, at each round.
    return drop(log, store, min(limit, allowed(log, store, consumers))) if limit > log.floor() else 0


def aged(log: ChangeLog, store: WatermarkStore, before: int, after: int = 0) -> int:
    """Return the last offset up to which all of *log* was committed before *before*, and may go for that; *after*: an
    offset up to which that is known. 0 if there is none.

    The newest segment always stays; so does one whose rows are not closed yet, where the source numbers its versions:
    should it number them anew, only what the log holds of a row tells that it has been delivered.
    """
    mark = store.watermark(log.table)
    if mark is None:
        return 0
    # Of a first poll that stands interrupted, only what it began with says so.
    is_numbered = mark.era is not None or (mark.progress is not None and mark.progress.horizon.era is not None)
    through = after
    for segment in log.list(max(log.floor(), after))[:-1]:
        metadata = log.metadata(segment.offset)
        if metadata is None or metadata.committed >= before:
            break
        if is_numbered:
            then = metadata.watermark
            is_closed = _is_followed(then, mark) and _is_closed(then, mark)
            if not is_closed or _holds_what_is_open(log.remembered(segment.offset), mark):
                break
        through = segment.offset
    return through


def allowed(log: ChangeLog, store: WatermarkStore, consumers: Iterable[str]) -> int:
    """Return the offset up to which *log* is needed by none of *consumers*, by no streaming query that has given a name
    and was not forgotten (`sidecar watermark forget`), and by no backfill under way.
    """
    mark = store.watermark(log.table)
    if mark is None:
        return 0
    limit = min((store.position(log.table, c).acknowledged for c in consumers), default=mark.offset)
    if mark.job is not None:
        # What has been delivered since is what its chunks are held against.
        limit = min(limit, mark.job.began)
    # Files, and last: of a store they are listed.
    return min([limit, *queries.positions(log).values()]) if limit > log.floor() else limit


def drop(log: ChangeLog, store: WatermarkStore, through: int) -> int:
    """Drop *log*'s segments up to *through*; return how many. What a rebuild of the state would need of them is first
    written beside the log.
    """
    mark = store.watermark(log.table)
    if mark is None or through <= log.floor():
        return 0
    return log.drop(through, mark, deliveries.joined(list(store.remembered(log.table))))


def _is_closed(then: Watermark, now: Watermark) -> bool:
    """Return whether all that had been seen as of *then* is closed by *now*; stamps in the future are never seen."""
    seen = then.marks if then.progress is None else then.progress.closing
    closed = now.closed()
    for name, mark in seen.items():
        limit = closed.get(name)
        if mark.greatest and (limit is None or limit < mark.greatest[-1][1]):
            return False
    return True


def _is_followed(then: Watermark, now: Watermark) -> bool:
    """Return whether a poll is complete that began after *then*. An interrupted one ends as if it had not been: what it
    has read last may be newer than all that it says it has seen.
    """
    under_way = then.polled if then.progress is None else then.progress.horizon.now
    return now.polled not in (then.polled, under_way)


def _holds_what_is_open(remembered: Records, now: Watermark) -> bool:
    """Return whether one of the rows *remembered* is stamped above what *now* has closed; stamps in the future do not
    count. What is not remembered of a segment was there when its poll began.
    """
    closed = now.closed()
    for field, name in _STAMPS:
        mark = now.marks.get(name)
        if mark is None or not mark.greatest:
            continue
        limit = closed.get(name)
        above = remembered[field] > (NONE if limit is None else limit)
        if (above & (remembered[field] <= mark.greatest[-1][1])).any():
            return True
    return False
