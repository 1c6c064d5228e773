"""How fast a backfill may go: no faster than it was told to, and not at all while the source is under strain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.clock import SECOND, Clock
from sidecar.model import Strain

if TYPE_CHECKING:
    from sidecar.config import BackfillSettings

log_ = logging.getLogger("sidecar")

EVERY = 1.0
"""Seconds between two questions to the source."""

PATIENCE = 2.0
"""Seconds for which others may wait for a table that is being copied: behind an ALTER TABLE, all that use it wait."""


class Throttle:
    """Holds a backfill to `max_rows_per_second`, `max_replication_lag` and `max_lock_wait`, and out of others' way."""

    def __init__(self, settings: BackfillSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._free_at = self._asked_at = float("-inf")
        self._reason: str | None = None

    def wrote(self, rows: int) -> None:
        """Take notice of *rows* read: the next may not come before these ought to have."""
        rate = self._settings.max_rows_per_second
        if rate is not None:
            self._free_at = max(self._free_at, self._clock.monotonic()) + rows / rate

    @property
    def is_ahead(self) -> bool:
        """Whether as many rows have been read as may be so far."""
        return self._clock.monotonic() < self._free_at

    def wait(self, until: float | None, stop: threading.Event) -> None:
        """Wait until more may be read, but no longer than *until*."""
        end = self._free_at if self._reason is None else max(self._free_at, self._asked_at + EVERY)
        end = end if until is None else min(end, until)
        self._clock.sleep(max(0.0, end - self._clock.monotonic()), stop)

    def pauses(self, ask: Callable[[], Strain]) -> bool:
        """Return whether the source is under strain, and has to be left alone."""
        now = self._clock.monotonic()
        if now - self._asked_at >= EVERY:
            self._asked_at = now
            reason = self._strain(ask())
            if reason is not None and self._reason is None:
                log_.warning("backfills pause: %s", reason)
            elif reason is None and self._reason is not None:
                log_.info("backfills go on")
            self._reason = reason
        return self._reason is not None

    def _strain(self, found: Strain) -> str | None:
        lag, wait = self._settings.max_replication_lag, self._settings.max_lock_wait
        if lag is not None and found.replication_lag is not None and found.replication_lag > lag / SECOND:
            return f"replication lags by {found.replication_lag:.0f} s, max_replication_lag is {lag / SECOND:g} s"
        if wait is not None and found.lock_wait is not None and found.lock_wait > wait / SECOND:
            return f"a session has waited {found.lock_wait:.0f} s for a lock, max_lock_wait is {wait / SECOND:g} s"
        if found.held_up is not None and found.held_up > PATIENCE:
            return f"a session has waited {found.held_up:.0f} s for a table that is being copied, and goes first"
        return None
