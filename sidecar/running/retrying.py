"""A poll that failed for what may pass is tried again, with pauses that double."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sidecar.clock import Clock
from sidecar.errors import SourceUnavailable, about

log_ = logging.getLogger("sidecar")

ATTEMPTS = 4
"""How often one poll of a table is tried before it is left to the next run."""

FIRST_PAUSE = 0.2
"""Seconds before the second attempt; the pauses then double."""


def again(
    table: str, once: Callable[[], None], error: SourceUnavailable, clock: Clock, stop: threading.Event | None
) -> None:
    """Retry a poll of *table*, which *error* has ended; it goes on from its last page. Raises the last failure."""
    # Imported when something has failed: a run without changes has no time to lose.
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

    log_.warning("%s Trying again.", about(table, error))
    clock.sleep(FIRST_PAUSE, stop)
    for attempt in Retrying(
        retry=retry_if_exception_type(SourceUnavailable),
        stop=stop_after_attempt(ATTEMPTS - 1),
        wait=wait_exponential(multiplier=2 * FIRST_PAUSE, max=5) + wait_random(0, FIRST_PAUSE),
        sleep=lambda seconds: clock.sleep(seconds, stop),
        reraise=True,
    ):
        with attempt:
            once()
