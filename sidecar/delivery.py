"""Delivery: what the log holds beyond a sink's position goes to the sink, a bounded batch at a time."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sidecar import consumers, faults, feed, log_records
from sidecar.changelog import ChangeLog
from sidecar.config import Settings
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

_BATCH_SEGMENTS = 1_000


class Delivery:
    """Feeds a project's sinks. A session handed in is used as it is; without one, Spark starts when there is work."""

    def __init__(
        self,
        sidecar: Sidecar,
        spark: SparkSession | None,
        stop: threading.Event,
        failed: Callable[[str, SidecarError], None],
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        self.sinks = tuple(_sinks(sidecar.settings))
        self._sidecar, self._spark, self._stop, self._failed = sidecar, spark, stop, failed
        self._batch_bytes = batch_bytes
        self._own_spark = False

    def wanting(self, tracked: Tracked) -> list[Sink]:
        """Return the sinks that *tracked* goes to."""
        return [sink for sink in self.sinks if sink.name in tracked.sinks]

    def deliver(self, tracked: Tracked) -> None:
        """Deliver all that *tracked*'s log holds. One sink that fails does not hold the others."""
        for sink in self.wanting(tracked):
            while not self._stop.is_set() and self._deliver(sink, tracked):
                pass
            if isinstance(sink, MirrorSink):
                sink.maintain(self._sidecar.log(tracked.name), self._sidecar.clock.now())

    def session(self) -> SparkSession:
        """Return the session that was handed in, or one that is started now and stopped by `close`."""
        if self._spark is None:
            from sidecar import spark

            settings = self._sidecar.settings.spark
            conf = dict(settings.conf) | ({"spark.master": settings.master} if settings.master else {})
            self._spark = spark.session(config=conf)
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
            self._failed(f"{name} → {sink.name}", error)
            store.note(name, str(error))
            return False
        elapsed = self._sidecar.clock.monotonic() - began
        log_.info("table=%s sink=%s offsets=%d-%d ms=%d", name, sink.name, batch.first, batch.last, elapsed * 1000)
        return True

    def _write(self, sink: Sink, log: ChangeLog, batch: Batch, version: str) -> None:
        if isinstance(sink, MirrorSink) and sink.transform is None:
            # Nothing in it is Spark's: no session is started for it.
            sink.apply(feed.table(log, batch.first - 1, batch.last), batch, version)
        else:
            sink.write(feed.dataframe(self.session(), log, batch.first - 1, batch.last), batch, version)

    def _end(self, sink: Sink, log: ChangeLog, after: int, last: int) -> int:
        """Return the last offset of the batch after *after*: full, or all there is that can be read as one."""
        full = min(self._batch_bytes, sink.batch_bytes) if isinstance(sink, MirrorSink) else self._batch_bytes
        size = 0
        _, alike = log.columns(after + 1)
        last = last if alike is None else min(last, alike)
        for count, segment in enumerate(log.list(after, last), 1):
            size += segment.path.stat().st_size
            if size >= full or count == _BATCH_SEGMENTS:
                return segment.offset
        return last


def _sinks(settings: Settings) -> Iterator[Sink]:
    for name, sink in settings.sinks.items():
        common = (name, sink.transform, settings.folder, sink.options)
        if sink.mode == "mirror":
            assert sink.path is not None, "settings make sure of it"
            upkeep = sink.compact_every, sink.vacuum_after
            yield MirrorSink(*common, sink.path, sink.kind, *upkeep)
        elif sink.foreach is not None:
            yield FunctionSink(*common, function=sink.foreach)
        elif sink.format in FILE_FORMATS:
            assert sink.path is not None, "settings make sure of it"
            yield FileSink(*common, format=sink.format, path=sink.path)
        else:
            yield FormatSink(*common, format=sink.format, path=sink.path)
