"""A log as a stream, asked as Spark asks it: no change is left out, and what cannot be read on from is said."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles

from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated, SchemaChanged, SettingsError, StateDamaged
from sidecar.lake.log_stream import Bounds, Columns, LogStream
from sidecar.log import queries
from tests.integration.logs import append, ids, log_in

ALL = ReadAllAvailable()
Position = dict[str, int]


def loaded(log: ChangeLog, **bounds: int | str | None) -> LogStream:
    """A query that is loaded now."""
    bound = Bounds(**bounds)  # type: ignore[arg-type]
    newest = log.last() if bound.until is None else min(log.last(), bound.until)
    columns = log.columns(newest)[0]
    return LogStream(log, Columns(columns, newest), bound, feed.spark_schema(columns))


def batch(stream: LogStream, start: Position, limit: ReadLimit | None = None) -> tuple[Position, list[object]]:
    """The next batch's end, and the ids in it."""
    end = stream.latestOffset(start, limit or stream.getDefaultReadLimit())
    return end, read(stream, start, end)


def read(stream: LogStream, start: Position, end: Position) -> list[object]:
    parts = stream.partitions(start, end)
    return [row["id"] for part in parts for found in stream.read(part) for row in found.to_pylist()]


def at(log: ChangeLog, offset: int) -> Position:
    metadata = log.metadata(offset)
    assert metadata is not None
    return {"offset": offset, "committed": metadata.committed}


def drop(log: ChangeLog, through: int) -> None:
    metadata = log.metadata(log.last())
    assert metadata is not None
    log.drop(through, metadata.watermark, log.remembered(log.last()))


def test_batches_follow_each_other_and_none_is_larger_than_asked(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 5, rows=1)
    stream = loaded(log, segments=2)
    start = stream.initialOffset()
    assert start == {"offset": 0}
    second, found = batch(stream, start)
    assert (second, found) == (at(log, 2), [1000, 2000])
    third, found = batch(stream, second)
    assert (third, found) == (at(log, 4), [3000, 4000])
    assert batch(stream, third)[0] == at(log, 5)
    assert batch(stream, second, ALL) == (at(log, 5), [3000, 4000, 5000])
    assert batch(stream, second, ReadMaxFiles(1))[0] == at(log, 3)
    assert batch(loaded(log, bytes=1), second)[0] == at(log, 3)
    assert batch(stream, at(log, 5)) == (at(log, 5), [])
    assert batch(loaded(log, until=4), third) == (third, [])
    ids(log, 1)
    assert batch(stream, at(log, 5))[0] == at(log, 6)


def test_what_comes_once_all_that_is_there_was_asked_for_waits_for_the_next_time(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 2)
    stream = loaded(log)
    stream.prepareForTriggerAvailableNow()
    ids(log, 2)
    assert batch(stream, stream.initialOffset())[0] == at(log, 2)
    assert batch(stream, at(log, 2))[0] == at(log, 2)
    assert batch(loaded(log), at(log, 2))[0] == at(log, 4)


def test_a_query_begins_where_it_is_told_or_with_the_oldest_there_is(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 5)
    assert loaded(log, since=3).initialOffset() == at(log, 3)
    assert loaded(log, since=5).initialOffset() == at(log, 5)
    with pytest.raises(SettingsError, match="since=6, and its log ends at offset 5"):
        loaded(log, since=6).initialOffset()
    drop(log, 3)
    assert loaded(log).initialOffset() == {"offset": 3}
    with pytest.raises(LogTruncated, match=r"the log begins at 4\. Start from since=3"):
        loaded(log, since=2).initialOffset()


