"""SQLite, chunk by chunk: parts of a table between keys, by a condition, among values, and all at one instant."""

from __future__ import annotations

import dataclasses
import itertools
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.sqlite import SQLiteConnector
from connectors.sqlite_query import page_statements
from connectors.sqlite_scope import rowid_of
from sidecar.connector import Source
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import Among, Page, Pass, Position, Scope, Tracked
from sidecar.testing.chunks import chunk, ends
from sidecar.testing.contract import tracked, values
from tests.conftest import SQLiteFile

STAMPS = "created_at TEXT DEFAULT '2024-05-01', updated_at TEXT DEFAULT '2024-05-01'"
ALL = Pass("all", None)


@pytest.fixture
def connector(sqlite_db: SQLiteFile) -> Iterator[SQLiteConnector]:
    found = SQLiteConnector(Source(sqlite_db.url))
    yield found
    found.close()


def page(followed: Tracked, **changes: Any) -> Page:
    return dataclasses.replace(Page(followed, ALL, {}, None, 1000), **changes)


def plans(db: SQLiteFile, asked: Page) -> list[str]:
    """Return how each statement of a page is searched."""
    rowid = rowid_of(db.connection, asked)
    found = page_statements(asked, [], asked.after, indexed=True, until=asked.until, rowid=rowid)
    rows = [
        db.connection.execute(f"EXPLAIN QUERY PLAN {s.sql}", (*s.parameters, asked.limit)).fetchall() for s in found
    ]
    return [" | ".join(str(row[3]) for row in each) for each in rows]


@pytest.fixture
def orders(sqlite_db: SQLiteFile, connector: SQLiteConnector) -> Tracked:
    db = sqlite_db.connection
    db.execute(f"CREATE TABLE orders (a INT, b TEXT, owner INT, status TEXT, {STAMPS}, PRIMARY KEY (a, b))")
    db.executemany(
        "INSERT INTO orders (a, b, owner, status) VALUES (?, ?, ?, ?)",
        [(n % 10, f"k{n // 10}", n % 7, "open" if n % 3 == 0 else "shut") for n in range(100)],
    )
    return tracked(connector, "orders")


def test_each_end_of_a_chunk_is_a_search_by_all_parts_of_the_key(sqlite_db: SQLiteFile, orders: Tracked) -> None:
    def searches(**changes: Any) -> list[str]:
        return [plan.partition("(")[2] for plan in plans(sqlite_db, page(orders, **changes))]

    assert searches(after=(3, "k4"), until=(3, "k8")) == ["a=? AND b>? AND b<?)"]
    assert searches(after=(3, "k4"), until=(5, "k8")) == ["a=? AND b>?)", "a>? AND a<?)", "a=? AND b<?)"]
    assert searches(until=(5, "k8")) == ["a<?)", "a=? AND b<?)"]
    assert searches(after=(3, "k4"), until=(3, "k4")) == []


def test_the_index_of_what_rows_are_among_serves(sqlite_db: SQLiteFile, orders: Tracked) -> None:
    sqlite_db.connection.execute("CREATE INDEX by_owner ON orders (owner)")
    ends_: dict[str, Any] = {"after": (1, "k2"), "until": (8, "k2")}
    owners = Scope(among=Among(("owner",), tuple((n,) for n in range(1000))))
    assert ["by_owner (owner=?)" in plan for plan in plans(sqlite_db, page(orders, scope=owners, **ends_))] == [True]
    pairs = Scope(among=Among(("b", "a"), (("k1", 3), ("k9", 9))))
    (plan,) = plans(sqlite_db, page(orders, scope=pairs, **ends_))
    assert "SEARCH found USING COVERING INDEX sqlite_autoindex_orders_1 (a=? AND b=?)" in plan


