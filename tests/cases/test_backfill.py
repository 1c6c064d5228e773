# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Existing rows that come chunk by chunk, beside polls, through kills, with keys of all sorts; copies of one instant."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import sidecar
from sidecar import Sidecar
from sidecar.backfilling.jobs import Jobs
from sidecar.runner import Runner
from tests.cases.harness import Project, Row, fold, kinds, sqlite_file, wait_for
from tests.cases.tables import BINS, SNOWFLAKES, TAGS
from tests.conftest import SQLiteFile
from tests.servers import Database

WALLETS = """\
CREATE TABLE wallets (id int PRIMARY KEY, cents int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO wallets SELECT g, g * 100, '2024-05-01 10:00+00', '2024-05-01 10:00+00' FROM generate_series(1,10) g;
"""

PRICES = """\
CREATE TABLE price_list (sku text PRIMARY KEY, cents int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO price_list
SELECT to_char(g, 'FM000000'), g, '2024-05-01 00:00:00+00', '2024-05-01 00:00:00+00' FROM generate_series(1, 25000) g;
"""

BOOKINGS = """\
CREATE TABLE bookings (id INTEGER PRIMARY KEY, room TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO bookings VALUES (1,'a','2024-05-01 08:00:00','2024-05-09 18:00:00'),(2,'b','2024-05-01 08:00:00','2024-05-02 08:00:00'),
                            (3,'c','2024-05-01 08:00:00','2024-05-01 08:00:00');
"""

ACCTS = """\
CREATE TABLE accts (id INTEGER PRIMARY KEY, bal INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO accts VALUES (1,10,'2024-05-01 10:00:00','2024-05-01 10:00:00'),(2,20,'2024-05-01 10:00:00','2024-05-01 10:00:00'),(3,30,'2024-05-01 10:00:00','2024-05-01 10:00:00');
"""


@contextlib.contextmanager
def held_chunk(sc: Sidecar, table: str) -> Iterator[Callable[[], Any]]:
    """Begin what is to be backfilled of *table*, its first chunk read and not written; yields what polls beside it."""
    runner = Runner(sc)
    jobs: Jobs = runner._jobs
    jobs._step(None, None)
    copying = jobs._copying
    assert copying is not None
    assert wait_for(lambda: not copying._chunks.empty())
    yield lambda: runner.catch_up(sc.tracked[table])
    for _ in jobs.work(None):
        pass
    jobs.close()
    runner.catch_up(sc.tracked[table])


def purge(project: Project, table: str) -> list[Row]:
    """Compare all of *table* with the log, and return the deletes that came of it."""
    with sidecar.open(project.path) as sc:
        sc.request_backfill(table, purge=True)
    return [row for row in project.poll()[table] if row["_change_type"] == "delete"]


@pytest.mark.parametrize("first", [True, False], ids=["the first backfill", "one that is asked for"])
@pytest.mark.parametrize("old", [True, False], ids=["long ago", "as reported"])
def test_a_chunk_that_is_held_while_polls_go_on_overwrites_nothing(
    tmp_path: Path, pg: Database, first: bool, old: bool
) -> None:
    """RC-32"""
    s1 = pg.connect()
    s1.execute(WALLETS)
    if old:
        # All of these are then the backfill's; as reported, the first poll reads them as well.
        s1.execute("UPDATE wallets SET updated_at = '2024-04-01 10:00+00' WHERE id < 10")
    project = Project(
        tmp_path, pg.reader_url, {"wallets": {"chunk_size": 3}}, backfill={"parallelism": 1}
    )  # fmt: skip
    if not first:
        assert len(project.poll()["wallets"]) == 10
    with sidecar.open(project.path) as sc:
        if not first:
            sc.request_backfill("wallets")
        with held_chunk(sc, "wallets") as poll:
            s1.execute("UPDATE wallets SET cents = 9999, updated_at = '2024-05-01 11:00+00' WHERE id IN (2, 8)")
            s1.execute("DELETE FROM wallets WHERE id IN (1, 9)")
            s1.execute("INSERT INTO wallets VALUES (11, 1100, '2024-05-01 11:01+00', '2024-05-01 11:01+00')")
            poll()
            told = [row["id"] for row in sc.log("wallets").rows()]
            assert {2, 8, 11} <= set(told)
    rows = project.rows("wallets")
    for key in (2, 8):
        cents = [row["cents"] for row in rows if row["id"] == key]
        assert cents == sorted(cents), "an older image after a newer one"
        assert cents[-1] == 9999
    if first:
        versions = [(row["id"], row["cents"]) for row in rows]
        assert len(versions) == len(set(versions)), "a version came twice"
    purge(project, "wallets")
    found = {key: row["cents"] for key, row in project.merged("wallets", "id").items()}
    assert found == {3: 300, 4: 400, 5: 500, 6: 600, 7: 700, 10: 1000, 2: 9999, 8: 9999, 11: 1100}


