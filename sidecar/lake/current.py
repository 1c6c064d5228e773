"""The table as it is, or was: its log folded by key, the newest offset wins, deletes out. The source is not asked.

What it is made of (`Plan`) is decided from footers alone; no row is read for it. There are rows in which no key stands
twice, the `head`: a base, or the chunks of one backfill. And there is the `rest`, which is small where all goes well.
So the keys of the rest are looked at first, with the newest offset of each; then all rows are read once, and those go
of which a newer one is known. That is an anti-join with a small table, where a window would sort the whole.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar import clock, feed
from sidecar.changelog import ChangeLog, SchemaVersion
from sidecar.errors import LogTruncated, SchemaChanged, SettingsError, StateDamaged
from sidecar.log import bases, segments, storage
from sidecar.log.bases import Base
from sidecar.log.segments import Segment
from sidecar.log.storage import AnyPath
from sidecar.model import DELETE, INSERT, KEY, METADATA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SMALL = 32 << 20
"""Segments of so many bytes have keys that each of Spark's tasks can hold."""


@dataclass(frozen=True, slots=True)
class Part:
    """Files of one kind of columns. `taken` are the source's columns of which something is read; `kind` and `version`,
    the columns that hold change type and offset: None in a base, all of whose rows are there as of `offset`.
    """

    paths: tuple[AnyPath, ...]
    schema: pa.Schema
    taken: frozenset[str]
    kind: str | None = None
    version: str | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the table as of `offset` is made of; `schema` are its columns, `key` those by which it is folded.

    No key stands twice in the `head`. `mixed`: rows of the head may be newer than others of the rest. `small`: the
    keys of the rest are few.
    """

    offset: int
    schema: pa.Schema
    key: tuple[str, ...]
    head: tuple[Part, ...] = ()
    rest: tuple[Part, ...] = ()
    mixed: bool = False
    small: bool = True
    base: Base | None = None

    @property
    def paths(self) -> list[AnyPath]:
        """The files that are read."""
        return [path for part in (*self.head, *self.rest) for path in part.paths]


def dataframe(
    spark: SparkSession, log: ChangeLog, as_of: int | str | datetime | None, described: Callable[[], pa.Schema]
) -> DataFrame:
    """Return the table as of *as_of*: an offset, a time with its zone (also as ISO text), or None, as of now.

    Its columns are the source's, as the log had them then, in the types of `feed.dataframe`; rows that are deleted are
    none of it. As of a time: after all changes up to the first one that was seen later. *described* gives the log's
    columns as the source has them, for a log that does not say its key. SettingsError for what is no offset or time of
    this log; LogTruncated if retention has dropped what would be needed; SchemaChanged if the rows before a change of
    a column's type, or of the key, would be needed after it.
    """
    made = plan(log, as_of, described)
    return feed.parsed(texts(spark, made), made.schema)


# -- what it is made of ------------------------------------------------------------------------------------------------


def plan(log: ChangeLog, as_of: int | str | datetime | None, described: Callable[[], pa.Schema]) -> Plan:
    """Return what *log*'s table as of *as_of* is made of; see `dataframe`."""
    while True:
        floor = log.floor()
        try:
            return _plan(log, as_of, described)
        except (LogTruncated, StateDamaged):
            # What was there a moment ago may have been dropped by now; then another base has taken its place.
            if log.floor() == floor:
                raise


