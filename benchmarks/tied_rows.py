"""Rows that all carry one timestamp, in PostgreSQL and in SQLite: made once, kept, and put back after each use.

Row i holds `v = i % 97` until it is touched. A touched row holds a `v` below zero and a stamp of its own; no row is
touched twice, so each of its versions is known.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psycopg

from benchmarks import server
from benchmarks.bench import Bench
from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock, instant

VERSION = 1
"""Of the data: what an older version made is made anew."""

VALUES = 97
STAMP = 1_748_736_000_000_000  # 2025-06-01, in microseconds
BEFORE = {"postgresql": "2025-05-31T00:00:00Z", "sqlite": str(STAMP - 86_400_000_000)}
"""A watermark below all of them, as each source's column holds it."""


_POSTGRES = """\
CREATE TABLE ties (
    id bigint PRIMARY KEY,
    v int NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
)"""
# Numbers: a third of the size of texts, and 50 million rows of them are enough to keep.
_SQLITE = """\
CREATE TABLE ties (
    id INTEGER PRIMARY KEY,
    v INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
)"""
_INDEX = "CREATE INDEX ties_updated ON ties (updated_at, id)"
_CHUNK = 5_000_000
_PAUSE = 0.05


def source(bench: Bench, scheme: str, count: int) -> str:
    """Return the URL of a database with *count* tied rows, none of them touched."""
    if scheme == "sqlite":
        url = f"sqlite:///{_sqlite_file(bench.folder, count)}"
    else:
        name = f"sidecar_bench_ties_{count}"
        server.create(bench.server, name)
        url = server.url(bench.server, name)
        with psycopg.connect(url, autocommit=True) as connection:
            found = connection.execute("SELECT obj_description(to_regclass('ties'), 'pg_class')").fetchone()
            if found != (str(VERSION),):
                _fill(connection, count)
    put_back(url)
    return url


@contextlib.contextmanager
def touching(url: str, count: int, most: int, *, after: Path) -> Iterator[set[int]]:
    """Touch a row every now and then while the block runs, *most* at most, each in a transaction of its own.

    They are anywhere: behind the poll and ahead of it. None is touched before the file *after* is there. The set holds
    their keys once the block is over.
    """
    touched: set[int] = set()
    keys, stop = random.Random(count).sample(range(1, count + 1), most), threading.Event()
    hand = threading.Thread(target=_touch, args=(url, keys, touched, stop, after))
    hand.start()
    try:
        yield touched
    finally:
        stop.set()
        hand.join()


def put_back(url: str) -> None:
    """Let all rows be as they were made."""
    if url.startswith("sqlite:"):
        with contextlib.closing(_opened(url)) as lite:
            lite.execute(f"UPDATE ties SET v = id % {VALUES}, updated_at = ? WHERE updated_at > ?", (STAMP, STAMP))
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            stamp, values = instant(STAMP), f"v = mod(id, {VALUES})"
            connection.execute(f"UPDATE ties SET {values}, updated_at = %s WHERE updated_at > %s", (stamp, stamp))


def check(log: ChangeLog, rows: int, touched: set[int]) -> None:
    """Raise RuntimeError unless *log* has each version of a row at most once, and each row's last one."""
    made, newer, wanted = (np.zeros(rows + 1, dtype=bool) for _ in range(3))
    wanted[list(touched)] = True
    for segment in log.list():
        data = log.get(segment.offset)
        assert data is not None
        ids, values = (data.column(name).to_numpy().astype(np.int64, copy=False) for name in ("id", "v"))
        first = _is_first(ids, values)
        for seen, some in ((made, ids[first]), (newer, ids[~first])):
            if seen[some].any() or len(np.unique(some)) < len(some):
                raise RuntimeError(f"{segment.path}: holds a version that has been there before")
            seen[some] = True
    missing = int((~(made | newer))[1:].sum()) + int((newer != wanted).sum())
    if missing:
        raise RuntimeError(f"{missing:,} rows are not in the log as they are")


def _is_first(ids: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which rows are as they were made; RuntimeError if one is neither that nor touched."""
    first: npt.NDArray[np.bool_] = values == ids % VALUES
    if not (first | (values < 0)).all():
        raise RuntimeError("a row came with a value that it never had")
    return first


def _touch(url: str, keys: list[int], touched: set[int], stop: threading.Event, after: Path) -> None:
    clock = SystemClock()
    while not after.exists() and not stop.is_set():
        clock.sleep(0.001, stop)
    with contextlib.ExitStack() as stack:
        if url.startswith("sqlite:"):
            lite = stack.enter_context(contextlib.closing(_opened(url)))
        else:
            postgres = stack.enter_context(psycopg.connect(url, autocommit=True))
        while keys and not stop.is_set():
            key = keys.pop()
            if url.startswith("sqlite:"):
                lite.execute("UPDATE ties SET v = -1, updated_at = ? WHERE id = ?", (clock.now(), key))
            else:
                postgres.execute("UPDATE ties SET v = -1, updated_at = clock_timestamp() WHERE id = %s", [key])
            touched.add(key)
            stop.wait(_PAUSE)


def _fill(connection: psycopg.Connection, count: int) -> None:
    connection.execute("DROP TABLE IF EXISTS ties")
    connection.execute(_POSTGRES.replace(" PRIMARY KEY", " NOT NULL"))
    for first in range(1, count + 1, _CHUNK):
        connection.execute(
            f"INSERT INTO ties SELECT i, mod(i, {VALUES}), %s, %s FROM generate_series(%s::bigint, %s) AS i",
            (instant(STAMP), instant(STAMP), first, min(first + _CHUNK - 1, count)),
        )
        # Or the server's own log of what is written takes as much room again as the table.
        connection.execute("CHECKPOINT")
    for statement in ("ALTER TABLE ties ADD PRIMARY KEY (id)", _INDEX, "VACUUM ANALYZE ties"):
        connection.execute(statement)
        connection.execute("CHECKPOINT")
    connection.execute(f"COMMENT ON TABLE ties IS '{VERSION}'")


def _sqlite_file(folder: Path, count: int) -> Path:
    path = folder / f"ties-{count}-v{VERSION}.db"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(aside, isolation_level=None)) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -200000"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(_SQLITE)
        # First: rows that come in the index's own order are appended to it, where a later one would be sorted.
        connection.execute(_INDEX)
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            f" INSERT INTO ties SELECT i, i % {VALUES}, ?, ? FROM n",
            (count, STAMP, STAMP),
        )
        connection.execute("ANALYZE")
        # As an application that writes while others read has it.
        connection.execute("PRAGMA journal_mode = WAL")
    aside.rename(path)
    return path


def _opened(url: str) -> sqlite3.Connection:
    return sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None, timeout=60)
