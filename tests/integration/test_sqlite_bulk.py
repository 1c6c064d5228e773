"""Large pages of SQLite come by connectorx, from a process of its own, and are what Python's sqlite3 reads."""

from __future__ import annotations

import dataclasses
import os
import random
import resource
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors import sqlite_bulk
from connectors.sqlite import SQLiteConnector
from connectors.sqlite_apart import Apart
from sidecar import codec
from sidecar.clock import SystemClock
from sidecar.connector import Source
from sidecar.errors import SidecarError
from sidecar.model import Page, Pass, Tracked
from sidecar.testing.contract import tracked
from tests.cases.harness import wait_for
from tests.conftest import SQLiteFile

ALL = Pass("all", None)
SIZE = 10

DECLARED = ["", "INTEGER", "REAL", "TEXT", "BLOB", "NUMERIC", "BOOLEAN", "DATE", "DATETIME", "JSON"]
HOLDING: list[list[Any]] = [
    [0, 1],
    [0, 1, 2, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    [0.1, 2.5, -0.0, 1e300, 5e-324, float("inf"), 123456789.987654321],
    [1, 2.5, 3, 2**53],
    ["", "a\0b", 'it\'s "so",\n\r\\', "日本 🛒", "007", "1.50", "x" * 3000],
    [b"", b"\0\xff", b"abc", "text"],
    [b"\0\xff\xfe", b"", b"abc"],
    ["2024-05-01 10:00:00", "2024-05-01T10:00:00.5", "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
    ["2024-05-01T10:00:00Z", "2024-05-01 10:00:00+02:00"],
    ["2024-05-01", "2024-02-29"],
    ["2024-05-01 10:00", "0000-00-00"],
    [1714557600, 1714557601],
    [1714557600123, None],
    [1, "one", 1.5, b"1", None],
    [None],
]


@pytest.fixture
def connector(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[SQLiteConnector]:
    monkeypatch.setattr(sqlite_bulk, "MANY", 1)
    monkeypatch.setattr(sqlite_bulk, "LEAST", SIZE)
    found = SQLiteConnector(Source(sqlite_db.url))
    yield found
    found.close()


@pytest.fixture
def plain(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[SQLiteConnector]:
    """One that reads by Python's sqlite3 alone."""
    found = SQLiteConnector(Source(sqlite_db.url))
    monkeypatch.setattr(found._bulk, "takes", lambda *_: False)
    yield found
    found.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[pa.Table | None]:
    """What connectorx has answered, so far."""
    answers: list[pa.Table | None] = []
    answer = Apart.answer

    def noted(apart: Apart) -> pa.Table | None:
        answers.append(answer(apart))
        return answers[-1]

    monkeypatch.setattr(Apart, "answer", noted)
    return answers


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What connectorx has been asked, so far."""
    found: list[str] = []
    ask = Apart.ask

    def noted(apart: Apart, sql: str) -> None:
        found.append(sql)
        ask(apart, sql)

    monkeypatch.setattr(Apart, "ask", noted)
    return found


@pytest.fixture
def staying(connector: SQLiteConnector, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process stays when a table has been read: or most of a test would be to wait for the next one."""
    with monkeypatch.context() as patched:
        patched.setattr(connector._bulk, "rest", lambda: None)
        yield


def ready(connector: SQLiteConnector) -> Apart:
    """Return the connector's process, once it can be asked."""
    apart = connector._bulk._process()
    while not apart.is_ready():
        assert not apart._is_over, "it has started"
        assert apart._process is not None
        select.select([apart._process.stdout], [], [], 10)
    return apart


def pages(connector: SQLiteConnector, followed: Tracked) -> list[pa.Table | str]:
    """Return all pages of *followed*; in place of one that cannot be read, what is said of it, and no more."""
    page: Page | None = Page(followed, ALL, {}, None, SIZE)
    found: list[pa.Table | str] = []
    while page is not None:
        try:
            data = connector.read(page)
        except SidecarError as error:
            found.append(str(error))
            break
        found.append(data)
        after = codec.position(data.slice(len(data) - 1), followed.key) if len(data) == page.limit else None
        page = dataclasses.replace(page, after=after) if after else None
    return found


def fill(file: SQLiteFile, sql: str, values: Iterable[Sequence[object]]) -> None:
    file.connection.execute("BEGIN")
    file.connection.executemany(sql, values)
    file.connection.execute("COMMIT")


def orders(db: SQLiteFile, rows: int = 40) -> None:
    db.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT, updated_at TEXT)")
    fill(db, "INSERT INTO orders VALUES (?, 'note', '2024-05-01 10:00:00')", [(n,) for n in range(rows)])


def test_whatever_is_declared_and_stored_comes_as_python_reads_it(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, staying: None, plain: SQLiteConnector,
    asked: list[pa.Table | None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    del staying
    monkeypatch.setattr(sqlite_bulk, "_PATIENCE", 10**9)
    ready(connector)
    draw, db = random.Random(5), sqlite_db.connection
    db.execute("PRAGMA synchronous = OFF")
    for number, (declared, holding) in enumerate((d, h) for d in DECLARED for h in HOLDING):
        name = f"t{number}"
        db.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, val {declared}, updated_at TEXT)")
        # The odd ones late: the first page says what the others are taken for, and what is settled does not know all.
        values = [draw.choice([*holding[: 2 + n // SIZE * 3], None]) for n in range(4 * SIZE)]
        rows = list(enumerate(values))
        fill(sqlite_db, f"INSERT INTO {name} VALUES (?, ?, '2024-05-01 10:00:00')", rows[: 2 * SIZE])
        followed = connector.settle(tracked(connector, name), lambda: None)
        fill(sqlite_db, f"INSERT INTO {name} VALUES (?, ?, '2024-05-01 10:00:00')", rows[2 * SIZE :])
        found, wanted = pages(connector, followed), pages(plain, followed)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one == other, (declared, holding)
    answered = sum(answer is not None for answer in asked)
    assert answered > len(DECLARED) * len(HOLDING)  # of three pages each
    assert answered < len(asked)  # and some cannot be read so


def test_keys_of_several_parts_and_deletions_come_as_python_reads_them(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, plain: SQLiteConnector, asked: list[pa.Table | None]
) -> None:
    db = sqlite_db.connection
    db.execute("""
        CREATE TABLE "the ""orders" ("a?" TEXT NOT NULL, b INTEGER NOT NULL, deleted_at TEXT, updated_at TEXT,
        made AS (b + 1) STORED, PRIMARY KEY ("a?", b))
    """)
    keys = ["it's", '"?"', "", "é\n", "z"]
    rows = [(keys[n % 5], n, ["2024-05-01", None, "0"][n % 3], "2024-05-01 10:00:00") for n in range(95)]
    fill(sqlite_db, 'INSERT INTO "the ""orders" VALUES (?, ?, ?, ?)', rows)
    ready(connector)
    followed = tracked(connector, 'the "orders', deleted_at="deleted_at", not_deleted=("0",))
    assert pages(connector, followed) == pages(plain, followed)
    assert len(asked) == 9
    assert None not in asked


def test_what_another_sqlite_might_make_otherwise_is_left_to_python(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, staying: None, asked: list[pa.Table | None]
) -> None:
    del staying
    orders(sqlite_db)
    db = sqlite_db.connection
    db.execute("CREATE TABLE made AS SELECT * FROM orders")
    db.execute("CREATE TABLE computed (id INTEGER PRIMARY KEY, half AS (round(id / 7.0, 3)), updated_at TEXT)")
    db.execute("INSERT INTO computed (id, updated_at) SELECT id, updated_at FROM orders")
    db.execute("CREATE VIEW some AS SELECT * FROM orders")
    db.execute("CREATE TABLE twice AS SELECT * FROM orders")
    db.execute("CREATE TABLE loose (id PRIMARY KEY, updated_at TEXT)")
    db.execute("INSERT INTO loose SELECT id, updated_at FROM orders")
    ready(connector)
    for name, settings in (
        ("computed", {}),
        ("some", {"key": ("id",)}),
        ("orders", {"deleted_when": "note LIKE 'gone'"}),
        ("twice", {"key": ("id",), "key_is_unique": False}),
        ("loose", {}),
    ):
        assert len(pages(connector, tracked(connector, name, **settings))) == 5
    with connector.copying():
        assert len(pages(connector, tracked(connector, "made", key=("id",)))) == 5, (
            "another connection sees another instant"
        )
    assert not asked
    assert len(pages(connector, tracked(connector, "made", key=("id",)))) == 5
    assert len(asked) == 4


def test_a_page_of_several_parts_is_as_long_as_was_asked_for(
    sqlite_db: SQLiteFile,
    connector: SQLiteConnector,
    plain: SQLiteConnector,
    asked: list[pa.Table | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders(sqlite_db, 35)
    ready(connector)
    followed = tracked(connector, "orders")
    connector.read(Page(followed, ALL, {}, None, SIZE))
    connector._bulk._known["orders"].at_once = 4
    monkeypatch.setattr(sqlite_bulk, "_ROWS", 4)
    found = pages(connector, followed)
    assert found == pages(plain, followed)
    assert [len(page) for page in found] == [10, 10, 10, 5]
    assert [len(answer) - 1 for answer in asked if answer is not None] == [4, 4, 2] * 3 + [4, 1]


def test_the_process_ends_with_the_table(sqlite_db: SQLiteFile, connector: SQLiteConnector) -> None:
    orders(sqlite_db)
    process = ready(connector)._process
    assert process is not None
    pages(connector, tracked(connector, "orders"))
    assert process.returncode is not None


def test_a_process_is_asked_however_many_files_are_open(sqlite_db: SQLiteFile) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] != resource.RLIM_INFINITY and limits[1] < 2_000:
        pytest.skip("this user may not open so many files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2_000), limits[1]))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    apart = Apart(Path(sqlite_db.path), SystemClock(), 60)
    try:
        assert not apart.is_ready()
        assert wait_for(apart.is_ready)
        apart.ask("SELECT 1 AS c0")
        assert apart.answer() == pa.table({"c0": [1]})
    finally:
        apart.release()
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_that_is_killed_costs_nothing(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, plain: SQLiteConnector, asked: list[pa.Table | None]
) -> None:
    orders(sqlite_db)
    apart = ready(connector)
    followed = tracked(connector, "orders")
    first = Page(followed, ALL, {}, None, SIZE)
    assert connector.read(first) == plain.read(first)
    assert apart._process is not None
    os.kill(apart._process.pid, signal.SIGKILL)
    assert pages(connector, followed) == pages(plain, followed)
    assert asked == [None]


def test_a_file_that_takes_the_place_of_the_one_that_is_read_is_not_read_for_it(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, asks: list[str], tmp_path: Path
) -> None:
    orders(sqlite_db)
    ready(connector)
    followed = tracked(connector, "orders")
    page = Page(followed, ALL, {}, None, SIZE)
    connector.read(page)
    before = connector.read(page)
    assert len(asks) == 2, "and what comes after it"
    other = SQLiteFile(tmp_path / "other.db", sqlite_db.connection)
    other.path.write_bytes(sqlite_db.path.read_bytes())
    other.path.replace(sqlite_db.path)
    assert connector.read(page) == before
    assert len(asks) == 2


def test_what_was_read_ahead_is_no_part_of_a_later_snapshot(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, asks: list[str]
) -> None:
    orders(sqlite_db)
    apart = ready(connector)
    first = Page(tracked(connector, "orders"), ALL, {}, None, SIZE)
    second = dataclasses.replace(first, after=(SIZE - 1,))
    connector.read(first)

    def change_behind(note: str) -> None:
        connector.read(first)
        assert apart._process is not None
        assert select.select([apart._process.stdout], [], [], 10)[0], "the second page has been read"
        sqlite_db.connection.execute("UPDATE orders SET note = ?", (note,))

    with connector.snapshot():
        change_behind("new")
        assert set(connector.read(second)["note"].to_pylist()) == {"note"}
    with connector.snapshot():
        change_behind("newer")
    with connector.snapshot():
        assert set(connector.read(second)["note"].to_pylist()) == {"newer"}
    assert len(asks) == 7


def test_a_file_that_is_replaced_while_connectorx_reads_is_not_read_for_the_one_that_is_held(
    sqlite_db: SQLiteFile,
    connector: SQLiteConnector,
    asked: list[pa.Table | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orders(sqlite_db)
    ready(connector)
    page = Page(tracked(connector, "orders"), ALL, {}, None, SIZE)
    before, ask = connector.read(page), Apart.ask
    other = tmp_path / "other.db"
    other.write_bytes(sqlite_db.path.read_bytes().replace(b"note2024", b"NOTE2024"))

    def late(apart: Apart, sql: str) -> None:
        if other.exists():
            other.replace(sqlite_db.path)
        ask(apart, sql)

    monkeypatch.setattr(Apart, "ask", late)
    assert connector.read(page) == before
    assert asked[0] is not None
    assert asked[0].column(1)[1].as_py() == "NOTE", "connectorx has read the other one"


def test_a_wal_is_read_and_left_as_it_is(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, asked: list[pa.Table | None]
) -> None:
    sqlite_db.connection.execute("PRAGMA journal_mode = WAL")
    orders(sqlite_db)
    wal = Path(f"{sqlite_db.path}-wal")
    before = sqlite_db.path.read_bytes(), wal.read_bytes()
    ready(connector)
    found = pages(connector, tracked(connector, "orders"))
    assert [len(p) for p in found] == [SIZE, SIZE, SIZE, SIZE, 0]
    assert [a is not None for a in asked] == [True] * 4
    connector.close()
    assert (sqlite_db.path.read_bytes(), wal.read_bytes()) == before
