# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Tables that are altered between two polls: what came, went or grew is followed; anything else waits for a word."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar.clock import FakeClock
from sidecar.errors import SchemaChanged, SidecarError
from sidecar.poll import poll
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEMS = """\
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO items VALUES (1,'a','2024-05-01 10:00:00','2024-05-01 10:00:00'),(2,'b','2024-05-01 10:01:00','2024-05-01 10:01:00');
"""
COUNTERS = """\
CREATE TABLE counters (id int PRIMARY KEY, hits int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO counters VALUES (1, 5, '2024-05-01 10:00+00','2024-05-01 10:00+00');
"""
LAKE: dict[str, Any] = {"lake": {"format": "parquet", "path": "lake"}}


def run(project: Project, spark: SparkSession) -> int:
    with sidecar.open(project.path) as sc:
        return sc.run(spark, once=True)


def read(project: Project, spark: SparkSession, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return what a plain read of the sink's folder says, by key; the log's folder says the same."""
    lake, log = (spark.read.parquet(str(project.folder / at / table)) for at in ("lake", "state/log"))
    assert values(lake, *columns) == values(log, *columns)
    return values(lake, *columns)


def values(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=str)


def test_a_column_that_was_added_arrives_and_all_reads_as_one_table(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-52"""
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}}, sinks=LAKE)
    assert run(project, spark) == 0
    sqlite_db.connection.executescript(
        "ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red';"
        "INSERT INTO items VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00','blue');"
    )
    assert run(project, spark) == 0
    assert 'table=items schema_changed: column "color" (string) is new: NULL in older rows' in caplog.text
    # The first two are younger than the horizon, and have another content now: they come once more, as they are.
    expected = [(1, "red"), (1, None), (2, "red"), (2, None), (3, "blue")]
    assert read(project, spark, "items", "id", "color") == expected
    with sidecar.open(project.path) as sc:
        assert values(sc.dataframe(spark, "items"), "id", "color") == expected
        assert values(sc.dataframe(spark, "items", 0, 1), "id", "color") == [(1, None), (2, None)]


def test_a_column_that_grew_is_read_as_the_wide_type_from_first_to_last(
    tmp_path: Path, pg: Database, spark: SparkSession
) -> None:
    """RC-54"""
    admin = pg.connect()
    admin.execute(COUNTERS)
    admin.execute(
        "ALTER TABLE counters ADD COLUMN f real DEFAULT 1.5, ADD COLUMN d numeric(6,2) DEFAULT 1.25, ADD COLUMN v varchar(3) DEFAULT 'abc'"
    )
    project = Project(tmp_path / "p", pg.reader_url, {"counters": {}}, sinks=LAKE)
    assert run(project, spark) == 0
    admin.execute(
        "ALTER TABLE counters ALTER COLUMN hits TYPE bigint, ALTER COLUMN id TYPE bigint, ALTER COLUMN f TYPE float8, ALTER COLUMN d TYPE numeric(20,4), ALTER COLUMN v TYPE text"
    )
    admin.execute(
        "INSERT INTO counters VALUES (2, 3000000000, '2024-05-01 10:02+00','2024-05-01 10:02+00', 1e300, 1234567890.0001, 'longer')"
    )
    assert run(project, spark) == 0
    found = read(project, spark, "counters", "id", "hits", "f", "d", "v")
    assert [(*row[:3], str(row[3]), row[4]) for row in found[:1]] == [(1, 5, 1.5, "1.2500", "abc")]
    assert (2, 3000000000, 1e300) in [row[:3] for row in found]
    # Rewritten rows are the same rows: what an ALTER has restamped comes once more at most, and changed.
    assert {row[0] for row in found} == {1, 2}


