"""Each type of PostgreSQL's that has an order is a key: read in parts, changed, asked for and purged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar
from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar import codec
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import Page, Pass, Position
from tests.cases.harness import Project
from tests.servers import Database, Server, fresh_database, make

SETUP = (
    "CREATE EXTENSION citext",
    "CREATE EXTENSION ltree",
    "CREATE TYPE mood AS ENUM ('z', 'a''b', '\\')",
    "CREATE TYPE item AS (what text, price numeric)",
    "CREATE DOMAIN ints AS int[]",
    "CREATE DOMAIN thing AS item",
    'CREATE SCHEMA "Odd s"',
    'CREATE TYPE "Odd s"."T t" AS ("A b" int, c text)',
    'GRANT USAGE ON SCHEMA "Odd s" TO PUBLIC',
)

TYPES = {
    "oid": ("0", "4294967295", "7"),
    "float8": ("-0.1", "1e300", "0"),
    "numeric": ("-1.5", "10", "9"),
    "money": ("-1234.5", "10", "9"),
    "char(3)": ("a", "ab", ""),
    '"char"': ("a", "B", ""),
    "name": ("x", "Y", "_"),
    "varbit": ("", "10", "0"),
    "timetz": ("10:00:00+02", "09:00+00", "24:00:00+00"),
    "interval": ("1 mon", "-1 day", "10 days"),
    "inet": ("192.168.0.1", "10.0.0.0/8", "::1"),
    "macaddr8": ("08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:06", "00:00:2b:01:02:03:04:06"),
    "pg_lsn": ("16/B374D848", "0/1", "FF/0"),
    "xid8": ("1", "10", "9"),
    "tsvector": ("a b", "'b':1A c", ""),
    "tsquery": ("a & b", "c", "!d"),
    "jsonb": ('{"a": "it\'s \\\\ "}', "10", "9"),
    "oidvector": ("1 2", "10", "9"),
    "tid": ("(0,1)", "(10,2)", "(9,1)"),
    "mood": ("z", "a'b", "\\"),
    "regclass": ("pg_class", "pg_type", "pg_proc"),
    "int4range": ("[1,5)", "empty", "[10,)"),
    "int4[]": ("{{1,2},{3,4}}", "{10}", "{9,NULL}"),
    "text[]": ('{B,"x y"}', '{NULL,"NULL",""}', '{"\\\\\'"}'),
    "numeric[]": ("{1.5}", "{10}", "{9}"),
    "timestamptz[]": ("{2024-05-01 10:00+00}", "{}", "{1969-12-31 00:00+00}"),
    "mood[]": ("{z}", "{a'b}", "{}"),
    "item[]": ('{"(a,1)","(B,2)"}', "{}", '{"(\\"x y\\",10)"}'),
    "item": ("(B,10)", "(B,9)", '("x, y",)'),
    '"Odd s"."T t"': ("(1,a)", "(10,a)", '(9,"b c")'),
    "ints": ("{1}", "{10}", "{9}"),
    "thing": ("(a,1)", "(B,10)", "(B,9)"),
    "citext": ("a", "B", "c d"),
    "ltree": ("a.b", "a", "B.c"),
}


@pytest.fixture(scope="module")
def typed(pg_server: Server) -> Iterator[Database]:
    """A database with these types, without tables: to make it takes as long as to follow a table."""
    with fresh_database(pg_server) as database:
        make(database.connect(), *SETUP)
        yield database


@pytest.mark.parametrize("key", [("k",), ("g", "k", "b")], ids=["alone", "within"])
@pytest.mark.parametrize("declared", TYPES)
def test_a_key_of_any_type_is_read_in_parts_changed_and_purged(
    tmp_path: Path, typed: Database, declared: str, key: tuple[str, ...]
) -> None:
    s1 = typed.connect()
    stamp = "updated_at timestamptz NOT NULL DEFAULT now() - interval '1 hour'"
    make(
        s1,
        "DROP TABLE IF EXISTS t",
        f"CREATE TABLE t (n int, g int DEFAULT 1, b text DEFAULT 'b', k {declared}, {stamp},"
        f" PRIMARY KEY ({', '.join(key)}))",
    )
    for n, text in enumerate(TYPES[declared]):
        s1.execute(f"INSERT INTO t (n, k) VALUES ({n}, %s::text::{declared})".encode(), (text,))
    ordered = [n for (n,) in s1.execute("SELECT n FROM t ORDER BY k").fetchall()]
    project = Project(tmp_path, typed.reader_url, {"t": {"page_size": 1, "chunk_size": 1}}, backfill={"parallelism": 2})
    assert sorted(row["n"] for row in project.poll()["t"]) == [0, 1, 2]
    assert project.poll()["t"] == []
    assert _in_parts(project, typed) == ordered
    make(s1, "UPDATE t SET updated_at = now()")
    assert sorted(row["n"] for row in project.poll()["t"]) == [0, 1, 2]
    held = {row["n"]: row for row in project.merged("t", *key).values()}
    assert len(held) == 3
    make(s1, "DELETE FROM t WHERE n < 2")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", keys=[tuple(held[n][name] for name in key) for n in (0, 2)], purge=True)
    assert sorted((row["n"], row["_change_type"]) for row in project.poll()["t"]) == [(0, "delete"), (2, "insert")]
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
    assert sorted((row["n"], row["_change_type"]) for row in project.poll()["t"]) == [(1, "delete"), (2, "insert")]


def _in_parts(project: Project, pg: Database) -> list[int]:
    """Return the rows as both readers read them, one after the other, and part by part."""
    with sidecar.open(project.path, read_only=True) as sc:
        followed = sc.tracked["t"]
    connector, found, after = PostgresConnector(Source(pg.reader_url)), [], None
    whole = Page(followed, Pass("all", None), {}, None, 1)
    with connector.snapshot():
        while len(rows := connector.read(page := Page(followed, whole.scan, {}, after, 1))):
            with connector._session.snapshot("t") as view:
                same = connector._reader.bulk(Statements(page, view.xmax))
            assert same is not None
            assert same.equals(rows)
            found += rows.column("n").to_pylist()
            after = codec.unpack(codec.pack(codec.position(rows, followed.key)))
        ends: list[Position | None] = [None, *connector.split(whole, 3), None]
        parts: list[int] = []
        for low, high in itertools.pairwise(ends):
            part = connector.read(Page(followed, whole.scan, {}, low, 100, until=high))
            parts += part.column("n").to_pylist()
    connector.close()
    assert len(ends) > 2
    assert parts == found
    return found


@pytest.mark.parametrize(("extension", "value"), [("citext", "a"), ("hstore", "a=>1")])
def test_a_key_whose_order_the_search_path_does_not_lead_to_is_refused(
    tmp_path: Path, pg: Database, extension: str, value: str
) -> None:
    s1 = pg.connect()
    make(
        s1,
        "CREATE SCHEMA ext",
        f"CREATE EXTENSION {extension} SCHEMA ext",
        "GRANT USAGE ON SCHEMA ext TO PUBLIC",
        f"CREATE TABLE t (k ext.{extension} PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00')",
        f"INSERT INTO t VALUES ('{value}')",
    )
    project = Project(tmp_path, pg.reader_url, {"t": {"page_size": 1}})
    with pytest.raises(SettingsError, match=rf'key column "k" is ext\.{extension}, .* search_path'):
        project.poll()
    if extension == "citext":
        make(s1, f"ALTER ROLE {pg.reader} SET search_path = public, ext", "INSERT INTO t VALUES ('B'), ('c'), ('D')")
        assert sorted(row["k"] for row in project.poll()["t"]) == ["B", "D", "a", "c"]


def test_a_key_that_is_written_anew_as_the_other_zero_is_not_purged(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (k float8 PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00')")
    make(s1, "INSERT INTO t (k) VALUES ('-0.0'), (1)")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    assert len(project.poll()["t"]) == 2
    make(s1, "UPDATE t SET k = 0.0, updated_at = now() WHERE k = 0")
    project.poll()
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
    assert {row["_change_type"] for row in project.poll()["t"]} == {"insert"}
    assert len(project.merged("t", "k")) == 2
