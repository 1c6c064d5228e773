"""Compaction: a base takes the place of the segments before it, so that retention costs nobody the table.

A base is a copy of the table, so one is written only when retention has as much to drop as makes up for it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.clock import Clock
from sidecar.errors import LogTruncated, SchemaChanged, SidecarError, SinkError, StateDamaged
from sidecar.lake import current
from sidecar.log import bases, retention, segments, storage
from sidecar.log.bases import Base
from sidecar.log.segments import Segment
from sidecar.state import WatermarkStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log_ = logging.getLogger("sidecar")

FIRST_BYTES = 16 << 20
"""Below so many bytes of segments, no base is worth its while."""

PIECE_BYTES = 16 << 20
"""Of a base, so much is held in memory at once, by what reads it without Spark."""

SHARE = 0.5
"""A base is written anew once retention could drop so many times its bytes."""

FIRST_PAUSE, LONGEST_PAUSE = 60.0, 3600.0
"""Seconds after which a base that failed is tried again: twice as many each time, and no more than so many."""


def compact(spark: SparkSession, log: ChangeLog, offset: int, described: Callable[[], pa.Schema]) -> Base:
    """Return the base of *log* at *offset*, written now if there is none yet; errors as of `current.dataframe`."""
    if offset in bases.offsets(log):
        return bases.load(log, offset)
    made = current.plan(log, offset, described)
    aside = bases.aside(log, offset)
    try:
        writer = current.texts(spark, made).write.mode("overwrite").option("parquet.block.size", PIECE_BYTES)
        writer.parquet(str(aside))
    except Exception as error:
        if isinstance(error, SidecarError):
            raise
        raise StateDamaged(
            f"{aside}: the base cannot be written: {feed.reason(error)}. The log stays as it is."
        ) from error
    known = (made.base.offset, made.base.committed) if made.base is not None else (log.floor(), 0)
    since = log.list(known[0], offset)
    committed = max([known[1], *(segments.metadata(s.file).committed for s in since)])
    return bases.settled(log, offset, committed, made.schema)


class Compaction:
    """Drops what retention allows, for a runner; `session` gives Spark once a base is to be written, `described` the
    columns of a table's log as the source has them now. `later` does what takes long, in its own time; `clock` says
    when to try again.
    """

    def __init__(
        self,
        session: Callable[[], SparkSession],
        described: Callable[[str], pa.Schema],
        later: Callable[[str, Callable[[], None]], None],
        clock: Clock,
    ) -> None:
        self.failures: dict[str, SidecarError] = {}
        """Why the newest base of a table could not be written."""
        self._session, self._described, self._later, self._clock = session, described, later, clock
        self._aged: dict[str, int] = {}
        self._under_way: set[str] = set()
        self._without: dict[str, int] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        self._unsaid: dict[str, SidecarError] = {}

    def retain(self, log: ChangeLog, store: WatermarkStore, consumers: Iterable[str], before: int) -> int:
        """Drop *log*'s segments as `retention.drop_old` does, but only up to a base; return how many.

        A base is written first, `later`, where it is worth it. Then the bases go that nothing can be told by any more.
        A log that no base can be made of, because its beginning is gone or cannot be read with the rest, is shortened
        as without.
        """
        # What is old stays old: a log that waits for its base is not gone through at each round.
        self._aged[log.table] = retention.aged(log, store, before, self._aged.get(log.table, 0))
        limit = min(self._aged[log.table], retention.allowed(log, store, consumers))
        floor = log.floor()
        if limit <= floor:
            return 0
        newest = _newest(log, limit)
        doomed = log.list(max(floor, newest), limit)
        is_worth_it = _is_worth_it(doomed, bases.load(log, newest).size if newest else 0)
        _, until = self._pauses.get(log.table, (0.0, 0.0))
        if is_worth_it and log.table not in self._under_way and self._clock.monotonic() >= until:
            self._under_way.add(log.table)
            self._later(f"base of {log.table}", functools.partial(self._make, log, store, doomed[0].offset, limit))
        if (failure := self._unsaid.pop(log.table, None)) is not None:
            raise failure
        dropped = retention.drop(log, store, max(_newest(log, limit), self._without.get(log.table, 0)))
        bases.drop(log, [b for b in bases.offsets(log) if b < log.floor()])
        return dropped

    def _make(self, log: ChangeLog, store: WatermarkStore, first: int, limit: int) -> None:
        try:
            log_.info("table=%s compacting=%d-%d: a base, so that retention can drop them ([state] bases)",
                      log.table, first, limit)  # fmt: skip
            base = compact(self._spark(log), log, limit, functools.partial(self._described, log.table))
            log_.info("table=%s base=%d rows=%d", log.table, limit, base.rows)
        except (LogTruncated, SchemaChanged):
            self._without[log.table] = limit
        except SidecarError as error:
            pause = min(2 * self._pauses.get(log.table, (FIRST_PAUSE / 2, 0.0))[0], LONGEST_PAUSE)
            self._pauses[log.table] = pause, self._clock.monotonic() + pause
            self.failures[log.table] = self._unsaid[log.table] = error
        else:
            self._pauses.pop(log.table, None)
            if self.failures.pop(log.table, None) is not None:
                store.note(log.table, None)
        finally:
            self._under_way.discard(log.table)

    def _spark(self, log: ChangeLog) -> SparkSession:
        try:
            return self._session()
        except SidecarError:
            raise
        except Exception as error:
            raise SinkError(
                f'table "{log.table}": a base is to be written, and Spark does not start for it: {feed.reason(error)}. '
                "Segments stay as long; or do without bases: [state] bases = false"
            ) from error


def _newest(log: ChangeLog, limit: int) -> int:
    """Return the offset of the newest base up to *limit*; 0 if there is none."""
    return max((offset for offset in bases.offsets(log) if offset <= limit), default=0)


def _is_worth_it(doomed: Sequence[Segment], base: int) -> bool:
    return sum(storage.size(s.file) for s in doomed) > max(FIRST_BYTES, SHARE * base)
