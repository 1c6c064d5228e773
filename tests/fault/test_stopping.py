"""Who asks to stop waits for no statement, and the next run goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from pathlib import Path

import sidecar
from sidecar.clock import SystemClock
from sidecar.runner import Runner
from tests.cases.harness import Project, wait_for
from tests.conftest import SQLiteFile
from tests.servers import Database, make

clock = SystemClock()
SOON = 4.0
"""Seconds: about one, on a machine that has other things to do."""


def stopped(project: Project, pg: Database, waiting: str, count: int = 1) -> None:
    """Run until *count* sessions are at what the condition *waiting* says, then ask to stop."""
    process = project.start("run", "--once")
    try:
        with pg.connect() as admin:
            query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND {waiting}"
            assert wait_for(lambda: admin.execute(query.encode()).fetchall()[0][0] >= count)
        began = clock.monotonic()
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert clock.monotonic() - began < SOON, said
    assert "error" not in said
    # The policy that makes a statement slow is said, and is all that is.
    assert "warning" not in said.replace('warning: table "t": row-level security is on', "")


def test_chunks_that_are_being_read_are_broken_off(pg: Database, tmp_path: Path) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    make(s1, "INSERT INTO t SELECT n, '2024-05-01Z'::timestamptz + n * interval '1s' FROM generate_series(1, 44000) n")
    make(s1, "ANALYZE t", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    # Slow are the last rows, to connectorx alone.
    slow = "id < 43000 OR current_setting('application_name') = 'sidecar' OR pg_sleep(1) IS NOT NULL"
    make(s1, f"CREATE POLICY slow ON t USING ({slow})")
    project = Project(tmp_path, pg.reader_url, {"t": {"chunk_size": 20_000}}, backfill={"parallelism": 2})
    stopped(project, pg, "state = 'active' AND wait_event = 'PgSleep'")
    with pg.connect() as admin:
        left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
        assert admin.execute(left.encode()).fetchall() == [(0,)], "the server need not go on, either"
    make(s1, "DROP POLICY slow ON t", "ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    project.poll()
    found = [row["id"] for row in project.rows("t")]
    assert sorted(found) == list(range(1, 44_001)), "nothing is lost, nothing comes twice"


def test_a_statement_that_waits_for_a_lock_is_broken_off(pg: Database, tmp_path: Path) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)", "INSERT INTO t VALUES (1, now())")
    project = Project(tmp_path, None, {"t": {}}, source={"url": pg.reader_url, "lock_timeout": "60s"})
    project.poll()
    make(s1, "INSERT INTO t VALUES (2, now())")
    with pg.connect(autocommit=False) as owner:
        make(owner, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        stopped(project, pg, "wait_event_type = 'Lock'")
    assert [row["id"] for row in project.poll()["t"]] == [2]


def test_a_statement_in_a_file_of_sqlite_is_broken_off(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, '2024-05-01 10:00:00')")
    endless = "EXISTS (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT 1 FROM n WHERE i < id)"
    project = Project(tmp_path, sqlite_db.url, {"t": {"deleted_when": endless}})
    stop = threading.Event()
    with sidecar.open(project.path) as sc:
        asks = threading.Timer(0.5, stop.set)
        asks.start()
        began = clock.monotonic()
        assert Runner(sc, stop=stop).run(once=True, interval=5) == 0
        assert 0.4 < clock.monotonic() - began < SOON
        asks.join()


JAVA = """\
#!/bin/sh
if [ "$*" = -version ]; then echo 'openjdk version "17.0.9"' >&2; exit; fi
echo $$ > "$MARK"
exec cat
"""
"""A Java that is never done with its start; like the JVM of Spark, it ends with its standard input."""


def test_nobody_waits_for_a_spark_that_is_only_just_starting(tmp_path: Path) -> None:
    java, mark = tmp_path / "home" / "bin" / "java", tmp_path / "started"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    with sqlite3.connect(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
        shop.execute("INSERT INTO t VALUES (1, '2024-05-01 10:00:00')")
    sinks = {"lake": {"path": "lake"}}
    project = Project(
        tmp_path / "p", f"sqlite:///{tmp_path}/shop.db", {"t": {}}, sinks=sinks, spark={"fast_start": False}
    )
    env = {"JAVA_HOME": str(java.parent.parent), "MARK": str(mark)}
    process = project.start("run", "--once", env=env)
    try:
        assert wait_for(lambda: mark.exists() and bool(mark.read_text().strip()), 60)
        began = clock.monotonic()
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert clock.monotonic() - began < SOON, said
    assert wait_for(lambda: not Path("/proc", mark.read_text().strip()).exists(), 10)
    assert [row["id"] for row in project.rows("t")] == [1]