def _plan(log: ChangeLog, as_of: int | str | datetime | None, described: Callable[[], pa.Schema]) -> Plan:
    floor = log.floor()
    found = log.list(floor)
    at = _offset(log, as_of, floor, found)
    known = [offset for offset in bases.offsets(log) if floor <= offset <= at]
    if at == 0:
        return Plan(0, _source_columns(segments.columns(found[0].file) if found else described()), ())
    if at == floor and not known:
        raise _gone(log, f"offset {at}", floor)
    if at == floor:
        return _with_base(bases.load(log, at), described)
    columns, since = segments.columns(log.file(at)), segments.metadata(log.file(at)).schema_since
    key = key_of(columns) or key_of(described())
    base = _base(log, known, at, since, key)
    start = base.offset if base is not None else _beginning(log, floor, found, at, since=since, key=key)
    schema, taking = _source_columns(columns), [s for s in found if start < s.offset <= at]
    versions = [] if not taking else _versions(log, taking[0].offset, at)
    alive = _alive(schema, versions)
    if base is not None:
        names = frozenset(base.schema.names) & (alive[-1] if alive else frozenset(schema.names))
        head: Sequence[Part] = [Part(base.files, base.schema, names, offset=base.offset)]
        rest, mixed = taking, False
    else:
        load = _one_load(taking)
        rest = [s for s in taking if s.offset not in load]
        head = list(_parts([s for s in taking if s.offset in load], versions, alive))
        mixed = bool(load and rest) and max(load) > rest[0].offset
    small = sum(storage.size(s.file) for s in rest) <= SMALL
    return Plan(at, schema, key, tuple(head), tuple(_parts(rest, versions, alive)), mixed, small, base)


def beginning(log: ChangeLog, described: Callable[[], pa.Schema]) -> tuple[int, Base | None]:
    """Return the earliest offset after which the changes, with the base there is at it, tell the table as of now.

    0, and no base: the log tells it from its first change on. Errors as of `dataframe`.
    """
    floor = log.floor()
    found, known = log.list(floor), [offset for offset in bases.offsets(log) if offset >= floor]
    at = found[-1].offset if found else floor
    if not found and not known:
        if floor:
            raise _gone(log, f"offset {at}", floor)
        return 0, None
    columns = segments.columns(found[-1].file) if found else bases.load(log, known[-1]).schema
    since = segments.metadata(found[-1].file).schema_since if found else at
    key = key_of(columns) or key_of(described())
    if found and _is_whole(found, since, key):
        return 0, None
    base = _base(log, known[::-1], at, since, key)
    if base is not None:
        return base.offset, base
    return _beginning(log, floor, found, at, since=since, key=key), None


def key_of(columns: pa.Schema) -> tuple[str, ...]:
    """Return the columns that *columns* marks as the key; none, in a log of before they were marked."""
    return tuple(field.name for field in columns if KEY.items() <= (field.metadata or {}).items())


def _with_base(base: Base, described: Callable[[], pa.Schema]) -> Plan:
    part = Part(base.files, base.schema, frozenset(base.schema.names), offset=base.offset)
    return Plan(base.offset, base.schema, key_of(base.schema) or key_of(described()), (part,), base=base)


def _source_columns(columns: pa.Schema) -> pa.Schema:
    return pa.schema(list(columns)[len(METADATA) :])


def _offset(log: ChangeLog, as_of: int | str | datetime | None, floor: int, found: Sequence[Segment]) -> int:
    """Return the offset that *as_of* says."""
    last = found[-1].offset if found else floor
    if as_of is None:
        return last
    if isinstance(as_of, str | datetime):
        return _offset_at(log, moment(as_of), floor, found)
    if type(as_of) is not int or as_of < 0:
        raise SettingsError(f'table "{log.table}": as of {as_of!r}: give an offset, or a time with its zone')
    if as_of > last:
        raise SettingsError(f'table "{log.table}": as of offset {as_of}: its log ends at {last}')
    if as_of < floor:
        raise _gone(log, f"offset {as_of}", floor)
    return as_of


def moment(as_of: str | datetime) -> int:
    """Return the time *as_of* in microseconds; SettingsError if it is none, or does not say its zone."""
    try:
        then = datetime.fromisoformat(as_of) if isinstance(as_of, str) else as_of
    except ValueError:
        raise SettingsError(
            f'as of "{as_of}": is neither an offset nor a time; write a time as 2024-05-01T10:00:00Z'
        ) from None
    if then.utcoffset() is None:
        raise SettingsError(f'as of "{as_of}": says no zone; write it as {then.isoformat()}Z, or with its offset')
    return clock.micros(then)


