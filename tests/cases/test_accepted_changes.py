"""What accepting a table's columns and resetting its watermark do, and what a loop makes of types that change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar.delivering.folder_columns import RECORD, SUMMARY
from sidecar.errors import SchemaChanged
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ITEMS = """\
CREATE TABLE items (id INTEGER PRIMARY KEY, x INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO items VALUES (1, 1, '2024-05-01 10:00:00', '2024-05-01 10:00:00'),
                         (2, 2, '2024-05-01 10:01:00', '2024-05-01 10:01:00');
"""
AT = "'2024-05-01 10:02:00', '2024-05-01 10:02:00'"


def another_type(source: SQLiteFile) -> None:
    """Make of column x one of another type, with other values."""
    source.connection.executescript(
        "ALTER TABLE items DROP COLUMN x; ALTER TABLE items ADD COLUMN x TEXT DEFAULT 'text';"
    )


@pytest.mark.parametrize("shape", ["item", "item[]", "wrapped", "wrapped[]", "items", "outside"])
def test_a_loop_sees_at_once_that_a_composite_type_was_altered(tmp_path: Path, pg: Database, shape: str) -> None:
    admin = pg.connect()
    declared, value = {
        "item": ("item", "ROW(1)"),
        "item[]": ("item[]", "ARRAY[ROW(1)::item]"),
        "wrapped": ("wrapped", "ROW(1)::item"),
        "wrapped[]": ("wrapped[]", "ARRAY[ROW(1)::item]::wrapped[]"),
        "items": ("items", "ARRAY[ROW(1)::item]"),
        "outside": ("outside", "ROW(ROW(1)::item)"),
    }[shape]
    make(
        admin,
        "CREATE TYPE item AS (a int)",
        "CREATE DOMAIN wrapped AS item",
        "CREATE DOMAIN items AS item[]",
        "CREATE TYPE outside AS (i item)",
        f"CREATE TABLE made (id int PRIMARY KEY, c {declared}, updated_at timestamptz NOT NULL DEFAULT now())",
        f"INSERT INTO made (id, c) VALUES (1, {value})",
    )
    project = Project(tmp_path, pg.reader_url, {"made": {}})
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        assert runner.poll()["made"].rows == 1
        admin.execute("ALTER TYPE item ADD ATTRIBUTE b int")
        admin.execute(f"INSERT INTO made (id, c) VALUES (2, {value.replace('ROW(1)', 'ROW(1, 2)')})".encode())
        with pytest.raises(SchemaChanged, match=r'column "c" was .* and is .*b: int32'):
            runner.poll()
        sc.accept_schema("made")
        assert runner.poll()["made"].rows >= 1
        (row,) = [row for row in sc.log("made").rows(1) if row["id"] == 2]
    assert "'b': 2" in str(row["c"])


def test_all_rows_come_again_for_a_new_column_once_a_change_beside_it_is_accepted(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    # Both rows are closed by the third: only a new beginning reads them again.
    sqlite_db.connection.execute("INSERT INTO items VALUES (3, 3, '2024-06-01 10:00:00', '2024-06-01 10:00:00')")
    project = Project(tmp_path, sqlite_db.url, {"items": {"backfill_added": True}})
    project.poll()
    another_type(sqlite_db)
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    with pytest.raises(SchemaChanged):
        project.poll()
    assert project.cli("schema", "items", "--accept").code == 0
    found = [(row["id"], row["x"], row["color"]) for row in project.poll()["items"]]
    assert found == [(1, "text", "red"), (2, "text", "red"), (3, "text", "red")]
    assert project.poll()["items"] == []


def the_last_is_gone(log: Path) -> None:
    sorted(log.glob("*.parquet"))[-1].unlink()


def one_is_gone(log: Path) -> None:
    sorted(log.glob("*.parquet"))[1].unlink()


def one_is_no_segment(log: Path) -> None:
    sorted(log.glob("*.parquet"))[-1].write_bytes(b"PAR1, and no more")


DAMAGES = (the_last_is_gone, one_is_gone, one_is_no_segment)


def three_segments(tmp_path: Path, source: SQLiteFile) -> Project:
    source.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", source.url, {"items": {}})
    for key in (3, 4, 5):
        project.poll()
        source.connection.execute(f"INSERT INTO items VALUES ({key}, 3, {AT})")
    return project


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_columns_of_a_damaged_log_are_not_accepted(
    tmp_path: Path, sqlite_db: SQLiteFile, damage: Callable[[Path], None]
) -> None:
    project = three_segments(tmp_path, sqlite_db)
    log = project.folder / "state/log/items"
    another_type(sqlite_db)
    damage(log)
    before = contents(log), project.cli("watermark", "show", "items", "--json").out
    refused = project.cli("schema", "items", "--accept")
    assert (refused.code, refused.out) == (5, "")
    assert (contents(log), project.cli("watermark", "show", "items", "--json").out) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_that_begins_anew_is_read_as_its_own_columns(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession, damage: Callable[[Path], None]
) -> None:
    project = three_segments(tmp_path, sqlite_db)
    log = project.folder / "state/log/items"
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    project.poll()
    assert (log / SUMMARY).exists()
    another_type(sqlite_db)
    sqlite_db.connection.execute("ALTER TABLE items DROP COLUMN color")
    damage(log)
    assert project.cli("watermark", "reset", "items").code == 0
    project.poll()
    frame = spark.read.parquet(str(log))
    assert ("color" in frame.columns, dict(frame.dtypes)["x"]) == (False, "string")
    assert sorted((row["id"], row["x"]) for row in frame.collect()) == [(n, "text") for n in (1, 2, 3, 4, 5)]


def names(record: Path) -> list[str]:
    return [field["name"] for field in json.loads(record.read_text())["fields"]]


@pytest.mark.parametrize("aside", ["whole", "half", "empty"])
def test_a_folders_columns_are_known_after_a_kill_while_they_were_written(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession, aside: str
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    sinks: dict[str, Any] = {"lake": {"format": "parquet", "path": "lake"}}
    project = Project(tmp_path, sqlite_db.url, {"items": {}}, sinks=sinks)
    folder = tmp_path / "lake/items"
    record, new = folder / RECORD, folder / f"_{RECORD}.new"

    def run() -> int:
        with sidecar.open(project.path) as sc:
            return sc.run(spark, once=True)

    if aside == "whole":
        assert run() == 0
        sqlite_db.connection.execute("ALTER TABLE items DROP COLUMN x")
        text = record.read_text()
        # The old one is taken away, and the new one not yet in its place.
        for path in (record, folder / f".{RECORD}.crc"):
            path.unlink(missing_ok=True)
    else:
        # Nothing has been written to the folder yet but a part of its first record.
        folder.mkdir(parents=True)
        text = '{"type": "struct", "fie' if aside == "half" else ""
    new.write_text(text)
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    assert run() == 0
    assert "color" in names(record)
    assert not new.exists()
    frame = spark.read.parquet(str(folder))
    assert "color" in frame.columns
    assert {1, 2} == {row["id"] for row in frame.select("id", "x").collect()}
    assert (folder / SUMMARY).exists() == (aside == "whole")


def test_changes_as_a_table_have_a_column_for_each_that_there_ever_was(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path, sqlite_db.url, {"items": {}})
    project.poll()
    sqlite_db.connection.executescript(
        "ALTER TABLE items DROP COLUMN x; ALTER TABLE items ADD COLUMN color TEXT;"
        "INSERT INTO items VALUES (3, '2024-05-01 10:02:00', '2024-05-01 10:02:00', 'blue');"
    )
    project.poll()
    for arguments in ((), ("--since", "0")):
        shown = project.cli("changes", "items", *arguments, env={"COLUMNS": "200"})
        head, *_, last = shown.out.strip().splitlines()
        assert {"id", "x", "color"} < set(head.split())
        assert (last.split()[-1], shown.code) == ("blue", 0)
