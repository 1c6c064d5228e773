"""Delivery: what the log holds beyond a sink's position goes to the sink, a bounded batch at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sidecar import faults, feed
from sidecar.backfilling import executors
from sidecar.changelog import ChangeLog
from sidecar.config import Settings, SinkSettings
from sidecar.delivering import seeding
from sidecar.delivering.feeding import Feeding, Lanes
from sidecar.delivering.seeding import Start
from sidecar.errors import LogTruncated, SchemaChanged, SidecarError, SinkError
from sidecar.log import bases, consumers, log_records, segments, storage
from sidecar.mirrors.catalog_table import Catalog
from sidecar.mirrors.mirror import MirrorSink
from sidecar.model import METADATA, Tracked
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
        self._own_spark = self._is_starting = self._is_over = self._is_warm = False
        self._starting = threading.Lock()
        self._said: dict[tuple[str, str], float] = {}
        self._met: set[tuple[str, str]] = set()

    def wanting(self, tracked: Tracked) -> list[Sink]:
        """Return the sinks that *tracked* goes to."""
        return [sink for sink in self.sinks if sink.name in tracked.sinks]

    def ask(self, tracked: Tracked, lanes: Lanes) -> None:
        """Have the sinks of *tracked* given what they have not had, each on the thread that feeds it."""
        for lane, sinks in self._lanes(tracked, lanes):
            if self.is_asked(tracked, sinks):
                lane.ask(tracked.name, functools.partial(self.deliver, tracked, sinks))

    def ask_for_full(self, tracked: Tracked, lanes: Lanes) -> None:
        """Have them given what makes a full batch already."""
        for lane, sinks in self._lanes(tracked, lanes):
            if any(self._has_full(sink, tracked) for sink in sinks):
                lane.ask(f"{tracked.name}: full", functools.partial(self.deliver_full, tracked, sinks))
            elif lane is lanes.spark and not self._is_warm and self.is_asked(tracked, sinks):
                # What is there goes to them in the end: Spark may start while the rest is read.
                self._is_warm = True
                lane.ask("start of Spark", self._warm)

    def has_failed(self, table: str) -> bool:
        """Return whether a sink has not taken the newest batch of *table*."""
        return any(name == table for name, _ in tuple(self.failures))

    def deliver(self, tracked: Tracked, sinks: Iterable[Sink]) -> None:
        """Deliver all that *tracked*'s log holds to *sinks*. One that fails does not hold the others."""
        for sink in sinks:
            with self._noted(tracked, sink):
                while not self._stop.is_set() and self._deliver(sink, tracked):
                    pass
                if isinstance(sink, MirrorSink):
                    sink.maintain(self._sidecar.log(tracked.name), tracked.key, self._sidecar.clock.now())

    def deliver_full(self, tracked: Tracked, sinks: Iterable[Sink]) -> None:
        """Deliver the batches of *tracked* that are full to *sinks*; what is left waits for what is still to come.

        So a sink that is faster than the source is read makes few large files all the same.
        """
        for sink in sinks:
            with self._noted(tracked, sink):
                while not self._stop.is_set() and self._has_full(sink, tracked) and self._deliver(sink, tracked):
                    pass

    def session(self) -> SparkSession:
        """Return the session that was handed in, or one that is started now and stopped by `close`."""
        with self._starting:
            if self._spark is None:
                from sidecar.lake import spark

                settings = self._sidecar.settings.spark
                conf = dict(settings.conf) | ({"spark.master": settings.master} if settings.master else {})
                log_.info("starting Spark")
                self._is_starting = True
                try:
                    found = spark.session(config=conf, fast_start=settings.fast_start)
                finally:
                    self._is_starting = False
                if self._is_over:
                    # Nobody has waited for it, and nobody else would give it back.
                    spark.close(found)
                    raise SystemExit
                self._spark, self._own_spark = found, True
            return self._spark

    def _warm(self) -> None:
        with contextlib.suppress(Exception):  # the first batch meets it as well, and says so
            self.session()

    @property
    def is_vain(self) -> bool:
        """Whether what goes on is not to be waited for: it has come no further than to the start of Spark, which takes
        as long as it takes, and somebody has asked to stop.
        """
        return self._is_starting and self._stop.is_set()

    def close(self) -> None:
        """Stop the Spark that was started here; one that is being started, once it has."""
        self._is_over = self._is_starting
        if self._own_spark and self._spark is not None:
            from sidecar.lake import spark

            spark.close(self._spark)
            self._spark, self._own_spark = None, False

    def _lanes(self, tracked: Tracked, lanes: Lanes) -> tuple[tuple[Feeding, list[Sink]], ...]:
        sinks = self.wanting(tracked)
        others = [sink for sink in sinks if not needs_spark(sink)]
        return (lanes.spark, [sink for sink in sinks if needs_spark(sink)]), (lanes.others, others)

    def is_asked(self, tracked: Tracked, sinks: Iterable[Sink]) -> bool:
        """Return whether one of *sinks* has not had all of *tracked*'s log, or has upkeep to be done."""
        store, now = self._sidecar.store, self._sidecar.clock.now()
        mark = store.watermark(tracked.name)
        return mark is not None and any(
            store.position(tracked.name, sink.name).acknowledged < mark.offset
            or (isinstance(sink, MirrorSink) and sink.is_due(self._sidecar.log(tracked.name), now))
            for sink in sinks
        )

    @contextlib.contextmanager
    def _noted(self, tracked: Tracked, sink: Sink) -> Iterator[None]:
        try:
            yield
        except SidecarError as error:
            # The log cannot be asked where the sink is to go on: the next round asks again.
            self._failed(tracked.name, sink, error)

    def _has_full(self, sink: Sink, tracked: Tracked) -> bool:
        had = self._sidecar.store.position(tracked.name, sink.name).acknowledged
        log = self._sidecar.log(tracked.name)
        with contextlib.suppress(SidecarError):  # what the log cannot say now, the delivery meets as well
            return sum(storage.size(s.file) for s in log.list(max(had, log.floor()))) >= self._full(sink)
        return False

    def _full(self, sink: Sink) -> int:
        """Return how many bytes of the log make a batch for *sink* full."""
        return min(self._batch_bytes, sink.batch_bytes) if isinstance(sink, MirrorSink) else self._batch_bytes

    def _deliver(self, sink: Sink, tracked: Tracked) -> bool:
        """Hand *sink* one batch, acknowledge it once it is durable there, and return whether there may be more."""
        name, store = tracked.name, self._sidecar.store
        if name in self._sidecar.damaged:
            return False
        log = self._sidecar.log(name)
        position, mark = store.position(name, sink.name), store.watermark(name)
        if mark is None or (position.intended or mark.offset) <= position.acknowledged:
            return False
        began = self._sidecar.clock.monotonic()
        last = position.intended or mark.offset
        batch = Batch(name, position.acknowledged + 1, last, position.intended is not None, tracked.key)
        try:
            with failing_as(sink, batch):
                batch = dataclasses.replace(batch, log=log_records.identity(log), floor=log.floor())
                had = self._had(sink, log, batch, tracked.metadata_prefix)
                if had >= batch.first:
                    batch = dataclasses.replace(batch, last=had)
                elif (start := self._start(sink, log, tracked, position)) is not None:
                    batch = self._load(sink, log, start, batch, tracked.metadata_prefix)
                else:
                    batch = self._go_on(sink, log, batch, tracked.metadata_prefix)
                faults.point("sink-committed")
                consumers.acknowledge(log, store, sink.name, batch.last)
        except SidecarError as error:
            self._failed(name, sink, error)
            return False
        if self.failures.pop((name, sink.name), None) is not None:
            self._note(name)
        elapsed = self._sidecar.clock.monotonic() - began
        log_.info("table=%s sink=%s offsets=%d-%d ms=%d", name, sink.name, batch.first, batch.last, elapsed * 1000)
        return True

    def _had(self, sink: Sink, log: ChangeLog, batch: Batch, prefix: str) -> int:
        """Return up to which offset *sink* has the log, whatever its position says; SinkError where the two do not fit
        together. Asked by the first batch of a process: nobody restores a state while it is held.
        """
        if (batch.table, sink.name) in self._met:
            return batch.first - 1
        had = batch.first - 1
        if isinstance(sink, FileSink):
            had = sink.reached(self.session(), batch, log)
        elif isinstance(sink, FormatSink):
            sink.recognise(self.session(), batch, f"{prefix}commit_version")
        if batch.first <= had < log.floor():
            raise SinkError(
                f'sink "{sink.name}" has changes up to offset {had}, and those after it up to {log.floor()} are gone '
                "from the log since. Give it another name and place: that one begins anew"
            )
        is_replayed = batch.replay and had == batch.last  # it was killed before it was acknowledged
        if had >= batch.first and not is_replayed:
            log_.warning(
                "table=%s sink=%s has changes up to offset %d, and its position is of an older copy: it goes on behind "
                "them", batch.table, sink.name, had,
            )  # fmt: skip
        self._met.add((batch.table, sink.name))
        return had

    def _start(self, sink: Sink, log: ChangeLog, tracked: Tracked, position: ConsumerPosition) -> Start | None:
        """Return what *sink* begins with, where that is not a change; None also once it has begun."""
        if position.loading and position.intended in bases.offsets(log):
            return seeding.of_base(log, position.intended, tracked.metadata_prefix)
        if position.acknowledged or (position.intended is not None and not position.loading):
            return None
        is_in_doubt = not isinstance(sink, MirrorSink) or sink.catalog is not None
        if position.loading and is_in_doubt and (position.intended or 0) <= log.floor():
            # Another base would come beside what it has of this one, and rows that are gone since would stay.
            raise SinkError(
                f'sink "{sink.name}" was to begin with the table as of offset {position.intended}, was stopped while '
                "it was given that, and that is gone from the log since: how much of it the sink has is not known. "
                "Give it another name and place: that one begins anew"
            )
        if not isinstance(sink, MirrorSink):
            return seeding.of_changes(log, tracked.metadata_prefix)
        try:
            described = functools.partial(self._sidecar.described, log.table)
            return seeding.of_the_table(log, tracked.metadata_prefix, described)
        except (LogTruncated, SchemaChanged) as error:
            if sink.transform is not None and not log.floor():
                return None  # it may cast what cannot be read as one
            was = "its beginning is gone by retention" if isinstance(error, LogTruncated) else "its columns were others"
            raise SinkError(
                f'sink "{sink.name}", table "{log.table}": a new mirror begins with the whole table, and the log does '
                f"not tell that: {was}. To have the table read anew: sidecar watermark reset {log.table}"
            ) from error

    def _load(self, sink: Sink, log: ChangeLog, start: Start, batch: Batch, prefix: str) -> Batch:
        """Let *sink* begin with *start*; return the batch as which it has been given that."""
        columns = tuple(start.schema.names[len(METADATA) :])
        batch = dataclasses.replace(batch, first=1, last=start.offset, columns=columns)
        log_.info(
            "table=%s sink=%s is new: it begins with the table as of offset %d. Changes before are gone, or cannot "
            "be read with those after it", log.table, sink.name, start.offset,
        )  # fmt: skip
        consumers.load(log, self._sidecar.store, sink.name, start.offset)
        version = f"{prefix}commit_version"
        if not isinstance(sink, MirrorSink):
            files = start.base.files if start.base is not None else ()
            sink.write(seeding.frame(self.session(), start, files), batch, version)
        elif sink.transform is None:
            sink.load(seeding.tables(start), batch, version)
        else:
            whole = start.base.files if start.base is not None else ()
            sink.refuse_merged(sink.shaped(seeding.frame(self.session(), start, whole)), batch)
            sink.load((sink.shaped(f).toArrow() for f in seeding.frames(self.session(), start)), batch, version)
        return batch

    def _go_on(self, sink: Sink, log: ChangeLog, batch: Batch, prefix: str) -> Batch:
        """Give *sink* the changes from the batch's first one on; return the batch as far as it went."""
        store, floor = self._sidecar.store, log.floor()
        position = store.position(log.table, sink.name)
        if position == ConsumerPosition() and floor:
            log_.warning(
                "table=%s sink=%s is new, and changes up to offset %d are gone by retention, without a base: it begins "
                "behind them, and lacks all rows that have not changed since. For these: sidecar backfill %s",
                log.table, sink.name, floor, log.table,
            )  # fmt: skip
            consumers.acknowledge(log, store, sink.name, floor)
            batch = dataclasses.replace(batch, first=floor + 1)
        if isinstance(sink, MirrorSink):
            sink.recognise(batch, log, f"{prefix}commit_version")
        last = position.intended or self._end(sink, log, batch.first - 1, batch.last)
        batch = dataclasses.replace(batch, last=last, committed=segments.metadata(log.file(last)).committed)
        if isinstance(sink, MirrorSink):
            names = segments.columns(log.file(last)).names
            batch = dataclasses.replace(batch, columns=tuple(names[len(METADATA) :]))
        consumers.intend(log, store, sink.name, last)
        self._write(sink, log, batch, f"{prefix}commit_version")
        return batch

    def _write(self, sink: Sink, log: ChangeLog, batch: Batch, version: str) -> None:
        if isinstance(sink, MirrorSink) and sink.transform is None:
            # What is Spark's in it, it asks for: no session is started where there is nothing.
            sink.apply(feed.table(log, batch.first - 1, batch.last), batch, version)
            return
        spark, found = self.session(), feed.readable(log, batch.first - 1, batch.last)
        files = [segment.file for segment in found.segments]
        frame = feed.texts(spark, files, found.schema)
        if isinstance(sink, FileSink) and sink.takes(spark, files, found.schema) and sink.take(frame, files, batch):
            return
        sink.write(feed.parsed(frame, found.schema), batch, version)

    def _note(self, table: str) -> None:
        """Have `status` say what is wrong with *table*'s sinks, or that nothing is."""
        wrong = [str(error) for (name, _), error in self.failures.items() if name == table]
        self._sidecar.store.note(table, "\n".join(dict.fromkeys(wrong)) or None)

    def _failed(self, table: str, sink: Sink, error: SidecarError) -> None:
        before, now = self.failures.get((table, sink.name)), self._sidecar.clock.monotonic()
        self.failures[table, sink.name] = error
        self._note(table)
        if str(before) != str(error) or now - self._said.get((table, sink.name), now) >= AGAIN:
            self._said[table, sink.name] = now
            log_.error("%s", error)

    def _end(self, sink: Sink, log: ChangeLog, after: int, last: int) -> int:
        """Return the last offset of the batch after *after*: full, or all there is that can be read as one."""
        _, readable = log.columns(after + 1)
        found, full, size = log.list(after, last if readable is None else min(last, readable)), self._full(sink), 0
        if isinstance(sink, MirrorSink):
            # It must see each change of the columns, also of one that is taken back later.
            found = segments.alike(found)
        for count, segment in enumerate(found, 1):
            size += storage.size(segment.file)
            if size >= full or count == _BATCH_SEGMENTS:
                return segment.offset
        return found[-1].offset


def needs_spark(sink: Sink) -> bool:
    """Return whether *sink* is written through Spark; for any other no session is started."""
    return not isinstance(sink, MirrorSink) or sink.transform is not None or sink.catalog is not None


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
