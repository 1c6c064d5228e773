"""What `sidecar status` shows of tables, of those that cannot be followed, and of a source that is away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Sidecar, settings
from tests.conftest import SQLiteFile
from tests.servers import Database, make


def test_status_says_where_each_table_stands(sidecar: Sidecar, shop: SQLiteFile) -> None:
    assert sidecar("status").out == "nothing has been polled yet: sidecar run\n"
    sidecar("run", "--once")
    orders, ticks = json.loads(sidecar("status", "--json").out)
    assert orders["table"] == "orders"
    assert orders["watermark"].startswith("2024-05-01T12:00:00")
    assert (orders["offset"], orders["polling"], orders["error"]) == (1, False, None)
    assert 0 <= orders["lag_s"] < 60
    assert ticks["watermark"] == "7"
    shown = sidecar("status").out
    assert "orders" in shown
    assert "2024-05-01T12:00:00" in shown


def test_status_names_the_last_error_and_works_while_the_source_is_away(sidecar: Sidecar, shop: SQLiteFile) -> None:
    sidecar("run", "--once")
    shop.connection.execute(
        "INSERT INTO orders VALUES (4, 'no number', NULL, '2024-05-03', '2024-05-03T10:00:00Z', NULL)"
    )
    failed = sidecar("run", "--once")
    assert failed.code == 2
    assert failed.err.count("error: ") == 1
    shop.path.rename(shop.path.with_suffix(".away"))
    orders = json.loads(sidecar("status", "--json").out)[0]
    assert "total" in orders["error"]


def test_a_table_whose_first_load_fails_is_not_said_to_be_level(sidecar: Sidecar, shop: SQLiteFile) -> None:
    shop.connection.execute("UPDATE orders SET total = 'no number', updated_at = '2024-04-01' WHERE id = 1")
    for _ in range(2):
        assert sidecar("run", "--once").code == 2
        orders, ticks = json.loads(sidecar("status", "--json").out)
        assert (orders["loading"], orders["polled"], orders["lag_s"]) == (True, None, None)
        assert (ticks["loading"], ticks["error"]) == (False, None)
        shown = sidecar("status").out.splitlines()
        assert "error, first load 0 of about" in shown[1]
        assert [line for line in shown if line.startswith('error: table "orders": column "total"')] == shown[4:]
    shop.connection.execute("UPDATE orders SET total = 1 WHERE id = 1")
    assert sidecar("run", "--once").code == 0
    orders = json.loads(sidecar("status", "--json").out)[0]
    assert (orders["loading"], orders["error"]) == (False, None)
    assert orders["lag_s"] < 60


def test_tables_that_cannot_be_followed_are_listed_with_why_until_nobody_asks_for_them(
    sidecar: Sidecar, shop: SQLiteFile
) -> None:
    shop.connection.execute("CREATE TABLE loose (a TEXT)")
    source = f'[source]\nurl = "sqlite:///{shop.path.name}"\n'
    settings(f'{source}include = ["loose"]\n')
    assert sidecar("run", "--once").code == 2
    assert 'error: table "loose": it has no primary key' in sidecar("status").out, "also where it is the only one"
    settings(f'{source}include = ["*", "zebra*"]\n[tables.misspelt]\n')
    assert sidecar("run", "--once").code == 2
    errors = sidecar("status").out.partition("\n\n")[2].splitlines()
    assert [name for name in ("loose", "misspelt", "zebra*") if any(f'"{name}"' in line for line in errors)] == [
        "loose",
        "misspelt",
        "zebra*",
    ]
    assert all(line.startswith("error: ") for line in errors)
    settings(f'{source}exclude = ["loose"]\n')
    assert sidecar("run", "--once").code == 0
    assert "loose" not in sidecar("status").out
    assert "error" not in sidecar("status").out


def test_a_table_that_the_settings_do_not_name_any_more_is_said_to_be_that(sidecar: Sidecar, shop: SQLiteFile) -> None:
    source = f'[source]\nurl = "sqlite:///{shop.path.name}"\n'
    settings(f'{source}include = ["*"]\n')
    sidecar("run", "--once")
    for asked, followed in (
        ('include = ["*"]', [True, True]),
        ('exclude = ["orders"]', [False, True]),
        ('include = ["or*"]\n[tables.TICKS]', [True, True]),
        ("[tables.ticks]", [False, True]),
    ):
        settings(f"{source}{asked}\n")
        assert [row["followed"] for row in json.loads(sidecar("status", "--json").out)] == followed, asked
    sidecar("run", "--once")
    orders, ticks = sidecar("status").out.splitlines()[1:]
    assert orders.endswith("  not followed any more")
    assert ticks.endswith("  ok")


def test_a_source_that_is_away_from_the_start_is_what_is_wrong_with_each_table(
    sidecar: Sidecar, tmp_path: Path, pg: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(pg.connect(), "CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    settings(f'[source]\nurl = "{pg.reader_url}"\n[tables.t]\n')
    assert sidecar("run", "--once").code == 0
    settings('[source]\nurl = "postgresql://reader@127.0.0.1:1/shop"\n[tables.t]\n')
    assert sidecar("run", "--once").code == 3
    (t,) = json.loads(sidecar("status", "--json").out)
    assert "127.0.0.1" in t["error"]
    settings(f'[source]\nurl = "{pg.reader_url}"\n[tables.t]\n')
    assert sidecar("run", "--once").code == 0
    (t,) = json.loads(sidecar("status", "--json").out)
    assert t["error"] is None


def test_a_source_that_is_gone_is_named(sidecar: Sidecar, shop: SQLiteFile) -> None:
    shop.path.rename(shop.path.with_suffix(".away"))
    answer = sidecar("run", "--once")
    assert answer.code in (2, 3)
    assert answer.err.count("error: ") == 1
    assert shop.path.name in answer.err
