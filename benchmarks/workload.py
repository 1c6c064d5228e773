"""The data: one `orders` table, the same rows in PostgreSQL and in SQLite, made once and kept.

Row i is a pure function of i and the number of rows, so that any two makers agree. Stamps spread over the year 2024 in
the order of the key, six in ten rows were updated up to 30 days after they were made, and one in 20 is soft-deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psycopg

VERSION = 1
"""Of the data: what an older version made is made anew."""

Row: TypeAlias = tuple[int, int, str, str, str, str, str, str, str | None]

POSTGRES_TABLE = """\
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    tenant_id int,
    status text,
    amount numeric(12,2),
    note text,
    payload jsonb,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    deleted_at timestamptz
)"""
SQLITE_TABLE = """\
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    tenant_id INTEGER,
    status TEXT,
    amount NUMERIC,
    note TEXT,
    payload TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    deleted_at TEXT
)"""
# What `sidecar check` asks for: the first for polls, the second, small one for the soft-delete pass.
INDEXES = (
    "CREATE INDEX orders_updated ON orders (updated_at, id)",
    "CREATE INDEX orders_deleted ON orders (deleted_at, id) WHERE deleted_at IS NOT NULL",
)

_SECOND = 1_000_000
_YEAR, _MONTH = 365 * 86_400 * _SECOND, 30 * 86_400 * _SECOND
_BEGIN = 1_704_067_200 * _SECOND  # 2024-01-01
_STATUSES = ("new", "paid", "packed", "shipped", "delivered", "returned")
_CHUNK = 50_000


def rows(count: int) -> Iterator[list[Row]]:
    """Yield the table of *count* rows, in lists, in the order of the key."""
    for first in range(0, count, _CHUNK):
        yield _rows(first, min(first + _CHUNK, count), count)


def _rows(first: int, last: int, count: int) -> list[Row]:
    index = np.arange(first, last, dtype=np.uint64)
    # Splitmix64: every bit of the number depends on every bit of the index.
    mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    made = _BEGIN + index.astype(np.int64) * (_YEAR // count) + (mixed % np.uint64(_SECOND)).astype(np.int64)
    later = (mixed >> np.uint64(8)).astype(np.int64) % _MONTH
    updated = made + np.where(mixed % np.uint64(10) < 6, later, 0)
    gone = ((mixed >> np.uint64(20)) % np.uint64(20) == 0).tolist()
    created_at, updated_at = _iso(made), _iso(updated)
    return [
        (
            i + 1,
            1 + m % 97,
            _STATUSES[m % 6],
            f"{m % 1_000_000 // 100}.{m % 100:02d}",
            f"Leave at the door of number {m % 400}, ring twice; ref {m:016x}",
            f'{{"items": [{{"sku": "{m >> 24:010x}", "count": {1 + m % 5}}}, {{"sku": "{m >> 20 & 0xFFFFFF:06x}", '
            f'"count": 1}}], "shipping": "standard", "channel": "{"web" if m & 1 else "app"}", '
            f'"customer": {m % 9_999_991}}}',
            created,
            stamp,
            stamp if deleted else None,
        )
        for i, m, created, stamp, deleted in zip(
            range(first, last), mixed.tolist(), created_at, updated_at, gone, strict=True
        )
    ]


def _iso(micros: Any) -> list[str]:
    found: list[str] = np.datetime_as_string(micros.astype("datetime64[us]"), timezone="UTC").tolist()
    return found


def fill_postgres(connection: psycopg.Connection[Any], count: int) -> None:
    """Make the table of *count* rows in an empty database; the connection is in autocommit."""
    connection.execute(POSTGRES_TABLE)
    with connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:
        for chunk in rows(count):
            lines = ["\t".join(["\\N" if v is None else str(v) for v in row]) for row in chunk]
            copy.write("\n".join(lines) + "\n")
    for index in INDEXES:
        connection.execute(index)
    connection.execute("VACUUM ANALYZE orders")
    connection.execute(f"COMMENT ON TABLE orders IS '{VERSION}'")


def is_filled(connection: psycopg.Connection[Any]) -> bool:
    """Return whether `fill_postgres` of this version has come to its end here."""
    found = connection.execute("SELECT obj_description(to_regclass('orders'), 'pg_class')").fetchone()
    return found == (str(VERSION),)


def sqlite_file(folder: Path, count: int) -> Path:
    """Return a SQLite file with the table of *count* rows in *folder*, made if it is not there."""
    path = folder / f"orders-{count}-v{VERSION}.db"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    connection = sqlite3.connect(aside, isolation_level=None)
    try:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(SQLITE_TABLE)
        connection.execute("BEGIN")
        for chunk in rows(count):
            connection.executemany(f"INSERT INTO orders VALUES ({', '.join('?' * len(chunk[0]))})", chunk)
        connection.execute("COMMIT")
        for statement in (*INDEXES, "ANALYZE", "PRAGMA journal_mode = DELETE"):
            connection.execute(statement)
    finally:
        connection.close()
    aside.rename(path)
    return path


def spread(count: int, changes: int, turn: int) -> range:
    """Return *changes* keys of a table of *count* rows, evenly spread over it; others at another *turn*."""
    step = count // changes
    return range(1 + turn % step, 1 + turn % step + step * changes, step)


def change_postgres(connection: psycopg.Connection[Any], keys: Sequence[int]) -> None:
    """Update the rows with *keys*, each with a stamp of its own, as many small transactions would."""
    connection.execute(
        "UPDATE orders SET status = 'changed', updated_at = clock_timestamp() WHERE id = ANY(%s)", [list(keys)]
    )


def change_sqlite(connection: sqlite3.Connection, keys: Sequence[int], now: int) -> None:
    """Update the rows with *keys*, stamped from *now* (microseconds) backwards, a microsecond apart."""
    stamps = _iso(now - np.arange(len(keys), dtype=np.int64)[::-1])
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany(
        "UPDATE orders SET status = 'changed', updated_at = ? WHERE id = ?", zip(stamps, keys, strict=True)
    )
    connection.execute("COMMIT")
