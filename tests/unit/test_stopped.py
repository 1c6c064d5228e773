"""A table that does not go on: check, schema and the first message say so, and what it will take."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

import sidecar
from sidecar.errors import SchemaChanged
from tests.conftest import Command, SQLiteFile

SETTINGS = """
[source]
url = "sqlite:///{name}"
[tables.orders]
[sinks.lake]
format = "delta"
mode = "mirror"
path = "lake"
"""


@pytest.fixture
def shop(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> SQLiteFile:
    """A shop that has been polled; the working directory is that of its settings."""
    sqlite_db.connection.executescript(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER, updated_at TEXT NOT NULL);"
        "CREATE INDEX by_time ON orders (updated_at, id);"
        "INSERT INTO orders VALUES (1, 5, '2024-05-01T10:00:00Z');"
    )
    monkeypatch.chdir(sqlite_db.path.parent)
    Path("sidecar.toml").write_text(SETTINGS.format(name=sqlite_db.path.name))
    with sidecar.open("sidecar.toml") as sc:
        sc.poll()
    return sqlite_db


def with_text_totals(shop: SQLiteFile) -> None:
    shop.connection.executescript(
        "ALTER TABLE orders RENAME TO old;"
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total TEXT, updated_at TEXT NOT NULL);"
        "INSERT INTO orders SELECT id, total, updated_at FROM old; DROP TABLE old;"
        "CREATE INDEX by_time ON orders (updated_at, id);"
        "INSERT INTO orders VALUES (2, 'six', '2024-05-01T11:00:00Z');"
    )


def test_a_change_that_waits_is_said_before_and_after_a_poll_with_what_accepting_it_means(
    shop: SQLiteFile, command: Command
) -> None:
    assert command("check")[0] == 0
    with_text_totals(shop)
    changed = 'column "total" was int64 and is string now'
    for stands in ("stops once a poll meets a row", "stopped"):
        code, out, _ = command("check")
        assert code == 1
        assert out.count(f'error: {stands}: table "orders": {changed}') == 1
        assert "1 error" in out
        code, out, err = command("schema", "orders")
        assert (code, out.splitlines()[1].split()[:5]) == (0, ["-", "-", "waits", "for", "--accept"])
        assert changed in out
        assert err.startswith(f'{stands}: table "orders": {changed}')
        assert (
            "go on with all other tables, and this one needs a sink of its own: [sinks.NAME] with another path and "
            'tables = ["orders"], and [tables.orders] sinks = ["NAME"]; a mirror begins anew only after' in err
        )
        with sidecar.open("sidecar.toml") as sc, pytest.raises(SchemaChanged, match="a mirror begins anew only after"):
            sc.poll()
    code, out, _ = command("schema", "orders", "--accept")
    assert code == 0
    assert out.splitlines()[-2:] == [
        "Mirrors and sinks of files (lake) go on with all other tables; this one needs a sink of its own: [sinks.NAME] "
        'with another path and tables = ["orders"], and [tables.orders] sinks = ["NAME"]',
        "A new mirror begins with the whole table in its new columns: sidecar watermark reset orders",
    ]
    with sidecar.open("sidecar.toml") as sc:
        sc.poll()
    assert command("check")[0] == 0
    assert "waits" not in command("schema", "orders")[1]
    Path("sidecar.toml").write_text(Path("sidecar.toml").read_text().replace("lake", "pond"))
    refused = command("run", "--once")[2]
    assert refused.count('table "orders"') == 1
    assert refused.endswith("its columns were others. To have the table read anew: sidecar watermark reset orders\n")


def test_a_type_that_changed_costs_its_own_table_a_new_sink_and_no_other_anything(
    shop: SQLiteFile, command: Command
) -> None:
    shop.connection.executescript(
        "CREATE TABLE ticks (id INTEGER PRIMARY KEY, n INTEGER, updated_at TEXT NOT NULL);"
        "INSERT INTO ticks VALUES (1, 1, '2024-05-01T10:00:00Z');"
    )
    path = Path("sidecar.toml")
    path.write_text(path.read_text() + "[tables.ticks]\n")
    assert command("run", "--once")[0] == 0
    with_text_totals(shop)
    assert command("run", "--once")[0] == 2
    assert command("schema", "orders", "--accept")[0] == 0
    assert command("watermark", "reset", "orders")[0] == 0
    shop.connection.execute("INSERT INTO ticks VALUES (2, 2, '2024-05-01T11:00:00Z')")
    code, _, err = command("run", "--once")
    assert code == 6
    assert 'sink "lake", table "orders": column "total" was int64 and is string now' in err
    assert 'give this one a sink of its own: [sinks.NAME] with another path and tables = ["TABLE"]' in err
    assert "table=ticks sink=lake offsets=2-2 " in err, "the other table goes on in the sink"
    path.write_text(
        path.read_text().replace("[tables.orders]", '[tables.orders]\nsinks = ["NAME"]')
        + '[sinks.NAME]\nformat = "delta"\nmode = "mirror"\npath = "pond"\ntables = ["orders"]\n'
    )
    shop.connection.execute("INSERT INTO ticks VALUES (3, 3, '2024-05-01T12:00:00Z')")
    code, _, err = command("run", "--once")
    assert (code, "error" in err) == (0, False)
    assert "table=ticks sink=lake offsets=3-3 " in err
    assert DeltaTable("pond/orders").to_pyarrow_table().sort_by("id")["total"].to_pylist() == ["5", "six"]
    assert DeltaTable("lake/ticks").to_pyarrow_table().sort_by("id")["n"].to_pylist() == [1, 2, 3]
    assert "error" not in command("status")[1]


def test_a_column_that_the_next_poll_takes_by_itself_is_shown_as_that(shop: SQLiteFile, command: Command) -> None:
    shop.connection.execute("ALTER TABLE orders ADD COLUMN note TEXT")
    code, out, err = command("schema", "orders")
    assert (code, err) == (0, "")
    assert "with the next poll" in out.splitlines()[1]
    assert 'column "note" (string) is new' in out
    assert command("check")[0] == 0


def test_what_the_last_run_failed_at_is_found_by_a_check(shop: SQLiteFile, command: Command) -> None:
    with sidecar.open("sidecar.toml") as sc:
        sc.store.note("orders", 'sink "lake", table "orders": no room')
    code, out, _ = command("check")
    assert code == 1
    assert (
        'error: failed at the last run, and is tried again by the next one: sink "lake", table "orders": no room' in out
    )


def test_what_columns_have_been_is_shown_while_the_source_is_away(shop: SQLiteFile, command: Command) -> None:
    shop.path.rename("away.db")
    code, out, err = command("schema", "orders")
    assert (code, "id int64; total int64" in out) == (0, True)
    assert err.startswith("Not known is what its columns are by now: ")