def _offset_at(log: ChangeLog, then: int, floor: int, found: Sequence[Segment]) -> int:
    """Return the last offset such that all changes up to it had been seen at *then*.

    Segments are stamped by clocks, which may step back; what is later than *then* is never shown.
    """
    known = [offset for offset in bases.offsets(log) if offset >= floor]
    at = next((offset for offset in reversed(known) if bases.load(log, offset).committed <= then), None)
    if at is None:
        if floor and (known or (found and segments.metadata(found[0].file).committed > then)):
            raise _gone(log, clock.iso(then), floor)
        at = floor
    for segment in found[bisect.bisect_right(found, at, key=lambda s: s.offset) :]:
        if segments.metadata(segment.file).committed > then:
            break
        at = segment.offset
    return at


def _gone(log: ChangeLog, what: str, floor: int) -> LogTruncated:
    earliest = next((offset for offset in bases.offsets(log) if offset >= floor), None)
    if earliest is None:
        can = (
            "There is no base either ([state] bases = true keeps one before retention drops what is in it). For the "
            f"whole table from then on, as from a first poll: sidecar watermark reset {log.table}"
        )
    else:
        can = f"The earliest that can be told is offset {earliest}, {clock.iso(bases.load(log, earliest).committed)}."
    return LogTruncated(f'table "{log.table}": as of {what}: changes up to offset {floor} are gone by retention. {can}')


def _base(log: ChangeLog, known: Sequence[int], at: int, since: int, key: tuple[str, ...]) -> Base | None:
    """Return the last base at the offsets *known* that can be read together with the segments after it."""
    for offset in reversed(known):
        base = bases.load(log, offset)
        if offset == at or (offset >= since and key_of(base.schema) in ((), key)):
            return base
    return None


def _beginning(
    log: ChangeLog, floor: int, found: Sequence[Segment], at: int, *, since: int, key: tuple[str, ...]
) -> int:
    """Return the offset after which the whole table stands in the log: its beginning, or a reset of the watermark."""
    if _is_whole(found, since, key):
        return 0
    for segment in found:
        if since <= segment.offset <= at:
            metadata = segments.metadata(segment.file)
            if metadata.moved and not metadata.watermark.marks and key_of(segments.columns(segment.file)) in ((), key):
                return segment.offset
    if floor and since <= floor + 1:
        raise _gone(log, f"offset {at}", floor)
    what = "the key is another" if since == 1 else f"a column's type was changed at offset {since}"
    raise SchemaChanged(
        f'table "{log.table}": as of offset {at}: {what}, and rows from before cannot be read with those after it. As '
        f"of an earlier offset the table can be told (sidecar schema {log.table}). For the whole table in the new "
        f"columns: sidecar watermark reset {log.table}"
    )


def _is_whole(found: Sequence[Segment], since: int, key: tuple[str, ...]) -> bool:
    return found[0].offset == 1 and since == 1 and key_of(segments.columns(found[0].file)) in ((), key)


def _versions(log: ChangeLog, first: int, at: int) -> list[SchemaVersion]:
    """Return what the columns have been in the segments from *first* to *at*, the newest version first."""
    found = []
    for version in log.schemas():
        if version.first <= at:
            found.append(version)
        if version.first <= first:
            break
    return found


def _alive(schema: pa.Schema, versions: Sequence[SchemaVersion]) -> list[frozenset[str]]:
    """Return, for each of *versions*, the columns that have been there ever since: one of the same name that had been
    dropped in between was another one, and what it held is not what the new one holds.
    """
    names = itertools.accumulate(
        (frozenset(_source_columns(v.schema).names) for v in versions),
        frozenset.intersection,
        initial=frozenset(schema.names),
    )
    return list(names)[1:]


