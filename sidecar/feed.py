"""The feed: a range of a table's log as a Spark DataFrame. Nothing is asked of the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from sidecar.changelog import ChangeLog
from sidecar.errors import SchemaChanged
from sidecar.lake import stored_feed
from sidecar.log import segments
from sidecar.log.segments import Segment
from sidecar.log.storage import AnyPath, StorePath, for_spark, literal
from sidecar.model import VARIANT
from sidecar.polls import evolution

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    DataType_ = TypeVar("DataType_", bound=DataType)


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a log that can be read as one table: its segments in order, and the columns."""

    segments: Sequence[Segment]
    schema: pa.Schema


def table(log: ChangeLog, since: int, until: int) -> pa.Table:
    """Return the changes with `since < offset <= until` in this process's memory, without Spark; as `dataframe` does.

    JSON is text, always.
    """
    found = readable(log, since, until)
    if not found.segments:
        return found.schema.empty_table()
    return pa.concat_tables([evolution.conformed(segments.read(s.file), found.schema) for s in found.segments])


def dataframe(
    spark: SparkSession, log: ChangeLog, since: int = 0, until: int | None = None, schema: pa.Schema | None = None
) -> DataFrame:
    """Return the changes with `since < offset <= until`: metadata columns first, then the source's.

    Timestamps with a zone are TIMESTAMP, without one TIMESTAMP_NTZ, both to the microsecond. JSON is text, or VARIANT
    where the schema says so; a text that Spark cannot parse (a key stands twice in one object) is then an error of
    whoever reads the DataFrame, and Spark rounds numbers of more than 38 digits. Order within the DataFrame is not
    promised; sequence by `_commit_version`. The columns are the newest ones as which the whole range can be read (older
    rows have NULL in columns that came later); an empty range has those of *schema* or of the newest segment.
    LogTruncated if retention has dropped the range's beginning; SchemaChanged if a column's type was changed within it
    otherwise than by growing.
    """
    found = readable(log, since, until, schema)
    return parsed(texts(spark, [s.file for s in found.segments], found.schema), found.schema)


def readable(log: ChangeLog, since: int = 0, until: int | None = None, schema: pa.Schema | None = None) -> Range:
    """Return the segments with `since < offset <= until`, and the columns that they have as one table.

    An empty range has the columns of *schema*, or of the newest segment. Errors as of `dataframe`.
    """
    found = log.list(since, until)
    if not found:
        return Range((), schema or log.schema() or pa.schema([]))
    newest, last = log.columns(found[0].offset)
    if last is not None and found[-1].offset > last:
        raise SchemaChanged(
            f'table "{log.table}": offsets up to {last} and those after it have columns that cannot be read as one '
            f"(sidecar schema {log.table}). Read them apart: until={last}, and since={last}"
        )
    return Range(found, newest)


def texts(spark: SparkSession, files: Sequence[AnyPath], schema: pa.Schema) -> DataFrame:
    """Return the rows of the Parquet files *files* as *schema*; what is to be a VARIANT is still its text."""
    columns = spark_schema(schema)
    if not files:
        return spark.createDataFrame([], columns)
    if isinstance(files[0], StorePath) and not stored_feed.spark_reads(spark, files[0]):
        return stored_feed.frame(spark, [Segment(0, file) for file in files], columns)
    reader = spark.read.schema(columns).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*(literal(for_spark(file)) for file in files))


def parsed(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return *frame* with a VARIANT in place of each text that *schema* marks as one."""
    from pyspark.sql import functions

    marked = variants(schema)
    if not marked:
        return frame
    columns = {name: functions.col("`" + name.replace("`", "``") + "`") for name in schema.names}
    return frame.select(*(functions.parse_json(c).alias(n) if n in marked else c for n, c in columns.items()))


def variants(schema: pa.Schema) -> set[str]:
    """Return the columns of JSON texts that Spark is to see as VARIANT."""
    return {field.name for field in schema if VARIANT.items() <= (field.metadata or {}).items()}


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's types for *schema*. All may be NULL: a column that came later has no value in older rows."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return _nullable(from_arrow_schema(schema, prefer_timestamp_ntz=True))


def _nullable(type_: DataType_) -> DataType_:
    """Return *type_* with NULL allowed wherever Spark allows it, as Spark reads any Parquet file."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    found: Any = type_
    if isinstance(type_, StructType):
        found = StructType([StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in type_])
    elif isinstance(type_, ArrayType):
        found = ArrayType(_nullable(type_.elementType), True)
    elif isinstance(type_, MapType):
        found = MapType(_nullable(type_.keyType), _nullable(type_.valueType), True)
    return cast("DataType_", found)


def reason(error: Exception) -> str:
    """Return in one line why something failed in Spark; of an error in the JVM, what the JVM says."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    # Of what Python raised in an executor, the trace comes first.
    is_traced = any("from the Python worker" in line for line in lines[:2])
    said = [line for line in lines if "sidecar.errors." in line] if is_traced else []
    return (said or lines)[-1 if is_traced else 0].rstrip(".; ")
