# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Names as applications choose them, names with mistakes in them, and one name in two places."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar.errors import SettingsError
from tests.cases.harness import Project, kinds
from tests.conftest import SQLiteFile
from tests.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = """\
CREATE SCHEMA "My-App";
CREATE TABLE "My-App"."Order" ("Id" int PRIMARY KEY, "user" text, "select" int, "full name" text, "100%" int, "a""b" text, "Price (EUR), net" numeric(8,2), "x.y" int, "größe" text,
  "createdAt" timestamptz NOT NULL, "updatedAt" timestamptz NOT NULL, "deletedAt" timestamptz);
INSERT INTO "My-App"."Order" VALUES (1,'u',2,'n m',3,'q',4.50,5,'L','2024-05-01 10:00+00','2024-05-01 10:00+00',NULL),
                                    (2,'v',3,'o p',4,'r',5.50,6,'M','2024-05-01 10:01+00','2024-05-01 10:01+00',NULL);
"""

PETS = """\
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO pets VALUES (1,'rex','2024-05-01 10:00:00','2024-05-01 10:00:00'),(2,'tom','2024-05-01 10:01:00','2024-05-01 10:01:00');
"""

SCHEMAS = """\
CREATE SCHEMA sales; CREATE SCHEMA archive;
CREATE TABLE sales.orders   (id int PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE archive.orders (id int PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE sales."Orders" (id int PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO sales.orders   VALUES (1,'sales','2024-05-09 10:00+00','2024-05-09 10:00+00');
INSERT INTO archive.orders VALUES (1,'archive','2024-05-01 10:00+00','2024-05-01 10:00+00');
INSERT INTO sales."Orders" VALUES (1,'mixed','2024-05-01 10:00+00','2024-05-01 10:00+00');
"""

NAMES = ["Id", "user", "select", "full name", "100%", 'a"b', "Price (EUR), net", "x.y", "größe",
         "createdAt", "updatedAt", "deletedAt"]  # fmt: skip

COLUMNS = ["order", "a b ", " lead", "tab\tin", "new\nline", "semi;colon", "{0}", "%s", "$1", "?", ":p", "a'b", "a`b",
           "back\\slash", "sp=ce", "x.y.z", "\U0001f600", "é", "ß", "SELECT", "null", "(1)", "[a]", "a,b", "-", "/*", "--",
           "xmin " * 12 + "abc"]  # fmt: skip


def test_odd_names_come_through_to_parquet(tmp_path: Path, pg: Database, spark: SparkSession) -> None:
    """RC-48"""
    s1 = pg.connect()
    s1.execute(ORDER)
    table = {"primary_key": ["Id"], "updated_at": "updatedAt", "created_at": "createdAt", "deleted_at": "deletedAt"}
    sinks = {"lake": {"format": "parquet", "path": "lake"}}
    project = Project(tmp_path, pg.url, {"My-App.Order": table}, sinks=sinks)
    with sidecar.open(project.path) as sc:
        assert sc.run(spark, once=True) == 0
    (first, second) = project.rows("My-App.Order")
    assert [n for n in first if not n.startswith("_")] == NAMES
    assert {r["_change_type"] for r in (first, second)} == {"insert"}
    s1.execute(
        'UPDATE "My-App"."Order" SET "deletedAt" = \'2024-05-01 11:00+00\', "updatedAt" = \'2024-05-01 11:00+00\''
        ' WHERE "Id" = 2'
    )
    with sidecar.open(project.path) as sc:
        assert sc.run(spark, once=True) == 0
        assert sc.run(spark, once=True) == 0
    assert kinds(project.rows("My-App.Order")[2:], "Id") == [("delete", 2)]
    (folder,) = [p for p in (tmp_path / "lake").iterdir() if p.is_dir()]
    held = spark.read.parquet(str(folder))
    assert [c for c in held.columns if not c.startswith("_")] == NAMES
    found = {(r["_change_type"], r["Id"]): r for r in held.collect()}
    assert sorted(found) == [("delete", 2), ("insert", 1), ("insert", 2)]
    assert (found["insert", 1]["x.y"], found["insert", 1]["100%"], found["insert", 1]['a"b']) == (5, 3, "q")
    assert str(found["insert", 1]["Price (EUR), net"]) == "4.50"


@pytest.mark.parametrize("name", ["order", "Weird ; -- Name", "a.b", 'qu"ote', "\U0001f600", "x" * 63, "100%", " pad ",
                                  "..", "_hidden", "a/b", "{x}[y]*", "täb\tle", "select"])  # fmt: skip
