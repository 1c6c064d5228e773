"""Mirrors: sinks that keep a table equal to the source, or its whole history, exactly once by the log's offsets.

What changes become is decided by `folding`; where the rows are, and that a batch is one commit which carries its
offset, is the table's affair. So a batch that is given again is one that the table has already.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError, SinkError
from sidecar.log import log_records, storage
from sidecar.mirrors import folding
from sidecar.mirrors.folding import TIME, After, Changes, Held
from sidecar.mirrors.mirror_table import Owner, Reached
from sidecar.mirrors.newest import Named
from sidecar.mirrors.upkeep import Upkeep
from sidecar.mirrors.witness import Witness
from sidecar.settings import mirrored
from sidecar.sinks import Batch, Common

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sidecar.config import Settings
    from sidecar.mirrors.catalog_table import Catalog
    from sidecar.mirrors.mirror_table import MirrorTable
    from sidecar.model import Tracked

log_ = logging.getLogger("sidecar")

BATCH_BYTES = 32 << 20
"""How much of the log makes a batch full: its rows are in this process's memory, about ten times as large."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to mirror: what changes make of the rows that are held, and whether it must see these rows whole."""

    rule: Callable[[Changes, Held], After]
    whole: bool


KINDS: Mapping[str, Kind] = {
    "current": Kind(folding.replaced, whole=False),
    "marked": Kind(folding.marked, whole=True),
    "history": Kind(folding.versioned, whole=True),
}


def own_columns(kind: str, named: Named) -> tuple[pa.Field, ...]:
    """Return the columns that a mirror of *kind* has beside the source's."""
    names = mirrored.own_names(kind, named.prefix)
    return tuple(pa.field(name, pa.bool_() if name == named.is_current else TIME) for name in names)


