"""A source in which nothing changes: what has stood for long enough is closed, and nothing is read again."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar
from sidecar import Sidecar
from sidecar.clock import SECOND, FakeClock
from sidecar.runner import Runner

NAMES = [f"t{number}" for number in range(9)]


@pytest.fixture
def writer(tmp_path: Path, clock: FakeClock) -> Iterator[sqlite3.Connection]:
    """A connection to tables of one row each, stamped now."""
    with contextlib.closing(sqlite3.connect(tmp_path / "source.db", isolation_level=None)) as connection:
        for name in NAMES:
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL)")
            connection.execute(f"INSERT INTO {name} VALUES (1, ?)", (clock.now(),))
        yield connection


@contextlib.contextmanager
def following(folder: Path, clock: FakeClock, *tables: str) -> Iterator[Sidecar]:
    path = folder / "sidecar.toml"
    sections = (f'[tables.{name}]\nlookback = "5s"\nupdated_at_unit = "us"\n' for name in tables)
    path.write_text(f'[source]\nurl = "sqlite:///{folder}/source.db"\n' + "".join(sections))
    with sidecar.open(path, clock=clock) as sc:
        yield sc


def test_what_a_quiet_source_has_is_closed_once_and_not_read_again_by_the_next_change(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    writer.execute("INSERT INTO t0 VALUES (2, ?)", (clock.now(),))
    with following(tmp_path, clock, "t0") as sc:
        runner = Runner(sc)
        assert runner.poll()["t0"].rows == 2
        marks = []
        for _ in range(4):
            clock.advance(2)
            assert runner.poll()["t0"].read == 0
            marks.append(sc.watermark("t0"))
        assert marks[0] == marks[1]
        assert marks[1] != marks[2] == marks[3]
        assert not sc.store.remembers("t0")
        writer.execute("INSERT INTO t0 VALUES (3, ?)", (clock.now(),))
        found = runner.poll()["t0"]
        assert (found.read, found.rows) == (1, 1)


def test_a_table_at_rest_is_shown_as_level_by_the_last_look_and_not_the_last_poll(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    del writer
    with following(tmp_path, clock, "t0") as sc:
        runner = Runner(sc)
        for _ in range(60):
            runner.poll()
            clock.advance(2)
        (shown,) = sc.status()
        assert shown.polled is not None
        assert clock.now() - shown.polled <= 10 * SECOND


def test_a_quiet_source_is_asked_once_a_round_however_many_tables_there_are(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    with following(tmp_path, clock, *NAMES) as sc:
        runner = Runner(sc)
        runner.poll()
        asked: list[str] = []
        connection: sqlite3.Connection = sc.connector.file.connection()  # type: ignore[attr-defined]
        connection.set_trace_callback(asked.append)
        runner.poll()
        assert asked == ["PRAGMA data_version"]
        # What is seen of one table is no news of another.
        writer.execute("INSERT INTO t4 VALUES (2, ?)", (clock.now(),))
        assert {name for name, found in runner.poll().items() if found.rows} == {"t4"}
        asked.clear()
        runner.poll()
        assert asked == ["PRAGMA data_version"]


def test_what_is_asked_of_a_project_at_rest_is_done_by_its_next_poll(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    with following(tmp_path, clock, "t0", "t1") as sc:
        assert {found.rows for found in sc.poll().values()} == {1}
        for _ in range(2):
            assert not any(found.read for found in sc.poll().values())
        sc.reset_watermark("t0")
        assert {name: found.rows for name, found in sc.poll().items()} == {"t0": 1, "t1": 0}
        sc.poll()
        sc.request_backfill("t1")
        assert {name: found.rows for name, found in sc.poll().items()} == {"t0": 0, "t1": 1}
        sc.poll()
        with sidecar.open(tmp_path / "sidecar.toml", clock=clock) as other:
            other.request_backfill("t0")
        assert {name: found.rows for name, found in sc.poll().items()} == {"t0": 1, "t1": 0}
        sc.poll()
        writer.execute("ALTER TABLE t1 ADD COLUMN note TEXT DEFAULT 'n'")
        writer.execute("UPDATE t1 SET updated_at = ?", (clock.now() + 1,))
        assert {name: found.rows for name, found in sc.poll().items()} == {"t0": 0, "t1": 1}
        assert "note" in sc.log("t1").schema().names  # type: ignore[union-attr]


def test_what_another_process_asks_of_a_project_at_rest_is_done_a_moment_later(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    del writer
    with following(tmp_path, clock, "t0") as sc:
        for _ in range(3):
            sc.poll()
        command = [sys.executable, "-c", "from sidecar.cli import main; main()", "backfill", "t0"]
        subprocess.run(command, cwd=tmp_path, check=True)
        clock.advance(0.1)
        assert sc.poll()["t0"].rows == 1


def test_a_poll_of_a_project_at_rest_asks_one_question(
    writer: sqlite3.Connection, tmp_path: Path, clock: FakeClock
) -> None:
    del writer
    with following(tmp_path, clock, *NAMES) as sc:
        for _ in range(2):
            sc.poll()
        asked: list[str] = []
        sc.connector.file.connection().set_trace_callback(asked.append)  # type: ignore[attr-defined]
        for _ in range(5):
            assert sc.poll().keys() == set(NAMES)
        assert asked == ["PRAGMA data_version"] * 5


def test_a_source_that_is_away_for_a_moment_is_waited_for_by_the_poll_of_a_project_at_rest(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    del writer
    source, aside = tmp_path / "source.db", tmp_path / "aside.db"

    class Returning(FakeClock):
        """While it is waited, the source comes back."""

        def sleep(self, seconds: float, until: threading.Event | None = None) -> None:
            super().sleep(seconds, until)
            if aside.exists():
                aside.rename(source)

    with following(tmp_path, Returning(), *NAMES) as sc:
        for _ in range(3):
            sc.poll()
        source.rename(aside)
        assert sc.poll().keys() == set(NAMES)
        assert source.exists()
