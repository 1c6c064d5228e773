"""PostgreSQL, chunk by chunk: parts of a table between keys, by a condition, among values, and all in one snapshot."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar.connector import Source
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import Among, Page, Pass, Position, Scope, Tracked
from sidecar.testing.contract import tracked, values
from tests.servers import Database

Connection = psycopg.Connection[tuple[Any, ...]]
STAMPS = "created_at timestamptz DEFAULT now(), updated_at timestamptz DEFAULT now()"
ALL = Pass("all", None)


def make(admin: Connection, *statements: str) -> None:
    for statement in statements:
        admin.execute(statement.encode())


def page(followed: Tracked, **changes: Any) -> Page:
    return dataclasses.replace(Page(followed, ALL, {}, None, 1000), **changes)


def plan(connector: PostgresConnector, asked: Page) -> str:
    statements = Statements(asked)
    select = statements.select(statements.wires(careful=False), as_csv=False)
    return "\n".join(row[0] for row in connector._session.rows(f"EXPLAIN {select}"))


def keys(connector: PostgresConnector, asked: Page) -> list[Position]:
    return values([connector.read(asked)], *asked.tracked.key)


@pytest.fixture
def orders(admin: Connection, connector: PostgresConnector) -> Tracked:
    make(
        admin,
        f"CREATE TABLE orders (a int, b text, owner int, status text, {STAMPS}, PRIMARY KEY (a, b))",
        "INSERT INTO orders SELECT n % 10, 'k' || n / 10, n % 7, CASE WHEN n % 3 = 0 THEN 'open' ELSE 'shut' END"
        " FROM generate_series(0, 99) n",
    )
    return tracked(connector, "orders")


def test_a_chunk_ends_at_its_last_key(orders: Tracked, connector: PostgresConnector) -> None:
    assert keys(connector, page(orders, after=(3, "k4"), until=(4, "k1"))) == [
        *[(3, f"k{n}") for n in range(5, 10)],
        (4, "k0"),
        (4, "k1"),
    ]
    assert keys(connector, page(orders, after=(4, "k1"), until=(4, "k1"))) == []
    assert keys(connector, page(orders, after=(4, "k1"), until=(3, "k4"))) == []
    assert keys(connector, page(orders, until=(0, "k1"))) == [(0, "k0"), (0, "k1")]


def test_a_condition_and_values_make_a_part(orders: Tracked, connector: PostgresConnector) -> None:
    scope = Scope("status = 'open' -- those", Among(("owner",), ((1,), (3,))))
    found = values([connector.read(page(orders, scope=scope, after=(1, "k2")))], "a", "b")
    wanted = sorted((n % 10, f"k{n // 10}") for n in range(100) if n % 3 == 0 and n % 7 in (1, 3))
    assert found == [key for key in wanted if key > (1, "k2")]
    pair = Scope(among=Among(("b", "owner"), (("k2", 0), ("k3", 1), ("nothing", 1))))
    found = values([connector.read(page(orders, scope=pair))], "a", "b")
    assert found == sorted(
        (n % 10, f"k{n // 10}") for n in range(100) if (f"k{n // 10}", n % 7) in (("k2", 0), ("k3", 1))
    )


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("statsu = 'open'", 'column "statsu" does not exist.*Perhaps you meant.*status'),
        ("status = ", "syntax error at end of input"),
        ("true LIMIT 3", 'syntax error at or near "LIMIT"'),
        ("status = 'open') OR (true", "syntax error"),
        ("true; DROP TABLE orders", "cannot insert multiple commands"),
        ("true; TABLE orders", "cannot insert multiple commands"),
        ("true); COMMIT; DROP TABLE orders; SELECT (1", "cannot insert multiple commands|syntax error"),
        ("true ORDER BY a", "syntax error"),
        ("true /*", "unterminated"),
        ("status = $1", "requires 1"),
        ("owner", "must be type boolean"),
        ("status::int > 1", "invalid input syntax"),
        ("SELECT true", "syntax error"),
        ("", "syntax error"),
    ],
)
def test_a_condition_that_is_none_is_named(
    orders: Tracked, connector: PostgresConnector, admin: Connection, condition: str, says: str
) -> None:
    with connector.copying():
        with pytest.raises(SettingsError, match=f'(?s)"orders": the condition .*({says})') as found:
            connector.read(page(orders, scope=Scope(condition)))
        assert repr(condition) in str(found.value)
        if "syntax for" not in str(found.value):
            assert len(connector.read(page(orders))) == 100, "the snapshot goes on"
    assert admin.execute("SELECT count(*) FROM orders").fetchone() == (100,)


def transfers(pg: Database, stop: threading.Event) -> threading.Thread:
    def run() -> None:
        with pg.connect() as writer:
            at = 0
            while not stop.is_set():
                at += 1
                with writer.transaction():
                    writer.execute("UPDATE accounts SET money = money - 1 WHERE id = %s", (at * 7 % 200,))
                    writer.execute("UPDATE accounts SET money = money + 1 WHERE id = %s", (at * 13 % 200,))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@contextlib.contextmanager
def others(pg: Database, count: int) -> Iterator[Sequence[PostgresConnector]]:
    found = [PostgresConnector(Source(pg.reader_url)) for _ in range(count)]
    try:
        yield found
    finally:
        for each in found:
            each.close()


def test_a_copy_by_several_connections_is_of_one_instant(
    pg: Database, admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        f"CREATE TABLE accounts (id int PRIMARY KEY, money int, {STAMPS})",
        "INSERT INTO accounts SELECT n, 100 FROM generate_series(0, 199) n",
    )
    followed = tracked(connector, "accounts")
    stop = threading.Event()
    writer = transfers(pg, stop)
    try:
        with connector.copying() as name, others(pg, 2) as workers:
            assert name is not None
            began = connector.horizon(followed, None)
            for bulk in (False, True):
                total = 0
                for at in range(0, 200, 20):
                    worker = (connector, *workers)[at // 20 % 3]
                    asked = page(followed, after=(at - 1,), until=(at + 19,), limit=50)
                    with contextlib.nullcontext() if worker is connector else worker.join(name):
                        rows = worker._reader.bulk(Statements(asked)) if bulk else worker.read(asked)
                    assert rows is not None, "connectorx reads in a joined snapshot, too"
                    total += sum(money for (money,) in values([rows], "money"))  # type: ignore[misc]
                assert total == 20_000
            assert connector.horizon(followed, None) == began
    finally:
        stop.set()
        writer.join()


def test_a_snapshot_whose_holder_is_gone_is_named(pg: Database, connector: PostgresConnector) -> None:
    with others(pg, 1) as (worker,):
        with connector.copying() as name:
            assert name is not None
        with pytest.raises(SourceUnavailable, match=f'snapshot "{name}" is gone'), worker.join(name):
            pass
        with pytest.raises(SourceUnavailable, match="gone"), worker.join("o'b"):
            pass
        assert worker.tables() == [], "the connection goes on"
