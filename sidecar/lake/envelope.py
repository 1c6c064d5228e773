"""Changes as Debezium writes them: its envelope as columns, and as the keys and values of a Kafka topic.

The shape is that of Debezium's PostgreSQL connector, with `time.precision.mode = adaptive`, `decimal.handling.mode =
string`, `binary.handling.mode = base64`, and a JSON converter without schemas.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sidecar.errors import SettingsError
from sidecar.model import DELETE, INSERT, METADATA, UPDATE
from sidecar.settings.words import did_you_mean, listed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

SOURCE = {"version": "", "connector": "sidecar", "name": "sidecar", "db": "", "schema": None, "table": None}
"""What `source` says of where a change comes from, unless the caller knows better."""

EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"


def debezium(
    df: DataFrame,
    *,
    keys: Sequence[str] = (),
    table: str | None = None,
    source: Mapping[str, str] | None = None,
    prefix: str | None = None,
) -> DataFrame:
    """Return the feed *df*, a batch or a stream, in Debezium's envelope: each change is one row, and no value another.

    Columns: `key` (a struct of *keys*, if there are any), `before`, `after` (structs of the row; NULL where there is
    none), `source`, `op`, `ts_ms`, `ts_us`, `ts_ns`. `op` is `c`, `u`, `d`, or `r` for a row that was there before;
    `before` is NULL but for deletes, since a poll does not see what a row was; there it is the last row that is known.
    The times are those of the poll that found the change. `source.lsn` is the change's offset in the table's log, by
    which a key's changes are in order; `source.snapshot` is "true" for what a backfill has brought, else "false".

    *table*: what the change is of, `schema.table` where there is a schema. *source*: any of version, connector, name
    (Debezium's `topic.prefix`), db, schema, table, for code that asks for them. *prefix*: of the metadata columns, if
    several would do.

    Values are as Debezium gives them: a timestamp without a zone is a bigint, microseconds since 1970 as if it were
    UTC; one with a zone is a string, ISO 8601 in UTC; a date is an int, days since 1970; a decimal is a string, digit
    for digit; JSON is a string. Bytes are BINARY here, and base64 in JSON. No session setting changes them.

    SettingsError if *df* has no metadata columns, or a key is none of its columns.
    """
    return _envelope(_Feed.of(df, prefix), keys, _source(table, source))


def debezium_json(
    df: DataFrame,
    *,
    keys: Sequence[str],
    table: str | None = None,
    source: Mapping[str, str] | None = None,
    prefix: str | None = None,
    tombstones: bool = True,
) -> DataFrame:
    """Return the feed *df* as strings `key` and `value`, which Spark's Kafka sink takes: Debezium's JSON, no schemas.

    With *tombstones*, as is Debezium's default, a delete is followed by its key with a NULL, by which Kafka's
    compaction forgets the key. The changes of one key are in one partition, in the order of the log, if *df* is a
    batch. A stream cannot be sorted: write it by `foreachBatch`, where each is a batch. NaN and infinities are strings,
    NULLs are there. For the rest see `debezium`.
    """
    from pyspark.sql import functions as F  # noqa: N812  as everybody calls it

    if not keys:
        raise SettingsError("Kafka tells rows by their keys: say which columns they are, keys=[…]")
    feed = _Feed.of(df, prefix)
    if not df.isStreaming:
        _, offset, *_ = feed.metadata()
        feed = replace(feed, frame=feed.frame.repartition(*feed.key(keys)).sortWithinPartitions(offset))
    whole = {"ignoreNullFields": "false"}
    envelope = _envelope(feed, keys, _source(table, source))
    value = F.to_json(F.struct(*(c for c in envelope.columns if c != "key")), whole)
    found = envelope.select(F.to_json("key", whole).alias("key"), value.alias("value"), "op")
    if tombstones:
        twice = F.when(F.col("op") == "d", F.array("value", F.lit(None))).otherwise(F.array("value"))
        found = found.select("key", F.explode(twice).alias("value"))
    return found.select("key", "value")


@dataclass(frozen=True)
class _Feed:
    """A feed whose columns are found by where they stand: a name may be anything, and Spark has rules for names."""

    frame: DataFrame
    fields: Sequence[StructField]
    prefix: str

    @classmethod
    def of(cls, df: DataFrame, prefix: str | None) -> _Feed:
        """Return *df* as a feed; SettingsError if it is none."""
        fields = df.schema.fields
        return cls(df.toDF(*(_place(at) for at in range(len(fields)))), fields, _prefix(df.columns, prefix))

    def metadata(self) -> Iterator[Column]:
        """Yield the metadata columns, in the order of `METADATA`."""
        names = [field.name for field in self.fields]
        return (_at(names.index(self.prefix + name)) for name in METADATA)

    def row(self) -> Mapping[str, Column]:
        """Return the source's columns by name, as Debezium gives their values."""
        metadata = {self.prefix + name for name in METADATA}
        found = ((at, field) for at, field in enumerate(self.fields) if field.name not in metadata)
        return {field.name: _literal(_at(at), field.dataType) for at, field in found}

    def key(self, names: Sequence[str]) -> Sequence[Column]:
        """Return the key's columns; SettingsError if one is not the source's."""
        row = self.row()
        if missing := next((name for name in names if name not in row), None):
            raise SettingsError(f'key "{missing}" is no column{did_you_mean(missing, row)}')
        return [row[name].alias(name) for name in names]


def _place(at: int) -> str:
    return f"c{at}"


def _at(at: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(_place(at))


def _prefix(names: Sequence[str], wanted: str | None) -> str:
    first = METADATA[0]
    prefixes = [n.removesuffix(first) for n in names if n.endswith(first)] if wanted is None else [wanted]
    found = [p for p in prefixes if all(p + name in names for name in METADATA)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SettingsError(f"several columns may be the metadata ones: say which, prefix= one of {listed(found)}")
    raise SettingsError(
        f"the DataFrame is no feed: it lacks {listed((wanted or '_') + name for name in METADATA)}. "
        "It takes what sc.dataframe, spark.read or readStream give, before columns are dropped"
    )


def _source(table: str | None, given: Mapping[str, str] | None) -> dict[str, str | None]:
    from importlib.metadata import version

    schema, _, name = (table or "").rpartition(".")
    found = {**SOURCE, "version": version("sidecar"), "schema": schema or None, "table": name or None}
    for key, value in (given or {}).items():
        if key not in SOURCE:
            raise SettingsError(f'source: unknown "{key}"{did_you_mean(key, SOURCE)}')
        found[key] = value
    return found


def _envelope(feed: _Feed, keys: Sequence[str], source: Mapping[str, str | None]) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StringType

    if isinstance(keys, str):
        raise SettingsError(f'keys="{keys}": give a list, keys=["{keys}"]')
    change, offset, committed, origin = feed.metadata()
    backfilled, gone = origin == "backfill", change == DELETE
    row = F.struct(*(value.alias(name) for name, value in feed.row().items()))
    key = [F.struct(*feed.key(keys)).alias("key")] if keys else []
    micros = F.unix_micros(committed)
    times = [F.unix_millis(committed).alias("ts_ms"), micros.alias("ts_us"), (micros * 1000).alias("ts_ns")]
    said = {name: F.lit(value).cast(StringType()).alias(name) for name, value in source.items()}
    where = F.struct(
        *(said[name] for name in ("version", "connector", "name")),
        *times,
        F.when(backfilled, "true").otherwise("false").alias("snapshot"),
        said["db"],
        F.concat(F.lit('[null,"'), offset.cast("string"), F.lit('"]')).alias("sequence"),
        *(said[name] for name in ("schema", "table")),
        offset.alias("lsn"),
    )
    return feed.frame.select(
        *key,
        F.when(gone, row).alias("before"),
        F.when(~gone, row).alias("after"),
        where.alias("source"),
        F.when(gone, "d")
        .when(change == UPDATE, "u")
        .when((change == INSERT) & backfilled, "r")
        .otherwise("c")
        .alias("op"),
        *times,
    )


def _literal(value: Column, type_: DataType) -> Column:
    """Return *value* in the literal type that Debezium gives to what it is."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(type_, T.ArrayType):
        return F.transform(value, _each(type_.elementType))
    if isinstance(type_, T.MapType):
        each = _each(type_.valueType)
        return F.transform_values(value, lambda _, v: each(v))
    if isinstance(type_, T.StructType):
        fields = (_literal(value.getField(f.name), f.dataType).alias(f.name) for f in type_.fields)
        return F.when(value.isNotNull(), F.struct(*fields))
    return _scalar(value, type_)


def _scalar(value: Column, type_: DataType) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql import types as T  # noqa: N812

    if isinstance(type_, T.TimestampNTZType):
        # By way of text: subtraction and casts go through the session's time zone, where an hour may be missing.
        return F.unix_micros(F.concat(value.cast("string"), F.lit("Z")).cast("timestamp"))
    if isinstance(type_, T.TimestampType):
        # Added up without a zone, for the same reason; the text then has as many decimals as it needs, like Java's.
        utc = F.timestamp_add("MICROSECOND", F.unix_micros(value), F.expr(EPOCH))
        return F.concat(F.translate(utc.cast("string"), " ", "T"), F.lit("Z"))
    if isinstance(type_, T.DateType):
        return F.unix_date(value)
    if isinstance(type_, T.DecimalType):
        return value.cast("string")
    if isinstance(type_, T.VariantType):
        return F.to_json(value)
    return value


def _each(type_: DataType) -> Callable[[Column], Column]:
    # A function of one parameter: Spark counts them.
    return lambda value: _literal(value, type_)
