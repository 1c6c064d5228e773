"""`spark.readStream.format("sidecar")`: every change once, over restarts, altered columns and dropped segments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.log import queries
from tests.integration.logs import append, ids, log_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def known(spark: SparkSession) -> SparkSession:
    sidecar.register(spark)
    return spark


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def stream(spark: SparkSession, state: Path, **options: object) -> DataFrame:
    found = spark.readStream.format("sidecar").option("path", str(state)).option("table", "t")
    for name, value in options.items():
        found = found.option(name, str(value))
    return found.load()


def drain(frame: DataFrame, folder: Path, checkpoint: str = "checkpoint") -> StreamingQuery:
    """Write all that is there to a folder of Parquet files, exactly once."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / checkpoint))
    query = writer.trigger(availableNow=True).start(str(folder / "out"))
    query.awaitTermination()
    return query


def written(folder: Path, *columns: str) -> list[tuple[object, ...]]:
    """What Spark's file sink has committed: its rows, sorted."""
    files = sorted((folder / "out").glob("*.parquet"))
    found = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(tuple(row.get(c) for c in columns) for row in found)


def expected(log: ChangeLog, *columns: str, since: int = 0) -> list[tuple[object, ...]]:
    return sorted(tuple(row.get(c) for c in columns) for row in log.rows(since))


def batches(query: StreamingQuery) -> list[tuple[int, int]]:
    """The offsets between which each batch with rows lay."""
    sources = [p.sources[0] for p in query.recentProgress if p.numInputRows]
    return [(offset(s.startOffset), offset(s.endOffset)) for s in sources]


def offset(text: str) -> int:
    """Of Spark's report: null for a query's first batch."""
    return int((json.loads(text) or {"offset": 0})["offset"])


def drop(log: ChangeLog, through: int) -> None:
    metadata = log.metadata(log.last())
    assert metadata is not None
    log.drop(through, metadata.watermark, log.remembered(log.last()))


def test_each_change_comes_once_in_batches_of_the_size_asked_for_and_over_restarts(
    known: SparkSession, state: Path, tmp_path: Path
) -> None:
    log = ids(log_in(state), 5)
    query = drain(stream(known, state, maxSegmentsPerTrigger=2), tmp_path)
    assert batches(query) == [(0, 2), (2, 4), (4, 5)]
    ids(log, 3)
    assert batches(drain(stream(known, state, MAXBYTESPERTRIGGER=1), tmp_path)) == [(5, 6), (6, 7), (7, 8)]
    assert written(tmp_path, "_commit_version", "id") == expected(log, "_commit_version", "id")
    assert batches(drain(stream(known, state), tmp_path)) == []


def test_a_query_that_runs_sees_what_comes_and_begins_where_it_is_told(
    known: SparkSession, state: Path, tmp_path: Path
) -> None:
    log = ids(log_in(state), 4)
    writer = stream(known, state, since=3).writeStream.format("parquet")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(tmp_path / "out"))
    try:
        query.processAllAvailable()
        ids(log, 2)
        query.processAllAvailable()
    finally:
        query.stop()
    assert written(tmp_path, "id") == expected(log, "id", since=3)


def test_columns_that_come_or_grow_stop_a_query_which_goes_on_with_them_once_it_is_loaded_anew(
    known: SparkSession, state: Path, tmp_path: Path
) -> None:
    log = log_in(state)
    append(log, pa.table({"id": pa.array([1], pa.int32()), "gone": ["a"]}))
    append(log, pa.table({"id": pa.array([2], pa.int32()), "gone": ["b"]}))
    frame = stream(known, state)
    append(log, pa.table({"id": pa.array([3], pa.int32())}))
    append(log, pa.table({"id": pa.array([2**40], pa.int64())}))
    append(log, pa.table({"id": pa.array([5], pa.int64()), "new": ["e"]}))
    with pytest.raises(
        StreamingQueryException, match=r'from offset 4 on: column "id" was int32 and is int64 now.*anew'
    ):
        drain(frame, tmp_path)
    # What is gone is NULL, and stops nothing.
    assert written(tmp_path, "id", "gone") == [(1, "a"), (2, "b"), (3, None)] or written(tmp_path, "id") == [
        (1,),
        (2,),
        (3,),
    ]
    drain(stream(known, state), tmp_path)
    assert written(tmp_path, "_commit_version", "id", "new")[3:] == [(4, 2**40, None), (5, 5, "e")]
    # To a query that begins now, older segments fit: wider, and NULL where they have no such column.
    assert batches(drain(stream(known, state), tmp_path / "other")) == [(0, 5)]
    assert written(tmp_path / "other", "id", "new") == [(1, None), (2, None), (3, None), (5, "e"), (2**40, None)]


def test_a_named_query_holds_what_it_has_not_had_and_the_log_says_what_is_gone_for_others(
    known: SparkSession, state: Path, tmp_path: Path
) -> None:
    log = ids(log_in(state), 4)
    drain(stream(known, state, maxSegmentsPerTrigger=1, consumer="orders → lake"), tmp_path)
    # Spark says that a batch is done once it asks for the next one: of the last one it is not known yet.
    assert queries.positions(log) == {"orders → lake": 3}
    ids(log, 2)
    drain(stream(known, state, consumer="orders → lake"), tmp_path)
    assert queries.positions(log) == {"orders → lake": 4}
    drain(stream(known, state), tmp_path / "other")
    ids(log, 2)
    drop(log, 7)
    with pytest.raises(StreamingQueryException, match=r"up to offset 6, and those up to 7 are gone.*since=7"):
        drain(stream(known, state), tmp_path / "other")
    drain(stream(known, state), tmp_path / "fourth")
    assert written(tmp_path / "fourth", "_commit_version") == [(8,)] * 3