def _one_load(taking: Sequence[Segment]) -> frozenset[int]:
    """Return the offsets of the chunks of one backfill, the largest: no key stands in two of them.

    They are pages by key, in spans that share none; of one begun again (another `began`), or of the further parts of
    a scope, that is not sure.
    """
    rows: Counter[tuple[str, int, int]] = Counter()
    chunks: dict[tuple[str, int, int], set[int]] = {}
    for segment in taking:
        metadata = segments.metadata(segment.file)
        job = metadata.watermark.job
        if metadata.origin == "backfill" and job is not None and job.part == 0:
            which = job.id, job.began, job.at
            rows[which] += metadata.rows
            chunks.setdefault(which, set()).add(segment.offset)
    return frozenset(chunks[rows.most_common(1)[0][0]]) if rows else frozenset()


def _parts(
    some: Iterable[Segment], versions: Sequence[SchemaVersion], alive: Sequence[frozenset[str]]
) -> Iterable[Part]:
    """Yield *some* by the version of their columns."""
    firsts = [version.first for version in versions]  # the newest first
    for at, group in itertools.groupby(some, key=lambda s: next(n for n, f in enumerate(firsts) if f <= s.offset)):
        names = versions[at].schema.names
        yield Part(tuple(s.file for s in group), versions[at].schema, alive[at], names[0], names[1])


# -- and how it is made ------------------------------------------------------------------------------------------------


def texts(spark: SparkSession, made: Plan) -> DataFrame:
    """Return the rows of *made*; what is to be a VARIANT is still its text."""
    from pyspark.sql import functions as F  # noqa: N812  as all the world calls it

    if not made.head and not made.rest:
        return feed.texts(spark, [], made.schema)
    keys = [_column(made, name) for name in made.key]
    head, rest = (_rows(spark, made, parts) for parts in (made.head, made.rest))
    if rest is None:
        assert head is not None
        whole = head
    else:
        whole = rest if head is None else head.unionAll(rest)
        few = F.broadcast if made.small else _as_it_is
        seen = rest.select(*keys, "v")
        if head is not None and made.mixed:
            seen = seen.unionAll(head.select(*keys, "v").join(few(rest.select(*keys)), keys, "left_semi"))
        newest = seen.groupBy(*(F.col(k).alias(f"k{n}") for n, k in enumerate(keys))).agg(F.max("v").alias("newest"))
        is_old = F.col("v") < F.col("newest")
        for n, name in enumerate(keys):
            is_old &= F.col(name) == F.col(f"k{n}")
        whole = whole.join(few(newest), is_old, "left_anti")
    there = whole.where(F.col("kind") != DELETE)
    return there.select(*(F.col(_column(made, name)).alias(name) for name in made.schema.names))


def _column(made: Plan, name: str) -> str:
    """Return how column *name* is called meanwhile: without dots, quotes, or another of its name."""
    return f"c{made.schema.get_field_index(name)}"


def _rows(spark: SparkSession, made: Plan, parts: Sequence[Part]) -> DataFrame | None:
    """Return the rows of *parts* in the columns `kind`, `v` (the offset), and `made.schema`'s by number."""
    from pyspark.sql import functions as F  # noqa: N812

    types, whole = feed.spark_schema(made.schema), None
    for part in parts:
        kind = F.lit(INSERT) if part.kind is None else _quoted(part.kind)
        version = F.lit(part.offset).cast("bigint") if part.version is None else _quoted(part.version)
        columns = [kind.alias("kind"), version.alias("v")]
        for field, type_ in zip(made.schema, types, strict=True):
            value = _quoted(field.name) if field.name in part.taken else F.lit(None)
            held = part.schema.field(field.name).type if field.name in part.taken else None
            value = value if held == field.type else value.cast(type_.dataType)
            columns.append(value.alias(_column(made, field.name)))
        frame = feed.texts(spark, part.paths, part.schema).select(*columns)
        whole = frame if whole is None else whole.unionAll(frame)
    return whole


def _quoted(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("`" + name.replace("`", "``") + "`")


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame
