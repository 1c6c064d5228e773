"""Writers that make plain watermarks lose rows: late commits, savepoints, rollbacks, shared ticks, lower keys.

Every write has a `version` of its own, so that a copy can be compared with the truth: what is missing, what is stale,
what came twice.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from sidecar.clock import SystemClock

WRITERS = 8
KEYS = 200

POSTGRES = """
CREATE SEQUENCE versions;
CREATE TABLE items (
    id bigint PRIMARY KEY,
    version bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON items (updated_at, id);
GRANT SELECT ON items TO PUBLIC"""

_WRITE = (
    "INSERT INTO items (id, version) VALUES (%s, nextval('versions'))"
    " ON CONFLICT (id) DO UPDATE SET version = nextval('versions'), updated_at = now()"
)


def make(connect: Callable[[], psycopg.Connection]) -> None:
    """Make the table."""
    with connect() as admin:
        admin.execute(POSTGRES)


@contextlib.contextmanager
def postgres(connect: Callable[[], psycopg.Connection], seconds: float, standby: str | None) -> Iterator[None]:
    """Write while the block runs: eight sessions, and one transaction that is open for half of *seconds*.

    At the end, wait until *standby*, if any, has it all.
    """
    with connect() as admin:
        admin.execute("TRUNCATE items")
    _wait_for(connect, standby)
    stop = threading.Event()
    hands = [threading.Thread(target=_postgres_writer, args=(connect(), n, stop)) for n in range(WRITERS)]
    hands.append(threading.Thread(target=_long_transaction, args=(connect(), seconds / 2, stop)))
    with _working(hands, stop):
        yield
    _wait_for(connect, standby)


def _wait_for(connect: Callable[[], psycopg.Connection], standby: str | None) -> None:
    if standby is None:
        return
    with connect() as primary:
        written = primary.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    for _ in range(600):
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(standby, autocommit=True) as there:
            if there.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written).fetchone() == (True,):
                return
        SystemClock().sleep(0.1)
    raise TimeoutError("the standby does not follow")


def _postgres_writer(connection: psycopg.Connection, number: int, stop: threading.Event) -> None:
    chance = random.Random(number)
    with connection:
        connection.autocommit = True
        while not stop.is_set():
            connection.execute("BEGIN")
            connection.execute(_WRITE, [_key(number, chance)])
            if chance.random() < 0.3:
                connection.execute("SAVEPOINT inner_one")
                connection.execute(_WRITE, [_key(number, chance)])
                connection.execute(chance.choice(("ROLLBACK TO inner_one", "RELEASE inner_one")))
            stop.wait(3 if chance.random() < 0.03 else chance.uniform(0, 0.3))
            connection.execute("ROLLBACK" if chance.random() < 0.05 else "COMMIT")


def _long_transaction(connection: psycopg.Connection, seconds: float, stop: threading.Event) -> None:
    with connection:
        connection.autocommit = True
        connection.execute("BEGIN")
        connection.execute(_WRITE, [WRITERS * KEYS])
        stop.wait(seconds)
        connection.execute(_WRITE, [WRITERS * KEYS + 1])
        connection.execute("COMMIT")


def _key(number: int, chance: random.Random) -> int:
    # Each writer has keys of its own: none waits for another, as long as its commits are late.
    return number * KEYS + chance.randrange(KEYS)


@contextlib.contextmanager
def sqlite(path: Path, *, epochs: bool) -> Iterator[None]:
    """Write while the block runs: four sessions that stamp whole seconds, as numbers or as text."""
    kind, now = ("INTEGER", "unixepoch()") if epochs else ("TEXT", "datetime('now')")
    if epochs and sqlite3.sqlite_version_info < (3, 38):
        now = "CAST(strftime('%s', 'now') AS INTEGER)"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            f"CREATE TABLE items (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, created_at {kind} NOT NULL,"
            f" updated_at {kind} NOT NULL)"
        )
        connection.execute("CREATE INDEX items_updated ON items (updated_at, id)")
    stop = threading.Event()
    hands = [threading.Thread(target=_sqlite_writer, args=(path, n, now, stop)) for n in range(4)]
    with _working(hands, stop):
        yield


def _sqlite_writer(path: Path, number: int, now: str, stop: threading.Event) -> None:
    chance = random.Random(number)
    write = (
        f"INSERT INTO items SELECT ?, coalesce(max(version), 0) + 1, {now}, {now} FROM items WHERE true"
        " ON CONFLICT (id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at"
    )
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
        connection.execute("CREATE INDEX IF NOT EXISTS items_version ON items (version)")
        while not stop.is_set():
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(chance.randint(1, 4)):
                # Lower keys as often as higher ones, several times within one second.
                connection.execute(write, [chance.randrange(WRITERS * KEYS)])
            if chance.random() < 0.01:
                stop.wait(chance.uniform(0.5, 1.5))
            connection.execute("ROLLBACK" if chance.random() < 0.05 else "COMMIT")
            stop.wait(chance.uniform(0, 0.02))


@contextlib.contextmanager
def _working(hands: list[threading.Thread], stop: threading.Event) -> Iterator[None]:
    for hand in hands:
        hand.start()
    try:
        yield
    finally:
        stop.set()
        for hand in hands:
            hand.join()
