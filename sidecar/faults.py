"""Named crash points: where a test may kill the process to prove that nothing is lost or repeated.

In production a point costs one dictionary look-up. `SIDECAR_CRASH_AT=name` or `name:N` in the environment makes the
Nth passage of that point end the process by SIGKILL, as a power button would.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "page-read",
    "schema-written",
    "rows-set-aside",
    "segment-written",
    "segment-renamed",
    "watermark-saved",
    "poll-completed",
    "backfill-requested",
    "backfill-begun",
    "chunk-read",
    "chunk-written",
    "chunk-saved",
    "keys-purged",
    "backfill-finished",
    "refresh-requested",
    "batch-intended",
    "row-groups-copied",
    "batch-staged",
    "columns-summarized",
    "batch-moved",
    "mirror-created",
    "mirror-evolved",
    "mirror-written",
    "mirror-committed",
    "mirror-compacted",
    "sink-committed",
    "position-filed",
    "position-saved",
    "base-written",
    "base-renamed",
    "base-hidden",
    "floor-written",
    "segment-dropped",
)

_name, _, _count = os.environ.get("SIDECAR_CRASH_AT", "").partition(":")
_left = {_name: int(_count or 1)} if _name else {}
if _name and _name not in POINTS:
    raise ValueError(f"SIDECAR_CRASH_AT names no crash point: {_name!r}; there are {', '.join(POINTS)}")


def point(name: str) -> None:
    """Pass the crash point *name*; end the process here if the environment asks for it."""
    if name in _left:
        _left[name] -= 1
        if _left[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
