"""Tables and columns that are dropped and made again between two polls; PostgreSQL's come with all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import sidecar
from sidecar.clock import SECOND, FakeClock
from sidecar.errors import SchemaChanged
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database

SEATS = """\
CREATE TABLE seats (id int PRIMARY KEY, row int, note text, updated_at timestamptz DEFAULT '2024-05-01 10:00+00');
INSERT INTO seats VALUES (1, 5, 'aisle'), (2, 6, 'window');
"""
MADE_AGAIN = "ALTER TABLE seats DROP COLUMN note; ALTER TABLE seats ADD COLUMN note text DEFAULT 'none'"


def polled(folder: Path, pg: Database, **settings: str) -> tuple[psycopg.Connection[tuple[Any, ...]], Project]:
    """Return a writer of two seats, and a project that has polled both."""
    writer = pg.connect()
    writer.execute(SEATS)
    project = Project(folder, pg.reader_url, {"seats": {"lookback": "1s", **settings}})
    assert len(project.poll()["seats"]) == 2
    return writer, project


def test_a_column_that_was_dropped_and_added_again_is_delivered_with_all_rows(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    writer, project = polled(tmp_path, pg)
    writer.execute("VACUUM FULL seats")
    writer.execute("ALTER TABLE seats ADD COLUMN more int; ALTER TABLE seats DROP COLUMN row")
    assert project.poll()["seats"] == []
    writer.execute(MADE_AGAIN)
    assert [row["note"] for row in project.poll()["seats"]] == ["none", "none"]
    assert 'table=seats schema_changed: column "note" was dropped and added again' in caplog.text
    assert {r["note"] for r in project.merged("seats", "id").values()} == {"none"}
    assert project.poll()["seats"] == []


def test_a_column_that_was_gone_for_some_polls_is_delivered_with_all_rows(tmp_path: Path, pg: Database) -> None:
    writer, project = polled(tmp_path, pg)
    writer.execute("ALTER TABLE seats DROP COLUMN note")
    for _ in range(2):
        assert project.poll()["seats"] == []
    writer.execute("ALTER TABLE seats ADD COLUMN note text DEFAULT 'none'")
    assert [row["note"] for row in project.poll()["seats"]] == ["none", "none"]
    assert project.poll()["seats"] == []


def test_a_table_that_took_the_name_of_another_is_read_from_its_beginning(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    writer, project = polled(tmp_path, pg)
    writer.execute(SEATS.replace("seats", "seats_new").replace("(2, 6", "(3, 7"))
    writer.execute("UPDATE seats_new SET updated_at = '2024-04-01 10:00+00'")
    writer.execute("ALTER TABLE seats RENAME TO seats_old; ALTER TABLE seats_new RENAME TO seats")
    assert sorted(row["id"] for row in project.poll()["seats"]) == [1, 3]
    assert "table=seats schema_changed: the table was dropped and created again, or another" in caplog.text
    assert project.poll()["seats"] == []


def test_a_column_that_was_made_again_as_another_type_is_decided_on_before_its_rows_come(
    tmp_path: Path, pg: Database
) -> None:
    writer = pg.connect()
    writer.execute(SEATS)
    project = Project(tmp_path, pg.reader_url, {"seats": {"lookback": "1s"}})
    assert len(project.poll()["seats"]) == 2
    writer.execute("ALTER TABLE seats DROP COLUMN note; ALTER TABLE seats ADD COLUMN note int DEFAULT 7")
    before = sorted((tmp_path / "state" / "log" / "seats").glob("*.parquet"))
    with pytest.raises(SchemaChanged, match=r'column "note"'):
        project.poll()
    assert sorted((tmp_path / "state" / "log" / "seats").glob("*.parquet")) == before
    with sidecar.open(project.path) as sc:
        sc.accept_schema("seats")
    assert [row["note"] for row in project.poll()["seats"]] == [7, 7]


def test_whoever_asks_for_it_is_stopped_by_what_was_made_again(tmp_path: Path, pg: Database) -> None:
    writer, project = polled(tmp_path, pg, schema_change="fail")
    writer.execute(MADE_AGAIN)
    for _ in range(2):
        with pytest.raises(SchemaChanged, match=r'"seats": column "note" was dropped and added again; schema_change'):
            project.poll()
    with sidecar.open(project.path) as sc:
        assert sc.accept_schema("seats") == ['column "note" was dropped and added again']
    assert len(project.poll()["seats"]) == 2
    assert project.poll()["seats"] == []


@pytest.mark.parametrize("how", ["the table", "the column"])
def test_what_is_made_again_in_sqlite_comes_by_stamp_and_content_and_the_rest_by_a_backfill(
    tmp_path: Path, sqlite_db: SQLiteFile, how: str
) -> None:
    """SQLite has no number for either: the same root page, and a schema version that moves with every index."""
    s1, clock = sqlite_db.connection, FakeClock(1_714_557_600 * SECOND)  # 2024-05-01 10:00
    table = "CREATE TABLE seats (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL, note TEXT DEFAULT 'aisle')"
    rows = "(1, '2024-05-01 08:00:00'), (2, '2024-05-01 09:59:50'), (3, '2024-05-01 09:59:55')"
    s1.executescript(f"{table}; INSERT INTO seats (id, updated_at) VALUES {rows}")
    project = Project(tmp_path, sqlite_db.url, {"seats": {}})
    assert len(project.poll(clock=clock)["seats"]) == 3
    assert project.poll(clock=clock)["seats"] == []
    other = table.replace("'aisle'", "'none'")
    if how == "the table":
        s1.executescript(f"DROP TABLE seats; {other}; INSERT INTO seats (id, updated_at) VALUES {rows}")
    else:
        s1.execute("ALTER TABLE seats DROP COLUMN note")
        s1.execute("ALTER TABLE seats ADD COLUMN note TEXT DEFAULT 'none'")
    s1.execute("DELETE FROM seats WHERE id = 3")
    assert [(row["id"], row["note"]) for row in project.poll(clock=clock)["seats"]] == [(2, "none")]
    with sidecar.open(project.path, clock=clock) as sc:
        sc.request_backfill("seats", purge=True)
    project.poll(clock=clock)
    assert {key: row["note"] for key, row in project.merged("seats", "id").items()} == {1: "none", 2: "none"}
