"""`sidecar init`: what it writes works unchanged, says why, and keeps secrets out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sidecar import config
from sidecar.clock import FakeClock, SystemClock
from sidecar.errors import SettingsError
from sidecar.project import open_project
from sidecar.terminal import wizard
from tests.conftest import SQLiteFile
from tests.servers import Database

SHOP = """
CREATE TABLE customers (
  id INTEGER PRIMARY KEY, name TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleted_at TEXT);
CREATE TABLE "Line Items" (
  tenant INT, "Id" INT, createdAt INTEGER, updatedAt INTEGER, isDeleted BOOLEAN, PRIMARY KEY (tenant, "Id"));
CREATE TABLE counters (id INTEGER PRIMARY KEY, updated INTEGER);
CREATE TABLE empty (id INTEGER PRIMARY KEY, updated_at INTEGER);
CREATE TABLE keyless (a TEXT, updated_at TEXT);
CREATE TABLE plain (id INTEGER PRIMARY KEY, born DATE);
CREATE TABLE clash (id INTEGER PRIMARY KEY, updated_at TEXT, _origin TEXT);
CREATE VIEW seen AS SELECT * FROM customers;
INSERT INTO customers VALUES (1, 'a', '2024-05-01T10:00:00Z', '2024-05-01T10:00:00Z', NULL);
INSERT INTO "Line Items" VALUES (1, 1, 1714557600000, 1714557600000, 0), (1, 2, 1714557600000, 1714557600001, 1);
INSERT INTO counters VALUES (1, 42);
"""


@pytest.fixture
def shop(sqlite_db: SQLiteFile) -> SQLiteFile:
    sqlite_db.connection.executescript(SHOP)
    return sqlite_db


def written(url: str, output: Path) -> str:
    wizard.init(url, output, FakeClock())
    return output.read_text()


def test_what_it_writes_for_sqlite_is_followed_unchanged(shop: SQLiteFile, tmp_path: Path) -> None:
    output = tmp_path / "sidecar.toml"
    written(shop.url, output)
    with open_project(output, clock=SystemClock()) as sc:
        assert set(sc.tracked) == {"customers", "Line Items", "counters", "empty"}
        items = sc.tracked["Line Items"]
        assert (items.updated_at, items.created_at, items.unit) == ("updatedAt", "createdAt", "ms")
        assert items.deleted_when is not None
        assert sc.tracked["customers"].deleted_at == "deleted_at"
        assert sc.tracked["counters"].unit is None
        assert all(t.sinks == ("lake",) for t in sc.tracked.values())
        results = sc.poll()
        changes = [row["_change_type"] for row in sc.log("Line Items").rows()]
    assert {name: result.rows for name, result in results.items()} == {
        "customers": 1, "Line Items": 2, "counters": 1, "empty": 0,
    }  # fmt: skip
    assert sorted(map(str, changes)) == ["delete", "insert"]


def test_what_cannot_be_followed_is_commented_out_with_the_reason(shop: SQLiteFile, tmp_path: Path) -> None:
    lines = written(shop.url, tmp_path / "sidecar.toml").splitlines()
    for table, reason in (
        ("keyless", "no primary key"),
        ("plain", "no column looks like updated_at"),
        ("seen", "a view has no primary key"),
        ("clash", "metadata_prefix"),
    ):
        at = lines.index(f"# [tables.{table}]")
        assert lines[at - 1].startswith("# Not followed: ")
        assert reason in lines[at - 1]


def test_each_guess_has_a_comment(shop: SQLiteFile, tmp_path: Path) -> None:
    text = written(shop.url, tmp_path / "sidecar.toml")
    section = text[text.index('[tables."Line Items"]') :].split("\n\n")[0].splitlines()[1:]
    assert len(section) >= 4
    assert all("#" in line for line in section)
    assert "1714557600001, is a time in ms" in text
    assert "updated_at_unit = " in text[text.index("[tables.empty]") :].split("\n\n")[0]


def test_readings_without_a_zone_come_with_a_hint(shop: SQLiteFile, tmp_path: Path) -> None:
    text = written(shop.url, tmp_path / "sidecar.toml")
    assert "# timezone = " in text[text.index("[tables.customers]") :].split("\n\n")[0]


def test_a_file_that_is_there_is_not_overwritten(shop: SQLiteFile, tmp_path: Path) -> None:
    output = tmp_path / "sidecar.toml"
    output.write_text("mine")
    with pytest.raises(SettingsError, match="exists already"):
        wizard.init(shop.url, output, FakeClock())
    assert output.read_text() == "mine"


def test_a_file_name_is_taken_for_sqlite_and_written_as_seen_from_the_settings(
    shop: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = written("source/source.db", tmp_path / "source" / "sidecar.toml")
    assert 'url = "sqlite:///source.db"' in text
    text = written("source/source.db", tmp_path / "elsewhere" / "sidecar.toml")
    assert f'url = "sqlite:///{tmp_path}/source/source.db"' in text


def test_what_is_neither_a_url_nor_a_file_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="neither a URL"):
        wizard.init("nowhere.db", tmp_path / "sidecar.toml", FakeClock())
    assert not (tmp_path / "sidecar.toml").exists()


def test_the_database_is_only_looked_at(shop: SQLiteFile, tmp_path: Path) -> None:
    before = shop.path.read_bytes()
    written(shop.url, tmp_path / "sidecar.toml")
    assert shop.path.read_bytes() == before


PG_SHOP = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, total numeric(12,2), created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL,
  deleted_at timestamptz);
CREATE TABLE "Users" (
  "Id" int PRIMARY KEY, "createdAt" timestamp, "updatedAt" timestamp NOT NULL, is_deleted boolean NOT NULL);
CREATE TABLE ticks (id int PRIMARY KEY, mtime bigint NOT NULL);
CREATE TABLE plain (id int PRIMARY KEY);
CREATE SCHEMA archive;
CREATE TABLE archive.orders (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL);
INSERT INTO orders VALUES (1, 1.5, '2024-05-01 10:00Z', '2024-05-01 10:00Z', NULL);
INSERT INTO "Users" VALUES (1, '2024-05-01 10:00', '2024-05-01 10:00', false),
  (2, '2024-05-01 10:00', '2024-05-01 11:00', true);
INSERT INTO ticks VALUES (1, 1714557600);
"""


