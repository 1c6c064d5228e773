"""A source whose clock was ahead, and has been set back: what it stamps from then on lies below what is closed.

What is closed follows the clock, and so it goes back with it; what was delivered above it is told by content, as after
a failover. A clock that is set back by less than lookback is a slow clock, and nothing has to be done.
"""

from __future__ import annotations

import dataclasses

from sidecar import cursor, horizon
from sidecar.clock import SECOND
from sidecar.model import Horizon, Pass, PassMark, Tracked, Watermark


def is_set_back(tracked: Tracked, mark: Watermark, view: Horizon) -> bool:
    """Return whether *view*'s clock has not yet come to what was closed by an earlier one."""
    is_earlier = mark.polled is not None and view.now < mark.polled
    return is_earlier and any(_is_above(tracked, scan, mark, view.now) for scan in tracked.passes)


def reopened(tracked: Tracked, mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* with nothing closed that may still be stamped by *view*'s clock; what was seen counts no more."""
    marks = dict(mark.marks)
    for scan in tracked.passes:
        if _is_above(tracked, scan, mark, view.now):
            kind = horizon.kind_of(tracked, scan)
            by_clock = cursor.bound(view.now - horizon.lookback(tracked, kind), tracked, kind)
            marks[scan.name] = PassMark(None if by_clock is None else by_clock - 1)
    return dataclasses.replace(mark, marks=marks)


def said(mark: Watermark, view: Horizon) -> str:
    """Return what has become of the clock, for people."""
    seconds = ((mark.polled or view.now) - view.now) / SECOND
    return (
        f"the source's clock was set back: it is {seconds:,.0f} s behind what it was at the last poll. What it may"
        " stamp from now on is read again, and compared with the log"
    )


def _is_above(tracked: Tracked, scan: Pass, mark: Watermark, now: int) -> bool:
    """Return whether more of *scan* is closed than the source's clock has come to by *now*."""
    closed = mark.closed().get(scan.name)
    if closed is None or scan.cursor is None:
        return False
    by_clock = cursor.bound(now, tracked, horizon.kind_of(tracked, scan))
    return by_clock is not None and closed >= by_clock
