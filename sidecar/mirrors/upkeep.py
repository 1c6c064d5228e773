"""When a mirror's tables are to be tidied up: after what, and for how long; remembered beside their logs.

What a batch leaves behind goes one by one: its small files at the next upkeep, the files that these have replaced
`keep` after that. So upkeep goes on for a while although nothing comes, and the next process knows until when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND
from sidecar.errors import SidecarError
from sidecar.log import log_records
from sidecar.log.files import filename

SCHEDULE = "_mirrors"

_HOUR = 3600 * SECOND


@dataclass
class _Known:
    """When the last upkeep of a table was; until when there is to be one; and the `until` that the record says."""

    last: int
    until: int
    recorded: int


@dataclass(frozen=True)
class Upkeep:
    """The upkeep of the tables that *sink* keeps: each `every`, as long as a batch's files may be left for `keep`.

    All times are microseconds.
    """

    sink: str
    every: int
    keep: int
    _known: dict[str, _Known] = field(default_factory=dict)

    def is_due(self, log: ChangeLog, now: int) -> bool:
        """Return whether the table of *log* is to be tidied up, whether or not something has come."""
        try:
            known = self._of(log, now)
        except SidecarError:
            return True  # whoever does it meets that as well, and says so
        return now >= known.last + self.every and known.last <= known.until

    def has_begun(self, log: ChangeLog) -> bool:
        """Return whether something has ever come into the table of *log*."""
        return log_records.read(log, self._name) is not None

    def touched(self, log: ChangeLog, now: int) -> None:
        """Take notice that something has come into the table of *log*."""
        known = self._of(log, now)
        known.last = known.last if known.until else now
        # Delta counts in hours.
        known.until = now + self.every + -(-self.keep // _HOUR) * _HOUR
        if known.until > known.recorded:
            # Further than needed, so that it is not written down with each batch.
            known.recorded = known.until + self.every
            self._record(log, known)

    def do(self, log: ChangeLog, now: int, work: Callable[[], None]) -> None:
        """Do *work*, the upkeep of *log*'s table, if it is due. If it fails, it is due again after `every`."""
        if not self.is_due(log, now):
            return
        known = self._known.setdefault(log.table, _Known(now, now, 0))
        known.last = now
        try:
            work()
        finally:
            self._record(log, known)

    def _of(self, log: ChangeLog, now: int) -> _Known:
        if log.table not in self._known:
            found = log_records.read(log, self._name)
            last = now if found is None else min(int(found["maintained"]), now)
            until = 0 if found is None else int(found.get("until", last))
            self._known[log.table] = _Known(last, until, until)
        return self._known[log.table]

    def _record(self, log: ChangeLog, known: _Known) -> None:
        log_records.write(log, self._name, {"maintained": known.last, "until": known.recorded})

    @property
    def _name(self) -> str:
        return f"{SCHEDULE}/{filename(self.sink, '.json')}"
