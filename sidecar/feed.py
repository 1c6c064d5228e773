"""The feed: a range of a table's log as a Spark DataFrame. Nothing is asked of the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar.changelog import ChangeLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def dataframe(
    spark: SparkSession, log: ChangeLog, since: int = 0, until: int | None = None, schema: pa.Schema | None = None
) -> DataFrame:
    """Return the changes with `since < offset <= until`: metadata columns first, then the source's.

    Timestamps with a zone are TIMESTAMP, without one TIMESTAMP_NTZ, both to the microsecond. Order within the DataFrame
    is not promised; sequence by `_commit_version`. An empty range has the same columns, those of *schema* or of the
    newest segment. LogTruncated if retention has dropped the range's beginning.
    """
    segments = log.list(since, until)
    newest = schema or log.schema()
    if newest is None:
        return spark.createDataFrame([], spark_schema(pa.schema([])))
    columns = spark_schema(newest)
    if not segments:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns).option("parquet.page.verify-checksum.enabled", "true")
    return reader.parquet(*(str(s.path) for s in segments))


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's types for *schema*."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
