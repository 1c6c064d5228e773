"""Projects that are run in processes of their own, killed there, and held against the promise afterwards.

A run is a process that a fork server makes: it has imported everything, so a kill hits work and not imports. Where a
test is about the command line itself (signals, the lock's message), `Project.start` starts one from nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from sidecar import config
from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock, instant
from sidecar.connector import SourceConnector
from sidecar.log import storage
from sidecar.model import Page
from tests import forks

KILLED = -signal.SIGKILL
PATIENCE = 120
"""Seconds after which a process hangs, on a machine that does other things as well."""

clock = SystemClock()

TABLE = (
    "CREATE TABLE {name} (id {integer} PRIMARY KEY, v {integer} NOT NULL, created_at {time}, updated_at {time}, "
    "deleted_at {time}, filling text)"
)


def seed() -> int:
    """Return what a test's choices follow from: SIDECAR_SEED's number, or any. It is printed if the test fails."""
    found = int(os.environ.get("SIDECAR_SEED") or random.SystemRandom().randrange(10**6))
    print(f"SIDECAR_SEED={found}")
    return found


class Source(Protocol):
    """A database with tables `t` and `u` that this process may write to."""

    @property
    def url(self) -> str:
        """Where Sidecar reads it."""

    def execute(self, sql: str) -> None:
        """Run a statement on the writer's connection."""

    def content(self, table: str) -> dict[int, tuple[int, bool]]:
        """Return the committed rows: key → (version, soft-deleted)."""