def test_a_condition_and_values_make_a_part(orders: Tracked, connector: SQLiteConnector) -> None:
    scope = Scope("status = 'open' -- those", Among(("owner",), ((1,), (3,))))
    wanted = sorted((n % 10, f"k{n // 10}") for n in range(100) if n % 3 == 0 and n % 7 in (1, 3))
    assert chunk(connector, orders, scope=scope, limit=3) == wanted
    inside = [key for key in wanted if (1, "k2") < key <= (7, "k1")]
    assert chunk(connector, orders, (1, "k2"), (7, "k1"), limit=2, scope=scope) == inside


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("statsu = 'open'", "no such column: statsu"),
        ("status = ", "incomplete input"),
        ("1 LIMIT 3", 'near "LIMIT"'),
        ("status = 'open') OR (1", "syntax error"),
        ("1; DROP TABLE orders", "one statement|syntax error"),
        ("1; SELECT 1", "one statement"),
        ("1 ORDER BY a", "syntax error"),
        ("1 /*", "syntax error|incomplete"),
        ("status = ?", "bindings"),
        ("status = :name", "bind"),
        ("SELECT 1", "syntax error"),
        ("(a, b)", "row value"),
        ("count(*) > 1", "aggregate"),
        ("", "incomplete input"),
        ("1 \0", "null character"),
        ('status = "open"', 'no column "open"; a text stands in single quotes'),
        ("abs(-9223372036854775808 + a * 0) > 1", "overflow"),
    ],
)
def test_a_condition_that_is_none_is_named(
    sqlite_db: SQLiteFile, orders: Tracked, connector: SQLiteConnector, condition: str, says: str
) -> None:
    with connector.copying():
        with pytest.raises(SettingsError, match=f'(?s)"orders": the condition .*({says})') as found:
            connector.read(page(orders, scope=Scope(condition)))
        assert repr(condition) in str(found.value)
        assert len(connector.read(page(orders))) == 100, "the copy goes on"
    assert sqlite_db.connection.execute("SELECT count(*) FROM orders").fetchone() == (100,)


def test_what_a_column_holds_is_found_by_its_own_affinity(sqlite_db: SQLiteFile, connector: SQLiteConnector) -> None:
    db = sqlite_db.connection
    db.execute(f"CREATE TABLE odd (id INTEGER PRIMARY KEY, t TEXT, n INT, r REAL, d DATETIME, x, {STAMPS})")
    db.execute(
        "INSERT INTO odd VALUES (1, '5', 5, 5.0, 1714557600, 5, '', ''), (2, '6', 6, 0.1, '2024-05-01', '5', '', '')"
    )
    followed = tracked(connector, "odd")

    def found(columns: tuple[str, ...], *wanted: Position) -> list[Position]:
        return chunk(connector, followed, scope=Scope(among=Among(columns, wanted)))

    assert found(("t",), (5,)) == [(1,)]
    assert found(("n",), ("6",)) == [(2,)]
    assert found(("r",), (0.1,)) == [(2,)]
    assert found(("d",), ("1714557600",)) == [(1,)]
    assert found(("d",), ("2024-05-01",)) == [(2,)]
    assert found(("x",), ("5",)) == [(1,), (2,)], "both arrive as the text 5"
    assert found(("t", "n"), (5, "5"), ("6", 5)) == [(1,)]
    assert found(("x", "d"), ("5", "1714557600"), ("5", "2024-05-01")) == [(1,), (2,)]


def test_keys_that_a_collation_takes_for_one_another_are_divided_once(
    sqlite_db: SQLiteFile, connector: SQLiteConnector
) -> None:
    db = sqlite_db.connection
    db.execute(f"CREATE TABLE folded (k TEXT COLLATE NOCASE, n INT, {STAMPS}, PRIMARY KEY (k, n))")
    rows = [("a", 1), ("A", 2), ("b", 1), ("B", 5), ("b", 3), ("C", 1), ("é", 1), ("É", 1)]
    db.executemany("INSERT INTO folded (k, n) VALUES (?, ?)", rows)
    followed = tracked(connector, "folded")
    whole = chunk(connector, followed)
    assert sorted(whole) == sorted(rows)
    for low, high in itertools.product([("B", 1), ("a", 1), ("b", 0), ("A", 9)], [("b", 4), ("B", 9), ("c", 1)]):
        wanted = db.execute(
            "SELECT k, n FROM folded WHERE (k, n) > (?, ?) AND (k, n) <= (?, ?) ORDER BY k, n", (*low, *high)
        ).fetchall()
        assert chunk(connector, followed, low, high, limit=2) == wanted, f"{low} to {high}"


