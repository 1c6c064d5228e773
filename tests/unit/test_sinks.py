"""File sinks take each batch once: given the same batch again they overwrite themselves, and any value survives."""

from __future__ import annotations

import contextlib
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource, DataSourceRegistration

from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated, SettingsError, SinkError
from sidecar.feed import dataframe
from sidecar.lake import stored_feed
from sidecar.log.files import filename
from sidecar.log.storage import literal
from sidecar.mirrors.mirror import MirrorSink
from sidecar.mirrors.mirror import dataframe as mirror_of
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING
from sidecar.sinks import Batch, FileSink, failing_as
from tests.unit.batches import VERSION, changes, files, held, logged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = ["public.orders", "a=b", "_x", ".hidden", "größe, a b", "x/{y}%"]
COLUMNS = [
    "id",
    "x.y",
    "a b",
    "Price (EUR), net",
    "größe",
    "a`b",
    'q"q',
    "a=b",
    "_x",
    "semi;colon",
    "SELECT",
    "{curly}",
]


def test_a_batch_written_again_overwrites_itself(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1), changes(2), changes(3))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    sink.write(dataframe(spark, log, 0, 2), Batch("orders", 1, 2), VERSION)
    sink.write(dataframe(spark, log, 2, 3), Batch("orders", 3, 3), VERSION)
    before = sorted(files(tmp_path / "lake" / "orders"))
    assert all(name.startswith(f"part-lake-{1:020d}-{2:020d}-") for name in before[:-1])
    sink.write(dataframe(spark, log, 0, 2), Batch("orders", 1, 2, replay=True), VERSION)
    assert sorted(files(tmp_path / "lake" / "orders")) == before
    assert held(spark, tmp_path / "lake" / "orders") == [1, 1, 2, 2, 3, 3]


def test_a_batch_that_was_moved_in_part_is_whole_afterwards(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1, rows=50))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    frame = dataframe(spark, log).repartition(4)
    sink.write(frame, Batch("orders", 1, 1), VERSION)
    target = tmp_path / "lake" / "orders"
    parts = sorted(files(target))
    assert len(parts) == 4
    # A killed process: one part is still staged, one was written by an attempt that had more of them.
    (target / "_staging-lake").mkdir()
    (target / parts[0]).rename(target / "_staging-lake" / "part-00000-x.c000.snappy.parquet")
    (target / f"part-lake-{1:020d}-{1:020d}-00017.parquet").write_bytes((target / parts[1]).read_bytes())
    sink.write(dataframe(spark, log).repartition(3), Batch("orders", 1, 1, replay=True), VERSION)
    assert len(files(target)) == 3
    assert held(spark, target) == [1] * 50


def wide(offset: int, seed: int = 0, **more: pa.Array) -> pa.Table:
    """Return changes of more than a megabyte, which does not compress."""
    noise = [random.Random(f"{seed} {offset} {n}").randbytes(1 << 14) for n in range(80)]
    return changes(offset, ("id", pa.array(range(80), pa.int64())), ("noise", pa.array(noise)), *more.items(), rows=80)


def given(spark: SparkSession, log: ChangeLog, sink: FileSink, batch: Batch) -> bool:
    """Hand *sink* the segments of *batch* as a delivery does; return whether it took them as they are."""
    found = feed.readable(log, batch.first - 1, batch.last)
    paths = [segment.file for segment in found.segments]
    frame = feed.texts(spark, paths, found.schema)
    return sink.takes(spark, paths, found.schema) and sink.take(frame, paths, batch)


def test_large_segments_go_into_a_parquet_sink_without_being_taken_apart(spark: SparkSession, tmp_path: Path) -> None:
    old = pa.array([datetime(1500, 1, 2, tzinfo=UTC)] * 80, pa.timestamp("us", "UTC"))
    more = {"when": old, "price": pa.array([Decimal("1.50")] * 80, pa.decimal128(12, 2))}
    log = logged(tmp_path, "orders", *(wide(n, **more) for n in (1, 2, 3)))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    target = tmp_path / "lake" / "orders"
    # What a killed process has left: a part of an attempt by Spark, and one of the same batch that was moved in.
    (target / "_staging-lake").mkdir(parents=True)
    (target / "_staging-lake" / "part-00000-x.c000.snappy.parquet").write_bytes(b"half")
    (target / f"part-lake-{1:020d}-{2:020d}-00001.snappy.parquet").write_bytes(b"half")
    names = [f"part-lake-{1:020d}-{2:020d}-00000.parquet", f"part-lake-{3:020d}-{3:020d}-00000.parquet"]
    assert given(spark, log, sink, Batch("orders", 1, 2, replay=True))
    assert sorted(files(target)) == names[:1]
    for batch in (Batch("orders", 3, 3), Batch("orders", 1, 2, replay=True)):
        assert given(spark, log, sink, batch)
    assert sorted(files(target)) == names
    read = spark.read.parquet(str(target))
    assert read.schema == dataframe(spark, log).schema
    assert read.exceptAll(dataframe(spark, log)).isEmpty()
    assert read.count() == 240
    # Among them one without rows, as `watermark reset` leaves it before a table is loaded again.
    again = logged(tmp_path / "again", "orders", wide(1, **more).slice(0, 0), *(wide(n, **more) for n in range(2, 7)))
    anew = FileSink("lake", path=str(tmp_path / "anew"))
    assert given(spark, again, anew, Batch("orders", 1, 6))
    # A later batch that Spark writes is of the same table.
    sink.write(dataframe(spark, log, 2, 3), Batch("orders", 4, 4), VERSION)
    assert spark.read.parquet(str(target)).select("when", "price").distinct().count() == 1


