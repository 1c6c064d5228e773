"""Delivery: what the log holds beyond a sink's position goes to the sink, a bounded batch at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sidecar import consumers, executors, faults, feed, log_records, storage
from sidecar.catalog_table import Catalog
from sidecar.changelog import ChangeLog
from sidecar.config import Settings, SinkSettings
from sidecar.errors import SidecarError
from sidecar.mirror import MirrorSink
from sidecar.model import Tracked
from sidecar.sinks import FILE_FORMATS, Batch, FileSink, FormatSink, FunctionSink, Sink, failing_as
from sidecar.state import ConsumerPosition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sidecar.project import Sidecar

log_ = logging.getLogger("sidecar")

BATCH_BYTES = 128 << 20
"""How much of the log makes a batch full: so what Spark holds at once does not grow with the table."""

AGAIN = 60.0
"""Seconds after which a failure that is still the same is said again."""

_BATCH_SEGMENTS = 1_000


class Delivery:
    """Feeds a project's sinks. A session handed in is used as it is; without one, Spark starts when there is work."""

    def __init__(
        self,
        sidecar: Sidecar,
        spark: SparkSession | None,
        stop: threading.Event,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self.sinks = tuple(_sinks(sidecar.settings, self.session))
        executors.check_session(spark, (sink.name for sink in self.sinks if isinstance(sink, FileSink)))
        self.failures: dict[tuple[str, str], SidecarError] = {}
        """Why the newest batch of a table, by (table, sink), has not been taken."""
        self._sidecar, self._spark, self._stop = sidecar, spark, stop
        self._batch_bytes = batch_bytes
        self._own_spark = False
        self._starting = threading.Lock()
        self._said: dict[tuple[str, str], float] = {}

    def wanting(self, tracked: Tracked) -> list[Sink]:
        """Return the sinks that *tracked* goes to."""
        return [sink for sink in self.sinks if sink.name in tracked.sinks]

    def is_behind(self, tracked: Tracked) -> bool:
        """Return whether *tracked*'s log holds what one of its sinks has not had."""
        sinks, store = self.wanting(tracked), self._sidecar.store
        mark = store.watermark(tracked.name) if sinks else None
        return mark is not None and any(store.position(tracked.name, s.name).acknowledged < mark.offset for s in sinks)

    def has_full_batch(self, tracked: Tracked) -> bool:
        """Return whether *tracked*'s log holds as much as a batch may, beyond what one of its sinks has had."""
        sinks, store = self.wanting(tracked), self._sidecar.store
        if not sinks:
            return False
        had = min(store.position(tracked.name, sink.name).acknowledged for sink in sinks)
        log = self._sidecar.log(tracked.name)
        with contextlib.suppress(SidecarError):  # what the log cannot say now, the delivery meets as well
            return sum(storage.size(s.file) for s in log.list(max(had, log.floor()))) >= self._batch_bytes
        return False

    def has_failed(self, table: str) -> bool:
        """Return whether a sink has not taken the newest batch of *table*."""
        return any(name == table for name, _ in tuple(self.failures))

    def deliver(self, tracked: Tracked) -> None:
        """Deliver all that *tracked*'s log holds. One sink that fails does not hold the others."""
        for sink in self.wanting(tracked):
            try:
                while not self._stop.is_set() and self._deliver(sink, tracked):
                    pass
                if isinstance(sink, MirrorSink):
                    sink.maintain(self._sidecar.log(tracked.name), self._sidecar.clock.now())
            except SidecarError as error:
                # The log cannot be asked where the sink is to go on: the next round asks again.
                self._failed(tracked.name, sink, error)

    def session(self) -> SparkSession:
        """Return the session that was handed in, or one that is started now and stopped by `close`."""
        with self._starting:
            if self._spark is None:
                from sidecar import spark

                settings = self._sidecar.settings.spark
                conf = dict(settings.conf) | ({"spark.master": settings.master} if settings.master else {})
                self._spark = spark.session(config=conf, fast_start=settings.fast_start)
                self._own_spark = True
            return self._spark

    def close(self) -> None:
        """Stop the Spark that was started here."""
        if self._own_spark and self._spark is not None:
            from sidecar import spark

            spark.close(self._spark)
            self._spark, self._own_spark = None, False

    def _deliver(self, sink: Sink, tracked: Tracked) -> bool:
        """Hand *sink* one batch, acknowledge it once it is durable there, and return whether there may be more."""
        name, store = tracked.name, self._sidecar.store
        if name in self._sidecar.damaged:
            return False
        log = self._sidecar.log(name)
        position = store.position(name, sink.name)
        if position == ConsumerPosition() and log.floor():
            log_.warning(
                "table=%s sink=%s is new, and changes up to offset %d are gone by retention: it begins behind them. "
                "For all rows: sidecar watermark reset %s",
                name, sink.name, log.floor(), name,
            )  # fmt: skip
            consumers.acknowledge(log, store, sink.name, log.floor())
            position = store.position(name, sink.name)
        mark = store.watermark(name)
        last = position.intended or (mark.offset if mark else 0)
        if last <= position.acknowledged:
            return False
        began = self._sidecar.clock.monotonic()
        replay = position.intended is not None
        batch = Batch(name, position.acknowledged + 1, last, replay, tracked.key)
        try:
            with failing_as(sink, batch):
                batch = dataclasses.replace(batch, log=log_records.identity(log), floor=log.floor())
                if not replay:
                    batch = dataclasses.replace(batch, last=self._end(sink, log, position.acknowledged, last))
                consumers.intend(log, store, sink.name, batch.last)
                self._write(sink, log, batch, f"{tracked.metadata_prefix}commit_version")
                faults.point("sink-committed")
                consumers.acknowledge(log, store, sink.name, batch.last)
        except SidecarError as error:
            self._failed(name, sink, error)
            return False
        if self.failures.pop((name, sink.name), None) is not None:
            store.note(name, None)
        elapsed = self._sidecar.clock.monotonic() - began
        log_.info("table=%s sink=%s offsets=%d-%d ms=%d", name, sink.name, batch.first, batch.last, elapsed * 1000)
        return True

    def _write(self, sink: Sink, log: ChangeLog, batch: Batch, version: str) -> None:
        if isinstance(sink, MirrorSink) and sink.transform is None:
            # What is Spark's in it, it asks for: no session is started where there is nothing.
            sink.apply(feed.table(log, batch.first - 1, batch.last), batch, version)
        else:
            sink.write(feed.dataframe(self.session(), log, batch.first - 1, batch.last), batch, version)

    def _failed(self, table: str, sink: Sink, error: SidecarError) -> None:
        before, now = self.failures.get((table, sink.name)), self._sidecar.clock.monotonic()
        self.failures[table, sink.name] = error
        self._sidecar.store.note(table, str(error))
        if str(before) != str(error) or now - self._said.get((table, sink.name), now) >= AGAIN:
            self._said[table, sink.name] = now
            log_.error("%s", error)

    def _end(self, sink: Sink, log: ChangeLog, after: int, last: int) -> int:
        """Return the last offset of the batch after *after*: full, or all there is that can be read as one."""
        full = min(self._batch_bytes, sink.batch_bytes) if isinstance(sink, MirrorSink) else self._batch_bytes
        size = 0
        _, alike = log.columns(after + 1)
        last = last if alike is None else min(last, alike)
        for count, segment in enumerate(log.list(after, last), 1):
            size += storage.size(segment.file)
            if size >= full or count == _BATCH_SEGMENTS:
                return segment.offset
        return last


def _sinks(settings: Settings, session: Callable[[], SparkSession]) -> Iterator[Sink]:
    for name, sink in settings.sinks.items():
        common = (name, sink.transform, settings.folder, sink.options)
        if sink.mode == "mirror":
            upkeep = sink.compact_every, sink.vacuum_after
            yield MirrorSink(*common, sink.path or "", sink.kind, *upkeep, catalog=_catalog(sink, session))
        elif sink.foreach is not None:
            yield FunctionSink(*common, function=sink.foreach)
        elif sink.format in FILE_FORMATS:
            assert sink.path is not None, "settings make sure of it"
            yield FileSink(*common, format=sink.format, path=sink.path)
        else:
            yield FormatSink(*common, format=sink.format, path=sink.path)


def _catalog(sink: SinkSettings, session: Callable[[], SparkSession]) -> Catalog | None:
    format_ = sink.format if "format" in sink.model_fields_set else None
    return None if sink.table is None else Catalog(sink.table, format_, session)