@dataclass(frozen=True)
class MirrorSink(Common):
    """Keep a table equal to the source's: `path/<table>`, a Delta table written by delta-rs, or one of a *catalog*."""

    path: str = ""
    kind: str = "current"
    compact_every: int = 0
    vacuum_after: int = 0
    batch_bytes: int = BATCH_BYTES
    catalog: Catalog | None = None
    _tables: dict[str, MirrorTable] = field(default_factory=dict, compare=False, repr=False)
    _witnesses: dict[str, Witness] = field(default_factory=dict, compare=False, repr=False)
    _touched: set[str] = field(default_factory=set, compare=False, repr=False)

    def write(self, frame: DataFrame, batch: Batch, version: str) -> None:
        """Make the table level with *batch*, which one commit does, or none if it is already."""
        if self._has(batch):
            return
        self.apply(self.shaped(frame).toArrow(), batch, version)

    def apply(self, changes: pa.Table, batch: Batch, version: str) -> None:
        """Do the same with the batch's rows in memory."""
        named = Named(version.removesuffix(Named("").version))
        with self._opened(changes.schema, batch, named) as table:
            applied = table.applied(batch.first - 1)
            if applied >= batch.last:
                return
            if batch.first > applied + 1:
                raise SinkError(f"{_where(self, batch)}: {_gap(table, applied, batch, batch.first - 1)}")
            columns = self._ready(table, changes.schema, batch, named)
            if applied >= batch.first:
                changes = changes.filter(pc.greater(changes.column(named.version), applied))
            kind, through = KINDS[self.kind], Reached(batch.last, batch.committed)
            table.apply(self._changes(changes, batch, named, columns), kind.rule, through, whole=kind.whole)

    def load(self, pieces: Iterable[pa.Table], batch: Batch, version: str) -> None:
        """Make a table of *pieces*, of which there is at least one, and in which no key stands twice: all rows as of
        the batch's end. One commit, in the memory of a piece; none if the table is there already.
        """
        named, waiting = Named(version.removesuffix(Named("").version)), iter(pieces)
        first = next(waiting)
        with self._opened(first.schema, batch, named) as table:
            applied = table.applied(batch.first - 1)
            if applied >= batch.last:
                return
            if applied:
                raise SinkError(f"{_where(self, batch)}: {_gap(table, applied, batch, batch.last)}")
            columns = self._ready(table, first.schema, batch, named)
            rows = (self._changes(piece, batch, named, columns) for piece in itertools.chain([first], waiting))
            table.load(rows, KINDS[self.kind].rule, Reached(batch.last, batch.committed))

    def recognise(self, batch: Batch, log: ChangeLog, version: str) -> None:
        """Make sure, when the table is met for the first time, that what it has beyond its position is in *log*.

        SinkError where it is not: the log, and the positions with it, are of an older copy.
        """
        if batch.table in self._tables:
            return
        if self.catalog is None:
            has_begun = self.upkeep.has_begun(log)
        else:
            self._witnesses[batch.table] = Witness(log, self.name)
            has_begun = self._witnesses[batch.table].has_begun
        with self._met(batch) as table:
            if not table.exists():
                if has_begun:
                    raise _gone(self, table, batch)
                return
            table.open(pa.schema([]), 0)
            applied, stamp = table.newest(batch.first - 1, version), table.committed()
            if applied < batch.first:
                return
            here = log.metadata(applied)
            if here is not None and stamp in (None, here.committed):
                return
            why = f"ends at offset {log.last()}" if here is None else f"has something else at {applied} than it had"
            raise SinkError(
                f"{_where(self, batch)}: the {table.what} has changes up to offset {applied} of a log "
                f"that by now {why}: it was restored from an older copy. What was in it after that is in the table, "
                "and the log tells it otherwise. Give the sink another name and path: that one begins anew"
            )

    @contextlib.contextmanager
    def _opened(self, schema: pa.Schema, batch: Batch, named: Named) -> Iterator[MirrorTable]:
        """Yield the table, which is made if there is none."""
        wanted = pa.schema([*self._source_columns(schema, batch, named), *self._own_columns(named)])
        with self._met(batch) as table:
            if not table.exists() and batch.first - 1 > batch.floor:
                raise _gone(self, table, batch)
            table.open(wanted, batch.first - 1)
            yield table
            self._touched.add(batch.table)

    def _ready(self, table: MirrorTable, schema: pa.Schema, batch: Batch, named: Named) -> pa.Schema:
        """Let *table* have the columns of the batch's rows, *schema*; return those that it has of the source."""
        own = self._own_columns(named)
        if batch.columns is not None:
            table.renew(batch.columns, {"history": named.valid_to, "marked": named.deleted_at}.get(self.kind))
        names = [column.name for column in own]
        table.evolve(pa.schema([*self._source_columns(schema, batch, named), *own]), names)
        return pa.schema([column for column in table.schema() if column.name not in names])

    def _own_columns(self, named: Named) -> tuple[pa.Field, ...]:
        # A catalog's table knows by its rows which changes it has.
        offset = [pa.field(named.version, pa.int64())] if self.catalog is not None else []
        return (*own_columns(self.kind, named), *offset)

    @functools.cached_property
    def upkeep(self) -> Upkeep:
        """When the tables are to be tidied up."""
        return Upkeep(self.name, self.compact_every, self.vacuum_after)

    def is_due(self, log: ChangeLog, now: int) -> bool:
        """Return whether upkeep of the table that *log* goes to is due although nothing may have come."""
        # The upkeep of a catalog's table is the catalog's.
        return self.catalog is None and self.upkeep.is_due(log, now)

    def maintain(self, log: ChangeLog, key: tuple[str, ...], now: int) -> None:
        """Do the upkeep of the table that *log* goes to, by *key*, where it is due; costs nothing where it is not.

        A failure is said, and stops nothing: it is tried again when it is due again.
        """
        if self.catalog is not None:
            return
        try:
            if log.table in self._touched:
                self._touched.discard(log.table)
                self.upkeep.touched(log, now)
            self.upkeep.do(log, now, functools.partial(self._maintain, log, key))
        except Exception as error:
            log_.warning("table=%s sink=%s: upkeep failed, and is tried later: %s", log.table, self.name, error)

    def _maintain(self, log: ChangeLog, key: tuple[str, ...]) -> None:
        batch = Batch(log.table, 1, 0, key=key, log=log_records.identity(log))
        # One that is not known yet is not known afterwards either: its first batch looks at it otherwise.
        table = self._tables.get(log.table) or self._made(batch)
        if not table.exists():
            return
        # Somebody who has changed it may need what is removed here to take that back.
        table.open(pa.schema([]), 0)
        joined, removed = table.maintain(self.vacuum_after)
        log_.info("table=%s sink=%s compacted=%d vacuumed=%d", log.table, self.name, joined, removed)

    def _has(self, batch: Batch) -> bool:
        """Return whether the table is level with *batch*, as far as it can be told without the batch's rows."""
        with self._met(batch) as table:
            if not table.exists():
                return False
            table.open(pa.schema([]), 0)
            return table.applied(batch.first - 1) >= batch.last

    @contextlib.contextmanager
    def _met(self, batch: Batch) -> Iterator[MirrorTable]:
        """Yield the batch's table. Once something fails, it is opened anew the next time: what this knows of it may be
        of before the failure.
        """
        try:
            yield self._table(batch)
        except BaseException:
            self._tables.pop(batch.table, None)
            raise

    def _table(self, batch: Batch) -> MirrorTable:
        if batch.table not in self._tables:
            self._tables[batch.table] = self._made(batch)
        return self._tables[batch.table]

    def _made(self, batch: Batch) -> MirrorTable:
        return self._keep(Owner(batch.log, self.name, batch.table, batch.key, self.kind), _where(self, batch))

    def _keep(self, owner: Owner, where: str) -> MirrorTable:
        if self.catalog is not None:
            from sidecar.mirrors.catalog_table import CatalogMirror

            return CatalogMirror(self.catalog, self.options, owner, where, self._witnesses.get(owner.table))
        from sidecar.mirrors.delta_table import DeltaMirror

        return DeltaMirror(mirrored.place(self.path, owner.table), self.options, owner, where)

    def _changes(self, rows: pa.Table, batch: Batch, named: Named, columns: pa.Schema) -> Changes:
        for name in batch.key:
            if rows.column(name).null_count:
                by = f" of the transform {self.transform}" if self.transform else ""
                raise SinkError(f'{_where(self, batch)}: key column "{name}"{by} holds NULLs: no row is told by these')
        changes = Changes(rows, named, batch.key, columns)
        if self.transform is not None and len(twice := changes.twice()):
            raise self._merged(twice.slice(0, 3).to_pylist(), batch)
        return changes

    def refuse_merged(self, frame: DataFrame, batch: Batch) -> None:
        """Raise SinkError if the transform makes one key of several in *frame*, the rows of a base through it."""
        from pyspark.sql import functions

        if set(batch.key) <= set(frame.columns):
            key = [functions.col(mirrored.quoted(name)) for name in batch.key]
            counted = frame.groupBy(*key).agg(functions.count(functions.lit(1)).alias("_sidecar_rows"))
            if twice := counted.where("_sidecar_rows > 1").drop("_sidecar_rows").limit(3).collect():
                raise self._merged([row.asDict() for row in twice], batch)

    def _merged(self, keys: Iterable[Mapping[str, Any]], batch: Batch) -> SinkError:
        said = "; ".join(", ".join(f"{name}={value!r}" for name, value in key.items()) for key in keys)
        return SinkError(
            f"{_where(self, batch)}: the transform {self.transform} makes one key of several rows ({said}), and a "
            "mirror holds one row of each. Let it keep apart what the source's key does"
        )

    def _source_columns(self, schema: pa.Schema, batch: Batch, named: Named) -> list[pa.Field]:
        """Return the columns of *schema* that are the source's; SettingsError if it is no table of changes by a key."""
        by = f" The transform {self.transform} has to keep it" if self.transform else ""
        for name in (*named.metadata, *batch.key):
            if name not in schema.names:
                what = "a column of the key" if name in batch.key else "which says what a change is"
                raise SettingsError(f'{_where(self, batch)}: there is no column "{name}", {what}.{by or " Deliver it"}')
        if not batch.key:
            raise SettingsError(f"{_where(self, batch)}: a mirror goes by a key, and the table has none")
        source = [column for column in schema if column.name not in named.metadata]
        mirrored.refuse_clashes(
            (column.name for column in source), mirrored.own_names(self.kind, named.prefix), _where(self, batch)
        )
        return source