def test_columns_that_come_or_grow_end_a_batch_and_then_the_query_until_it_is_loaded_anew(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    append(log, pa.table({"id": pa.array([1], pa.int32()), "gone": ["a"]}))
    stream = loaded(log)
    append(log, pa.table({"id": pa.array([2], pa.int32())}))
    append(log, pa.table({"id": pa.array([2**40], pa.int64())}))
    append(log, pa.table({"id": pa.array([4], pa.int64()), "new": ["e"]}))
    end, found = batch(stream, stream.initialOffset())
    assert (end["offset"], found) == (2, [1, 2])
    with pytest.raises(
        SchemaChanged, match=r'from offset 3 on: column "id" was int32 and is int64 now\. .*Load .* anew'
    ):
        stream.latestOffset(end, ALL)
    with pytest.raises(SchemaChanged, match="from offset 3 on"):
        stream.partitions(end, at(log, 4))
    assert batch(loaded(log), end) == (at(log, 4), [2**40, 4])
    assert read(loaded(log), {"offset": 0}, at(log, 4)) == [1, 2, 2**40, 4]
    newer = loaded(log, until=3)
    log_columns = log.columns(3)[0]
    assert "new" in log_columns.names
    assert batch(newer, end) == (at(log, 3), [2**40])


def test_a_column_that_is_new_ends_a_query_rather_than_being_left_out(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 1, rows=1)
    stream = loaded(log)
    append(log, pa.table({"id": pa.array([2], pa.int64()), "new": ["e"]}))
    end, found = batch(stream, {"offset": 0})
    assert (end, found) == (at(log, 1), [1000])
    with pytest.raises(SchemaChanged, match=r'from offset 2 on: column "new" \(string\) is new'):
        stream.latestOffset(end, ALL)


def test_columns_that_cannot_be_read_with_those_before_are_read_by_a_query_of_their_own(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 3, rows=1)
    stream = loaded(log)
    append(log, pa.table({"id": ["four"]}))
    assert batch(stream, {"offset": 0})[0] == at(log, 3)
    with pytest.raises(SchemaChanged, match='column "id" was int64 and is string now'):
        stream.latestOffset(at(log, 3), ALL)
    assert batch(loaded(log), at(log, 3)) == (at(log, 4), ["four"])
    with pytest.raises(SchemaChanged, match=r"offsets up to 3 have columns .* the option until=3"):
        loaded(log).latestOffset({"offset": 0}, ALL)
    assert batch(loaded(log, until=3), {"offset": 0})[0] == at(log, 3)


def test_a_named_query_writes_down_where_it_stands(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 4)
    stream = loaded(log, since=1, consumer="orders → lake")
    stream.initialOffset()
    assert queries.positions(log) == {"orders → lake": 1}
    stream.commit(at(log, 3))
    assert queries.positions(log) == {"orders → lake": 3}
    loaded(log).commit(at(log, 4))
    assert queries.positions(log) == {"orders → lake": 3}


@pytest.mark.parametrize("start", [0, 2])
def test_what_retention_has_dropped_is_named_with_the_offset_that_is_left(tmp_path: Path, start: int) -> None:
    log = ids(log_in(tmp_path), 5)
    position = at(log, start) if start else {"offset": 0}
    end = at(log, 5)
    drop(log, 3)
    said = f"up to offset {start}, and those up to 3 are gone by retention.*since=3.*consumer"
    with pytest.raises(LogTruncated, match=said):
        loaded(log).latestOffset(position, ALL)
    with pytest.raises(LogTruncated, match=said):
        loaded(log).partitions(position, end)
    assert batch(loaded(log), {"offset": 3, "committed": 3_000_000})[0] == end


def test_a_log_that_was_replaced_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path / "one"), 3)
    position = at(log, 3)
    other = ids(log_in(tmp_path / "two"), 2)
    for stream in (loaded(other), loaded(other, until=2)):
        with pytest.raises(StateDamaged, match="ends at offset 2, and this query stands at 3"):
            stream.latestOffset(position, ALL)
    append(other, pa.table({"id": pa.array([7], pa.int64())}), later=1)
    ids(other, 2)
    with pytest.raises(StateDamaged, match="not the log that this query has read up to offset 3"):
        loaded(other).latestOffset(position, ALL)
    with pytest.raises(StateDamaged, match="not the log"):
        loaded(other).partitions(at(other, 2), position)


def test_a_segment_that_is_missing_in_between_is_not_taken_for_the_end(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 5)
    stream = loaded(log)
    log.path(3).unlink()
    assert batch(stream, {"offset": 0})[0] == at(log, 2)
    with pytest.raises(StateDamaged, match="is missing, and later segments are there"):
        stream.latestOffset(at(log, 2), ALL)


def test_of_two_queries_of_one_name_the_first_is_told(tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 5)
    first, second = (loaded(log, consumer="lake") for _ in range(2))
    first.commit(at(log, 4))
    second.commit(at(log, 2))
    with pytest.raises(SettingsError, match='another query has taken the name consumer="lake"'):
        first.commit(at(log, 5))
    second.commit(at(log, 3))
    assert queries.positions(log) == {"lake": 3}
    again = loaded(log, consumer="lake")
    again.commit(at(log, 4))
    queries.forget(log, "lake")
    again.commit(at(log, 5))