def test_what_it_writes_for_postgresql_is_followed_unchanged_and_holds_no_password(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.connect().execute(PG_SHOP)
    output = tmp_path / "sidecar.toml"
    with pg.connect() as connection:
        connection.execute(f"ALTER ROLE \"{pg.reader}\" PASSWORD 'p@ss:w/rd#1'")
    url = pg.reader_url.replace(pg.reader_password, "p%40ss%3Aw%2Frd%231")
    summary = wizard.init(url, output, SystemClock()).summary
    text = output.read_text()
    assert "${SIDECAR_PASSWORD}" in text
    for secret in ("p%40ss", "p@ss", "w%2Frd", "w/rd"):
        assert secret not in text
        assert secret not in "\n".join(summary)
    assert any("export SIDECAR_PASSWORD" in line for line in summary)
    # The plain one, as it is: the settings encode it.
    monkeypatch.setenv("SIDECAR_PASSWORD", "p@ss:w/rd#1")
    with open_project(output, clock=SystemClock()) as sc:
        assert set(sc.tracked) >= {"orders", "Users", "ticks"}
        assert sc.tracked["ticks"].unit == "s"
        assert sc.tracked["Users"].deleted_when == "is_deleted"
        results = sc.poll(["orders", "Users", "ticks"])
    assert {name: result.rows for name, result in results.items()} == {"orders": 1, "Users": 2, "ticks": 1}


def test_columns_that_differ_only_in_case_are_kept_apart_from_the_start(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.connect().execute('CREATE TABLE gadgets (id int PRIMARY KEY, status text, "Status" int, updated_at timestamptz)')
    monkeypatch.setenv("SIDECAR_PASSWORD", pg.reader_password)
    text = written(pg.reader_url, tmp_path / "sidecar.toml")
    assert '"spark.sql.caseSensitive" = true' in text
    with open_project(tmp_path / "sidecar.toml") as sc:
        assert [c.name for c in sc.tracked["gadgets"].columns] == ["id", "status", "Status", "updated_at"]
    (tmp_path / "sidecar.toml").write_text(text.replace("= true", "= false"))
    with (
        open_project(tmp_path / "sidecar.toml") as sc,
        pytest.raises(SettingsError, match='"status" and "Status"') as e,
    ):
        assert sc.tracked
    assert "spark.sql.caseSensitive" in str(e.value)


def test_a_reference_to_the_environment_stays_one(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.connect().execute(PG_SHOP)
    monkeypatch.setenv("SHOP_PASSWORD", pg.reader_password)
    url = pg.reader_url.replace(pg.reader_password, "${SHOP_PASSWORD}")
    text = written(url, tmp_path / "sidecar.toml")
    assert ":${SHOP_PASSWORD}@" in text
    assert pg.reader_password not in text
    config.load(tmp_path / "sidecar.toml")


def test_a_database_with_nothing_in_it_gives_settings_that_say_so(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    found = wizard.init(f"sqlite:///{path}", tmp_path / "sidecar.toml", FakeClock())
    assert "0 of 0 tables" in found.summary[0]
