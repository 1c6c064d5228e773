"""The demo's shop: a small SQLite database, and somebody who keeps changing it, in a process of their own."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sidecar.clock import SECOND, Clock, SystemClock, instant

CUSTOMERS, PRODUCTS, ORDERS = 200, 40, 2_000
MONTH = 30 * 86_400 * SECOND
PAUSE = 0.25

_NAMES = ("Ada", "Alan", "Barbara", "Edgar", "Edsger", "Frances", "Grace", "Jim", "Katherine", "Leslie", "Pat", "Radia")
_THINGS = ("teapot", "lamp", "chair", "notebook", "kite", "compass", "clock", "basket", "whistle", "globe")
_STATES = ("new", "paid", "packed", "sent", "delivered")


def stamp(at: int) -> str:
    """Return an instant as the shop writes it."""
    return instant(at).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def make(path: Path, clock: Clock) -> None:
    """Make the shop's database, a month old, at *path*."""
    from sqlite_utils import Database

    chance = random.Random(7)  # noqa: S311  a shop, not a lottery
    now = clock.now() - SECOND

    def rows(count: int, row: Callable[[int], dict[str, object]]) -> Iterator[dict[str, object]]:
        for id_ in range(1, count + 1):
            created = now - MONTH + (MONTH - 3600 * SECOND) * id_ // count
            updated = created if chance.random() < 0.6 else created + chance.randrange(3600 * SECOND)
            deleted = stamp(updated) if updated != created and chance.random() < 0.05 else None
            stamps = {"created_at": stamp(created), "updated_at": stamp(updated), "deleted_at": deleted}
            yield {"id": id_, **row(id_), **stamps}

    database = Database(path)
    contents = {
        "customers": rows(CUSTOMERS, lambda i: {"name": chance.choice(_NAMES), "email": f"customer{i}@example.com"}),
        "products": rows(PRODUCTS, lambda i: {"name": f"{chance.choice(_THINGS)} {i}", "price": _price(chance)}),
        "orders": rows(ORDERS, lambda _: _order(chance)),
    }
    for table, content in contents.items():
        database.table(table).insert_all(content, pk="id", not_null={"created_at", "updated_at"})
        # What `sidecar check` advises: any page of changes is then one search.
        database.table(table).create_index(["updated_at", "id"])
        database.table(table).create_index(["deleted_at", "id"])
    database.conn.close()


def keep_changing(path: Path, clock: Clock) -> None:
    """Insert, update and soft-delete in the shop at *path* for ever."""
    chance = random.Random(11)  # noqa: S311  as above
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    while True:
        now = stamp(clock.now())
        for statement, parameters in _visit(chance, now):
            connection.execute(statement, parameters)
        clock.sleep(PAUSE * (0.5 + chance.random()))


def _visit(chance: random.Random, now: str) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield what one visitor does to the shop."""
    what = chance.random()
    if what < 0.45:
        order = _order(chance) | {"created_at": now, "updated_at": now, "status": "new"}
        marks = ", ".join("?" * len(order))
        yield f"INSERT INTO orders ({', '.join(order)}) VALUES ({marks})", tuple(order.values())
    elif what < 0.8:
        id_ = chance.randint(1, ORDERS)
        yield "UPDATE orders SET status = ?, updated_at = ? WHERE id = ?", (chance.choice(_STATES[1:]), now, id_)
    elif what < 0.92:
        id_ = chance.randint(1, ORDERS)
        yield "UPDATE orders SET deleted_at = ?, updated_at = ? WHERE id = ? AND deleted_at IS NULL", (now, now, id_)
    elif what < 0.97:
        id_ = chance.randint(1, CUSTOMERS)
        email = f"customer{id_}.{chance.randint(2, 99)}@example.com"
        yield "UPDATE customers SET email = ?, updated_at = ? WHERE id = ?", (email, now, id_)
    else:
        yield (
            "UPDATE products SET price = ?, updated_at = ? WHERE id = ?",
            (_price(chance), now, chance.randint(1, PRODUCTS)),
        )


def _order(chance: random.Random) -> dict[str, object]:
    return {
        "customer_id": chance.randint(1, CUSTOMERS),
        "product_id": chance.randint(1, PRODUCTS),
        "amount": chance.randint(1, 5),
        "total": _price(chance),
        "status": chance.choice(_STATES),
    }


def _price(chance: random.Random) -> float:
    return chance.randint(199, 9999) / 100


if __name__ == "__main__":
    keep_changing(Path(sys.argv[1]), SystemClock())
