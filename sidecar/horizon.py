"""How far a pass may be closed: the arithmetic of the promise. Pure functions of what the source said.

A cursor value is *closed* when no row that becomes visible later can carry it, or less. It is the least of

  the clock         a writer may stamp up to `lookback` behind the source's clock;
  what runs         a transaction that began at T may still commit rows stamped from T - lookback on;
  what was seen     the greatest value M seen: less lookback, or M itself once it has stood for lookback of real time.

The last keeps a source whose clock or data lie far behind ours from being closed over its head, and lets an idle table
come to rest at M. A row stamped in the future takes no part in M, so it moves nothing.
"""

from __future__ import annotations

import dataclasses

from sidecar import cursor
from sidecar.clock import SECOND
from sidecar.model import CursorKind, Horizon, Pass, PassMark, Tracked

TICK = SECOND
"""Text and whole-second numbers stand still for a second: a stamp may be that much older than it was late."""

LONG_HOLD = 60 * SECOND
"""What holds a horizon back for longer is worth a word to people."""

_KEPT = 32


def kind_of(tracked: Tracked, scan: Pass) -> CursorKind:
    """Return what *scan*'s cursor holds; a pass without one counts as numbers without a clock."""
    if scan.cursor is None:
        return "number"
    column = tracked.table.column(scan.cursor)
    assert column is not None, f"{tracked.name}: {scan.cursor} was resolved against the table"
    return cursor.kind(column.arrow, f'table "{tracked.name}", column "{scan.cursor}"')


def counts_time(tracked: Tracked) -> bool:
    """Return whether the values of `updated_at`, as they are compared, are microseconds of a clock."""
    is_counted = kind_of(tracked, tracked.passes[0]) in ("number", "real")
    return tracked.unit == "us" if is_counted else tracked.unit in (None, "us")


def lookback(tracked: Tracked, kind: CursorKind) -> int:
    """Return the effective lookback in microseconds."""
    coarse = kind == "text" or tracked.unit == "s" or (kind in ("number", "real") and tracked.unit is None)
    return tracked.lookback + TICK if coarse else tracked.lookback


def resting(tracked: Tracked) -> int:
    """Return after how many microseconds without a change all that was seen is closed, if stamps and clocks agree."""
    return max(lookback(tracked, kind_of(tracked, scan)) for scan in tracked.passes) + SECOND // 100


def given_up(view: Horizon, tracked: Tracked) -> Horizon:
    """Return *view* without what has been running for longer than `max_hold`: it is waited for no more."""
    if tracked.max_hold is None or (view.settled is not None and view.settled >= view.now - tracked.max_hold):
        return view
    return dataclasses.replace(view, settled=view.now - tracked.max_hold)


def close(mark: PassMark, greatest: int | None, horizon: Horizon, tracked: Tracked, scan: Pass) -> PassMark:
    """Return *mark* as it will stand once the poll that begins with *horizon* is complete.

    *greatest* is the greatest value, not in the future, that the poll's first view holds above `mark.closed`.
    """
    kind = kind_of(tracked, scan)
    seen = _remember(mark.greatest, greatest, horizon.now, lookback(tracked, kind))
    closed = _closed(seen, horizon, tracked, kind) if scan.cursor is not None else None
    if mark.closed is not None and (closed is None or closed < mark.closed):
        closed = mark.closed
    due = max((v for v in (_due(horizon, tracked, kind), mark.due) if v is not None), default=None)
    return PassMark(closed, seen, due if scan.cursor is not None else None)


def _due(horizon: Horizon, tracked: Tracked, kind: CursorKind) -> int | None:
    """Return the value that no row still to appear carries, or less, as far as the clock and what runs can tell."""
    if horizon.settled is None:
        return None
    by_clock = cursor.bound(min(horizon.now, horizon.settled) - lookback(tracked, kind), tracked, kind)
    # Below the least value that may still come, not at it: the hour that clocks run through again begins on the dot.
    return None if by_clock is None else by_clock - 1


def _closed(seen: tuple[tuple[int, int], ...], horizon: Horizon, tracked: Tracked, kind: CursorKind) -> int | None:
    if horizon.settled is None or not seen:
        return None
    back = lookback(tracked, kind)
    at = min(horizon.now, horizon.settled) - back
    standing = max((value for when, value in seen if when <= at), default=None)
    behind = cursor.span(back, tracked, kind)
    # Less lookback, the least of all values (`-infinity`) would be less than 64 bits hold.
    lagging = None if behind is None or seen[-1][1] - behind <= cursor.NONE else seen[-1][1] - behind
    bounds = [v for v in (standing, lagging) if v is not None]
    if not bounds:
        return None
    due = _due(horizon, tracked, kind)
    return max(bounds) if due is None else min(due, max(bounds))


def _remember(
    seen: tuple[tuple[int, int], ...], greatest: int | None, now: int, back: int
) -> tuple[tuple[int, int], ...]:
    """Return the history with *greatest* added; entries are thinned, which can only close less.

    An entry says "this value had been seen by then": a later time or a lower value is always true as well.
    """
    if greatest is None or (seen and greatest <= seen[-1][1]):
        return seen
    old = [entry for entry in seen if entry[0] <= now - back]
    recent = [entry for entry in seen if entry[0] > now - back]
    kept = [*old[-1:], *recent]
    if len(kept) >= _KEPT:
        kept = [*kept[:1], *kept[2::2]] if len(kept) > 2 else kept
    return (*kept, (now, greatest))
