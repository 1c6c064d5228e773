"""Tables and columns that are dropped and made again between two polls are delivered anew, with all their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

import sidecar
from sidecar.errors import SchemaChanged
from tests.cases.harness import Project
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