def test_a_renamed_column_is_said_to_be_one_that_went_and_one_that_came(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    admin = pg.connect()
    admin.execute(COUNTERS)
    project = Project(tmp_path / "p", pg.reader_url, {"counters": {}})
    project.poll()
    admin.execute("ALTER TABLE counters RENAME COLUMN hits TO visits")
    admin.execute("INSERT INTO counters VALUES (2, 6, now(), now())")
    (row,) = project.poll()["counters"]
    assert (row["visits"], "hits" in row) == (6, False)
    assert 'column "visits" (int32) is new: NULL in older rows, column "hits" (int32) is gone' in caplog.text
    assert "a renamed column looks like one that is gone and one that is new" in caplog.text


def test_a_type_that_became_another_stops_the_table_until_somebody_accepts_it(
    tmp_path: Path, pg: Database, spark: SparkSession
) -> None:
    admin = pg.connect()
    admin.execute(COUNTERS)
    project = Project(tmp_path / "p", pg.reader_url, {"counters": {}}, sinks=LAKE)
    project.poll()
    admin.execute("ALTER TABLE counters ALTER COLUMN hits TYPE text")
    admin.execute("INSERT INTO counters VALUES (2, 'six', now(), now())")
    stopped = project.cli("run", "--once")
    assert stopped.code == 2
    assert 'table "counters": column "hits" was int32 and is string now' in stopped.err
    assert "sidecar schema counters --accept" in stopped.err
    shown = project.cli("schema", "counters", "--json")
    assert [json.loads(line)["version"] for line in shown.out.splitlines()] == [1]
    accepted = project.cli("schema", "counters", "--accept")
    assert (accepted.code, 'column "hits" was int32 and is string now' in accepted.out) == (0, True)
    rows = project.poll()["counters"]
    assert [row["hits"] for row in rows if row["id"] == 2] == ["six"]
    versions = [json.loads(line) for line in project.cli("schema", "counters", "--json").out.splitlines()]
    assert [(v["version"], v["first_offset"], v["readable_since"], v["columns"]["hits"]) for v in versions] == [
        (2, 2, 2, "string"),
        (1, 1, 1, "int32"),
    ]
    assert "Older changes cannot be read as this: until=1" in project.cli("schema", "counters").out
    with sidecar.open(project.path) as sc:
        with pytest.raises(SchemaChanged, match="Read them apart: until=1, and since=1"):
            sc.dataframe(spark, "counters")
        assert values(sc.dataframe(spark, "counters", 0, 1), "id", "hits") == [(1, 5)]
        assert (2, "six") in values(sc.dataframe(spark, "counters", 1), "id", "hits")
        # The sink gets the changes of before by themselves, and refuses those that its folder could not hold.
        assert sc.run(spark, once=True) == 6
        assert sc.store.position("counters", "lake").acknowledged == 1
        (status,) = sc.status()
        assert status.error is not None
        assert 'hold column "hits" as int, and now it is string' in status.error
    assert values(spark.read.parquet(str(project.folder / "lake/counters")), "id", "hits") == [(1, 5)]


def test_a_narrower_type_is_another_type(tmp_path: Path, pg: Database) -> None:
    admin = pg.connect()
    admin.execute(COUNTERS.replace("hits int", "hits bigint"))
    project = Project(tmp_path / "p", pg.reader_url, {"counters": {}})
    project.poll()
    admin.execute("ALTER TABLE counters ALTER COLUMN hits TYPE int")
    admin.execute("INSERT INTO counters VALUES (2, 6, now(), now())")
    with pytest.raises(SchemaChanged, match='column "hits" was int64 and is int32 now'):
        project.poll()


def test_whoever_asks_for_it_is_stopped_by_any_change(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {"schema_change": "fail"}})
    project.poll()
    sqlite_db.connection.executescript(
        "ALTER TABLE items ADD COLUMN color TEXT; INSERT INTO items VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00','blue');"
    )
    with pytest.raises(SchemaChanged, match=r'"color" \(string\) is new: .* asks to stop at that'):
        project.poll()
    assert project.cli("schema", "items", "--accept").code == 0
    assert [row["color"] for row in project.poll()["items"]] == ["blue"]


def test_all_rows_come_again_for_what_stands_in_a_new_column_if_that_is_asked_for(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {"backfill_added": True, "lookback": "1s"}})
    project.poll()
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT DEFAULT 'red'")
    assert [(r["id"], r["color"]) for r in project.poll()["items"]] == [(1, "red"), (2, "red")]
    assert project.poll()["items"] == []
    assert {key: row["color"] for key, row in project.merged("items", "id").items()} == {1: "red", 2: "red"}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_loop_sees_a_new_column_without_a_restart(
    tmp_path: Path, request: pytest.FixtureRequest, clock: FakeClock, kind: str
) -> None:
    if kind == "sqlite":
        source: SQLiteFile = request.getfixturevalue("sqlite_db")
        source.connection.executescript(ITEMS)
        url, execute = source.url, source.connection.execute
    else:
        server: Database = request.getfixturevalue("pg")
        url, execute = server.reader_url, server.connect().execute  # type: ignore[assignment]
        for statement in ITEMS.split(";")[:2]:
            execute(statement.replace("TEXT NOT NULL", "timestamp NOT NULL"))
        execute("GRANT SELECT ON items TO PUBLIC")
    del clock
    project = Project(tmp_path / "p", url, {"items": {}})
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        assert runner.poll()["items"].rows == 2
        execute("ALTER TABLE items ADD COLUMN color TEXT")
        execute("INSERT INTO items VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00','blue')")
        assert runner.poll()["items"].rows == 1
        execute("ALTER TABLE items DROP COLUMN name")
        execute("INSERT INTO items VALUES (4,'2024-05-01 10:03:00','2024-05-01 10:03:00','green')")
        assert runner.poll()["items"].rows >= 1
        rows = list(sc.log("items").rows(1))
    # Without versions, a row that is looked at again and lacks what it had is another one.
    newest = {str(row["id"]): row for row in rows}
    assert [(newest[key]["color"], "name" in newest[key]) for key in ("4",)] == [("green", False)]
    assert [row["color"] for row in rows if row["id"] == 3 and "name" in row] == ["blue"]


