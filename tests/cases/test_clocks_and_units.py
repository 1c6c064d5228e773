"""Local clocks that run through an hour twice, and numbers that count time in a unit of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sidecar.clock import SECOND, FakeClock, micros
from sidecar.errors import SettingsError
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, OwnServer


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("separator", [" ", "T"])
def test_a_zone_keeps_both_runs_through_an_hour(
    tmp_path: Path, sqlite_db: SQLiteFile, zone: str, separator: str
) -> None:
    """Writers by the local clock, from before the change to after it, polled every ten minutes by a moving clock."""
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE shifts (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    month, day, hour = (10, 27, 0) if zone == "Europe/Berlin" else (11, 3, 5)
    clock = FakeClock(micros(datetime(2024, month, day, hour, 0, tzinfo=UTC)))
    project = Project(tmp_path, sqlite_db.url, {"shifts": {"timezone": zone}})
    readings = []
    for number in range(1, 20):
        local = datetime.fromtimestamp(clock.now() / SECOND, ZoneInfo(zone)).replace(tzinfo=None)
        readings.append(local)
        s1.execute("INSERT INTO shifts VALUES (?, ?)", (-number, local.isoformat(separator)))
        clock.advance(1)
        assert [r["id"] for r in project.poll(clock=clock)["shifts"]] == [-number]
        clock.advance(599)
    assert readings != sorted(readings)


@pytest.mark.parametrize(
    ("declared", "unit", "value"),
    [("BIGINT", "us", 1714557600123456), ("INTEGER", "ns", 1714557600123456789), ("REAL", "s", 1714557600.123456)],
)
def test_epochs_of_any_unit_are_followed(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, unit: str, value: Any
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE ev (id INTEGER PRIMARY KEY, v TEXT, updated_at {declared} NOT NULL)")
    s1.execute("INSERT INTO ev VALUES (5, 'a', ?)", (value,))
    project = Project(tmp_path, sqlite_db.url, {"ev": {"page_size": 1, "updated_at_unit": unit}})
    assert [r["id"] for r in project.poll()["ev"]] == [5]
    assert "2024-05-01T10:00:00" in project.cli("watermark", "show", "ev").out
    s1.execute("INSERT INTO ev VALUES (1, 'tie', ?), (7, 'next', ?)", (value, value + (1e-6 if unit == "s" else 1)))
    assert [r["id"] for r in project.poll()["ev"]] == [1, 7]
    assert project.poll()["ev"] == []


def test_the_folder_of_a_socket_may_be_the_host(tmp_path: Path, pg: Database) -> None:
    if not isinstance(pg.server, OwnServer):
        pytest.skip("this server was not started here, so where its socket is, is not known")
    s1 = pg.connect()
    s1.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL); INSERT INTO t VALUES (1, now())")
    at = {
        "host": str(pg.server.socket),
        "port": pg.port,
        "database": pg.dbname,
        "user": pg.reader,
    }
    at["password"] = pg.reader_password
    assert len(Project(tmp_path, None, {"t": {}}, source=at).poll()["t"]) == 1


def test_seconds_are_told_once_milliseconds_have_been_read(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """A column that changes over loses nothing and is no error; a writer that does not, is one, by the next poll."""
    s1, clock = sqlite_db.connection, FakeClock(1_714_557_600 * SECOND)
    s1.execute("CREATE TABLE ev (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL)")
    project = Project(tmp_path, sqlite_db.url, {"ev": {"lookback": "10s"}})

    def written(number: int, *, unit: int) -> list[int]:
        s1.execute("INSERT INTO ev VALUES (?, ?)", (number, clock.now() * unit // SECOND))
        clock.advance(5)
        return [row["id"] for row in project.poll(clock=clock)["ev"]]

    assert written(1, unit=1) == [1]
    assert written(2, unit=1_000) == [2]
    assert written(3, unit=1) == [3]  # what was read of the new ones has not stood for `lookback`
    for number in (4, 5, 6, 7, 8, 9):
        assert written(number, unit=1_000) == [number]
    with pytest.raises(SettingsError, match=r'"updated_at" counts time in two units, for example 1714557640000 \(ms\)'):
        written(10, unit=1)
    with pytest.raises(SettingsError, match=r"written since the last poll, 1714557645 \(s\), which is less"):
        project.poll(clock=clock)
    s1.execute("UPDATE ev SET updated_at = updated_at * 1000 WHERE id = 10")
    assert [row["id"] for row in project.poll(clock=clock)["ev"]] == [10]


def test_a_counter_is_no_time_for_being_large(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1, clock = sqlite_db.connection, FakeClock(1_714_557_600 * SECOND)
    s1.execute("CREATE TABLE ev (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL)")
    s1.execute("INSERT INTO ev VALUES (1, 1500000000), (2, 1600000000000), (3, 1700000000000)")
    project = Project(tmp_path, sqlite_db.url, {"ev": {"lookback": "1s"}})
    assert len(project.poll(clock=clock)["ev"]) == 3
    for number in range(4, 8):
        clock.advance(60)
        s1.execute("INSERT INTO ev VALUES (?, ?)", (number, 1_700_000_000_000 + number))
        assert [row["id"] for row in project.poll(clock=clock)["ev"]] == [number]
