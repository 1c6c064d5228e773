"""PostgreSQL: tables, partitions and views, followed by a role that sees sessions or by one that does not.

Snapshots, transactions and the numbers of row versions are real. Three things are translated on their way to the
follower: the time of a snapshot, the beginnings of transactions, and, so that a server can fail over in a millisecond,
which timeline it is on and from where that counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from connectors.postgres import PostgresConnector
from connectors.postgres_read import Reader
from connectors.postgres_session import Session
from connectors.postgres_view import Connection, Server, View
from sidecar.clock import FakeClock, instant
from sidecar.connector import Source, SourceConnector
from sidecar.model import ALL, VERSION, Horizon, Memory, Page, Position, Tracked
from tests.property.world import SPLIT, START, Knows, follow
from tests.servers import Database

WRITERS = 3

Relation: TypeAlias = Literal["table", "partitioned", "view"]


class Sessions:
    """A superuser's connections to one database, used by one world after the other."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.admin = database.connect()
        self.writers = [self._connect() for _ in range(WRITERS)]

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        # Whoever waits for a lock here waits for a rule that has not been drawn yet.
        return self.database.connect(options="-c lock_timeout=10s")

    def reset(self) -> None:
        """End every transaction, the prepared ones too."""
        for number, writer in enumerate(self.writers):
            with contextlib.suppress(psycopg.Error):
                writer.execute("ROLLBACK")
            if writer.closed or writer.broken:
                self.writers[number] = self._connect()
        for gid in self.prepared():
            self.admin.execute(f"ROLLBACK PREPARED '{gid}'".encode())

    def prepared(self) -> list[str]:
        """Return the names of the prepared transactions of this database."""
        rows = self.admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
        return [gid for (gid,) in rows]


class PostgresWorld:
    """PostgreSQL: several writers at once, read by a role that may only SELECT, and perhaps see sessions."""

    writers = WRITERS

    def __init__(self, sessions: Sessions, kind: str, relation: Relation, knows: Knows) -> None:
        self.kind = kind
        self.knows: Knows = knows
        self.clock = FakeClock(START)
        self.timeline = 0
        self.ahead = 1_000_000
        """What the server's numbers are ahead of the real ones."""
        self.began: dict[int, int] = {}
        """By backend, when its last transaction began."""
        self._sessions = sessions
        self._connectors: list[TimedConnector] = []
        self._prepared = 0
        self.heap = "base" if relation == "view" else "t"
        columns = f"(id int PRIMARY KEY, v int, created_at {kind}, updated_at {kind}, deleted_at {kind})"
        self._make(
            "DROP VIEW IF EXISTS t" if relation == "view" else "DROP TABLE IF EXISTS t",
            f"DROP TABLE IF EXISTS {self.heap}",
            f"CREATE TABLE {self.heap} {columns} {'PARTITION BY HASH (id)' if relation == 'partitioned' else ''}",
            *(
                f"CREATE TABLE IF NOT EXISTS t{n} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {n})"
                for n in range(3 if relation == "partitioned" else 0)
            ),
            # With it an update makes a row anew in every index; without, on its own page and in none.
            *([f"CREATE INDEX ON {self.heap} (updated_at, id)"] if kind == "timestamptz" else []),
            *(["CREATE VIEW t AS SELECT * FROM base"] if relation == "view" else []),
            "GRANT SELECT ON t TO PUBLIC",
        )

    def connector(self) -> SourceConnector:
        found = TimedConnector(Source(self._sessions.database.reader_url, clock=self.clock), self)
        self._connectors = [*(c for c in self._connectors if c.is_connected), found]
        assert found.sees_sessions == (self.knows == "sessions")
        return found

    def tracked(self, connector: SourceConnector) -> Tracked:
        return follow(connector)

    def begin(self, writer: int) -> None:
        session = self._sessions.writers[writer]
        session.execute("BEGIN")
        self.began[session.info.backend_pid] = self.clock.now()
        session.execute("SELECT 1")

    def execute(self, writer: int, sql: str) -> None:
        self._sessions.writers[writer].execute(sql.encode())

    def prepare(self, writer: int) -> str:
        """Prepare *writer*'s transaction, and return under which name."""
        self._prepared += 1
        name = f"{self._sessions.database.dbname} {self._prepared}"
        self.execute(writer, f"PREPARE TRANSACTION '{name}'")
        return name

    def end_prepared(self, name: str, how: str) -> None:
        """COMMIT or ROLLBACK the prepared transaction *name*."""
        self._make(f"{how} PREPARED '{name}'")

    def lock(self, writer: int, key: int, how: str) -> bool:
        """Lock a row without changing it, if nobody is in the way; return whether it is there and locked now."""
        statement = f"SELECT FROM t WHERE id = {key} {how} SKIP LOCKED"
        return bool(self._sessions.writers[writer].execute(statement.encode()).fetchall())

    def vacuum(self, options: str) -> None:
        """Freeze what may be frozen; waits for nobody."""
        self._make(f"VACUUM ({options}, SKIP_LOCKED) {self.heap}")

    def fail_over(self, lost: int, *, seen: bool) -> None:
        """Count on from *lost* numbers before; *seen*: on a new timeline. Connections of the follower's break."""
        self.timeline += seen
        self.ahead -= lost
        for connector in self._connectors:
            connector.cut()

    def stamp(self, micros: int, shape: int) -> str:
        del shape
        return str(micros) if self.kind == "bigint" else f"'{instant(micros):%Y-%m-%d %H:%M:%S.%f}+00'"

    def content(self) -> dict[int, tuple[int, bool]]:
        rows = self._sessions.admin.execute("SELECT id, v, deleted_at IS NOT NULL FROM t").fetchall()
        return {key: (v, gone) for key, v, gone in rows}

    def close(self) -> None:
        self._sessions.reset()

    def _make(self, *statements: str) -> None:
        for statement in statements:
            self._sessions.admin.execute(statement.encode())


