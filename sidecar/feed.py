"""The feed: a range of a table's log as a Spark DataFrame. Nothing is asked of the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar import evolution, segments
from sidecar.changelog import ChangeLog
from sidecar.errors import SchemaChanged
from sidecar.model import VARIANT
from sidecar.segments import Segment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def table(log: ChangeLog, since: int, until: int) -> pa.Table:
    """Return the changes with `since < offset <= until` in this process's memory, without Spark; as `dataframe` does.

    JSON is text, always.
    """
    found = log.list(since, until)
    if not found:
        return (log.schema() or pa.schema([])).empty_table()
    schema = _alike(log, found)
    return pa.concat_tables([evolution.conformed(segments.read(segment.path), schema) for segment in found])


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
    found = log.list(since, until)
    if not found:
        newest = schema or log.schema() or pa.schema([])
        return _parsed(spark.createDataFrame([], spark_schema(newest)), newest)
    newest = _alike(log, found)
    columns = spark_schema(newest)
    reader = spark.read.schema(columns).option("parquet.page.verify-checksum.enabled", "true")
    return _parsed(reader.parquet(*(str(s.path) for s in found)), newest)


def _alike(log: ChangeLog, found: Sequence[Segment]) -> pa.Schema:
    """Return the columns as which all of the segments *found* can be read; SchemaChanged if there are none."""
    newest, last = log.columns(found[0].offset)
    if last is not None and found[-1].offset > last:
        raise SchemaChanged(
            f'table "{log.table}": offsets up to {last} and those after it have columns that cannot be read as one '
            f"(sidecar schema {log.table}). Read them apart: until={last}, and since={last}"
        )
    return newest


def _parsed(frame: DataFrame, schema: pa.Schema) -> DataFrame:
    """Return *frame* with a VARIANT in place of each text that *schema* marks as one."""
    from pyspark.sql import functions

    marked = {field.name for field in schema if VARIANT.items() <= (field.metadata or {}).items()}
    if not marked:
        return frame
    columns = {name: functions.col("`" + name.replace("`", "``") + "`") for name in schema.names}
    return frame.select(*(functions.parse_json(c).alias(n) if n in marked else c for n, c in columns.items()))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's types for *schema*."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
