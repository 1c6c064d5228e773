"""What a parent's change makes of its children: they are delivered again, once, however it has come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar.poll import Step
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make

if TYPE_CHECKING:
    pass

OLD = "2024-05-01 10:00:00"


class Family(Project):
    """Customers, whose changes bring their orders again."""

    theirs = "id"

    def write(self, **sections: Any) -> None:
        super().write(**sections)
        refresh = f'[[tables.orders.refresh_on]]\ntable = "customers"\non = {{ customer = "{self.theirs}" }}\n'
        self.path.write_text(self.path.read_text() + refresh)


@pytest.fixture
def family(tmp_path: Path, sqlite_db: SQLiteFile) -> Family:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, code TEXT, name TEXT, updated_at TEXT NOT NULL)")
    s1.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, code TEXT, updated_at TEXT NOT NULL)")
    s1.executemany("INSERT INTO customers VALUES (?, ?, 'n', ?)", [(n, f"{n:03}", OLD) for n in range(4)])
    s1.executemany(
        "INSERT INTO orders VALUES (?, ?, ?, ?)", [(n, n % 4 or None, f"{n % 4:03}", OLD) for n in range(12)]
    )
    return Family(tmp_path, sqlite_db.url, {"customers": {}, "orders": {"chunk_size": 2}})


def run(project: Project, table: str = "orders") -> list[tuple[Any, ...]]:
    """Run once, with all that a run does; return the keys and origins that came to *table*."""
    before = len(project.rows(table)) if (project.folder / "state" / "log" / table).exists() else 0
    found = project.cli("run", "--once")
    assert found.code == 0, found.text
    return sorted((row["id"], row["_origin"]) for row in project.rows(table)[before:])


def test_children_come_again_in_the_run_that_sees_their_parent_change(family: Family, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    assert len(run(family)) == 12, "at first sight nothing comes twice"
    assert run(family) == []
    s1.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id IN (0, 2)")
    # Nobody's customer is 0: theirs is NULL.
    assert run(family) == [(2, "backfill"), (6, "backfill"), (10, "backfill")]
    assert run(family) == []
    s1.execute("UPDATE customers SET name = 'o', updated_at = '2024-05-03 10:00:00' WHERE id = 0")
    assert run(family) == []


def test_children_come_again_in_the_poll_that_sees_their_parent_change(family: Family, sqlite_db: SQLiteFile) -> None:
    family.poll()
    sqlite_db.connection.execute("UPDATE customers SET updated_at = '2024-05-02 10:00:00' WHERE id = 2")
    assert [(r["id"], r["_origin"]) for r in family.poll()["orders"]] == [(n, "backfill") for n in (2, 6, 10)]
    assert family.poll()["orders"] == []


@pytest.mark.parametrize("kind", ["chunks", "first poll"])
def test_a_parent_that_changes_during_the_first_load_brings_its_children_again(
    family: Family, sqlite_db: SQLiteFile, kind: str
) -> None:
    if kind == "first poll":
        # Read by another key than the table's own, and so by its first poll.
        family.tables = {"customers": {"primary_key": ["code"]}, "orders": {"chunk_size": 2}}
        family.write()
    s1, stop = sqlite_db.connection, threading.Event()

    def change(step: Step) -> None:
        if step.table == "orders" and step.done:
            s1.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id = 2")
            stop.set()

    with sidecar.open(family.path) as sc:
        Runner(sc, stop=stop, on_step=change).run(once=True, interval=5)
    assert len(family.rows("orders")) == 12
    assert run(family) == [(2, "backfill"), (6, "backfill"), (10, "backfill")]
    assert run(family) == []


def test_a_parent_that_changes_while_it_is_loaded_brings_its_children_again(
    family: Family, sqlite_db: SQLiteFile
) -> None:
    family.tables = {"customers": {"chunk_size": 2}, "orders": {}}
    family.write()
    s1, seen = sqlite_db.connection, list[Step]()

    def change(step: Step) -> None:
        if step.table == "customers" and not seen:
            # The chunk that is behind has had it as it was.
            s1.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id = 3")
            stop.set()
        seen.append(step)

    stop = threading.Event()
    with sidecar.open(family.path) as sc:
        Runner(sc, stop=stop, on_step=change).run(once=True, interval=5)
    with sidecar.open(family.path) as sc:
        # A poll before the rest of the first load, as in a loop.
        Runner(sc).catch_up(sc.tracked["customers"])
    run(family)
    found = [row["id"] for row in family.rows("orders")]
    assert {key for key in found if found.count(key) > 1} >= {3, 7, 11}


def test_what_a_backfill_of_the_parent_delivers_is_no_change(family: Family) -> None:
    run(family)
    with sidecar.open(family.path) as sc:
        sc.request_backfill("customers")
    assert run(family) == []


def test_a_change_that_a_backfill_of_the_parent_meets_first_is_one(family: Family, sqlite_db: SQLiteFile) -> None:
    run(family)
    with sidecar.open(family.path) as sc:
        sc.request_backfill("customers")
    s1 = sqlite_db.connection
    s1.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id = 2")
    assert run(family) == [(2, "backfill"), (6, "backfill"), (10, "backfill")]
    assert [row["_origin"] for row in family.rows("customers") if row["name"] == "m"] == ["backfill"]


def test_a_parent_that_a_purge_finds_gone_brings_its_children_again(family: Family, sqlite_db: SQLiteFile) -> None:
    run(family)
    sqlite_db.connection.execute("DELETE FROM customers WHERE id = 2")
    with sidecar.open(family.path) as sc:
        sc.request_backfill("customers", purge=True)
    # The run that purges, or the next one: parents are looked at once in a run.
    assert [*run(family), *run(family)] == [(2, "backfill"), (6, "backfill"), (10, "backfill")]
    assert run(family) == []


def test_children_that_were_to_come_by_a_column_that_is_gone_hold_nothing_up(
    family: Family, sqlite_db: SQLiteFile
) -> None:
    run(family)
    sqlite_db.connection.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id = 2")
    with sidecar.open(family.path) as sc:
        runner = Runner(sc)
        runner.catch_up(sc.tracked["customers"])
        runner._fan_out.follow()  # killed here, before the children come
    sqlite_db.connection.execute("ALTER TABLE orders RENAME COLUMN customer TO client")
    family.path.write_text(family.path.read_text().replace("customer =", "client ="))
    refused = family.cli("run", "--once")
    assert (refused.code, 'by its column "customer", which it does not have any more' in refused.err) == (2, True)
    assert run(family) == []
    sqlite_db.connection.execute("UPDATE customers SET name = 'o', updated_at = '2024-05-03 10:00:00' WHERE id = 2")
    assert run(family) == [(2, "backfill"), (6, "backfill"), (10, "backfill")]
    with sidecar.open(family.path, read_only=True) as sc:
        assert [b.state for b in sc.backfills("orders") if b.kind == "refresh"] == ["refused", "done"]


def test_parents_are_read_before_their_children(family: Family) -> None:
    family.tables = {"orders": {}, "customers": {}}
    family.write()
    text = family.path.read_text()
    family.path.write_text(text + '[[tables.customers.refresh_on]]\ntable = "customers"\non = { id = "id" }\n')
    seen = list[str]()
    with sidecar.open(family.path) as sc:
        Runner(sc, on_step=lambda step: seen.append(step.table)).poll()
    assert seen[:2] == ["customers", "orders"]


def test_columns_of_other_types_are_compared_in_the_childs(family: Family, sqlite_db: SQLiteFile) -> None:
    family.theirs = "code"
    family.write()
    run(family)
    s1 = sqlite_db.connection
    s1.execute("UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00' WHERE id = 3")
    assert [key for key, _ in run(family)] == [3, 7, 11]
    s1.execute("UPDATE customers SET code = 'x', updated_at = '2024-05-03 10:00:00' WHERE id = 3")
    found = family.cli("run", "--once")
    assert found.code != 0
    assert 'column "code" of table "customers" cannot be compared' in found.err


def test_retention_waits_for_children(family: Family, sqlite_db: SQLiteFile) -> None:
    run(family)
    family.write(state={"path": "state", "retention": "1us", "bases": False})
    s1 = sqlite_db.connection
    for number in range(3):
        s1.execute(f"UPDATE customers SET name = 'm', updated_at = '2024-05-0{number + 2} 10:00:00' WHERE id = 1")
        with sidecar.open(family.path) as sc:
            Runner(sc).catch_up(sc.tracked["customers"])  # killed here, before the children follow
    with sidecar.open(family.path) as sc:
        assert sc.log("customers").floor() == 0
    for _ in range(2):
        assert family.cli("run", "--once").code == 0
    with sidecar.open(family.path, read_only=True) as sc:
        assert [b.written for b in sc.backfills("orders") if b.kind == "refresh"] == [3]
        assert sc.log("customers").floor() > 0


def test_a_parent_whose_number_no_child_can_hold_has_no_children(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE customers (id bigint PRIMARY KEY, name text, updated_at timestamptz NOT NULL)")
    make(s1, "CREATE TABLE orders (id int PRIMARY KEY, customer int, updated_at timestamptz NOT NULL)")
    make(s1, f"INSERT INTO customers SELECT n, 'n', '{OLD}Z' FROM unnest(ARRAY[1, 2, 1099511627776]) n")
    make(s1, f"INSERT INTO orders SELECT n, 1 + n % 2, '{OLD}Z' FROM generate_series(1, 4) n")
    project = Family(tmp_path, pg.url, {"customers": {}, "orders": {}})
    assert len(run(project)) == 4
    make(s1, "UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00Z' WHERE id <> 2")
    assert run(project) == [(2, "backfill"), (4, "backfill")]


@pytest.mark.parametrize(("theirs", "own"), [("bigint", "numeric(6,0)"), ("int", "numeric(6,2)"), ("float8", "bigint")])
def test_numbers_of_another_type_are_compared_by_their_value(
    tmp_path: Path, pg: Database, theirs: str, own: str
) -> None:
    s1 = pg.connect()
    make(s1, f"CREATE TABLE customers (id {theirs} PRIMARY KEY, name text, updated_at timestamptz NOT NULL)")
    make(s1, f"CREATE TABLE orders (id int PRIMARY KEY, customer {own}, updated_at timestamptz NOT NULL)")
    make(s1, f"INSERT INTO customers SELECT n, 'n', '{OLD}Z' FROM unnest(ARRAY[1, 2, 1000000]) n")
    make(s1, f"INSERT INTO orders SELECT n, 1 + n % 2, '{OLD}Z' FROM generate_series(1, 4) n")
    project = Family(tmp_path, pg.url, {"customers": {}, "orders": {}})
    project.poll()
    make(s1, "UPDATE customers SET name = 'm', updated_at = '2024-05-02 10:00:00Z' WHERE id <> 2")
    assert [r["id"] for r in project.poll()["orders"]] == [2, 4]
