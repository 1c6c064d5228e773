"""A mirror's columns: those that come, go, grow and come again, and what a Delta table can hold."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sidecar.errors import SinkError
from sidecar.mirrors import mirror
from sidecar.mirrors.mirror import MirrorSink
from sidecar.settings import mirrored
from tests.unit import mirrors
from tests.unit.mirrors import VERSION, apply, batch, changes, files, held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sink = mirrors.sink

ODD = ["x.y", "a b", "Price (EUR), net", "größe", "a`b", 'q"q', "a=b", "_x", "semi;colon", "SELECT", "{curly}", "it's"]


def test_columns_that_come_go_and_grow_keep_what_is_there(sink: MirrorSink) -> None:
    small = {"id": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 1.5], pa.float32()), "gone": ["a", "b"]}
    apply(sink, 1, small | {"d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2))})
    large = {"id": pa.array([2, 2**40], pa.int64()), "f": [2.5, 0.1], "new": [[1], None]}
    apply(sink, 2, large | {"d": pa.array([Decimal("12345678.125")] * 2, pa.decimal128(12, 3))})
    assert held(sink).to_pylist() == [
        {"id": 1, "f": 0.5, "gone": "a", "d": Decimal("1.500"), "new": None},
        {"id": 2, "f": 2.5, "gone": None, "d": Decimal("12345678.125"), "new": [1]},
        {"id": 2**40, "f": 0.1, "gone": None, "d": Decimal("12345678.125"), "new": None},
    ]
    # An older batch that is given once more, and a narrower type that still fits.
    apply(sink, 3, small | {"d": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2))})
    assert held(sink).column("f").to_pylist() == [0.5, 1.5, 0.1]


@pytest.mark.parametrize("kind", ["current", "history"])
def test_a_column_of_structs_is_kept_and_its_files_are_joined(tmp_path: Path, kind: str) -> None:
    sink = MirrorSink("lake", path=str(tmp_path / "lake"), kind=kind)
    struct = pa.struct([("a", pa.int64()), ("b", pa.string())])
    for offset, values in enumerate(([{"a": 1, "b": "x"}, None], [{"a": 2, "b": None}, None]), 1):
        apply(sink, offset, {"id": [1, 2], "s": pa.array(values, struct)})
    sink._tables["t"].maintain(0)
    apply(sink, 3, {"id": [2], "s": pa.array([{"a": 3, "b": None}], struct)})
    rows = [r for r in held(sink).to_pylist() if r.get("_valid_to") is None]
    assert [(r["id"], r["s"]["a"]) for r in rows] == [(1, 2), (2, 3)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("current", [(1, None), (3, "c"), (4, "d")]),
        ("marked", [(1, None), (2, "b"), (3, "c"), (4, "d")]),
        ("history", [(1, None), (2, "b"), (3, "c"), (4, "d")]),
    ],
)
def test_a_column_that_was_dropped_and_came_again_is_another_one(
    tmp_path: Path, kind: str, expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = MirrorSink("lake", path=str(tmp_path / "lake"), kind=kind)

    def give(offset: int, columns: dict[str, Any], kind: str = "insert", names: tuple[str, ...] = ("id", "v")) -> None:
        sink.apply(changes(offset, columns, kind), batch(offset, columns=names), VERSION)

    give(1, {"id": [1, 2], "v": ["a", "b"]})
    give(2, {"id": [2], "v": ["b"]}, "delete")
    give(3, {"id": [3]}, names=("id",))
    # Killed between the two steps, and begun again.
    monkeypatch.setattr(
        "sidecar.mirrors.delta_table.DeltaMirror._settle", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        give(4, {"id": [3], "v": ["c"]}, "update_postimage")
    monkeypatch.undo()
    sink = MirrorSink("lake", path=sink.path, kind=kind)
    give(4, {"id": [3], "v": ["c"]}, "update_postimage")
    give(5, {"id": [4], "v": ["d"]})
    rows = [r for r in held(sink).to_pylist() if r.get("_valid_to") is None or r["id"] == 2]
    assert [(r["id"], r["v"]) for r in rows] == expected


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (pa.array(["1"]), pa.array([1], pa.int64()), r'column "v" was string and is int64 now'),
        (pa.array([1], pa.int64()), pa.array([1.5]), r'column "v" was int64 and is double now'),
    ],
)
def test_a_type_that_is_another_is_named(sink: MirrorSink, before: pa.Array, after: pa.Array, said: str) -> None:
    apply(sink, 1, {"id": [1], "v": before})
    with pytest.raises(SinkError, match=said):
        apply(sink, 2, {"id": [1], "v": after})


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"t": pa.array([1], pa.time64("us"))}, r'column "t": a mirror has no type for time64'),
        ({"t": pa.array([[1]], pa.list_(pa.duration("us")))}, r'column "t": a mirror has no type for duration'),
        ({"t": pa.nulls(1)}, r'column "t": a mirror has no type for null'),
        ({"Name": ["a"], "name": ["b"]}, r'columns "Name" and "name" differ only in case'),
        ({"ID": [5]}, r'columns "id" and "ID" differ only in case'),
    ],
)
def test_what_a_delta_table_cannot_hold_is_named(sink: MirrorSink, column: dict[str, Any], said: str) -> None:
    with pytest.raises(SinkError, match=said):
        apply(sink, 1, {"id": [1]} | column)


@pytest.mark.parametrize("name", ["two words", "a/b", "größe", "_hidden", "100%", "a=b"])
def test_a_table_of_any_name_has_a_mirror(sink: MirrorSink, name: str) -> None:
    for offset in (1, 2):
        sink.apply(changes(offset, {"id": [offset]}), dataclasses.replace(batch(offset), table=name), VERSION)
        sink = MirrorSink("lake", path=sink.path)
    assert len(pq.read_table(mirrored.place(sink.path, name))) == 2
    assert [p.name for p in Path(sink.path).iterdir()] == [Path(mirrored.place("", name)).name]


def test_any_column_name_can_be_read_by_everything(spark: SparkSession, sink: MirrorSink) -> None:
    import duckdb
    import polars

    columns = {"id": [1, 2]} | {name: ["v", name] for name in ODD}
    apply(sink, 1, columns)
    apply(sink, 2, {"id": [2]} | {name: [f"new {name}"] for name in ODD}, kind="update_postimage")
    apply(sink, 3, {"id": [3], "a new.one": ["x"]} | {name: pa.nulls(1, pa.string()) for name in ODD})
    expected = [("v", None)] * len(ODD), [(f"new {name}", None) for name in ODD]
    found = mirror.dataframe(spark, f"{sink.path}/t").orderBy("id").collect()
    assert [row.asDict()["a new.one"] for row in found] == [None, None, "x"]
    assert found[0].asDict() == {"id": 1, "a new.one": None} | dict.fromkeys(ODD, "v")
    database: Any = duckdb
    query = f"SELECT * FROM read_parquet({list(files(sink))!r}, union_by_name = true) ORDER BY id"
    for rows in (
        held(sink).to_pylist(),
        polars.read_delta(f"{sink.path}/t").sort("id").to_dicts(),
        database.sql(query).to_arrow_table().to_pylist(),
    ):
        assert [[(row[n], None) for n in ODD] for row in rows[:2]] == list(expected)


def test_a_mirror_is_read_wherever_it_is(spark: SparkSession, tmp_path: Path) -> None:
    sink = MirrorSink("lake", path=str(tmp_path / "100% größe"))
    apply(sink, 1, {"id": [1, 2]})
    assert mirror.dataframe(spark, f"{sink.path}/t").count() == 2