def test_a_tie_of_25_000_rows_comes_whole_through_a_kill_between_chunks(tmp_path: Path, pg: Database) -> None:
    """RC-05"""
    s1 = pg.connect()
    s1.execute(PRICES)
    project = Project(tmp_path, pg.reader_url, {"price_list": {"chunk_size": 1000}})
    assert project.cli("run", "--once", env={"SIDECAR_CRASH_AT": "chunk-saved:10"}).code == -9
    assert 5_000 < len(project.rows("price_list")) <= 10_000
    project.poll()
    rows = project.rows("price_list")
    assert len(rows) == 25_000
    assert sum(row["cents"] for row in fold(rows, "sku").values()) == 312_512_500
    assert project.poll()["price_list"] == []
    s1.execute("UPDATE price_list SET cents = -1, updated_at = '2024-05-01 00:00:00+00' WHERE sku = '000007'")
    s1.execute(
        "INSERT INTO price_list VALUES ('030000', 30000, '2024-05-01 00:00:00+00', '2024-05-01 00:00:00+00')"
    )  # fmt: skip
    third = {row["sku"]: row["cents"] for row in project.poll()["price_list"]}
    assert third == {"000007": -1, "030000": 30000}


def test_keys_of_two_texts_are_told_apart_whatever_stands_in_them(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-27"""
    s1 = sqlite_db.connection
    s1.executescript(BINS)
    project = Project(tmp_path, sqlite_db.url, {"bins": {"chunk_size": 2}})
    rows = project.poll()["bins"]
    assert len(rows) == 10
    assert len(fold(rows, "site", "bin")) == 10
    assert sum(row["qty"] for row in rows) == 55
    assert purge(project, "bins") == []
    s1.execute("DELETE FROM bins WHERE (site = 'A' AND bin = 'B|C') OR (site = '12' AND bin = '3')")
    assert kinds(purge(project, "bins"), "site", "bin") == [("delete", "12", "3"), ("delete", "A", "B|C")]
    assert purge(project, "bins") == []
    assert sum(row["qty"] for row in project.merged("bins", "site", "bin").values()) == 49


@pytest.mark.parametrize("parallelism", [1, 2])
def test_keys_that_a_language_orders_are_walked_in_its_order_through_a_kill(
    tmp_path: Path, pg_icu: Database, parallelism: int
) -> None:
    """RC-29"""
    s1 = pg_icu.connect()
    s1.execute(TAGS)
    project = Project(tmp_path, pg_icu.reader_url, {"tags": {"chunk_size": 2}}, backfill={"parallelism": parallelism})
    assert project.cli("run", "--once", env={"SIDECAR_CRASH_AT": "chunk-saved:2"}).code == -9
    begun = [row["slug"] for row in project.rows("tags")]
    assert len(begun) in ((4,) if parallelism == 1 else (1, 2, 3, 4))
    s1.execute("UPDATE tags SET n = n + 100, updated_at = '2024-05-01 11:00+00' WHERE slug IN ('B', 'élan')")
    project.poll()
    project.poll()
    assert {slug: row["n"] for slug, row in project.merged("tags", "slug").items()} == {
        "a": 1, "B": 102, "c": 3, "D": 4, "_x": 5, "ab": 6, "a_z": 7, "Zeta": 8, "élan": 109
    }  # fmt: skip
    assert len(project.rows("tags")) == 9 + len({"B", "élan"} & set(begun))
    assert purge(project, "tags") == []


def test_integer_keys_of_64_bits_begin_below_zero_and_end_at_the_greatest(tmp_path: Path, pg: Database) -> None:
    """RC-31"""
    s1 = pg.connect()
    s1.execute(SNOWFLAKES)
    project = Project(tmp_path, pg.reader_url, {"snowflakes": {"chunk_size": 2}})
    rows = project.poll()["snowflakes"]
    assert len(rows) == 8
    assert all(row["v"] == f"v{row['id']}" for row in rows)
    s1.execute("DELETE FROM snowflakes WHERE id = 9007199254740993")
    assert kinds(purge(project, "snowflakes"), "id") == [("delete", 9007199254740993)]
    assert len(project.merged("snowflakes", "id")) == 7


def test_a_first_load_ends_at_the_greatest_stamp_and_polls_without_changes_keep_it(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    """RC-34"""
    s1 = sqlite_db.connection
    s1.executescript(BOOKINGS)
    project = Project(tmp_path, sqlite_db.url, {"bookings": {"chunk_size": 2}})

    def greatest() -> object:
        with sidecar.open(project.path, read_only=True) as sc:
            (status,) = sc.status()
            return status.greatest

    assert sorted(row["id"] for row in project.poll()["bookings"]) == [1, 2, 3]
    first = greatest()
    assert first == 1_715_277_600_000_000  # 2024-05-09 18:00:00
    assert project.poll()["bookings"] == []
    assert project.poll()["bookings"] == []
    assert greatest() == first
    s1.execute("INSERT INTO bookings VALUES (4,'d','2024-05-10 08:00:00','2024-05-10 08:00:00')")
    assert kinds(project.poll()["bookings"], "id") == [("insert", 4)]


def test_a_chunk_and_a_poll_of_one_key_fold_to_what_the_poll_has_seen(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-69"""
    s1 = sqlite_db.connection
    s1.executescript(ACCTS)
    # A poll, a chunk of what is there again, a poll, and a delete: all before any sink has had a turn.
    project = Project(tmp_path, sqlite_db.url, {"accts": {"chunk_size": 2}})
    project.poll()
    with sidecar.open(project.path) as sc:
        sc.request_backfill("accts")
        with held_chunk(sc, "accts") as poll:
            s1.execute("UPDATE accts SET bal = 25, updated_at = '2024-05-01 11:00:00' WHERE id = 2")
            poll()
    s1.execute("DELETE FROM accts WHERE id = 3")
    assert kinds(purge(project, "accts"), "id") == [("delete", 3)]
    rows = project.rows("accts")
    assert {key: row["bal"] for key, row in fold(rows, "id").items()} == {1: 10, 2: 25}
    # Whichever part of the log comes twice, the end is the same.
    assert {key: row["bal"] for key, row in fold([*rows, *rows], "id").items()} == {1: 10, 2: 25}
    of_2 = [(row["bal"], row["_origin"]) for row in rows if row["id"] == 2]
    assert of_2[:2] == [(20, "backfill"), (25, "poll")]
    assert {bal for bal, _ in of_2[1:]} == {25}


# -- copies of one instant ---------------------------------------------------------------------------------------------

ACCOUNTS = 600
CONSISTENT = {"chunk_size": 40, "consistent": True}
TABLES = (
    "CREATE TABLE accounts (id {integer} PRIMARY KEY, cents {integer} NOT NULL, updated_at {time} NOT NULL)",
    "CREATE TABLE transfers (id {integer} PRIMARY KEY, cents {integer} NOT NULL, updated_at {time} NOT NULL)",
)


def transferring(execute: Callable[[str], Any], now: str, stop: threading.Event, done: list[int]) -> None:
    """Move money from accounts to others and into transfers: all of it together is always as much."""
    number = 0
    while not stop.is_set():
        number += 1
        execute("BEGIN")
        execute(f"UPDATE accounts SET cents = cents - 7, updated_at = {now} WHERE id = {number * 7919 % ACCOUNTS}")
        execute(f"UPDATE accounts SET cents = cents + 4, updated_at = {now} WHERE id = {number * 104729 % ACCOUNTS}")
        execute(f"INSERT INTO transfers VALUES ({number}, 3, {now})")
        execute("COMMIT")
        done.append(number)
        stop.wait(0.001)


def copied_while_money_moves(project: Project, execute: Callable[[str], Any], now: str) -> dict[str, list[Row]]:
    """Copy both tables meanwhile; return all changes."""
    stop, done = threading.Event(), list[int]()
    thread = threading.Thread(target=transferring, args=(execute, now, stop, done))
    thread.start()
    try:
        assert wait_for(lambda: len(done) > 20)
        before = len(done)
        found = project.poll()
        assert len(done) > before, "nothing was written meanwhile"
    finally:
        stop.set()
        thread.join()
    copied = [row for rows in found.values() for row in rows if row["_origin"] == "backfill"]
    assert sum(row["cents"] for row in copied) == ACCOUNTS * 1000
    after = project.poll()
    return {name: [*rows, *after[name]] for name, rows in found.items()}


def test_a_copy_by_two_readers_is_of_one_instant_while_money_moves(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    for table in TABLES:
        s1.execute(table.format(integer="bigint", time="timestamptz").encode())
    s1.execute(f"INSERT INTO accounts SELECT g, 1000, now() FROM generate_series(0, {ACCOUNTS - 1}) g".encode())
    project = Project(
        tmp_path, pg.reader_url, {"accounts": CONSISTENT, "transfers": CONSISTENT}, backfill={"parallelism": 2}
    )
    writer: psycopg.Connection[Any] = pg.connect()
    found = copied_while_money_moves(project, lambda q: writer.execute(q.encode()), "clock_timestamp()")
    for table in ("accounts", "transfers"):
        source: dict[int, int] = dict(s1.execute(f"SELECT id, cents FROM {table}".encode()).fetchall())
        assert {k: row["cents"] for k, row in fold(found[table], "id").items()} == source


def test_a_copy_of_a_sqlite_file_is_of_one_instant_while_money_moves(tmp_path: Path) -> None:
    path = tmp_path / "source" / "source.db"
    s1 = sqlite_file(path, "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
    for table in TABLES:
        s1.execute(table.format(integer="INTEGER", time="TEXT"))
    now = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
    s1.executemany(f"INSERT INTO accounts VALUES (?, 1000, {now})", [(n,) for n in range(ACCOUNTS)])
    project = Project(tmp_path, f"sqlite:///{path}", {"accounts": CONSISTENT, "transfers": CONSISTENT})
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
    found = copied_while_money_moves(project, writer.execute, now)
    for table in ("accounts", "transfers"):
        source: dict[int, int] = dict(s1.execute(f"SELECT id, cents FROM {table}").fetchall())
        assert {k: row["cents"] for k, row in fold(found[table], "id").items()} == source
    writer.close()
    s1.close()
