"""Which of a page's rows a poll has not delivered before: by what is remembered of those that may be met again."""

from __future__ import annotations

import numpy as np

from sidecar import horizon
from sidecar.cursor import Flags, ceiling
from sidecar.model import INFINITY, Progress, Watermark
from sidecar.polls import deliveries, rows
from sidecar.polls.deliveries import NOTHING, Records
from sidecar.polls.rows import Rows
from sidecar.state import WatermarkStore


def fresh(found: Rows, store: WatermarkStore, mark: Watermark, same: Flags | None) -> tuple[Rows, Records, int]:
    """Return what is new of *found*, what to remember of that, and how many of the new rows came too late.

    Fingerprints cost a microsecond: they are made only of rows that are remembered, or may return. *same* says which
    rows have been delivered as they are by other evidence.
    """
    progress = mark.progress
    assert progress is not None
    if not len(found):
        return found, NOTHING, 0
    new = np.ones(len(found), dtype=bool) if same is None else ~same
    closing = {name: mark.closed for name, mark in progress.closing.items()}
    stays = rows.may_return(found, closing, progress.horizon.floor)
    is_known = np.zeros(len(found), dtype=bool)
    remembered = NOTHING
    if stays.any() or store.remembers(found.tracked.name):
        keys = found.keys()
        known = store.recall(found.tracked.name, keys)
        is_known = ~deliveries.says_nothing(known)
        asked = stays | is_known
        some, keys, known = found.take(asked), keys[:, asked], known[:, asked]
        now = rows.records(some, keys)
        is_same = deliveries.same(now, known)
        new[asked] &= ~(is_same | _is_same_without_what_was_added(some, known, mark.shape))
        # What was delivered before must not be mistaken, later, for what is delivered now.
        over = is_known[asked] & ~is_same & ~stays[asked]
        remembered = deliveries.joined([now[:, ~is_same & stays[asked]], deliveries.nothing(keys[:, over])])
    # A row that is known has come in time: what is new of it is not when.
    late = rows.late(found, {name: m.due for name, m in mark.marks.items()}) & new & ~is_known
    return found.take(new), remembered, int(late.sum())


def came_since(found: Rows, progress: Progress) -> Flags:
    """Return which rows are surely none of those that were there when the poll began: it may have been interrupted."""
    view, tracked = progress.horizon, found.tracked
    if found.version is not None and view.floor is not None:
        return found.version >= view.floor
    limits = {scan.name: ceiling(view.now, tracked, horizon.kind_of(tracked, scan)) for scan in tracked.passes}
    if any(limit is None for name, limit in limits.items() if name != "unstamped"):
        return np.zeros(len(found), dtype=bool)
    return rows.met(found, limits, None) & (rows.stamps(found) < INFINITY)


def _is_same_without_what_was_added(some: Rows, known: Records, before: tuple[str, ...]) -> Flags:
    """Return which rows are as they are *known* but for columns that were added since, *before* having none of them.

    Before a column was added, the same row had another fingerprint: NULL there, it is no other row for that.
    """
    found, now = np.zeros(len(some), dtype=bool), rows.shape(some.data)
    if before in ((), now) or not set(before) <= set(now):
        return found
    bare = rows.are_null(some, set(now) - set(before)) & ~deliveries.says_nothing(known)
    if bare.any():
        older = rows.records(some.take(bare), known[: deliveries.CONTENT, bare], before)
        found[bare] = deliveries.same(older, known[:, bare])
    return found
