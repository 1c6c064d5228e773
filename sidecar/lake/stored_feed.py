"""The feed of a log in an object store that Spark itself does not reach: its executors read the files by pyarrow.

Spark from pip has no client for any store. Where somebody has added one, and it gets at the files, it is used. How the
store is reached, secrets included, travels to the executors inside the pickled reader, not among the options: these are
part of Spark's plans.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar.log import segments, storage
from sidecar.log.segments import Segment
from sidecar.log.storage import StorePath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

TASK = 16 << 20
"""So many bytes of the log make a task."""

_one_at_a_time = threading.Lock()
_reached: weakref.WeakKeyDictionary[SparkSession, dict[StorePath, bool]] = weakref.WeakKeyDictionary()


def spark_reads(spark: SparkSession, segment: StorePath) -> bool:
    """Return whether *spark* reads files beside *segment* by itself; asked once a session and folder."""
    known = _reached.setdefault(spark, {})
    if segment.parent not in known:
        try:
            # What finds no client for such an address, or may not look there, fails here and not in a job.
            spark.read.schema("x int").parquet(storage.literal(storage.for_spark(segment)))
            known[segment.parent] = True
        except Exception:
            known[segment.parent] = False
    return known[segment.parent]


def frame(spark: SparkSession, found: Sequence[Segment], columns: StructType) -> DataFrame:
    """Return the changes in *found* as *columns*; those that a segment does not have are NULL."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema

    target = to_arrow_schema(columns, timezone="UTC")
    groups = grouped(((segment.file, storage.size(segment.file)) for segment in found), TASK)

    # These are made here, so that they are pickled with what they refer to, and not by name.
    class Reader(DataSourceReader):
        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(group) for group in groups]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            for path in partition.value:
                for batch in segments.batches(path):
                    yield conformed(batch, target)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "sidecar_segments"

        def schema(self) -> StructType:
            return columns

        def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  it is asked for by this name
            return Reader()

    # The option is for whoever reads a plan.
    said = json.dumps([str(found[0].file), str(found[-1].file)])
    with _one_at_a_time:  # or another thread's source of this name is loaded
        spark.dataSource.register(Source)
        return spark.read.format("sidecar_segments").option("files", said).load()


def conformed(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return *batch* in exactly the layout *target*, wider, NULL where it has no column: Spark takes any other layout
    for something else.
    """
    columns = []
    for field in target:
        at = batch.schema.get_field_index(field.name)
        column = pa.nulls(len(batch), field.type) if at < 0 else batch.column(at)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def grouped(sized: Iterable[tuple[storage.AnyPath, int]], full: int) -> list[tuple[storage.AnyPath, ...]]:
    """Return the files of *sized*, each with its bytes, in groups that lie together, each just *full*."""
    groups: list[list[storage.AnyPath]] = []
    room = 0
    for path, size in sized:
        if room <= 0:
            groups.append([])
            room = full
        groups[-1].append(path)
        room -= size
    return [tuple(group) for group in groups]