class SQLiteSource:
    """A SQLite file in WAL mode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = OFF")
        for name in ("t", "u"):
            self._writer.execute(TABLE.format(name=name, integer="INTEGER", time="TEXT"))
            self._writer.execute(f"CREATE INDEX {name}_by_time ON {name} (updated_at, id)")

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def execute(self, sql: str) -> None:
        self._writer.execute(sql)

    def content(self, table: str) -> dict[int, tuple[int, bool]]:
        reader = sqlite3.connect(self.path)
        rows = reader.execute(f"SELECT id, v, deleted_at IS NOT NULL FROM {table}").fetchall()
        reader.close()
        return {key: (v, bool(gone)) for key, v, gone in rows}

    def close(self) -> None:
        self._writer.close()


class PostgresSource:
    """A PostgreSQL database, read by a role that may only SELECT."""

    def __init__(self, connection: psycopg.Connection[Any], reader_url: str) -> None:
        self.url = reader_url
        self.writer = connection
        for name in ("t", "u"):
            self.execute(TABLE.format(name=name, integer="bigint", time="timestamptz"))
            self.execute(f"CREATE INDEX ON {name} (updated_at, id)")

    def execute(self, sql: str) -> None:
        self.writer.execute(sql)

    def content(self, table: str) -> dict[int, tuple[int, bool]]:
        rows = self.writer.execute(f"SELECT id, v, deleted_at IS NOT NULL FROM {table}").fetchall()
        return {key: (v, gone) for key, v, gone in rows}


class Writer:
    """Changes a source at random: each write is a version of its own, stamped by this machine's clock."""

    def __init__(self, source: Source, seed: int, tables: Iterable[str] = ("t", "u"), keys: int = 40) -> None:
        self.source = source
        self.random = random.Random(seed)
        self.tables = tuple(tables)
        self.keys = keys
        self.version = 0
        self._stop = threading.Event()

    def fill(self, count: int, table: str = "t", filling: int = 0) -> None:
        """Add *count* rows with the highest keys, all at once."""
        first = max([*self.source.content(table), 1000]) + 1
        rows = []
        for key in range(first, first + count):
            self.version += 1
            rows.append(f"({key}, {self.version}, '{now()}', '{now()}', NULL, '{'x' * filling}')")
        for start in range(0, count, 500):
            self.source.execute(f"INSERT INTO {table} VALUES {', '.join(rows[start : start + 500])}")

    def write(self, count: int) -> None:
        """Write *count* times: insert, update, soft-delete, restore."""
        for _ in range(count):
            self.version += 1
            table, key = self.random.choice(self.tables), self.random.randrange(self.keys)
            gone = f"'{now()}'" if self.random.random() < 0.15 else "NULL"
            self.source.execute(
                f"INSERT INTO {table} VALUES ({key}, {self.version}, '{now()}', '{now()}', NULL, '') ON CONFLICT (id) "
                f"DO UPDATE SET v = {self.version}, updated_at = '{now()}', deleted_at = {gone}"
            )

    def run(self) -> None:
        """Write until told to stop: alone, and in transactions of up to a third of a second; some roll back."""
        while not self._stop.is_set():
            if self.random.random() < 0.5:
                self.write(self.random.randint(1, 20))
            else:
                self.source.execute("BEGIN")
                self.write(self.random.randint(1, 20))
                self._stop.wait(self.random.choice([0, 0.01, 0.3]))
                self.write(1)
                self.source.execute("ROLLBACK" if self.random.random() < 0.2 else "COMMIT")
            self._stop.wait(self.random.choice([0, 0.005, 0.05]))

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Write in the background meanwhile."""
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()


def now() -> str:
    """Return the present as both databases take it."""
    return instant(clock.now()).strftime("%Y-%m-%d %H:%M:%S.%f+00")


@dataclass(frozen=True)
class Outcome:
    """How a process ended, and what it said on stderr."""

    code: int
    said: str


@dataclass
class Project:
    """A settings file, and the state that belongs to it."""

    folder: Path
    url: str
    page_size: int = 7
    lookback: str = "2s"
    state: Path | None = None
    sinks: str = ""
    retention: str | None = None
    bases: bool = False
    defaults: str = ""
    tables: str = ""
    log_settings: str = ""
    archive: dict[tuple[str, int], list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_settings()

    @property
    def settings(self) -> Path:
        return self.folder / "sidecar.toml"

    @property
    def path(self) -> Path:
        return self.state or self.folder / "state"

    @property
    def database(self) -> Path:
        return self.path / "db"

    @property
    def reads(self) -> Path:
        """Where each process notes what it has read of the source: table, pass, and how many rows."""
        return self.folder / "reads"

    def rows_read(self, table: str, scan: str) -> int:
        """Return how many rows of *table* all processes have read in passes called *scan*."""
        lines = [line.split() for line in self.reads.read_text().splitlines()]
        return sum(int(count) for name, of, count in lines if (name, of) == (table, scan))

    def write_settings(self) -> None:
        """Write the settings anew, after a field was changed."""
        retention = (
            f"retention = {json.dumps(self.retention)}\nbases = {json.dumps(self.bases)}\n" if self.retention else ""
        )
        self.settings.write_text(
            f"[source]\nurl = {json.dumps(self.url)}\n[state]\npath = {json.dumps(str(self.path))}\n{retention}"
            f"{self.log_settings}"
            f'[defaults]\npage_size = {self.page_size}\nlookback = "{self.lookback}"\n{self.defaults}\n'
            f'[tables.t]\nupdated_at = "updated_at"\n[tables.u]\nupdated_at = "updated_at"\n{self.tables}\n{self.sinks}'
        )

    # -- processes -----------------------------------------------------------------------------------------------------

    def run(self, *arguments: str, crash: str | None = None, limit: int | None = None) -> Outcome:
        """Run `sidecar run --once`, or what *arguments* say, to its end or to the crash point *crash*."""
        with self.running(*(arguments or ("run", "--once")), crash=crash, limit=limit) as running:
            return running.ended()

    @contextlib.contextmanager
    def running(self, *arguments: str, crash: str | None = None, limit: int | None = None) -> Iterator[Running]:
        """Give a process that runs `sidecar` with *arguments*; it is gone afterwards."""
        with tempfile.NamedTemporaryFile(prefix="said-", dir=self.folder) as said:
            process = forks.server.Process(
                target=_child, args=([*arguments, "-c", str(self.settings)], said.name, str(self.reads), crash, limit)
            )
            process.start()
            running = Running(process, Path(said.name))
            try:
                yield running
            finally:
                running.kill()

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start the command line itself, from nothing; the caller sees to its end."""
        command = [sys.executable, "-m", "sidecar.cli", *arguments, "-c", str(self.settings)]
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )

    # -- what came of it -----------------------------------------------------------------------------------------------

    def log(self, table: str = "t") -> ChangeLog:
        """Return the change log of *table*, whatever name the connector gives it."""
        root = config.load(self.settings).log
        found = [name for name in storage.folders(root) if name in (table, f"public.{table}")]
        return ChangeLog(root, found[0] if found else table, self.path)

    def keep(self) -> None:
        """Remember what the logs hold, for tests in which retention drops it."""
        for table in ("t", "u"):
            log = self.log(table)
            for segment in log.list(log.floor()):
                self.archive[table, segment.offset] = list(log.rows(segment.offset - 1, segment.offset))

    def changes(self, table: str = "t") -> list[dict[str, Any]]:
        """Return all changes in log order, those kept of dropped segments first."""
        log = self.log(table)
        floor = log.floor()
        old = [
            row for (name, offset), rows in self.archive.items() if name == table and offset <= floor for row in rows
        ]
        return [*old, *log.rows(floor)]

    def damage(self) -> Path:
        """Return a copy of the database's folder beside it, to put back after a trial."""
        copy = self.path.parent / f"{self.path.name}-db-copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.database, copy)
        return copy