class TimedSession(Session):
    """A real session whose snapshots say the test's time, of a server that says the test's timeline."""

    def __init__(self, source: Source, world: PostgresWorld) -> None:
        super().__init__(source)
        self._world = world

    def _connect(self) -> tuple[Connection, Server]:
        connection, server = super()._connect()
        return connection, dataclasses.replace(server, identity=f"{server.identity}/{self._world.timeline}")

    def _begin(self, table: str | None, take: Callable[[], View]) -> View:
        found = super()._begin(table, take)
        # One that holds its view for long is a session that others see.
        self._world.began[self.connection.info.backend_pid] = self._source.clock.now()
        return found

    def _view(self) -> View:
        view, now = super()._view(), self._source.clock.now()
        running = view.running
        if running is not None:
            # Which one is the oldest is PostgreSQL's answer; when that began, in the test's time, is ours.
            began = None if running.began is None else self._world.began[int(running.who.split()[1])]
            running = dataclasses.replace(running, asked=now, began=began)
        return dataclasses.replace(view, now=now, known=now, running=running)


class TimedConnector(PostgresConnector):
    """A connector of which every number of a transaction is the real one and what the world is ahead of it."""

    def __init__(self, source: Source, world: PostgresWorld) -> None:
        super().__init__(source)
        self._world = world
        self._session = TimedSession(source, world)
        self._reader = Reader(self._session)

    @property
    def sees_sessions(self) -> bool:
        return self._session.server.sees_sessions

    @property
    def is_connected(self) -> bool:
        return self._session._connection is not None

    def split(self, page: Page, parts: int) -> Sequence[Position]:
        return SPLIT if page.scope == ALL else ()

    def cut(self) -> None:
        """Break the connection."""
        if self._session._connection is not None:
            self._session._connection.close()

    def read(self, page: Page) -> pa.Table:
        since = page.since and max(3, page.since - self._world.ahead)
        data = super().read(dataclasses.replace(page, since=since))
        at = data.schema.get_field_index(VERSION)
        return data if at < 0 else data.set_column(at, VERSION, pc.add(data.column(at), self._world.ahead))

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        ahead = self._world.ahead
        found = super().horizon(tracked, _shifted(memory, -ahead))
        floor = None if found.floor is None else found.floor + ahead
        return dataclasses.replace(found, floor=floor, memory=_shifted(found.memory, ahead))


def _shifted(memory: Memory, by: int) -> Memory:
    if memory is None:
        return None
    history: Any = memory["history"]
    return {**memory, "history": [[time, following + by] for time, following in history]}
