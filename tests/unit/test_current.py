"""The table as it is, or was: as of offsets and times, over changes of its columns and key, and what cannot be told."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sidecar
from sidecar import clock
from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import LogTruncated, SchemaChanged, SettingsError, StateDamaged, StateHeld
from sidecar.lake import compaction, current
from sidecar.log import bases
from sidecar.model import DELETE, INSERT, KEY, UPDATE, VARIANT, Job
from sidecar.project import Sidecar
from sidecar.state import MemoryWatermarkStore
from tests.conftest import SQLiteFile
from tests.unit.told_logs import PLAIN, append, key, no_source, read, schema, truncated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return ChangeLog(tmp_path / "log", "t")


# -- as of when --------------------------------------------------------------------------------------------------------


def as_of(log: ChangeLog, when: Any) -> int:
    return current.plan(log, when, no_source).offset


def test_as_of_a_time_is_after_all_that_had_been_seen_by_then(log: ChangeLog) -> None:
    for id_ in range(3):
        append(log, (INSERT, id_, 0))
    assert [as_of(log, clock.instant(t)) for t in (0, 9, 10, 19, 20, 30, 10**12)] == [0, 0, 1, 1, 2, 3, 3]
    there = datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))) + timedelta(microseconds=20)
    assert as_of(log, there) == 2
    assert as_of(log, "1970-01-01T01:00:00.000020+01:00") == 2
    assert as_of(log, "1970-01-01T00:00:00.000020Z") == 2
    assert as_of(log, None) == 3


def test_as_of_a_time_shows_nothing_that_was_seen_later_though_a_clock_has_stepped_back(log: ChangeLog) -> None:
    for id_, committed in enumerate((10, 50, 20, 60)):
        append(log, (INSERT, id_, 0), committed=committed)
    assert [as_of(log, clock.instant(t)) for t in (10, 25, 49, 50, 60)] == [1, 1, 1, 3, 4]


@pytest.mark.parametrize("when", ["2024-05-01T10:00:00", datetime(2024, 5, 1), "yesterday", -1, True, 1.0])  # noqa: DTZ001
def test_what_is_no_offset_and_no_time_is_refused(log: ChangeLog, when: Any) -> None:
    append(log, (INSERT, 1, 0))
    with pytest.raises(SettingsError, match=r"as of .*(zone|no time|an offset)"):
        as_of(log, when)


def test_beyond_the_end_is_refused_and_says_where_that_is(log: ChangeLog) -> None:
    append(log, (INSERT, 1, 0))
    with pytest.raises(SettingsError, match="as of offset 2: its log ends at 1"):
        as_of(log, 2)


def test_before_the_first_change_a_table_is_empty_and_has_its_columns(spark: SparkSession, log: ChangeLog) -> None:
    frame = current.dataframe(spark, log, None, lambda: PLAIN)
    assert (frame.columns, frame.collect()) == (["id", "v"], [])
    append(log, (INSERT, 1, 0))
    append(log, columns=schema(key("id"), pa.field("w", pa.string())))
    frame = current.dataframe(spark, log, 0, no_source)
    assert (frame.columns, frame.collect()) == (["id", "v"], [])
    assert current.dataframe(spark, log, None, no_source).columns == ["id", "w"]


# -- what is gone ------------------------------------------------------------------------------------------------------


def test_what_retention_took_without_a_base_cannot_be_told_until_all_is_read_again(log: ChangeLog) -> None:
    for id_ in range(4):
        append(log, (INSERT, id_, 0))
    truncated(log, 2)
    for when in (0, 1, 2, 3, None, clock.instant(25), clock.instant(30)):
        with pytest.raises((LogTruncated), match=r"up to offset 2 are gone.*sidecar watermark reset t"):
            as_of(log, when)
    append(log, reset=True)
    append(log, (INSERT, 3, 1))
    made = current.plan(log, None, no_source)
    assert [p.name for p in made.paths] == [f"{6:020d}.parquet"]
    with pytest.raises(LogTruncated):
        as_of(log, 4)


def test_before_the_oldest_base_the_error_says_from_where_on_there_is_an_answer(log: ChangeLog) -> None:
    for id_ in range(4):
        append(log, (INSERT, id_, 0))
    based(log, 2)
    truncated(log, 2)
    for when in (0, 1, clock.instant(19)):
        with pytest.raises(LogTruncated, match=r"earliest .* is offset 2, 1970-01-01T00:00:00.000020Z"):
            as_of(log, when)
    assert [as_of(log, w) for w in (2, 3, None, clock.instant(20), clock.instant(30))] == [2, 3, 4, 2, 3]


def based(log: ChangeLog, offset: int, committed: int | None = None) -> bases.Base:
    """Write a base of no rows: what is in it is nothing to these tests."""
    made = current.plan(log, offset, no_source)
    bases.aside(log, offset).mkdir()
    return bases.settled(log, offset, committed or offset * 10, made.schema)


def test_a_time_before_what_a_base_holds_is_not_told_from_segments_that_were_stamped_earlier(log: ChangeLog) -> None:
    for id_, committed in enumerate((10, 50, 20, 60)):
        append(log, (INSERT, id_, 0), committed=committed)
    based(log, 2, committed=50)
    assert [as_of(log, clock.instant(t)) for t in (10, 25, 49, 50, 60)] == [1, 1, 1, 3, 4]
    truncated(log, 2)
    assert [as_of(log, clock.instant(t)) for t in (50, 60)] == [3, 4]
    with pytest.raises(LogTruncated, match=r"earliest .* is offset 2"):
        as_of(log, clock.instant(49))


def test_what_is_dropped_while_it_is_looked_at_is_looked_at_again(
    log: ChangeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for id_ in range(4):
        append(log, (INSERT, id_, 0))
    listed = log.list

    def dropped_meanwhile(since: int = 0, until: int | None = None) -> Any:
        found = listed(since, until)
        if not bases.offsets(log):
            monkeypatch.undo()
            based(log, 3)
            truncated(log, 3)
        return found

    monkeypatch.setattr(log, "list", dropped_meanwhile)
    made = current.plan(log, None, no_source)
    assert (made.offset, made.base is not None) == (4, True)


def test_a_base_that_is_not_whole_is_an_error_and_no_smaller_table(spark: SparkSession, log: ChangeLog) -> None:
    append(log, *((INSERT, n, n) for n in range(5)))
    base = compaction.compact(spark, log, 1, no_source)
    base.files[0].write_bytes(base.files[0].read_bytes()[:-1])
    with pytest.raises(StateDamaged, match="another size"):
        read(spark, log)
    base.files[0].unlink()
    with pytest.raises(StateDamaged, match="is not a whole base"):
        read(spark, log)
    shutil.rmtree(base.files[0].parent)
    assert len(read(spark, log)) == 5


def test_what_a_killed_writer_left_of_a_base_is_swept_up(log: ChangeLog) -> None:
    append(log, (INSERT, 1, 0))
    bases.aside(log, 1).mkdir()
    assert bases.offsets(log) == []
    bases.recover(log, MemoryWatermarkStore())
    assert list((log.folder / "_bases").iterdir()) == []


# -- columns and keys --------------------------------------------------------------------------------------------------


def test_columns_come_go_and_grow_and_each_moment_has_its_own(spark: SparkSession, log: ChangeLog) -> None:
    append(log, (INSERT, 1, 5), (INSERT, 2, 5), columns=schema(key("id", pa.int32()), pa.field("v", pa.int16())))
    append(log, (UPDATE, 2, "b"), columns=schema(key("id"), pa.field("w", pa.string())))
    append(log, (INSERT, 3, 10**12), columns=PLAIN)
    assert read(spark, log, 1) == [(1, 5), (2, 5)]
    for write_base in (None, 1):
        if write_base is not None:
            compaction.compact(spark, log, write_base, no_source)
        assert read(spark, log, 2) == [(1, None), (2, "b")]
        # The v of today is another column than the one that had been dropped.
        assert read(spark, log, 3) == [(1, None), (2, None), (3, 10**12)]


def test_after_a_change_of_type_the_table_can_be_told_once_it_is_read_again(
    spark: SparkSession, log: ChangeLog
) -> None:
    texts = schema(key("id"), pa.field("v", pa.string()))
    append(log, (INSERT, 1, 5))
    compaction.compact(spark, log, 1, no_source)
    append(log, columns=texts)
    append(log, (UPDATE, 1, "five"), columns=texts)
    assert read(spark, log, 1) == [(1, 5)]
    with pytest.raises(SchemaChanged, match=r"changed at offset 2.*sidecar watermark reset t"):
        read(spark, log)
    append(log, columns=texts, reset=True)
    append(log, (INSERT, 1, "five"), (INSERT, 2, "six"), columns=texts)
    assert read(spark, log) == [(1, "five"), (2, "six")]


def test_after_a_change_of_key_the_table_is_folded_by_the_new_one(spark: SparkSession, log: ChangeLog) -> None:
    by_v = schema(pa.field("id", pa.int64()), key("v"))
    append(log, (INSERT, 1, 5), (INSERT, 2, 6))
    append(log, columns=by_v, reset=True)
    append(log, (INSERT, 1, 5), (INSERT, 1, 6), columns=by_v)
    append(log, (DELETE, 1, 5), columns=by_v)
    assert read(spark, log, 1) == [(1, 5), (2, 6)]
    assert read(spark, log) == [(1, 6)]


def test_a_log_that_does_not_say_its_key_asks_for_it(spark: SparkSession, log: ChangeLog) -> None:
    unmarked = schema(pa.field("id", pa.int64()), pa.field("v", pa.int64()))
    append(log, (INSERT, 1, 1), columns=unmarked)
    append(log, (UPDATE, 1, 2), columns=unmarked)
    assert [tuple(r) for r in current.dataframe(spark, log, None, lambda: PLAIN).collect()] == [(1, 2)]
    append(log, (UPDATE, 1, 3))
    assert read(spark, log) == [(1, 3)]


def test_keys_of_any_type_are_equal_where_their_values_are(spark: SparkSession, log: ChangeLog) -> None:
    nan = math.nan
    columns = schema(
        key("a.b", pa.float64()), key("c`d", pa.string()), key("e", pa.binary()), key("kind", pa.decimal128(10, 2)),
        key("v", pa.timestamp("us", "UTC")), key("c0", pa.bool_()), pa.field("newest", pa.int64()),
    )  # fmt: skip
    now = datetime(2024, 5, 1, tzinfo=UTC)
    keys = [
        (0.5, "x", b"\x00", 1, now, True), (0.5, "x ", b"\x00", 1, now, True), (0.5, "X", b"\x00", 1, now, True),
        (0.5, "x", b"\x00\x00", 1, now, True), (0.5, "x", b"\x00", 2, now, True), (nan, "é", b"", 1, now, False),
        (0.5, "e\u0301", b"", 1, now, False), (0.5, "", b"", 1, now, False),
    ]  # fmt: skip
    append(log, *((INSERT, *k, 1) for k in keys), columns=columns)
    append(log, *((UPDATE, *k, 2) for k in keys[::2]), columns=columns)
    append(log, (DELETE, *keys[1], None), columns=columns)
    expected = sorted(n for n in [2, 2, 2, 2, 1, 1, 1])
    assert sorted(r["newest"] for r in current.dataframe(spark, log, None, no_source).collect()) == expected
    compaction.compact(spark, log, 1, no_source)
    assert sorted(r["newest"] for r in current.dataframe(spark, log, None, no_source).collect()) == expected


def test_a_variant_may_be_the_key_and_comes_as_one(spark: SparkSession, log: ChangeLog) -> None:
    columns = schema(pa.field("doc", pa.string(), metadata=KEY | VARIANT), pa.field("v", pa.int64()))
    append(log, (INSERT, '{"a": 1}', 1), (INSERT, '{"a": 2}', 1), columns=columns)
    append(log, (UPDATE, '{"a": 1}', 2), columns=columns)
    compaction.compact(spark, log, 1, no_source)
    frame = current.dataframe(spark, log, None, no_source)
    assert dict(frame.dtypes)["doc"] == "variant"
    assert sorted(tuple(r) for r in frame.selectExpr("doc:a::int", "v").collect()) == [(1, 2), (2, 1)]


def test_names_that_differ_only_in_case_are_two_columns_where_spark_is_told_so(
    spark: SparkSession, log: ChangeLog
) -> None:
    columns = schema(key("id"), pa.field("ID", pa.int64()), pa.field("V", pa.int64()), pa.field("v", pa.int64()))
    append(log, (INSERT, 1, 2, 3, 4), (INSERT, 2, 2, 3, 4), columns=columns)
    append(log, (UPDATE, 1, 5, 6, 7), columns=columns)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        compaction.compact(spark, log, 1, no_source)
        frame = current.dataframe(spark, log, None, no_source)
        assert frame.columns == ["id", "ID", "V", "v"]
        assert sorted(map(tuple, frame.collect())) == [(1, 5, 6, 7), (2, 2, 3, 4)]
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_the_chunks_of_one_backfill_are_told_from_those_of_one_that_began_again(log: ChangeLog) -> None:
    job = Job("first", 0, 1)
    for id_ in range(3):
        append(log, (INSERT, id_, 0), job=job)
    append(log, (UPDATE, 0, 1))
    append(log, (INSERT, 9, 0), job=dataclasses.replace(job, began=4))
    append(log, (INSERT, 9, 0), job=dataclasses.replace(job, part=1))
    made = current.plan(log, None, no_source)
    assert [p.name[19] for part in made.head for p in part.paths] == ["1", "2", "3"]
    assert not made.mixed
    append(log, (INSERT, 4, 0), job=job)
    assert current.plan(log, None, no_source).mixed


# -- a project ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def any_byte_is_worth_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FIRST_BYTES", 0)


@pytest.fixture
def shop(sqlite_db: SQLiteFile, tmp_path: Path) -> Path:
    sqlite_db.connection.executescript(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, v INTEGER, updated_at TEXT NOT NULL, deleted_at TEXT);"
        "CREATE TABLE empty (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL);"
    )
    path = tmp_path / "sidecar.toml"
    path.write_text(
        f'[source]\nurl = "{sqlite_db.url}"\n[state]\nretention = "1us"\n[defaults]\nchunk_size = 4\npage_size = 3\n'
        "[tables.orders]\n[tables.empty]\n"
    )
    return path


STAMP = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def live(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT * FROM orders WHERE deleted_at IS NULL ORDER BY id").fetchall()


def table(sc: Sidecar, spark: SparkSession, when: Any = None) -> list[tuple[Any, ...]]:
    return [tuple(r) for r in sc.current(spark, "orders", when).orderBy("id").collect()]


def test_the_current_table_is_the_source_and_needs_it_no_more(
    spark: SparkSession, shop: Path, sqlite_db: SQLiteFile, any_byte_is_worth_a_base: None
) -> None:
    db = sqlite_db.connection
    db.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20) "
        f"INSERT INTO orders SELECT i, i, {STAMP}, NULL FROM n"
    )
    was: dict[int, list[tuple[Any, ...]]] = {}
    with sidecar.open(shop) as sc:
        for n in range(2):
            # With retention and no sinks, Spark is started for the bases alone; here it runs already.
            assert sc.run(spark, once=True) == 0
            was[sc.log("orders").last()] = live(db)
            db.execute(f"UPDATE orders SET v = v + 100, updated_at = {STAMP} WHERE id % 3 = ?", (n,))
            db.execute(f"UPDATE orders SET updated_at = {STAMP}, deleted_at = {STAMP} WHERE id = ?", (n + 1,))
        assert sc.run(spark, once=True) == 0
        was[sc.log("orders").last()] = live(db)
        log = sc.log("orders")
        assert log.floor() > 0
        assert spark.read.parquet(str(log.folder)).count() == len(list(log.rows(log.floor()))), "bases are hidden"
        assert sc.current(spark, "empty").collect() == []
    db.close()
    sqlite_db.path.unlink()
    with sidecar.open(shop, read_only=True) as sc:
        floor = sc.log("orders").floor()
        for offset, rows in was.items():
            if offset >= floor:
                assert table(sc, spark, offset) == rows
        assert table(sc, spark) == was[max(was)]
        assert sc.current(spark, "orders").columns == ["id", "v", "updated_at", "deleted_at"]


def test_compact_writes_a_base_and_only_where_nobody_else_writes(
    spark: SparkSession, shop: Path, sqlite_db: SQLiteFile, clock: FakeClock
) -> None:
    sqlite_db.connection.execute(f"INSERT INTO orders VALUES (1, 1, {STAMP}, NULL)")
    with sidecar.open(shop) as sc:
        sc.poll()
        base = sc.compact(spark, "orders")
        assert (base.offset, base.rows) == (sc.log("orders").last(), 1)
        assert sc.compact(spark, "orders") == base
        with sidecar.open(shop) as other, pytest.raises(StateHeld):
            other.compact(spark, "orders")
    with sidecar.open(shop, read_only=True) as sc, pytest.raises(SettingsError, match="read_only"):
        sc.compact(spark, "orders")
