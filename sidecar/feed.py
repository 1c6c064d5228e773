"""The feed: a range of a table's log as a Spark DataFrame. Nothing is asked of the source."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar.changelog import ChangeLog
from sidecar.errors import SchemaChanged
from sidecar.model import VARIANT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


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
    segments = log.list(since, until)
    if not segments:
        newest = schema or log.schema() or pa.schema([])
        return parsed(texts(spark, [], newest), newest)
    newest, last = log.columns(segments[0].offset)
    if last is not None and segments[-1].offset > last:
        raise SchemaChanged(
            f'table "{log.table}": offsets up to {last} and those after it have columns that cannot be read as one '
            f"(sidecar schema {log.table}). Read them apart: until={last}, and since={last}"
        )
    return parsed(texts(spark, [s.path for s in segments], newest), newest)


def texts(spark: SparkSession, paths: Iterable[Path], schema: pa.Schema) -> DataFrame:
    """Return the rows of the Parquet files *paths* as *schema*; what is to be a VARIANT is still its text."""
    columns, names = spark_schema(schema), [str(path) for path in paths]
    if not names:
        return spark.createDataFrame([], columns)
    return spark.read.schema(columns).option("parquet.page.verify-checksum.enabled", "true").parquet(*names)


def parsed(frame: DataFrame, schema: pa.Schema) -> DataFrame:
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


def reason(error: Exception) -> str:
    """Return in one line why something failed in Spark; of an error in the JVM, what the JVM says."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else f"{type(error).__name__}: {error}"
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__).strip().rstrip(".")
