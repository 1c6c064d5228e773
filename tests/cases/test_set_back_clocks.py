"""A source's clock that was ahead, and was set right: what is stamped since is above nothing that was closed before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sidecar.clock import SECOND, FakeClock, SystemClock, iso
from tests.cases.harness import Project, fold
from tests.conftest import SQLiteFile

NOW = SystemClock().now()
HOURS = 3600 * SECOND


@pytest.mark.parametrize("loses_state", [False, True])
@pytest.mark.parametrize("declared", ["TEXT", "INTEGER"])
def test_what_is_stamped_after_a_clock_was_set_back_is_delivered(
    tmp_path: Path, sqlite_db: SQLiteFile, caplog: pytest.LogCaptureFixture, declared: str, loses_state: bool
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, updated_at {declared}, deleted_at {declared})")
    project = Project(tmp_path, sqlite_db.url, {"t": {"page_size": 2, "updated_at_unit": "us"}})
    if declared == "TEXT":
        project.tables = {"t": {"page_size": 2}}
        project.write()

    def write(key: int, v: int, at: int) -> None:
        s1.execute("INSERT OR REPLACE INTO t VALUES (?, ?, ?, NULL)", (key, v, iso(at) if declared == "TEXT" else at))

    def poll(at: int) -> list[tuple[int, int]]:
        return [(row["id"], row["v"]) for row in project.poll(clock=FakeClock(at))["t"]]

    for minutes in range(5):
        write(minutes, 1, NOW + 2 * HOURS + minutes * 60 * SECOND)
        poll(NOW + 2 * HOURS + minutes * 60 * SECOND)
    if loses_state:
        shutil.rmtree(tmp_path / "state" / "db")
    write(7, 1, NOW)
    write(1, 2, NOW)
    assert sorted(poll(NOW)) == [(1, 2), (7, 1)]
    (said,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert "the source's clock was set back" in said
    for minutes in range(1, 200, 13):
        at = NOW + minutes * 60 * SECOND
        write(8, minutes, at)
        assert poll(at) == [(8, minutes)], "nothing is repeated while the clock comes to where it was"
    found = {key: row["v"] for key, row in fold(project.rows("t"), "id").items()}
    assert found == dict(s1.execute("SELECT id, v FROM t").fetchall())


def test_a_clock_that_is_set_back_by_less_than_lookback_changes_nothing(
    tmp_path: Path, sqlite_db: SQLiteFile, caplog: pytest.LogCaptureFixture
) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    project = Project(tmp_path, sqlite_db.url, {"t": {}})
    for key, seconds in enumerate([0, 30, 61, 120, 90, 65]):
        s1.execute("INSERT INTO t VALUES (?, ?)", (key, iso(NOW + seconds * SECOND)))
        assert [row["id"] for row in project.poll(clock=FakeClock(NOW + seconds * SECOND))["t"]] == [key]
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
