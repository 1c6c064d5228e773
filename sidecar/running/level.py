"""When tables at rest were last level with the source. No poll says so of them: they are not polled."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from sidecar.clock import Clock

EVERY = 5.0
"""Seconds between two notes of it."""

_NAME = "level.json"


class Level:
    """What a loop notes of tables at rest, in the folder *state*, for whoever looks at it."""

    def __init__(self, state: Path, clock: Clock) -> None:
        self._path, self._clock = state / _NAME, clock
        self._tables: dict[str, int] = {}
        self._due = clock.monotonic() + EVERY

    def rests(self, table: str) -> None:
        """Take note that *table* is level with the source now."""
        self._tables[table] = self._clock.now()
        if self._clock.monotonic() >= self._due:
            self._due = self._clock.monotonic() + EVERY
            aside = self._path.with_suffix(".tmp")
            with contextlib.suppress(OSError):  # nothing depends on it
                aside.write_text(json.dumps(self._tables), encoding="utf-8")
                aside.replace(self._path)


def noted(state: Path) -> dict[str, int]:
    """Return by table when it was level, in microseconds, where that has been noted."""
    try:
        return {str(table): int(at) for table, at in json.loads((state / _NAME).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
