"""An open project: settings, source, logs and state in one hand. What `sidecar.open` returns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sidecar import config, followed
from sidecar.backfilling import backfills
from sidecar.backfilling.backfills import BackfillStatus
from sidecar.backfilling.requests import Request
from sidecar.changelog import ChangeLog, tables
from sidecar.clock import Clock, SystemClock
from sidecar.connector import SourceConnector, connect
from sidecar.errors import SettingsError, SidecarError, StateDamaged
from sidecar.horizon import kind_of
from sidecar.log import bases, consumers, owner, recovery
from sidecar.log.files import unescaped
from sidecar.log.storage import AnyPath
from sidecar.mirrors import mirror
from sidecar.model import PassMark, PassName, Tracked, Watermark
from sidecar.poll import Step, fresh_watermark
from sidecar.polls.changes import change_schema
from sidecar.polls.deliveries import NOTHING
from sidecar.running import moving, standing
from sidecar.running.lock import StateLock
from sidecar.running.looking import look_at
from sidecar.state import WatermarkStore, open_database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sidecar.log.bases import Base
    from sidecar.runner import Runner
    from sidecar.running.results import PollResult
    from sidecar.running.standing import TableStatus


class Sidecar:
    """A project opened for running, or, with `read_only`, for looking at it while another process runs it.

    Opening takes the state's lock (StateHeld) and brings the state up to the log; the source is only asked when needed.
    """

    def __init__(self, settings_: config.Settings, *, clock: Clock | None = None, read_only: bool = False) -> None:
        self.settings = settings_
        self.clock: Clock = clock or SystemClock()
        self.read_only, self._is_closed = read_only, False
        self._connector: SourceConnector | None = None
        self._lock: StateLock | None = None
        self._store: WatermarkStore | None = None
        self._logs: dict[str, ChangeLog] = {}
        self._poller: Runner | None = None
        self._claim = owner.Claim(self.root, self.settings.state.path)
        self._settled: dict[str, tuple[Tracked, Tracked]] = {}
        self.outlines: dict[str, object] = {}
        """What the connector said of each table when it was described; see `SourceConnector.outline`."""
        self.damaged: dict[str, StateDamaged] = {}
        """The tables whose log and state do not fit together; they are not polled until that is mended."""

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> AnyPath:
        """The folder of the change logs."""
        return self.settings.log

    @property
    def connector(self) -> SourceConnector:
        """The source; connected to on first use."""
        if self._connector is None:
            self._must_be_open()
            self._connector = connect(config.source(self.settings, self.clock))
        return self._connector

    @cached_property
    def tracked(self) -> Mapping[str, Tracked]:
        """The followed tables by name, as the source describes them now."""
        return self._outlined(followed.resolve(self.settings, self.connector))

    def followable(self) -> tuple[Mapping[str, Tracked], Mapping[str, SettingsError]]:
        """Return `tracked`, and by name why others cannot be followed, which is no matter to these."""
        if "tracked" not in self.__dict__:
            found, broken = followed.resolve_apart(self.settings, self.connector)
            if broken and found:
                return {t.name: t for t in found}, broken
        return self.tracked, {}

    def track_apart(self) -> Mapping[str, SettingsError]:
        """Follow the tables that can be, where others cannot; return by name why these cannot."""
        found, broken = followed.resolve_apart(self.settings, self.connector, self.store.tables())
        standing.note(self.store, [t.name for t in found], broken)
        self.__dict__["tracked"] = self._outlined(found)
        return broken

    def note_away(self, error: SidecarError) -> None:
        """Have `status` say of all tables that the source cannot be asked: *error*."""
        standing.note_away(self, error)

    def _outlined(self, found: Collection[Tracked]) -> Mapping[str, Tracked]:
        self.outlines = {t.name: self.connector.outline(t.table) for t in found}
        return {t.name: t for t in found}

    @property
    def store(self) -> WatermarkStore:
        """The state; locked, opened, and rolled forward on first use."""
        if self._store is None:
            self._must_be_open()
            self._store = look_at(self.settings.state.path / "db") if self.read_only else self._open_state()
        return self._store

    def log(self, table: str) -> ChangeLog:
        """Return *table*'s change log."""
        # Kept: one that has written a segment need not read it to know what came before the next.
        if table not in self._logs:
            self._logs[table] = ChangeLog(self.root, table, self.settings.state.path, self._claim.check)
        return self._logs[table]

    def refresh(self) -> None:
        """Ask the source anew for its tables at the next use."""
        self._poller = None
        self.__dict__.pop("tracked", None)

    def settled(self, tracked: Tracked) -> Tracked:
        """Return *tracked* with the types in which its columns are delivered: as its log has them, once it has."""
        if (known := self._settled.get(tracked.name)) is not None and known[0] == tracked:
            return known[1]
        log = self.log(tracked.name)
        is_decided = bool(log.last()) or self.connector.estimate(tracked) is not None
        found = self.connector.settle(tracked, log.schema)
        if is_decided or found is tracked:
            # Kept at once: to look through a large table takes seconds, and its first chunk and first poll must agree.
            # What is said of an empty one is not: its first rows decide, however long after.
            self._settled[tracked.name] = tracked, found
        return found

    def unsettle(self, table: str) -> None:
        """Look anew for the types of *table*'s columns that its log has not settled: they may be what is wrong."""
        self._settled.pop(table, None)

    # -- what users do -------------------------------------------------------------------------------------------------

    def poll(self, names: Iterable[str] | None = None) -> dict[str, PollResult]:
        """Bring the logs of all tables, or those named, up to the source; no sink is written."""
        self._must_write("poll")
        # Kept as long as nothing else is done: it knows what is at rest, and asks that but one question.
        runner, self._poller = self._poller or self._runner(), None
        found = runner.poll(names)
        self._poller = runner
        return found

    def run(
        self,
        spark: SparkSession | None = None,
        *,
        once: bool = False,
        interval: float = 5.0,
        stop: threading.Event | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> int:
        """Poll and feed the sinks, once or until *stop* is set; return the exit code. *interval* in seconds."""
        self._must_write("run")
        self._poller = None
        return self._runner(spark, stop=stop, on_step=on_step).run(once=once, interval=interval)

    def _runner(self, spark: SparkSession | None = None, **settings: Any) -> Runner:
        from sidecar.runner import Runner

        return Runner(self, spark, **settings)

    def dataframe(
        self, spark: SparkSession, table: str, since: int | None = None, until: int | None = None
    ) -> DataFrame:
        """Return *table*'s changes with `since < offset <= until` as a DataFrame; see `feed.dataframe`.

        Without *since*: all that its log holds, which retention may have shortened.
        """
        from sidecar import feed

        log = self.log(table)
        since = log.floor() if since is None else since
        for name, value in (("since", since), ("until", until)):
            if value is not None and (type(value) is not int or value < 0):
                raise SettingsError(f'table "{table}": {name}={value!r}: an offset is a whole number from 0 on')
        schema = log.schema()
        if schema is None:
            schema = self.described(table)
        return feed.dataframe(spark, log, since, until, schema)

    def current(self, spark: SparkSession, table: str, as_of: int | str | datetime | None = None) -> DataFrame:
        """Return *table* as it is by its log, or was as of an offset or a time; see `current.dataframe`."""
        from sidecar.lake import current

        return current.dataframe(spark, self.log(table), as_of, functools.partial(self.described, table))

    def compact(self, spark: SparkSession, table: str) -> Base:
        """Return the base of *table* as of now, written if there is none: it stands in for the log up to there, which
        retention may then drop. StateHeld while a runner is at work, which does this by itself.
        """
        from sidecar.lake import compaction

        self._must_write("compact")
        _ = self.store  # and so the lock
        log = self.log(table)
        return compaction.compact(spark, log, log.last(), functools.partial(self.described, table))

    def described(self, table: str) -> pa.Schema:
        """Return the columns of *table*'s log as the source has them now."""
        return change_schema(self.settled(self._known(table)))

    def mirror(self, spark: SparkSession, table: str, sink: str | None = None) -> DataFrame:
        """Return what the mirror of *table* holds now as a DataFrame; *sink* says which of several. See `mirror`."""
        return mirror.held(spark, self.settings, self._known(table), sink)

    def watermark(self, table: str) -> Watermark | None:
        """Return where *table* stands, or None before its first poll."""
        return self.store.watermark(table)

    def set_watermark(self, table: str, value: str) -> Watermark:
        """Let the next poll of *table* read from just above the cursor value *value* on, delivered before or not."""
        self._must_write("set_watermark")
        tracked = self._known(table)
        kind = kind_of(tracked, tracked.passes[0])
        closed = moving.closed_at(value, tracked, kind, self.clock.now())
        before = self.store.watermark(tracked.name)
        held = before.marks if before else {}
        # What the value means in a column of another kind is not known: such a pass stays where it is.
        marks: dict[PassName, PassMark] = {
            scan.name: PassMark(closed=closed) if kind_of(tracked, scan) == kind else held.get(scan.name, PassMark())
            for scan in tracked.passes
        }
        return self._move(tracked, marks)

    def reset_watermark(self, table: str) -> Watermark:
        """Let the next poll of *table* read all of it, as if for the first time; its log and its sinks go on."""
        self._must_write("reset_watermark")
        return self._move(self._known(table), {})

    def accept_schema(self, table: str) -> list[str]:
        """Let the log of *table* go on with the columns that it has now, whatever they were; return what has changed.

        Changes from before a type was changed are read apart. SettingsError if it is the key's or a cursor's.
        """
        self._poller = None
        self._must_write("accept_schema")
        return moving.accept_schema(self, self.settled(self._known(table)))

    def request_backfill(
        self,
        table: str,
        *,
        where: str | None = None,
        keys: Iterable[object] | None = None,
        purge: bool = False,
        empty: bool = False,
        quarantined: bool = False,
    ) -> Request | None:
        """Ask for existing rows of *table* again, all or a part; done by whichever process runs next, or runs now.

        `where`: a condition in the source's SQL. `keys`: each a value, a tuple of values, or text with commas. `purge`:
        afterwards, deletes for what the source has no more; `empty`: even if it has no rows. `quarantined`: the rows
        set aside; None without any. One that waits for the same is returned. SettingsError for what cannot be asked.
        The state is not opened for it: another process may hold that.
        """
        self._must_write("request_backfill")
        known = self._known(table)
        return backfills.request(self, known, where=where, keys=keys, purge=purge, empty=empty, quarantined=quarantined)

    def backfills(self, table: str | None = None) -> list[BackfillStatus]:
        """Return the backfills of *table*, or of all tables, that wait, are under way, or have ended lately."""
        return backfills.statuses(self, table)

    def cancel_backfill(self, table: str) -> list[str]:
        """Cancel the backfills of *table* that have not ended; return their ids. What is in the log stays there."""
        self._must_write("cancel_backfill")
        self._poller = None
        return backfills.cancel(self, table)

    def status(self) -> list[TableStatus]:
        """Return where each table stands; the source is not asked."""
        return standing.tables(self)

    def cancel(self) -> None:
        """Have what is being read of the source break off; from any thread."""
        if self._connector is not None:
            self._connector.cancel()

    def close(self) -> None:
        """Let go of source, state and lock; what needs them is an error from now on."""
        self._is_closed, self._poller = True, None
        with contextlib.ExitStack() as stack:
            for part in (self._lock, self._store, self._connector):
                if part is not None:
                    stack.callback(part.close)
            self._connector = self._store = self._lock = None

    def __enter__(self) -> Sidecar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _must_be_open(self) -> None:
        if self._is_closed:
            raise SidecarError("this project is closed, as after its `with` block: use it inside, or open it anew")

    def _must_write(self, what: str) -> None:
        if self.read_only:
            raise SettingsError(
                f"{what} writes to the state, and this project is open for reading: open it without read_only"
            )

    # -- state ---------------------------------------------------------------------------------------------------------

    def _open_state(self) -> WatermarkStore:
        folder = self.settings.state.path
        self._lock = StateLock(folder, self.clock)
        try:
            self._claim.make(self.clock)
            store: WatermarkStore = open_database(folder / "db")
            try:
                self._recover(store)
            except BaseException:
                store.close()
                raise
        except BaseException:
            self._lock.close()
            self._lock = None
            raise
        return store

    def _recover(self, store: WatermarkStore) -> None:
        for table in sorted({*self._logged(), *store.tables()}):
            log = self.log(table)
            for recover in (bases.recover, consumers.recover, recovery.recover):
                try:
                    recover(log, store)
                except StateDamaged as error:
                    # One table's log: the others go on, and a reset of this one must be possible.
                    self.damaged[table] = error

    def _logged(self) -> list[str]:
        """Return the tables that have a log, by the names in their segments' footers; the folder's name is escaped."""
        return [name for folder in tables(self.root) if (name := unescaped(folder)) is not None]

    def _known(self, table: str) -> Tracked:
        tables, broken = self.followable()
        if table in broken:
            raise broken[table]
        if (found := tables.get(table)) is None:
            raise SettingsError(f'table "{table}" is not followed; followed are: {", ".join(tables) or "none"}')
        return found

    def _move(self, tracked: Tracked, marks: Mapping[PassName, PassMark]) -> Watermark:
        """Store a moved watermark through the log, as an empty segment: so it, too, survives a lost RocksDB."""
        self._poller = None
        # First the lock, which opening the state takes: another process may be writing this log.
        store, log = self.store, self.log(tracked.name)
        try:
            log.schema()  # the last segment, which the next one goes by, may be damaged since the state was opened
        except StateDamaged as error:
            self.damaged[tracked.name] = error
        if tracked.name in self.damaged:
            moving.give_up(self.store, log, tracked)
            del self.damaged[tracked.name]
        offset, before = log.last() + 1, store.watermark(tracked.name)
        mark = dataclasses.replace(fresh_watermark(tracked), offset=offset, marks=marks)
        if marks and before is not None:
            # Only the polls' position is another: what backfills have brought stays brought.
            mark = dataclasses.replace(mark, finished=before.finished, version=before.version)
        empty = change_schema(self.settled(tracked)).empty_table()
        log.append(offset, empty, mark, NOTHING, committed=self.clock.now(), origin="poll", moved=True)
        store.save(tracked.name, mark, NOTHING, forget_all=True)
        return mark


def open_project(path: str | Path = "sidecar.toml", *, clock: Clock | None = None, read_only: bool = False) -> Sidecar:
    """Return the project that the settings file at *path* describes; SettingsError if it does not parse."""
    return Sidecar(config.load(Path(path)), clock=clock, read_only=read_only)
