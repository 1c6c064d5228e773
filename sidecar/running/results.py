"""What a poll has done, as its callers see it."""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.errors import SidecarError
from sidecar.poll import Step


@dataclass
class PollResult:
    """What one poll of a table did. `lag` and `seconds` in seconds; `error` is None if all went well.

    `late` of its `rows` came later than `lookback` allows, and were seen all the same.
    """

    table: str
    read: int = 0
    rows: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    seconds: float = 0.0
    lag: float | None = None
    error: SidecarError | None = None
    complete: bool = False
    late: int = 0

    def join(self, later: PollResult) -> None:
        """Take up what a later poll of the same call did."""
        self.read, self.rows, self.late = self.read + later.read, self.rows + later.rows, self.late + later.late
        self.first_offset = self.first_offset or later.first_offset
        self.last_offset = later.last_offset or self.last_offset
        self.seconds, self.lag = self.seconds + later.seconds, later.lag if later.lag is not None else self.lag
        self.error, self.complete = self.error or later.error, later.complete

    def add(self, step: Step) -> None:
        self.read += step.rows_read
        self.rows += step.rows_written
        self.late += step.late
        if step.offset is not None:
            self.first_offset = self.first_offset or step.offset
            self.last_offset = step.offset
        self.complete = step.done
