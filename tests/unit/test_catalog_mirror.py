"""A mirror's table in a catalog: whether it can be one, whose it is, what it holds, and which columns it can have."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError, SinkError
from sidecar.mirrors.catalog_table import Catalog
from sidecar.mirrors.mirror import MirrorSink
from sidecar.settings import mirrored
from sidecar.sinks import Batch
from tests.conftest import SQLiteFile
from tests.unit import told_logs
from tests.unit.mirrors import VERSION, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELETED = {"_change_type": "delete"}


def kept(catalogs: SparkSession, table: str, **more: Any) -> MirrorSink:
    return MirrorSink("lake", catalog=Catalog(table, None, lambda: catalogs), **more)


def apply(sink: MirrorSink, offset: int, columns: dict[str, Any], kind: str = "insert", **more: Any) -> None:
    batch = Batch("t", offset, offset, **({"key": ("id",), "log": "a log"} | more))
    sink.apply(changes(offset, columns, kind), batch, VERSION)


def test_a_catalog_that_cannot_merge_is_named_and_nothing_is_left_there(catalogs: SparkSession) -> None:
    sink = kept(catalogs, "dull.shop.{table}")
    said = r"cannot MERGE into the table `dull`\.`shop`\.`t` .*does not support MERGE.*\"path\" instead of \"table\""
    with pytest.raises(SettingsError, match=said):
        apply(sink, 1, {"id": [1]})
    assert not catalogs.catalog.tableExists("dull.shop.t")


def test_a_catalog_that_the_session_does_not_have_is_named(catalogs: SparkSession) -> None:
    with pytest.raises(SinkError, match=r"`nowhere`\.`shop`\.`t` cannot be looked for: .*must have the catalog"):
        apply(kept(catalogs, "nowhere.shop.{table}"), 1, {"id": [1]})


def test_a_table_that_something_else_keeps_is_refused(catalogs: SparkSession) -> None:
    apply(kept(catalogs, "rows.mine.{table}"), 1, {"id": [1]})
    with pytest.raises(SinkError, match=r"the table `rows`\.`mine`\.`t` mirrors another change log.*another table"):
        apply(kept(catalogs, "rows.mine.{table}"), 1, {"id": [1]}, log="another log")
    with pytest.raises(SinkError, match="was written as current, and now the sink asks for history"):
        apply(kept(catalogs, "rows.mine.{table}", kind="history"), 1, {"id": [1]})
    catalogs.createDataFrame([(1,)], "id long").writeTo("rows.theirs.t").create()
    with pytest.raises(SinkError, match="was not written by Sidecar"):
        apply(kept(catalogs, "rows.theirs.{table}"), 1, {"id": [1]})


def test_a_table_that_is_gone_is_no_place_to_go_on(catalogs: SparkSession) -> None:
    apply(kept(catalogs, "rows.gone.{table}"), 1, {"id": [1]})
    catalogs.sql("DROP TABLE rows.gone.t")
    with pytest.raises(SinkError, match=r"there is no table .*up to offset 1"):
        apply(kept(catalogs, "rows.gone.{table}"), 2, {"id": [2]})


def test_a_log_that_ends_before_what_the_table_has_is_an_older_copy(catalogs: SparkSession, tmp_path: Path) -> None:
    apply(kept(catalogs, "rows.older.{table}"), 1, {"id": [1, 2]})
    apply(kept(catalogs, "rows.older.{table}"), 2, {"id": [2]}, "delete")
    apply(kept(catalogs, "rows.older.{table}"), 3, {"id": [1]}, "update_postimage")
    log, batch = ChangeLog(tmp_path / "log", "t"), Batch("t", 2, 2, key=("id",), log="a log")
    for _ in range(2):
        told_logs.append(log, ("insert", 5, 5))
    with pytest.raises(SinkError, match=r"up to offset 3 of a log that by now ends at offset 2: .* older copy"):
        kept(catalogs, "rows.older.{table}").recognise(batch, log, VERSION)
    told_logs.append(log, ("insert", 5, 5))
    kept(catalogs, "rows.older.{table}").recognise(batch, log, VERSION)


@pytest.mark.parametrize("kind", ["current", "history"])
def test_a_table_that_was_put_back_to_an_older_version_is_said(
    catalogs: SparkSession, tmp_path: Path, kind: str
) -> None:
    place, log = f"rows.back_{kind}.t", ChangeLog(tmp_path / "log", "t")

    def give(sink: MirrorSink, offset: int, columns: dict[str, Any], change: str = "insert") -> None:
        batch = Batch("t", offset, offset, key=("id", "part"), log="a log")
        sink.recognise(batch, log, VERSION)
        sink.apply(changes(offset, {"part": ["x"] * len(columns["id"]), **columns}, change), batch, VERSION)

    def new() -> MirrorSink:
        return kept(catalogs, f"rows.back_{kind}.{{table}}", kind=kind)

    def put_back(*rows: str) -> None:
        catalogs.sql(f"DELETE FROM {place} WHERE NOT ({' OR '.join(rows)})")

    for _ in range(3):
        told_logs.append(log, ("insert", 5, 5))
    sink = new()
    for offset in (1, 2):
        give(sink, offset, {"id": [offset]})
    # The row that is remembered is changed, and deleted, and another one takes its place.
    sink = new()
    give(sink, 3, {"id": [2]}, "update_postimage")
    give(sink, 4, {"id": [2]}, "delete")
    sink = new()
    give(sink, 5, {"id": [3]})
    put_back("id < 3")
    for one in (sink, new()):
        said = r"was put back to an older version.*the row id=3, part='x' was as of offset 5, and is not there"
        with pytest.raises(SinkError, match=said):
            give(one, 6, {"id": [6]})
    catalogs.sql(f"DROP TABLE {place}")
    told_logs.append(log, ("insert", 5, 5))
    with pytest.raises(SinkError, match="there is no table"):
        new().recognise(Batch("t", 6, 6, key=("id", "part"), log="a log", floor=5), log, VERSION)


def test_values_of_any_type_under_any_name_and_key_come_go_and_come_back(catalogs: SparkSession) -> None:
    rows = {
        "id": pa.array([0.0, float("nan"), 1.5, 2.5]),
        "a b`.c": ["x", "", None, "ß"],
        "number": pa.array([Decimal("1.50"), None, None, Decimal("-9.99")], pa.decimal128(38, 2)),
        "zoned": pa.array([0, 2**55, -(2**55), None], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1, -(2**55), None], pa.timestamp("us")),
        "bytes": [b"\0", None, b"", b"x"],
        "nested": pa.array([[{"x y": 1}], [], None, [None]], pa.list_(pa.struct([pa.field("x y", pa.int64())]))),
    }
    sink = kept(catalogs, "rows.`any`.copy_of_{table}")
    apply(sink, 1, rows)
    columns = ", ".join(mirrored.quoted(name) for name in rows)

    def held() -> list[str]:
        found = catalogs.sql(f"SELECT {columns} FROM rows.`any`.copy_of_t").toArrow()
        return sorted(str(list(row.values())) for row in found.to_pylist()) if found else []

    before = held()
    assert before == sorted(str(list(row.values())) for row in pa.table(rows).to_pylist())
    negative = rows | {"id": pa.array([-0.0, float("nan"), 1.5, 2.5])}
    apply(sink, 2, negative, "update_postimage")
    assert [row.replace("-0.0,", "0.0,") for row in held()] == before
    apply(sink, 3, negative, "delete")
    assert held() == []
    apply(sink, 4, rows)
    assert held() == before


def test_columns_that_come_and_grow_keep_what_is_there(catalogs: SparkSession) -> None:
    grown = [
        {"id": [1], "n": pa.array([1], pa.int32())},
        {"id": [2], "n": pa.array([2**40], pa.int64()), "a b": ["new"]},
        {"id": [3]},
    ]
    sink = kept(catalogs, "rows.grown.{table}")
    for offset, columns in enumerate(grown, 1):
        apply(sink, offset, columns)
    found = catalogs.table("rows.grown.t").orderBy("id").select("id", "n", "`a b`", VERSION).collect()
    assert [tuple(row) for row in found] == [(1, 1, None, 1), (2, 2**40, "new", 2), (3, None, None, 3)]
    with pytest.raises(SinkError, match=r'column "n" was int64 and is double now'):
        apply(sink, 4, {"id": [4], "n": [1.5]})


def test_a_catalog_that_widens_no_type_is_named(catalogs: SparkSession) -> None:
    sink = kept(catalogs, "rigid.shop.{table}")
    apply(sink, 1, {"id": [1], "n": pa.array([1], pa.int32())})
    with pytest.raises(SinkError, match=r'"n" was int32 and is int64 now.*does not widen it: .*cannot do UpdateColumn'):
        apply(sink, 2, {"id": [1], "n": [1]})


@pytest.mark.parametrize("kind", ["current", "marked", "history"])
def test_a_column_that_was_dropped_and_came_again_is_another_one(catalogs: SparkSession, kind: str) -> None:
    sink = kept(catalogs, f"rows.{kind}.{{table}}", kind=kind)

    def give(offset: int, rows: dict[str, Any], change: str = "insert") -> None:
        batch = Batch("t", offset, offset, key=("id",), log="a log", columns=tuple(rows))
        sink.apply(changes(offset, rows, change), batch, VERSION)

    give(1, {"id": [1, 2], "v": ["old", "over"]})
    give(2, {"id": [2], "v": ["over"]}, "delete")
    give(3, {"id": [3]})
    give(4, {"id": [4], "v": ["new"]})
    found = catalogs.table(f"rows.{kind}.t").orderBy("id").select("id", "v").collect()
    over = [] if kind == "current" else [(2, "over")]
    assert [tuple(row) for row in found] == [(1, None), *over, (3, None), (4, "new")]


def test_a_table_that_was_loaded_in_part_is_loaded_whole_and_goes_on(catalogs: SparkSession) -> None:
    sink, batch = kept(catalogs, "rows.loaded.{table}"), Batch("t", 1, 7, key=("id",), log="a log")
    pieces = [changes(7, {"id": ids}) for ids in ([], [1, 2], [3, 4])]
    pieces[0] = pieces[1].slice(0, 0)
    with pytest.raises(RuntimeError, match="cut off"):
        sink.load((piece for piece in (*pieces[:2], None) if piece is not None or _cut_off()), batch, VERSION)
    assert catalogs.table("rows.loaded.t").count() == 2
    sink.load(iter(pieces), batch, VERSION)
    apply(sink, 8, {"id": [4]}, "delete")
    found = catalogs.table("rows.loaded.t").orderBy("id").select("id", VERSION).collect()
    assert [tuple(row) for row in found] == [(1, 7), (2, 7), (3, 7)]


def _cut_off() -> bool:
    raise RuntimeError("cut off")


def test_what_is_said_of_a_table_is_said_of_it_in_the_catalog(catalogs: SparkSession) -> None:
    sink = dataclasses.replace(kept(catalogs, "rows.said.{table}"), options={"write.format": "orc"})
    sink = dataclasses.replace(sink, catalog=dataclasses.replace(sink.catalog, format="iceberg"))  # type: ignore[type-var]
    sink.apply(changes(1, {"id": [1]}), Batch("public.t", 1, 1, key=("id",), log="a log"), VERSION)
    found = {row["key"]: row["value"] for row in catalogs.sql("SHOW TBLPROPERTIES rows.said.public_t").collect()}
    assert found["write.format"] == "orc"
    assert (found["sidecar.table"], found["sidecar.key"]) == ("public.t", '["id"]')


def test_a_run_keeps_a_table_of_the_catalog_level_with_the_source(
    catalogs: SparkSession, sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    settings = tmp_path / "sidecar.toml"
    settings.write_text(
        f'[source]\nurl = "{sqlite_db.url}"\n[tables.t]\n'
        '[sinks.lake]\nmode = "mirror"\ntable = "rows.run.{table}"\non_delete = "mark"\n'
    )
    execute = sqlite_db.connection.execute
    execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL, deleted_at TEXT)")
    execute("INSERT INTO t VALUES (1, 'a', '2024-05-01 10:00:00', NULL), (2, 'b', '2024-05-01 10:00:00', NULL)")
    with sidecar.open(settings) as sc:
        with pytest.raises(SinkError, match=r"there is no table `rows`\.`run`\.`t` yet"):
            sc.mirror(catalogs, "t")
        assert sc.run(catalogs, once=True) == 0
        execute("UPDATE t SET v = 'c', updated_at = '2024-05-01 10:00:01' WHERE id = 1")
        execute("UPDATE t SET deleted_at = '2024-05-01 10:00:01', updated_at = '2024-05-01 10:00:01' WHERE id = 2")
        assert sc.run(catalogs, once=True) == 0
        found = sc.mirror(catalogs, "t").selectExpr("id", "v", "_deleted_at IS NULL").orderBy("id").collect()
    assert [tuple(row) for row in found] == [(1, "c", True), (2, "b", False)]
