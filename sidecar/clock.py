"""Now and sleep: the only file that touches time, so that tests can own it.

Instants are integer microseconds since 1970-01-01 UTC everywhere in Sidecar: exact, ordered, and free of zones.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Time as the program sees it."""

    def now(self) -> int:
        """Return the wall clock in microseconds since the epoch, UTC."""

    def monotonic(self) -> float:
        """Return seconds on a clock that never steps back."""

    def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
        """Wait for *seconds*, or until the event is set."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
        if until is None:
            time.sleep(seconds)
        else:
            until.wait(seconds)


class FakeClock:
    """A clock that moves only when it is told to; for tests."""

    def __init__(self, start: int = 1_714_557_600 * SECOND) -> None:
        self._now = start
        self._monotonic = 0.0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
        del until
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both readings forward by *seconds*."""
        self._now += round(seconds * SECOND)
        self._monotonic += seconds


def instant(micros: int) -> datetime:
    """Return *micros* as an aware datetime in UTC; OverflowError outside the years 1 to 9999."""
    return EPOCH + timedelta(microseconds=micros)


def micros(moment: datetime) -> int:
    """Return an aware datetime as microseconds since the epoch, exactly."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def iso(value: int) -> str:
    """Return an instant as ISO 8601 with `Z`, or its number where a calendar cannot show it."""
    try:
        return instant(value).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return str(value)
