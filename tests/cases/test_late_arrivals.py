"""Rows that come later than lookback allows: outside the promise, and counted where a poll meets them all the same."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import sidecar
from sidecar.clock import FakeClock, instant
from sidecar.runner import Runner
from sidecar.terminal import show
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database

NOTES = (
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleted_at TEXT)"
)


class Clinic:
    """A table on a clock of its own, polled by one process after another."""

    def __init__(self, tmp_path: Path, sqlite_db: SQLiteFile) -> None:
        self.clock = FakeClock()
        self.writer = sqlite_db.connection
        self.writer.execute(NOTES)
        self.project = Project(tmp_path, sqlite_db.url, {"notes": {"lookback": "60s"}})

    def write(self, key: int, *, ago: float) -> None:
        stamp = instant(self.clock.now() - round(ago * 1e6)).isoformat()[:19].replace("T", " ")
        self.writer.execute("INSERT INTO notes VALUES (?, ?, ?, NULL)", (key, stamp, stamp))

    def poll(self) -> tuple[int, int]:
        """Return how many rows came, and how many of them too late."""
        self.project.poll(clock=self.clock)
        return self.project.results["notes"].rows, self.project.results["notes"].late


@pytest.fixture
def clinic(tmp_path: Path, sqlite_db: SQLiteFile) -> Clinic:
    return Clinic(tmp_path, sqlite_db)


def test_rows_within_lookback_are_never_late(clinic: Clinic) -> None:
    clinic.write(1, ago=4000)
    assert clinic.poll() == (1, 0)
    for key, ago in enumerate((0, 59, 30, 3600 - 1), 2):
        clinic.clock.advance(3600)
        clinic.write(key, ago=ago)
        assert clinic.poll() == (1, 0)


def test_a_row_that_came_too_late_is_counted_and_said_if_a_poll_still_sees_it(
    clinic: Clinic, caplog: pytest.LogCaptureFixture
) -> None:
    clinic.write(1, ago=3600)
    clinic.poll()
    clinic.clock.advance(3600)
    clinic.poll()
    clinic.clock.advance(600)
    # Above the last value seen, which is two hours old, but stamped long before the last poll.
    clinic.write(2, ago=3000)
    clinic.write(3, ago=0)
    with sidecar.open(clinic.project.path, clock=clinic.clock) as sc:
        result = Runner(sc).poll()["notes"]
        assert (result.rows, result.late) == (2, 1)
        assert "table=notes late=1: these rows appeared more than lookback (60s) after their stamp" in caplog.text
        (found,) = show.status(sc.status(), sc.settings, clinic.clock.now())
        assert found["late"] == 1
        shown = io.StringIO()
        Console(file=shown, width=200).print(show.status_table([found]))
        assert "1 row came later than lookback" in shown.getvalue()
    # The count stays; it is the row that is not counted again.
    clinic.clock.advance(600)
    assert clinic.poll() == (0, 0)
    assert json.loads(clinic.project.cli("status", "--json").out)[0]["late"] == 1


def test_a_row_whose_deletion_is_new_is_not_late_for_its_older_stamp(clinic: Clinic) -> None:
    clinic.write(1, ago=10)
    clinic.poll()
    clinic.clock.advance(600)
    clinic.poll()
    clinic.writer.execute("UPDATE notes SET deleted_at = ?", (instant(clinic.clock.now()).isoformat()[:19],))
    assert clinic.poll() == (1, 0)


def test_a_transaction_that_stays_open_is_not_late_but_one_that_writes_late_is(tmp_path: Path, pg: Database) -> None:
    admin, slow = pg.connect(), pg.connect(autocommit=False)
    admin.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    project = Project(tmp_path, pg.reader_url, {"t": {"lookback": "0s"}})
    project.poll()
    slow.execute("INSERT INTO t VALUES (1, now(), now())")
    project.poll()
    slow.commit()
    project.poll()
    assert (project.results["t"].rows, project.results["t"].late) == (1, 0)
    slow.execute("SELECT now()")
    project.poll()
    slow.execute("INSERT INTO t VALUES (2, now(), now())")
    slow.commit()
    project.poll()
    assert (project.results["t"].rows, project.results["t"].late) == (1, 1)
