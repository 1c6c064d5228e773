"""Says what holds a table's horizon back, once it has done so for long."""

from __future__ import annotations

import json
import logging

from sidecar.clock import SECOND
from sidecar.model import Hold, Tracked

log_ = logging.getLogger("sidecar")


class Holds:
    """What has been said of holds that outlast *longest* microseconds, by table."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._said: dict[str, tuple[Hold, bool]] = {}

    def tell(self, tracked: Tracked, hold: Hold | None, now: int) -> None:
        """Say once of each hold that lasts for long, and once that it is given up."""
        if hold is None or hold.since is None or now - hold.since <= self._longest:
            self._said.pop(tracked.name, None)
            return
        given_up = tracked.max_hold is not None and now - hold.since > tracked.max_hold
        if self._said.get(tracked.name) == (hold, given_up):
            return
        self._said[tracked.name] = hold, given_up
        log_.warning(
            "table=%s held_s=%d held_by=%s: %s", tracked.name, (now - hold.since) // SECOND, json.dumps(hold.by),
            "max_hold is over, so it is waited for no more. What it still commits under an older stamp will not be "
            f"delivered; to be sure, once it is over: sidecar watermark reset {tracked.name}"
            if given_up
            else "what was stamped since may still appear, so it is looked at again at each poll",
        )  # fmt: skip
