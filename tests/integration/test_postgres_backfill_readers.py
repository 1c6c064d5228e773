"""Backfills of a real server by several connections, and what becomes of them where there are not as many to be had."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import sidecar
from sidecar import backfill
from sidecar.backfilling.jobs import Jobs
from sidecar.clock import FakeClock, SystemClock
from sidecar.connector import SourceConnector
from sidecar.errors import SourceUnavailable
from tests.cases.harness import Project, wait_for
from tests.servers import Database, make


def test_a_reader_that_gets_no_connection_leaves_the_rows_to_the_others(pg: Database, tmp_path: Path) -> None:
    with pg.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
        admin.execute("INSERT INTO t SELECT n, '2024-05-01T10:00:00Z' FROM generate_series(1, 1000) n")
        admin.execute("ANALYZE t")
        # One for polls, one that holds the snapshot.
        admin.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 2'.encode())
    (tmp_path / "sidecar.toml").write_text(
        f'[source]\nurl = "{pg.reader_url}"\n[state]\npath = "state"\n[tables.t]\nchunk_size = 100\n'
        "[backfill]\nparallelism = 3\n"
    )
    with sidecar.open(tmp_path / "sidecar.toml") as opened:
        assert opened.run(once=True) == 0
        assert {r["id"] for r in opened.log("t").rows()} == set(range(1, 1001))


@pytest.mark.parametrize("limit", [1, 3])
def test_a_role_of_few_connections_has_its_first_load_in_time(pg: Database, tmp_path: Path, limit: int) -> None:
    """With one, it is that of the polls; with three, connectorx gets none beside two readers."""
    owner, clock = pg.connect(), SystemClock()
    make(owner, "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    make(owner, "INSERT INTO t SELECT n, '2024-05-01T10:00:00Z' FROM generate_series(1, 60000) n", "ANALYZE t")
    make(owner, f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT {limit}')
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    began = clock.monotonic()
    assert sorted(row["id"] for row in project.poll()["t"]) == list(range(1, 60001))
    assert clock.monotonic() - began < 20, "connectorx tries for half a minute"
    make(owner, "UPDATE t SET updated_at = now() WHERE id = 7")
    assert [row["id"] for row in project.poll()["t"]] == [7]


def test_a_copy_of_one_instant_is_not_made_in_several(pg: Database, tmp_path: Path) -> None:
    owner = pg.connect()
    make(
        owner, "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)", "INSERT INTO t VALUES (1, now())"
    )
    make(owner, f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 1')
    with pytest.raises(SourceUnavailable, match="too many connections"):
        Project(tmp_path, pg.reader_url, {"t": {"consistent": True}}).poll(clock=FakeClock(SystemClock().now()))


def test_who_alters_a_table_that_is_being_copied_goes_first(pg: Database, tmp_path: Path) -> None:
    owner, clock = pg.connect(), SystemClock()
    make(owner, "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    make(owner, "INSERT INTO t SELECT n, '2024-05-01T10:00:00Z' FROM generate_series(1, 3000) n", "ANALYZE t")
    slowly = {"max_rows_per_second": 100}
    project = Project(tmp_path, pg.reader_url, {"t": {"chunk_size": 50, "consistent": True}}, backfill=slowly)
    process = project.start("run", "--once")
    try:
        log = tmp_path / "state" / "log" / "t"
        assert wait_for(lambda: len(list(log.glob("*.parquet"))) > 1)
        began = clock.monotonic()
        make(owner, "SET statement_timeout = '20s'", "ALTER TABLE t ADD COLUMN more text")
        assert clock.monotonic() - began < 15, "not once the copy is over, which takes half a minute"
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "for a table that is being copied" in said
    project.write(backfill={})
    project.poll()
    assert sorted(row["id"] for row in project.rows("t")) == list(range(1, 3001))


def test_the_parts_of_two_scopes_are_read_by_the_connections_that_there_are(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, tables = pg.connect(), ("a", "b")
    for table in tables:
        make(owner, f"CREATE TABLE {table} (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now())")
        make(owner, f"INSERT INTO {table} SELECT generate_series(1, 10)")
    project = Project(tmp_path, pg.reader_url, {table: {} for table in tables})
    project.poll()
    monkeypatch.setattr(backfill, "TOGETHER", 1)
    made, connect = list[SourceConnector](), Jobs._connect

    def counted(jobs: Jobs) -> SourceConnector:
        made.append(connect(jobs))
        return made[-1]

    monkeypatch.setattr(Jobs, "_connect", counted)
    with sidecar.open(project.path) as opened:
        for table in tables:
            opened.request_backfill(table, keys=range(1, 11))
        opened.poll()
    assert [sorted(row["id"] for row in project.rows(table)) for table in tables] == [sorted([*range(1, 11)] * 2)] * 2
    assert len(made) == 2, "one holds the view, one reads besides"