def text_key(source: SQLiteFile) -> None:
    source.connection.executescript(
        "CREATE TABLE new (id TEXT PRIMARY KEY, name TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);"
        "INSERT INTO new SELECT * FROM items; DROP TABLE items; ALTER TABLE new RENAME TO items;"
    )


def test_a_key_of_another_type_is_not_accepted_for_its_position_means_nothing_then(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}})
    project.poll()
    text_key(sqlite_db)
    sqlite_db.connection.execute("INSERT INTO items VALUES ('x','c','2024-05-01 10:02:00','2024-05-01 10:02:00')")
    refused = project.cli("schema", "items", "--accept")
    assert (refused.code, "sidecar watermark reset items" in refused.err) == (2, True)
    assert project.cli("watermark", "reset", "items").code == 0
    assert [row["id"] for row in project.poll()["items"]] == ["1", "2", "x"]


def test_what_is_written_to_a_new_column_within_the_same_second_arrives(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}})
    project.poll()
    sqlite_db.connection.executescript(
        "ALTER TABLE items ADD COLUMN color TEXT; UPDATE items SET color = 'red' WHERE id = 2;"
    )
    assert [(r["id"], r["color"]) for r in project.poll()["items"]] == [(2, "red")]
    assert project.poll()["items"] == []


def test_a_lost_database_does_not_repeat_what_was_there_before_a_column_came(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}})
    project.poll()
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT")
    assert project.poll()["items"] == []
    sqlite_db.connection.execute("INSERT INTO items VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00',NULL)")
    project.poll()
    with sidecar.open(project.path, read_only=True) as sc:
        state = sc.settings.state.path
    shutil.rmtree(state / "db")
    assert project.poll()["items"] == []
    assert [row["id"] for row in project.rows("items")] == [1, 2, 3]


def test_a_column_that_comes_while_a_poll_is_interrupted_repeats_nothing(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {"page_size": 1}})
    with sidecar.open(project.path) as sc:
        steps = poll(sc.connector, sc.settled(sc.tracked["items"]), sc.log("items"), sc.store)
        next(steps)
        steps.close()
    sqlite_db.connection.execute("ALTER TABLE items ADD COLUMN color TEXT")
    for _ in range(3):
        project.poll()
    assert [row["id"] for row in project.rows("items")] == [1, 2]


def test_a_column_that_went_and_comes_again_as_another_type_is_another_type(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.executescript(ITEMS + "ALTER TABLE items ADD COLUMN x INTEGER;")
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}})
    project.poll()
    for number, change in enumerate(("DROP COLUMN x", "ADD COLUMN x TEXT"), 3):
        sqlite_db.connection.execute(f"ALTER TABLE items {change}")
        sqlite_db.connection.execute(
            "INSERT INTO items (id, created_at, updated_at) VALUES (?, '2024-05-01 10:02:00', '2024-05-01 10:02:00')",
            (number,),
        )
        if number == 3:
            project.poll()
    with pytest.raises(SchemaChanged, match='column "x" was int64 and is string now'):
        project.poll()


def test_one_table_that_can_be_followed_no_more_stops_no_other(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(ITEMS + ITEMS.replace("items", "other"))
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}, "other": {}})
    with sidecar.open(project.path) as sc:
        runner = Runner(sc)
        runner.poll()
        sqlite_db.connection.executescript(
            "ALTER TABLE items RENAME COLUMN updated_at TO moved_at;"
            "INSERT INTO other VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00');"
        )
        for _ in range(2):
            with pytest.raises(SidecarError, match='table "items"'):
                runner.poll()
        assert [row["id"] for row in sc.log("other").rows()] == [1, 2, 3]


def test_a_column_that_is_written_in_another_case_is_the_same_one_in_a_folder(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession
) -> None:
    sqlite_db.connection.executescript(ITEMS)
    project = Project(tmp_path / "p", sqlite_db.url, {"items": {}}, sinks=LAKE)
    assert run(project, spark) == 0
    sqlite_db.connection.executescript(
        "ALTER TABLE items RENAME COLUMN name TO NAME;"
        "INSERT INTO items VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00');"
    )
    assert run(project, spark) == 0
    lake = spark.read.parquet(str(project.folder / "lake/items"))
    assert {(r["id"], r["name"]) for r in lake.collect()} >= {(1, "a"), (2, "b"), (3, "c")}
