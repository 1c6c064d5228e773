"""Parquet files joined into one without a value being read: their row groups are copied as they are.

What Spark would do with a row that is in Parquet already, and goes to Parquet, is to take it apart and to write it down
again, three times the work of reading it from a database. It is done in Spark's process, so that the file may be on
whatever file system Spark reaches; in the driver, so where executors are elsewhere, they are not made use of.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sidecar import faults, feed
from sidecar.backfilling import executors
from sidecar.log import segments
from sidecar.log.storage import AnyPath, for_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAST = 1 << 20
"""Bytes that a row group must have on average: of small ones Spark makes larger ones, which are quicker to read."""

_AS_EVER = {
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.parquet.compression.codec": "snappy",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""What says how Spark writes Parquet, and the values by which that is what segments are."""


def can_join(spark: SparkSession, files: Sequence[AnyPath], columns: pa.Schema) -> bool:
    """Return whether `join` makes of *files*, read as *columns*, what Spark would: nobody has asked for another form,
    and it is worth it.
    """
    if not files or not all(isinstance(file, Path) for file in files) or not executors.are_here(spark):
        return False
    if feed.variants(columns) or any(pa.types.is_null(type_) for type_ in columns.types):
        return False
    if sum(segments.size(file) or 0 for file in files) < LEAST * len(files):
        return False
    if any(spark.conf.get(name) != value for name, value in _AS_EVER.items()):
        return False
    # Encryption, sizes of pages, bloom filters: whatever it is, it is asked of those who write.
    hadoop: Any = spark._jsparkSession.sessionState().newHadoopConf()
    return bool(hadoop.getPropsWithPrefix("parquet.").isEmpty()) and segments.columns(files[0]) == columns


def join(frame: DataFrame, files: Sequence[AnyPath], target: str) -> bool:
    """Write the rows of *files*, which are those of *frame*, to the new file *target*, once every page's checksum is
    right; False, with nothing to be used there, if the files are not all of the same columns.
    """
    spark = frame.sparkSession
    jvm: Any = spark._jvm
    hadoop: Any = spark._jsc.hadoopConfiguration()
    parquet, path = jvm.org.apache.parquet, jvm.org.apache.hadoop.fs.Path
    checked = parquet.HadoopReadOptions.builder(hadoop).usePageChecksumVerification(True).build()

    def reader(file: AnyPath) -> Any:
        source = parquet.hadoop.util.HadoopInputFile.fromPath(path(for_spark(file)), hadoop)
        return closing(parquet.hadoop.ParquetFileReader.open(source, checked))

    with reader(files[0]) as first:
        columns = first.getFileMetaData().getSchema()
    place = parquet.hadoop.util.HadoopOutputFile.fromPath(path(target), hadoop)
    overwrite = getattr(parquet.hadoop, "ParquetFileWriter$Mode").OVERWRITE
    # The sizes are of row groups that it would make itself.
    with closing(parquet.hadoop.ParquetFileWriter(place, columns, overwrite, 1 << 27, 0)) as writer:
        writer.start()
        for file in files:
            with reader(file) as source:
                if not source.getFileMetaData().getSchema().equals(columns):
                    return False
                if not source.getRecordCount():
                    continue  # as a reset leaves it; its row group is empty, and Parquet's writer takes no such
                while source.readNextRowGroup() is not None:
                    pass
                source.appendTo(writer)
                faults.point("row-groups-copied")
        told = jvm.java.util.HashMap()
        # As in a file of Spark's own: or its readers would ask their settings how old dates were counted.
        told.put("org.apache.spark.version", spark.version)
        told.put("org.apache.spark.sql.parquet.row.metadata", frame.schema.json())
        writer.end(told)
    return True
