"""What the loop says of itself: what it follows, what fails, and, once, that what had failed goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from sidecar.clock import SECOND, Clock
from sidecar.connector import Finding
from sidecar.errors import SidecarError, SourceUnavailable, about, counted
from sidecar.model import Tracked
from sidecar.running.level import Level
from sidecar.running.results import PollResult

log_ = logging.getLogger("sidecar")

AGAIN = 60.0
"""Seconds after which a failure that is still the same is said again."""

SOURCE = "source"
"""What fails where no table has been met yet."""


Doubts: TypeAlias = Callable[[Collection[Tracked]], Iterable[Finding]]
"""Returns what is to be said of the sinks of some tables before they are given anything."""


@dataclass(frozen=True, slots=True)
class _Failing:
    """Since when (monotonic seconds) something has failed; `shared`: for a reason that all tables have alike."""

    since: float
    shared: bool


class Telling:
    """What has been said. Nothing is said twice that a reader of the lines knows already."""

    def __init__(self, clock: Clock, state: Path) -> None:
        self._clock = clock
        self.level = Level(state, clock)
        self._said: dict[str, tuple[str, float]] = {}
        self._failing: dict[str, _Failing] = {}
        self._has_begun = False

    def begins(self, tables: Collection[Tracked], interval: float | None, doubts: Doubts) -> None:
        """Say once, when the tables are known, what is followed, and what *doubts* there are about sinks.

        With an *interval*, of a loop: while nothing changes, nothing else is said.
        """
        if not tables or self._has_begun:
            return
        self._has_begun = True
        if interval is not None:
            what = counted(len(tables), "table")
            log_.info("following %s, polling every %g s", what, interval)
        for finding in doubts(tables):
            log_.warning("%s", finding.message)

    def polled(self, result: PollResult) -> None:
        """Say what a poll has brought, if anything."""
        if result.rows:
            lag = f"{result.lag:.1f}" if result.lag is not None else "-"
            log_.info(
                "table=%s rows=%d offset=%s lag_s=%s ms=%d",
                result.table, result.rows, result.last_offset, lag, result.seconds * 1000,
            )  # fmt: skip

    def late(self, tracked: Tracked, late: int) -> None:
        """Say that a poll has met *late* rows that had not been there when they should have been, if so."""
        if late:
            log_.warning(
                "table=%s late=%d: these rows appeared more than lookback (%gs) after their stamp. They were seen; "
                "others as late may have been missed. Let lookback cover how late rows are written, or stamp them anew",
                tracked.name, late, tracked.lookback / SECOND,
            )  # fmt: skip

    def failed(self, where: str, error: SidecarError) -> None:
        """Say what *error* is, unless that has just been said."""
        text, now = about(where, error), self._clock.monotonic()
        before = self._said.get(where)
        if before is None or before[0] != text or now - before[1] >= AGAIN:
            self._said[where] = text, now
            log_.error("%s", text)

    def stops(self, where: str, error: SidecarError) -> None:
        """Take notice that *where*, a table or the source, does not go on because of *error*."""
        shared = isinstance(error, SourceUnavailable) and (where == SOURCE or about(where, error) != str(error))
        before = self._failing.get(where)
        self._failing[where] = _Failing(self._clock.monotonic() if before is None else before.since, shared)

    def goes_on(self, where: str) -> None:
        """Say, if *where* had stopped, that it goes on, and after how long; of a source that was away, once for all."""
        failing = self._failing.pop(where, None)
        if failing is None:
            return
        self._said.pop(where, None)
        if not failing.shared:
            log_.info("table=%s goes on after %d s", where, self._clock.monotonic() - failing.since)
            return
        others = {name: other for name, other in self._failing.items() if other.shared}
        since = min(other.since for other in (failing, *others.values()))
        for name in others:
            del self._failing[name]
            self._said.pop(name, None)
        log_.info("the source answers again, after %d s", self._clock.monotonic() - since)
