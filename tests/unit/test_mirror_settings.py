"""A mirror as a user has it: settings, transforms, and where it is read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sidecar
from sidecar.errors import SettingsError, SinkError
from sidecar.mirrors.mirror import MirrorSink
from tests.conftest import SQLiteFile
from tests.unit.mirrors import MIRROR, TABLE, VERSION, batch, changes, held, insert, project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_mirror_without_a_transform_needs_no_spark(
    sqlite_db: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project(sqlite_db, MIRROR)
    insert(sqlite_db.connection, 1, "a")

    def none(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("sidecar.lake.spark.session", none)
    with sidecar.open(path) as sc:
        assert sc.run(once=True) == 0
        sqlite_db.connection.execute("UPDATE t SET v = 'b', updated_at = '2024-05-01 11:00:00'")
        assert sc.run(once=True) == 0
    found = held(MirrorSink("lake", path=str(tmp_path / "lake")))
    assert found.column_names == ["id", "v", "created_at", "updated_at"]
    assert found.column("v").to_pylist() == ["b"]


def test_a_transform_shapes_a_mirror_and_must_keep_its_key(
    spark: SparkSession, sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    path = project(sqlite_db, MIRROR + 'transform = "mirror_shapes:shape"\n')
    (tmp_path / "mirror_shapes.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def shape(frame):\n    return frame.withColumn('v', F.upper('v')).drop('created_at')\n"
        "def broken(frame):\n    return frame.withColumnRenamed('id', 'key')\n"
        "def bare(frame):\n    return frame.drop('_origin')\n"
    )
    insert(sqlite_db.connection, 1, "a")
    with sidecar.open(path) as sc:
        assert sc.run(spark, once=True) == 0
    assert held(MirrorSink("lake", path=str(tmp_path / "lake"))).to_pylist()[0] == {
        "id": 1, "v": "A", "updated_at": "2024-05-01 10:00:00",
    }  # fmt: skip
    frame = spark.createDataFrame(changes(1, {"id": [1], "v": ["a"]}))
    for function, said in (("broken", '"id", a column of the key.*must keep|"id"'), ("bare", '"_origin"')):
        sink = MirrorSink("pond", f"mirror_shapes:{function}", tmp_path, path=str(tmp_path / "pond"))
        with pytest.raises(SettingsError, match=said):
            sink.write(frame, batch(1), VERSION)


@pytest.mark.parametrize(
    ("table", "more", "said"),
    [
        (TABLE, MIRROR.replace('"delta"', '"parquet"'), 'write format = "delta"'),
        (TABLE, MIRROR + 'history = true\non_delete = "mark"\n', "deleted rows stay anyway"),
        (TABLE, MIRROR.replace('"mirror"', '"append"') + "history = true\n", '"history" is for mode = "mirror"'),
        (TABLE.replace("v TEXT", "_Valid_To TEXT"), MIRROR + "history = true\n", '"_Valid_To".*"_valid_to".*prefix'),
        (
            TABLE.replace("v TEXT", "_deleted_at TEXT"),
            MIRROR + 'on_delete = "mark"\n',
            '"_deleted_at".*metadata_prefix',
        ),
    ],
)
def test_settings_that_no_mirror_can_keep_are_refused_at_the_start(
    sqlite_db: SQLiteFile, table: str, more: str, said: str
) -> None:
    path = project(sqlite_db, more, table)
    with pytest.raises(SettingsError, match=said), sidecar.open(path) as sc:
        _ = sc.tracked


def test_a_column_that_came_again_has_in_a_mirror_what_it_has_in_the_source(
    sqlite_db: SQLiteFile, tmp_path: Path
) -> None:
    # What a poll has met it does not meet again, as it would within the lookback.
    path = project(sqlite_db, 'lookback = "1us"\n' + MIRROR)
    steps = (
        "",
        "",
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t ADD COLUMN v TEXT",
        "ALTER TABLE t ADD COLUMN w TEXT",
    )
    for key, step in enumerate(steps, 1):
        sqlite_db.connection.execute(step)
        sqlite_db.connection.execute(
            "INSERT INTO t (id, created_at, updated_at) VALUES (?1, '', strftime('%Y-%m-%d %H:%M:%f'))", (key,)
        )
        if key in (1, 4):
            sqlite_db.connection.execute("UPDATE t SET v = 'a value' WHERE id = ?", (key,))
        with sidecar.open(path) as sc:
            assert sc.run(once=True) == 0
    # Another one, which comes when all of that is over.
    path.write_text(path.read_text() + MIRROR.replace("lake", "pond"))
    with sidecar.open(path) as sc:
        assert sc.run(once=True) == 0
    source = [
        dict(zip(("id", "v", "w"), r, strict=True)) for r in sqlite_db.connection.execute("SELECT id, v, w FROM t")
    ]
    for name in ("lake", "pond"):
        assert held(MirrorSink(name, path=str(tmp_path / name))).select(["id", "v", "w"]).to_pylist() == source


def test_a_mirror_is_read_by_its_tables_name(spark: SparkSession, sqlite_db: SQLiteFile) -> None:
    path = project(sqlite_db, MIRROR)
    with sidecar.open(path) as sc:
        assert sc.run(once=True) == 0
        with pytest.raises(SinkError, match="no Delta table yet"):
            sc.mirror(spark, "t")
        insert(sqlite_db.connection, 1, "a")
        assert sc.run(once=True) == 0
        assert [(r["id"], r["v"]) for r in sc.mirror(spark, "t").collect()] == [(1, "a")]
        with pytest.raises(SettingsError, match='"u" is not followed'):
            sc.mirror(spark, "u")