@dataclass
class Running:
    """A process under way."""

    process: Any
    said: Path

    def ended(self, patience: float = PATIENCE) -> Outcome:
        """Wait for its end."""
        self.process.join(patience)
        assert self.process.exitcode is not None, f"still running after {patience} s; said: {self.said.read_text()}"
        return Outcome(self.process.exitcode, self.said.read_text())

    def kill(self) -> None:
        """End it by SIGKILL, if it still runs."""
        if self.process.exitcode is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.join(PATIENCE)


def _noting(connector: type[SourceConnector], reads: str) -> None:
    original = connector.read

    def read(self: SourceConnector, page: Page) -> Any:
        data = original(self, page)
        with Path(reads).open("a") as file:
            file.write(f"{page.tracked.name} {page.scan.name} {len(data)}\n")
        return data

    connector.read = read  # type: ignore[method-assign]


def _child(arguments: list[str], said: str, reads: str, crash: str | None, limit: int | None) -> None:
    handle = os.open(said, os.O_WRONLY | os.O_TRUNC)
    os.dup2(handle, 2)
    os.dup2(handle, 1)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  lives as long as the process
    from connectors.postgres import PostgresConnector
    from connectors.sqlite import SQLiteConnector

    for connector in (SQLiteConnector, PostgresConnector):
        _noting(connector, reads)
    if crash is not None:
        forks.crash_at(crash)
    if limit is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    from sidecar.cli import execute

    code = execute(arguments)
    sys.stderr.flush()
    os._exit(code)


def holds(source: Source, project: Project, tables: Iterable[str] = ("t", "u")) -> None:
    """Assert G1 to G3: the folded log is the source; no version stands twice; a key's versions stand in order."""
    for table in tables:
        changes = project.changes(table)
        offsets = [row["_commit_version"] for row in changes]
        assert offsets == sorted(offsets)
        last: dict[int, tuple[int, int]] = {}
        for row in changes:
            version, offset = last.get(row["id"], (0, 0))
            assert row["v"] > version, f"G2, G3: {table}, key {row['id']}: version {row['v']} after {version}"
            assert row["_commit_version"] > offset, f"G3: {table}, key {row['id']} twice in segment {offset}"
            last[row["id"]] = (row["v"], row["_commit_version"])
        folded = {row["id"]: (row["v"], row["_change_type"] == "delete") for row in changes}
        assert folded == source.content(table), f"G1: {table}"
        log = project.log(table)
        found = [s.offset for s in log.list(log.floor())]
        assert found == list(range(log.floor() + 1, log.floor() + 1 + len(found))), "a segment is missing"


def clean(outcome: Outcome) -> None:
    """Assert that a run ended well, and without a traceback."""
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.said, outcome.said
    assert "error:" not in outcome.said, outcome.said


def wait_for(what: Any, seconds: float = PATIENCE) -> None:
    """Wait until *what()* is true."""
    end = clock.monotonic() + seconds
    while not what():
        assert clock.monotonic() < end, "waited in vain"
        clock.sleep(0.01)
