"""The servers that other tests rely on are what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from sidecar.clock import SystemClock
from tests.conftest import SQLiteFile
from tests.servers import Database, GivenServer, NoServer, OwnServer, Server, fresh_database, start, url_of

ROOT = Path(__file__).parents[2]


def test_each_database_is_empty_and_gone_afterwards(pg_server: Server) -> None:
    with fresh_database(pg_server) as database:
        connection = database.connect()
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
        other = psycopg.connect(database.url)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(database.url)
    assert connection.closed
    other.close()


def test_a_prepared_transaction_does_not_keep_the_database(pg_server: Server) -> None:
    with fresh_database(pg_server) as database:
        connection = database.connect(autocommit=False)
        connection.execute("CREATE TABLE t (id int)")
        connection.execute("PREPARE TRANSACTION 'left behind'")


def test_the_reader_reads_new_tables_and_writes_nothing(pg: Database) -> None:
    pg.connect().execute("CREATE TABLE t (id int primary key); INSERT INTO t VALUES (1)")
    with psycopg.connect(pg.reader_url, autocommit=True) as reader:
        assert reader.execute("SELECT id FROM t").fetchall() == [(1,)]
        for statement in ("INSERT INTO t VALUES (2)", "CREATE TABLE u (id int)", "CREATE TEMPORARY TABLE v (id int)"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(statement)


def test_a_wrong_password_is_refused_over_tcp(pg: Database) -> None:
    if isinstance(pg.server, GivenServer):
        pytest.skip("the given server decides for itself whom it trusts")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url_of(pg.host, pg.port, pg.reader, "wrong", pg.dbname))


def test_the_superuser_needs_no_password_on_the_socket(pg: Database) -> None:
    if not isinstance(pg.server, OwnServer):
        pytest.skip("a given server's socket is its own affair")
    url = url_of(str(pg.server.socket), pg.port, pg.server.user, "", pg.dbname)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_icu_sorts_as_people_do(pg_icu: Database) -> None:
    rows = pg_icu.connect().execute("SELECT x FROM (VALUES ('B'), ('a'), ('Ä'), ('b')) AS t (x) ORDER BY x").fetchall()
    assert [x for (x,) in rows] == ["a", "Ä", "b", "B"]


def test_programs_that_do_not_work_say_so(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in {"postgres": "echo 'postgres (PostgreSQL) 15.0'", "initdb": "echo broken >&2; exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    with pytest.raises(NoServer, match="broken"):
        start(folder)


def test_a_server_dies_with_killed_tests(pg_server: Server) -> None:
    if not isinstance(pg_server, OwnServer):
        pytest.skip("a given server outlives the tests")
    script = (
        "import pathlib, sys, tests.servers as servers\n"
        "server = servers.start(pathlib.Path(sys.argv[1]))\n"
        "print(server.socket, flush=True)\n"
        "sys.stdin.read()\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", script, str(pg_server.binaries)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tests.stdin is not None
    assert tests.stdout is not None
    with tests.stdin, tests.stdout:
        folder = tests.stdout.readline().strip()
        postmaster = int(Path(folder, "data", "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, 0)
        tests.send_signal(signal.SIGKILL)
        tests.wait()
    clock = SystemClock()
    deadline = clock.monotonic() + 30
    while Path(folder).exists() and clock.monotonic() < deadline:
        clock.sleep(0.05)
    assert not Path(folder).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(postmaster, 0)


def test_a_dsn_names_a_server() -> None:
    server = GivenServer.of("postgresql://me:p%40ss@db.example:6000/x")
    assert server == GivenServer("db.example", 6000, "me", "p@ss")
    assert url_of(server.host, server.port, server.user, server.password, "a b").endswith("@db.example:6000/a%20b")


def test_a_sqlite_file_exists_and_takes_writes(sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    assert sqlite_db.path.stat().st_size > 0
    assert sqlite_db.url == f"sqlite:///{sqlite_db.path}"