def held(spark: SparkSession, settings: Settings, tracked: Tracked, sink: str | None) -> DataFrame:
    """Return what the mirror of *tracked* holds now; SettingsError if there is none, or unclear which is meant.

    *sink* says which, where the table goes to more than one. SinkError if there is no such table yet.
    """
    found = settings.sinks[find(settings, tracked, sink)]
    if found.table is None:
        return dataframe(spark, mirrored.place(found.path or "", tracked.name), found.options)
    place = mirrored.identifier(found.table, tracked.name)
    if not spark.catalog.tableExists(place):
        raise SinkError(f"there is no table {place} yet; it is made when the sink gets its first changes")
    return spark.table(place)


def find(settings: Settings, tracked: Tracked, sink: str | None) -> str:
    """Return which sink keeps the mirror of *tracked*; SettingsError if none does, or it is unclear which is meant."""
    names = [name for name in tracked.sinks if settings.sinks[name].mode == "mirror"]
    if sink is None and len(names) == 1:
        sink = names[0]
    if sink not in names:
        asked = "there is more than one" if sink is None and names else f'"{sink}" is none' if sink else "there is none"
        has = f"; there are: {', '.join(names)}" if names else '. Add a sink with mode = "mirror"'
        raise SettingsError(f'table "{tracked.name}": of its mirrors, {asked}{has}')
    return sink


