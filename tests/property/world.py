"""A source that Hypothesis drives: writers with open transactions on a real database, and a follower that polls it.

Time belongs to the test: SQLite takes its clock from the connector's, and each PostgreSQL snapshot is real but for the
time it was taken at.
"""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

from connectors.postgres import PostgresConnector
from connectors.postgres_read import Reader
from connectors.postgres_session import Session, View
from connectors.sqlite import SQLiteConnector
from sidecar import recovery
from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, FakeClock, instant
from sidecar.connector import Source, SourceConnector
from sidecar.model import Tracked
from sidecar.poll import poll
from sidecar.state import MemoryWatermarkStore, RocksDBWatermarkStore, WatermarkStore

KEYS = range(12)
START = 1_714_557_600 * SECOND
LOOKBACK = 60 * SECOND


@dataclass
class Open:
    """A transaction under way: when it began, what it touched, and the savepoints in it."""

    began: int
    touched: set[int] = field(default_factory=set)
    savepoints: list[set[int]] = field(default_factory=list)


class World(Protocol):
    """A database with one table `t(id, v, created_at, updated_at, deleted_at)`."""

    writers: int
    clock: FakeClock

    def connector(self) -> SourceConnector:
        """Return a connector on a new connection."""

    def tracked(self, connector: SourceConnector) -> Tracked:
        """Return how the table is followed."""

    def execute(self, writer: int, sql: str) -> None:
        """Run a statement in *writer*'s session."""

    def stamp(self, micros: int | None) -> str:
        """Return a stamp as a literal of the table's own kind."""

    def content(self) -> dict[int, tuple[int, bool]]:
        """Return the committed rows: key → (version, soft-deleted)."""

    def close(self) -> None:
        """Let go."""


class Follower:
    """Polls a world into a log, and can be killed, restarted, or robbed of its state between any two pages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = Path(tempfile.mkdtemp(prefix="sidecar-property-"))
        self.connector = world.connector()
        self.tracked = world.tracked(self.connector)
        self.log = ChangeLog(self.folder / "log", self.tracked.name)
        self.store: WatermarkStore = RocksDBWatermarkStore(self.folder / "db", create=True)
        self.closed: dict[str, int] = {}
        self._changes: list[dict[str, Any]] = []
        self._read = 0

    def poll(self, pages: int | None = None) -> None:
        """Poll to the end, or drop the poll after some pages."""
        steps = poll(self.connector, self.tracked, self.log, self.store)
        for number, _ in enumerate(steps, 1):
            if number == pages:
                steps.close()
        self._watch()

    def restart(self, *, lose_state: bool) -> None:
        """Come back as a new process would: with RocksDB as it was, or without it."""
        self.connector.close()
        self.store.close()
        if lose_state:
            shutil.rmtree(self.folder / "db")
        self.store = RocksDBWatermarkStore(self.folder / "db", create=lose_state)
        recovery.recover(self.log, self.store)
        if lose_state:
            self.closed = {}
        self.connector = self.world.connector()

    def changes(self) -> list[dict[str, Any]]:
        """Return the whole log; segments never change, so each is read once."""
        last = self.log.last()
        self._changes.extend(self.log.rows(self._read, last))
        self._read = last
        return self._changes

    def fold(self) -> dict[int, tuple[int, bool]]:
        """Return the log folded by key: key → (version, deleted)."""
        return {row["id"]: (row["v"], row["_change_type"] == "delete") for row in self.changes()}

    def close(self) -> None:
        self.connector.close()
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        mark = self.store.watermark(self.tracked.name)
        assert mark is not None
        assert mark.offset == self.log.last()
        for name, value in mark.closed().items():
            if value is not None:
                assert value >= self.closed.get(name, value), f"{name} moved back"
                self.closed[name] = value


class SQLiteWorld:
    """SQLite: one writer at a time, stamps as text or as numbers."""

    writers = 1

    def __init__(self, form: str) -> None:
        self.form = form
        self.clock = FakeClock(START)
        self._folder = Path(tempfile.mkdtemp(prefix="sidecar-world-"))
        self._path = self._folder / "source.db"
        self._writer = sqlite3.connect(self._path, isolation_level=None)
        self._reader = sqlite3.connect(self._path, isolation_level=None)
        type_ = "TEXT" if form.startswith("text") else "INTEGER"
        self._writer.execute("PRAGMA journal_mode=WAL")
        self._writer.execute(
            f"CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, created_at {type_}, updated_at {type_}, "
            f"deleted_at {type_})"
        )

    def connector(self) -> SourceConnector:
        return SQLiteConnector(Source(f"sqlite:///{self._path}", clock=self.clock))

    def tracked(self, connector: SourceConnector) -> Tracked:
        unit = {"epoch-s": "s", "epoch-ms": "ms"}.get(self.form)
        return follow(connector, unit=unit)

    def execute(self, writer: int, sql: str) -> None:
        del writer
        self._writer.execute(sql)

    def stamp(self, micros: int | None) -> str:
        if micros is None:
            return "NULL"
        if self.form == "epoch-s":
            return str(micros // SECOND)
        if self.form in ("epoch-ms", "counter"):
            return str(micros // 1000)
        text = instant(micros).strftime("%Y-%m-%d %H:%M:%S.%f")
        return f"'{text[:19]}'" if self.form == "text-s" else f"'{text}'"

    def content(self) -> dict[int, tuple[int, bool]]:
        rows = self._reader.execute("SELECT id, v, deleted_at IS NOT NULL FROM t").fetchall()
        return {key: (v, bool(gone)) for key, v, gone in rows}

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class TimedSession(Session):
    """A real session whose snapshots say the test's time."""

    def _view(self) -> View:
        now = self._source.clock.now()
        return dataclasses.replace(super()._view(), now=now, known=now)