def test_any_table_name_has_a_log_of_its_own_in_postgres(tmp_path: Path, pg: Database, name: str) -> None:
    s1 = pg.connect()
    quoted = '"' + name.replace('"', '""') + '"'
    s1.execute(f"CREATE TABLE {quoted} (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    s1.execute(f"INSERT INTO {quoted} SELECT g, now() FROM generate_series(1, 3) g")
    key = quoted if set(name) & {".", '"'} else name
    project = Project(tmp_path, pg.reader_url, {key: {"page_size": 1}})
    (found,) = project.poll().values()
    assert sorted(r["id"] for r in found) == [1, 2, 3]
    assert project.poll() == {key: []}
    folders = list((tmp_path / "state" / "log").iterdir())
    assert len(folders) == 1
    included = Project(tmp_path / "all", None, {}, source={"url": pg.reader_url, "include": ["*"]})
    assert [len(rows) for rows in included.poll().values()] == [3]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_any_column_name_comes_through(tmp_path: Path, request: pytest.FixtureRequest, kind: str) -> None:
    listed = ", ".join('"' + c.replace('"', '""') + '" int' for c in COLUMNS)
    sql = f'CREATE TABLE odd ("the key" int PRIMARY KEY, {listed}, "moved at?" '
    values = ", ".join(map(str, range(len(COLUMNS))))
    if kind == "sqlite":
        database: SQLiteFile = request.getfixturevalue("sqlite_db")
        database.connection.execute(sql + "TEXT NOT NULL)")
        database.connection.execute(f"INSERT INTO odd VALUES (-1, {values}, '2024-05-01 10:00:00')")
        url = database.url
    else:
        server: Database = request.getfixturevalue("pg")
        s1 = server.connect()
        s1.execute(sql + "timestamptz NOT NULL)")
        s1.execute(f"INSERT INTO odd VALUES (-1, {values}, '2024-05-01 10:00+00')")
        url = server.reader_url
    project = Project(tmp_path, url, {"odd": {"updated_at": "moved at?", "page_size": 1}})
    (row,) = project.poll()["odd"]
    assert [row[c] for c in COLUMNS] == list(range(len(COLUMNS)))
    assert project.poll()["odd"] == []


def test_a_misspelt_cursor_column_is_refused_before_anything_is_read(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-49"""
    sqlite_db.connection.executescript(PETS)
    project = Project(tmp_path, sqlite_db.url, {"pets": {"updated_at": "updatd_at"}})
    run = project.cli("run", "--once")
    assert run.code == 2
    assert '"pets"' in run.err
    assert '"updatd_at"' in run.err
    assert '"updated_at"' in run.err
    assert not list((tmp_path / "state").rglob("*.parquet"))
    project.tables = {"pets": {"updated_at": "UPDATED_AT"}}
    project.write()
    assert kinds(project.poll()["pets"], "id") == [("insert", 1), ("insert", 2)]
    assert {r["updated_at"][:10] for r in project.rows("pets")} == {"2024-05-01"}


@pytest.mark.parametrize("setting", ["created_at", "deleted_at", "primary_key", "columns", "deleted_when", "table"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_any_other_misspelt_name_is_refused_as_well(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str, setting: str
) -> None:
    if kind == "sqlite":
        database: SQLiteFile = request.getfixturevalue("sqlite_db")
        database.connection.executescript(PETS)
        url = database.url
    else:
        server: Database = request.getfixturevalue("pg")
        server.connect().execute(PETS.replace("TEXT NOT NULL", "timestamptz NOT NULL"))
        url = server.reader_url
    wrong: dict[str, dict[str, Any]] = {
        "table": {},
        "primary_key": {"primary_key": ["idd"]},
        "columns": {"columns": ["id", "nmae"]},
        "deleted_when": {"deleted_when": "\"statuss\" = 'gone'"},
    }
    table = wrong.get(setting, {setting: setting.replace("ed", "d")})
    project = Project(tmp_path, url, {"petz" if setting == "table" else "pets": table})
    with pytest.raises(SettingsError) as raised:
        project.poll()
    said = str(raised.value)
    names = {"table": "petz", "primary_key": "idd", "columns": "nmae", "deleted_when": "statuss"}
    assert names.get(setting, setting.replace("ed", "d")) in said
    assert "pets" in said
    assert not list((tmp_path / "state").rglob("*.parquet"))


def test_one_name_in_two_schemas_is_two_tables(tmp_path: Path, pg: Database, spark: SparkSession) -> None:
    """RC-64"""
    s1 = pg.connect()
    s1.execute(SCHEMAS)
    sinks = {"lake": {"format": "parquet", "path": "lake"}}
    names = ("sales.orders", "archive.orders", "sales.Orders")
    project = Project(tmp_path, pg.url, {name: {} for name in names}, sinks=sinks)
    first = project.poll()
    assert {name: [r["v"] for r in rows] for name, rows in first.items()} == {
        "sales.orders": ["sales"], "archive.orders": ["archive"], "sales.Orders": ["mixed"]
    }  # fmt: skip
    s1.execute("INSERT INTO archive.orders VALUES (2,'archive 2','2024-05-02 10:00+00','2024-05-02 10:00+00')")
    s1.execute("INSERT INTO sales.\"Orders\" VALUES (2,'mixed 2','2024-05-02 10:00+00','2024-05-02 10:00+00')")
    s1.execute("DELETE FROM sales.orders WHERE id = 1")
    second = project.poll()
    assert {name: [r["v"] for r in rows] for name, rows in second.items()} == {
        "sales.orders": [], "archive.orders": ["archive 2"], "sales.Orders": ["mixed 2"]
    }  # fmt: skip
    with sidecar.open(project.path) as sc:
        assert sc.run(spark, once=True) == 0
    folders = sorted(p for p in (tmp_path / "lake").iterdir() if p.is_dir())
    assert len({f.name.casefold() for f in folders}) in (2, 3)
    found = {f.name: sorted(r["v"] for r in spark.read.parquet(str(f)).collect()) for f in folders}
    assert sorted(found.values()) == [["archive", "archive 2"], ["mixed", "mixed 2"], ["sales"]]


def test_tables_that_differ_in_dots_and_quotes_only_are_kept_apart(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute('CREATE SCHEMA a; CREATE SCHEMA "a.b"')
    tables = {'a."b.c"': 'a."b.c"', '"a.b".c': '"a.b".c', '"a.b.c"': 'public."a.b.c"', "c": "public.c"}
    for number, table in enumerate(tables.values()):
        s1.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
        s1.execute(f"INSERT INTO {table} VALUES ({number}, '2024-05-0{number + 1}+00')")
    project = Project(tmp_path, pg.url, {name: {} for name in tables})
    assert {name: [r["id"] for r in rows] for name, rows in project.poll().items()} == {
        name: [number] for number, name in enumerate(tables)
    }
    assert set(project.poll()) == set(tables)