def dataframe(spark: SparkSession, place: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Return the Delta table at *place* as it is now, for as long as `vacuum_after` keeps its files; or SinkError."""
    from deltalake import DeltaTable

    from sidecar.feed import spark_schema

    if not DeltaTable.is_deltatable(place, dict(options or {}) or None):
        raise SinkError(f"{place}: there is no Delta table yet; it is made when the sink gets its first changes")
    table = DeltaTable(place, storage_options=dict(options or {}) or None)
    schema = spark_schema(pa.schema(table.schema().to_arrow()))
    # As URIs, which Spark would take for names.
    paths = table.file_uris() if "://" in place else [unquote(uri) for uri in table.file_uris()]
    reader, found = spark.read.schema(schema), map(storage.literal, paths)
    return reader.parquet(*found) if paths else spark.createDataFrame([], schema)


def _gap(table: MirrorTable, applied: int, batch: Batch, lacks: int) -> str:
    """Return why *table*, which has the changes up to *applied* and not all up to *lacks*, cannot be gone on from."""
    has = f"the {table.what} has changes up to offset {applied}"
    if batch.floor > applied:
        return (
            f"{has}, and those after it up to {batch.floor} are gone from the log. If that was damaged, and begun anew "
            "before the table had them, give the sink another name and path: that one begins anew. If the table is an "
            "older copy, put the newest one back"
        )
    return (
        f"{has}, and the next ones are from {lacks + 1} on: it is an older copy. Put the newest one back; or give the "
        "sink another name and path: that one begins anew"
    )


def _gone(sink: MirrorSink, table: MirrorTable, batch: Batch) -> SinkError:
    return SinkError(
        f"{_where(sink, batch)}: there is no {table.what}, and it has been given the changes up to offset "
        f"{batch.first - 1}. Put it back; or begin anew: give the sink another name"
    )


def _where(sink: MirrorSink, batch: Batch) -> str:
    return f'sink "{sink.name}", table "{batch.table}"'
