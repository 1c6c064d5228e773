"""What is at rest: tables in which nothing can have happened since a poll that found nothing there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.backfilling.requests import Requests
from sidecar.errors import SidecarError
from sidecar.model import Tracked

if TYPE_CHECKING:
    from sidecar.project import Sidecar

LOOK = 0.1
"""Seconds after which it is looked whether another process has asked for a backfill."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """All of *tables* rest at *pulse*, until a monotonic time or a request of this process."""

    tables: Mapping[str, Tracked]
    pulse: object
    until: float
    kept: int


@dataclass
class Rest:
    """What is known to be at rest of the source of *sidecar*, by its pulses (`SourceConnector.pulse`)."""

    sidecar: Sidecar
    _pulse: object | None = None
    _quiet: dict[str, tuple[object, float]] = field(default_factory=dict)
    _whole: _Whole | None = None

    def new_round(self) -> None:
        """From now on, what was found out before is an older pulse's."""
        self._pulse = self._whole = None

    def pulse(self) -> object | None:
        """Return this round's pulse, if there is one: an older one can only say too soon that something has changed."""
        return self.sidecar.connector.pulse() if self._pulse is None else self._pulse

    def holds(self, table: str) -> bool:
        """Return whether nothing has changed since *table* was polled, and nothing is to be closed by now."""
        quiet = self._quiet.get(table)
        if quiet is None or self.sidecar.clock.monotonic() >= quiet[1]:
            return False
        if self._pulse is None:
            # Once a round, however many tables: what changes after it is found by the next one.
            with contextlib.suppress(SidecarError):  # the poll meets it as well, and says so
                self._pulse = self.sidecar.connector.pulse()
        return self._pulse == quiet[0]

    def until(self, table: str, pulse: object | None) -> float | None:
        """Return until when *table* rests, which may be past; None if it does not rest at *pulse*."""
        quiet = self._quiet.get(table)
        return None if quiet is None or quiet[0] != pulse else quiet[1]

    def begins(self, table: str, pulse: object | None, until: float) -> None:
        """Take note that *table* was polled at *pulse*, and that at *until* (monotonic) something is to be closed."""
        if pulse is not None:
            self._quiet[table] = pulse, until

    def ends(self, table: str) -> None:
        """Have *table* polled, whether anything has changed or not."""
        self._quiet.pop(table, None)

    def begins_whole(self, tables: Mapping[str, Tracked]) -> None:
        """Take note that nothing else is to be done for *tables*, which were all polled, if all of them rest."""
        if self._pulse is None or any(self._quiet.get(name, (None,))[0] != self._pulse for name in tables):
            return
        until = min(self.sidecar.clock.monotonic() + LOOK, *(self._quiet[name][1] for name in tables))
        self._whole = _Whole(tables, self._pulse, until, Requests.kept)

    def whole(self) -> Mapping[str, Tracked] | None:
        """Return all tables that are followed, if nothing can have happened in any since they were polled."""
        whole = self._whole
        if (
            whole is None
            or whole.tables is not self.sidecar.__dict__.get("tracked")
            or whole.kept != Requests.kept
            or self.sidecar.clock.monotonic() >= whole.until
        ):
            return None
        with contextlib.suppress(SidecarError):  # the poll meets it as well, and tries again
            return whole.tables if self.sidecar.connector.pulse() == whole.pulse else None
        return None