class PostgresWorld:
    """PostgreSQL: several writers at once, read by a role that may only SELECT."""

    writers = 3

    def __init__(self, reader_url: str, connect: Callable[[], psycopg.Connection], kind: str) -> None:
        self.kind = kind
        self.clock = FakeClock(START)
        self._reader_url = reader_url
        self._admin = connect()
        self._sessions = [connect() for _ in range(self.writers)]
        for statement in (
            "DROP TABLE IF EXISTS t",
            f"CREATE TABLE t (id int PRIMARY KEY, v int, created_at {kind}, updated_at {kind}, deleted_at {kind})",
            "GRANT SELECT ON t TO PUBLIC",
        ):
            self._admin.execute(statement)

    def connector(self) -> SourceConnector:

        from sidecar.connector import Source

        source = Source(self._reader_url, clock=self.clock)
        connector = PostgresConnector(source)
        connector._session = TimedSession(source)
        connector._reader = Reader(connector._session)
        return connector

    def tracked(self, connector: SourceConnector) -> Tracked:
        return follow(connector)

    def execute(self, writer: int, sql: str) -> None:
        self._sessions[writer].execute(sql)

    def stamp(self, micros: int | None) -> str:
        if micros is None:
            return "NULL"
        if self.kind == "bigint":
            return str(micros)
        return f"'{instant(micros).strftime('%Y-%m-%d %H:%M:%S.%f')}+00'"

    def content(self) -> dict[int, tuple[int, bool]]:
        rows = self._admin.execute("SELECT id, v, deleted_at IS NOT NULL FROM t").fetchall()
        return {key: (v, gone) for key, v, gone in rows}

    def close(self) -> None:
        for session in (*self._sessions, self._admin):
            session.close()


def follow(connector: SourceConnector, unit: Any = None) -> Tracked:
    """Return table `t` as it is followed in these tests: small pages, so that ties and polls are cut everywhere."""
    table = connector.describe("t")
    return Tracked(
        table,
        table.primary_key,
        "updated_at",
        created_at="created_at",
        deleted_at="deleted_at",
        columns=table.columns,
        unit=unit,
        lookback=LOOKBACK,
        page_size=3,
    )


__all__ = ["MemoryWatermarkStore", "Open", "PostgresWorld", "SQLiteWorld", "World"]