def test_a_segment_with_a_damaged_page_goes_into_no_sink(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", wide(1), wide(2))
    path = log.path(2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    sink, batch = FileSink("lake", path=str(tmp_path / "lake")), Batch("orders", 1, 2)
    with pytest.raises(SinkError, match="could not verify page integrity, CRC checksum"), failing_as(sink, batch):
        given(spark, log, sink, batch)
    assert not list((tmp_path / "lake" / "orders").glob("part-*"))


def test_what_spark_would_write_in_another_form_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", wide(1), wide(2))
    later = logged(tmp_path / "later", "orders", wide(1), changes(2, *CHANGED), changes(3, *CHANGED))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    assert not given(spark, later, sink, Batch("orders", 1, 1)), "of other columns than there are today"
    assert not given(spark, later, sink, Batch("orders", 2, 3)), "small ones"
    zipped = FileSink("lake", path=sink.path, options={"compression": "zstd"})
    assert not given(spark, log, zipped, Batch("orders", 1, 2))
    for name, value in (("spark.sql.parquet.compression.codec", "zstd"), ("parquet.page.size", "4096")):
        session = spark.newSession()
        session.conf.set(name, value)
        assert not given(session, log, sink, Batch("orders", 1, 2)), name
    # Columns are first asked of one segment, and then of each.
    frame = dataframe(spark, log, 0, 1)
    assert not sink.take(frame, [log.path(1), later.path(2)], Batch("orders", 1, 2))
    assert given(spark, log, sink, Batch("orders", 1, 2))


CHANGED = (("id", pa.array([1, 2], pa.int64())), ("noise", pa.array([b"a", b"b"])), ("new", pa.array(["c", "d"])))


def test_a_sink_touches_no_batch_but_its_own(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", *(changes(n) for n in range(1, 13)))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    for first, last in ((1, 1), (2, 10), (11, 11), (12, 12)):
        sink.write(dataframe(spark, log, first - 1, last), Batch("orders", first, last), VERSION)
    sink.write(dataframe(spark, log, 0, 1), Batch("orders", 1, 1, replay=True), VERSION)
    assert held(spark, tmp_path / "lake" / "orders") == sorted([*range(1, 13)] * 2)


@pytest.mark.parametrize("format_", ["json", "orc", "csv"])
def test_other_file_formats_are_replayed_as_well(spark: SparkSession, tmp_path: Path, format_: str) -> None:
    log = logged(tmp_path, "orders", changes(1), changes(2))
    sink = FileSink("lake", format=format_, path=str(tmp_path / "lake") + "/", options={"header": "true"})
    for _ in range(2):
        sink.write(dataframe(spark, log), Batch("orders", 1, 2), VERSION)
    read = spark.read.options(header=True, inferSchema=True).format(format_).load(str(tmp_path / "lake" / "orders"))
    assert sorted(row[VERSION] for row in read.collect()) == [1, 1, 2, 2]
    if format_ != "orc":
        text = "".join(file.read_text() for file in (tmp_path / "lake" / "orders").glob(f"*.{format_}"))
        assert re.search(r"T\d\d:\d\d:\d\d\.\d{6}Z", text), "to the microsecond"


def test_csv_files_with_headers_take_columns_that_come_go_and_grow(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = ("id", pa.array([1], pa.int32())), ("x.y", pa.array(["a"])), ("gone", pa.array(["g"]))
    second = ("new", pa.array(["n"])), ("id", pa.array([2**40], pa.int64())), ("x.y", pa.array(["b"]))
    sink = FileSink("lake", format="csv", path=str(tmp_path / "lake"), options={"Header": "True"})
    for columns in ((first,), (first, second)):
        segments = [changes(n, *c, rows=1) for n, c in enumerate(columns, 1)]
        log, last = logged(tmp_path / str(len(columns)), "orders", *segments), len(columns)
        for _ in range(2):
            sink.write(dataframe(spark, log, last - 1, last), Batch("orders", last, last), VERSION)
    assert caplog.text.count('its CSV files have "new" from now on') == 1
    folder = tmp_path / "lake" / "orders"
    expected = [(1, "a", "g", None), (2**40, "b", None, "n")]
    named = f"read_csv('{folder}/*.csv', union_by_name = true)"
    found = duckdb.connect().sql(f'SELECT id, "x.y", gone, new FROM {named} ORDER BY id')
    assert found.fetchall() == expected
    schema = "t STRING, v BIGINT, at TIMESTAMP, o STRING, id BIGINT, xy STRING, gone STRING, new STRING"
    rows = spark.read.csv(str(folder), header=True, schema=schema).select("id", "xy", "gone", "new").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == expected


def test_csv_files_without_headers_keep_their_places_and_take_no_new_column(
    spark: SparkSession, tmp_path: Path
) -> None:
    first = ("id", pa.array([1])), ("a", pa.array(["a"])), ("b", pa.array(["b"]))
    second = ("b", pa.array(["B"])), ("id", pa.array([2]))
    third = ("id", pa.array([3])), ("a", pa.array(["A"])), ("b", pa.array(["B"])), ("c", pa.array(["C"]))
    sink = FileSink("lake", format="csv", path=str(tmp_path / "lake"))

    def write(number: int, *columns: tuple[str, pa.Array]) -> None:
        log = logged(tmp_path / str(number), "t", changes(1, *columns, rows=1))
        sink.write(dataframe(spark, log), Batch("t", number, number), VERSION)

    write(1, *first)
    write(2, *second)
    with pytest.raises(SinkError, match=r'could not be told apart.*a sink of its own.*header = "true"'):
        write(3, *third)
    read = spark.read.csv(str(tmp_path / "lake" / "t")).orderBy("_c4").collect()
    assert [tuple(row)[4:] for row in read] == [("1", "a", "b"), ("2", None, "B")]


@pytest.mark.parametrize("format_", ["json", "orc"])
def test_files_whose_columns_have_names_take_what_comes_and_goes(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    sink = FileSink("lake", format=format_, path=str(tmp_path / "lake"))
    for number, name in enumerate(("gone", "new"), 1):
        columns = (name, pa.array([name])), ("id", pa.array([number]))
        log = logged(tmp_path / name, "t", changes(1, *columns, rows=1))
        sink.write(dataframe(spark, log), Batch("t", number, number), VERSION)
    read = spark.read.option("mergeSchema", "true").format(format_).load(str(tmp_path / "lake" / "t"))
    assert sorted((r["id"], r["gone"], r["new"]) for r in read.collect()) == [(1, "gone", None), (2, None, "new")]


@pytest.mark.parametrize("table", TABLES)
def test_any_table_name_is_one_folder(spark: SparkSession, tmp_path: Path, table: str) -> None:
    log = logged(tmp_path, table, changes(1))
    sink = FileSink("a=b/{c}", path=str(tmp_path / "lake"))
    sink.write(dataframe(spark, log), Batch(table, 1, 1), VERSION)
    assert [p.name for p in (tmp_path / "lake").iterdir()] == [filename(table)]
    assert held(spark, tmp_path / "lake" / filename(table)) == [1, 1]
    everything = spark.read.parquet(str(tmp_path / "log" / filename(table)))
    assert everything.count() == 2


def test_any_column_name_comes_through_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "odd", changes(1, *((name, pa.array(["v", name])) for name in COLUMNS)))
    sink = FileSink("lake", path=str(tmp_path / "lake"))
    sink.write(dataframe(spark, log), Batch("odd", 1, 1), VERSION)
    read = spark.read.parquet(str(tmp_path / "lake" / "odd"))
    assert read.columns[4:] == COLUMNS
    assert [list(row)[4:] for row in read.collect()] == [["v"] * len(COLUMNS), COLUMNS]


def test_types_and_column_order_survive_to_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    at, reading = datetime(2024, 10, 27, 0, 30, 0, 123457, UTC), datetime(2024, 10, 27, 2, 30, 0, 123457)  # noqa: DTZ001
    log = logged(
        tmp_path,
        "typed",
        changes(
            1,
            ("z", pa.array([at, None], pa.timestamp("us", "UTC"))),
            ("a", pa.array([reading, None], pa.timestamp("us"))),
            ("m", pa.array([Decimal("-12345678901234567890.1234567890"), None], pa.decimal128(38, 10))),
            ("b", pa.array([b"\x00\xff", None])),
            ("f", pa.array([float("inf"), None])),
            ("n", pa.array([2**63 - 1, None], pa.int64())),
            ("l", pa.array([["a", None], None], pa.list_(pa.string()))),
            ("t", pa.array([True, None])),
            ("d", pa.array([19844, None], pa.int32()).cast(pa.date32())),
        ),
    )
    frame = dataframe(spark, log)
    FileSink("lake", path=str(tmp_path / "lake")).write(frame, Batch("typed", 1, 1), VERSION)
    read = spark.read.parquet(str(tmp_path / "lake" / "typed"))
    assert read.dtypes == frame.dtypes
    assert [t for _, t in read.dtypes] == [
        "string", "bigint", "timestamp", "string",
        "timestamp", "timestamp_ntz", "decimal(38,10)", "binary", "double", "bigint",
        "array<string>", "boolean", "date",
    ]  # fmt: skip
    assert read.columns[4:] == ["z", "a", "m", "b", "f", "n", "l", "t", "d"]
    arrow = read.toArrow().to_pylist()
    assert arrow[0]["z"] == at
    assert arrow[0]["a"] == reading
    assert arrow[0]["m"] == Decimal("-12345678901234567890.1234567890")
    assert (arrow[0]["n"], bytes(arrow[0]["b"]), arrow[0]["l"]) == (2**63 - 1, b"\x00\xff", ["a", None])
    assert all(v is None for k, v in arrow[1].items() if not k.startswith("_"))


def test_an_empty_range_has_the_same_columns(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1))
    assert dataframe(spark, log, 1).columns == dataframe(spark, log).columns
    assert dataframe(spark, log, 1).count() == 0
    assert dataframe(spark, ChangeLog(tmp_path / "log", "nothing"), 0).columns == []


def test_a_column_that_came_later_is_null_before(spark: SparkSession, tmp_path: Path) -> None:
    one = pa.array([1, 2], pa.int64())
    log = logged(tmp_path, "orders", changes(1, ("id", one)), changes(2, ("new", one), ("id", one)))
    rows = dataframe(spark, log).orderBy(VERSION, "id").collect()
    assert [(r["id"], r["new"]) for r in rows] == [(1, None), (2, None), (1, 1), (2, 2)]


def test_what_retention_has_dropped_is_no_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1), changes(2))
    log.drop(1, Watermark("id by u", offset=2), NOTHING)
    with pytest.raises(LogTruncated, match=r"begins at 2.*since=1"):
        dataframe(spark, log, 0)
    assert dataframe(spark, log, 1).count() == 2


def test_a_folder_whose_name_is_a_pattern_to_spark_is_that_folder(spark: SparkSession, tmp_path: Path) -> None:
    odd = tmp_path / "a[1] {b,c} *?\\d"
    (tmp_path / "a1 b").mkdir()
    log = logged(odd, "t", changes(1), changes(2))
    assert dataframe(spark, log).count() == 4
    sink = FileSink("lake", path=str(odd / "lake"))
    for _ in range(2):
        sink.write(dataframe(spark, log), Batch("t", 1, 2), VERSION)
    assert held(spark, Path(literal(str(odd / "lake")), "t")) == [1, 1, 2, 2]
    mirror = MirrorSink("copy", path=str(odd).removesuffix("\\d") + "/copy")
    mirror.apply(feed.table(log, 0, 1), Batch("t", 1, 1, key=("id",), log="a log"), VERSION)
    assert mirror_of(spark, f"{mirror.path}/t").count() == 2
    for path in (odd / "copy", tmp_path / "p%20q", (tmp_path / "a b").as_uri()):
        with pytest.raises(SettingsError, match=r"delta-rs takes .* in it for something else"):
            MirrorSink("copy", path=str(path)).apply(feed.table(log, 0, 1), Batch("t", 1, 1, key=("id",)), VERSION)


def test_two_threads_that_read_a_store_at_once_get_their_own_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [logged(tmp_path / str(n), "t", changes(n)) for n in (1, 2)]
    register, barrier = DataSourceRegistration.register, threading.Barrier(2)

    def meeting(self: DataSourceRegistration, source: type[DataSource]) -> None:
        register(self, source)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait(1)

    def read(log: ChangeLog) -> set[int]:
        frame = stored_feed.frame(spark, log.list(), dataframe(spark, log).schema)
        return {row[VERSION] for row in frame.collect()}

    monkeypatch.setattr(DataSourceRegistration, "register", meeting)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(read, logs)) == [{1}, {2}]