@pytest.mark.parametrize("index", ["UNIQUE (a, b)", "CHECK (1)"], ids=["indexed", "not indexed"])
@pytest.mark.parametrize("row", [(None, 4), (3, None), (None, None)])
def test_a_null_in_a_key_is_named_with_its_row_by_the_chunk_that_it_is_in(
    sqlite_db: SQLiteFile, connector: SQLiteConnector, index: str, row: tuple[int | None, int | None]
) -> None:
    db = sqlite_db.connection
    db.execute(f"CREATE TABLE bare (a INT, b INT, {STAMPS}, {index})")
    db.executemany("INSERT INTO bare (a, b) VALUES (?, ?)", [(n // 3, n % 3) for n in range(30)])
    db.execute("INSERT INTO bare (a, b) VALUES (?, ?)", row)
    followed = dataclasses.replace(tracked(connector, "bare"), key=("a", "b"), key_is_unique=False)
    cuts = [(1, 1), (3, 0), (3, 1), (6, 2)]
    failed = []
    for low, high in ends(cuts):
        try:
            chunk(connector, followed, low, high, limit=2)
        except SettingsError as error:
            failed.append(str(error))
    other = {None: "rowid 31", 3: "a=3, rowid 31", 4: "b=4, rowid 31"}[row[0] if row[1] is None else row[1]]
    assert failed, "no chunk passes it over"
    assert all("holds a NULL" in text and (other in text or "NULL, rowid 31" in text) for text in failed)


def test_a_copy_is_of_one_instant_while_a_writer_and_polls_go_on(
    sqlite_db: SQLiteFile, connector: SQLiteConnector
) -> None:
    db = sqlite_db.connection
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"CREATE TABLE accounts (id INTEGER PRIMARY KEY, money INT, {STAMPS})")
    db.executemany("INSERT INTO accounts (id, money) VALUES (?, 100)", [(n,) for n in range(200)])
    followed, stop = tracked(connector, "accounts"), threading.Event()

    def transfer() -> None:
        writer = sqlite3.connect(sqlite_db.path, isolation_level=None)
        for at in itertools.count():
            if stop.is_set():
                break
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("UPDATE accounts SET money = money - 1 WHERE id = ?", (at * 7 % 200,))
            writer.execute("UPDATE accounts SET money = money + 1 WHERE id = ?", (at * 13 % 200,))
            writer.execute("COMMIT")
        writer.close()

    thread = threading.Thread(target=transfer)
    thread.start()
    poller = SQLiteConnector(Source(sqlite_db.url))
    try:
        with connector.copying() as name:
            assert name is None
            total, seen = 0, set()
            for at in range(0, 200, 20):
                with connector.snapshot():
                    rows = connector.read(page(followed, after=(at - 1,), until=(at + 19,)))
                total += sum(money for (money,) in values([rows], "money"))  # type: ignore[misc]
                for _ in range(1000):
                    if (pulse := poller.pulse()) not in seen:
                        break
                    stop.wait(0.01)
                seen.add(pulse)
                assert len(poller.read(page(followed))) == 200
        assert total == 20_000
        assert len(seen) > 1, "others see what is written meanwhile"
    finally:
        stop.set()
        thread.join()
        poller.close()
    db.execute("UPDATE accounts SET money = 7 WHERE id = 0")
    assert values([connector.read(page(followed, limit=1))], "money") == [(7,)], "the copy is over"
    assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0, "nothing is held"


def test_a_copy_whose_connection_is_lost_does_not_go_on_in_another(orders: Tracked, connector: SQLiteConnector) -> None:
    with connector.copying():
        connector.file.close()
        with pytest.raises(SourceUnavailable, match="in the middle of a copy"):
            connector.read(page(orders))
    assert len(connector.read(page(orders))) == 100


def test_nobody_joins_a_copy(connector: SQLiteConnector) -> None:
    with pytest.raises(SettingsError, match="a sqlite source has no view"), connector.join("x"):
        pass
