"""Local clocks that run through an hour twice, and numbers that count time in a unit of their own."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from sidecar.clock import SECOND, FakeClock, micros
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
