"""What an operator does, and what happens to a table while others go on."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar.errors import SettingsError
from sidecar.log.retention import drop_old
from sidecar.project import Sidecar, open_project
from tests.conftest import SQLiteFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


def project(folder: Path, file: SQLiteFile, tables: str = "", rest: str = "") -> Path:
    path = folder / "sidecar.toml"
    path.write_text(f'[source]\nurl = "{file.url}"\n[state]\npath = "state"\n{tables or "[tables.t]"}\n{rest}\n')
    return path


def make(connection: sqlite3.Connection, *names: str, stamp: str = "TEXT") -> None:
    for name in names:
        connection.execute(
            f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, created_at {stamp}, updated_at {stamp}, deleted_at TEXT)"
        )


def ids(sidecar: Sidecar, table: str, since: int = 0) -> list[object]:
    return [row["id"] for row in sidecar.log(table).rows(since)]


def test_a_value_set_for_one_cursor_leaves_a_cursor_of_another_kind_where_it_is(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    writer = sqlite_db.connection
    make(writer, "t", stamp="INTEGER")
    writer.execute("INSERT INTO t VALUES (1, 1714557600, 1714557600, NULL), (2, 1714557601, 1714557601, NULL)")
    path = project(tmp_path, sqlite_db, '[tables.t]\nupdated_at_unit = "s"')
    with open_project(path) as sc:
        sc.poll()
        sc.set_watermark("t", "1714557600")
        sc.poll()
        assert ids(sc, "t") == [1, 2, 2]
        writer.execute(f"UPDATE t SET deleted_at = {NOW} WHERE id = 1")
        before = sc.log("t").last()
        sc.poll()
        assert [row["_change_type"] for row in sc.log("t").rows(before)] == ["delete"]


@pytest.mark.parametrize("value", ["99999999999999999999", "soon", "1e300"])
def test_a_value_that_no_row_can_have_is_refused(tmp_path: Path, sqlite_db: SQLiteFile, value: str) -> None:
    make(sqlite_db.connection, "t", stamp="INTEGER")
    with open_project(project(tmp_path, sqlite_db)) as sc, pytest.raises(SettingsError, match="updated_at"):
        sc.set_watermark("t", value)


def test_a_table_that_is_renamed_away_does_not_hold_up_the_others(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    writer = sqlite_db.connection
    make(writer, "a", "b")
    with open_project(project(tmp_path, sqlite_db, "[tables.a]\n[tables.b]")) as sc:
        assert sc.run(once=True) == 0
        writer.execute("ALTER TABLE a RENAME TO c")
        writer.execute(f"INSERT INTO b VALUES (1, {NOW}, {NOW}, NULL)")
        assert sc.run(once=True) != 0
        writer.execute(f"INSERT INTO b VALUES (2, {NOW}, {NOW}, NULL)")
        assert sc.run(once=True) != 0
        assert ids(sc, "b") == [1, 2]
        writer.execute("ALTER TABLE c RENAME TO a")
        writer.execute(f"INSERT INTO a VALUES (7, {NOW}, {NOW}, NULL)")
        sc.run(once=True)
        assert sc.run(once=True) == 0
        assert ids(sc, "a") == [7]


def test_a_placeholder_that_a_condition_calls_deleted_is_delivered(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    make(sqlite_db.connection, "t")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, '2024-05-01 10:00:00', NULL, '0000-00-00')")
    settings = '[tables.t]\nnot_deleted = ["0000-00-00"]\ndeleted_when = "id = 1"'
    with open_project(project(tmp_path, sqlite_db, settings)) as sc:
        sc.poll()
        assert [(row["id"], row["_change_type"]) for row in sc.log("t").rows()] == [(1, "delete")]
        sc.poll()
        assert ids(sc, "t") == [1]


def test_a_sink_added_after_retention_begins_behind_what_is_gone(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    writer = sqlite_db.connection
    make(writer, "t")
    (tmp_path / "late_sink.py").write_text(
        "taken = []\ndef take(frame, batch):\n    taken.append((batch.first, batch.last))\n"
    )
    path = project(tmp_path, sqlite_db, rest='[sinks.late]\nforeach = "late_sink:take"')
    with open_project(path) as sc:
        for key in range(1, 5):
            writer.execute(f"INSERT INTO t VALUES ({key}, {NOW}, {NOW}, NULL)")
            sc.poll()
        assert drop_old(sc.log("t"), sc.store, [], before=2**62) == 3
        assert sc.run(spark, once=True) == 0
        import late_sink  # type: ignore[import-not-found]

        assert late_sink.taken == [(4, 4)]
        assert "begins behind them" in caplog.text


@pytest.mark.parametrize("value", ["2199-01-01T00:00:00Z", "2199-01-01"])
def test_a_value_in_the_future_is_refused_for_changes_up_to_then_would_be_passed_over(
    tmp_path: Path, sqlite_db: SQLiteFile, value: str
) -> None:
    make(sqlite_db.connection, "t")
    with open_project(project(tmp_path, sqlite_db)) as sc, pytest.raises(SettingsError, match="lies in the future"):
        sc.set_watermark("t", value)


def test_a_table_that_cannot_be_followed_stops_none_of_the_others(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    execute = sqlite_db.connection.execute
    make(sqlite_db.connection, "t", "other")
    path = project(tmp_path, sqlite_db, "[tables.t]\n[tables.other]\n[tables.new]")
    execute(f"INSERT INTO t VALUES (0, {NOW}, {NOW}, NULL)")
    with open_project(path) as sc:
        assert sc.run(once=True) == 2
        assert ids(sc, "t") == [0]
        assert list(sc.store.notes()) == ["new"]
        for _ in range(2):
            with pytest.raises(SettingsError, match='no table or view "new"'):
                sc.poll()
    make(sqlite_db.connection, "new")
    with open_project(path) as sc:
        assert sc.run(once=True) == 0
    execute("ALTER TABLE other RENAME TO elsewhere")
    execute(f"INSERT INTO t VALUES (1, {NOW}, {NOW}, NULL)")
    with open_project(path) as sc:
        assert sc.run(once=True) == 2
        assert ids(sc, "t") == [0, 1]
        assert list(sc.store.notes()) == ["other"]
    execute("ALTER TABLE elsewhere RENAME TO other")
    with open_project(path) as sc:
        assert sc.run(once=True) == 0
        assert not sc.store.notes()


def test_a_project_open_for_reading_polls_nothing_and_says_why(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    make(sqlite_db.connection, "t")
    path = project(tmp_path, sqlite_db)
    with open_project(path) as sc:
        sc.poll()
    with open_project(path, read_only=True) as sc, pytest.raises(SettingsError, match="poll writes to the state"):
        sc.poll()
