"""Each type of PostgreSQL's that has an order is a key: read in parts, changed, asked for and purged."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import sidecar
from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar import codec
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import Page, Pass, Position, Tracked
from tests.cases.harness import Project, Row
from tests.servers import Connection, Database, Server, fresh_database, make

# All of them are followed before the first test.
pytestmark = pytest.mark.timeout(900)

SETUP = (
    "CREATE EXTENSION citext",
    "CREATE EXTENSION ltree",
    "CREATE TYPE mood AS ENUM ('z', 'a''b', '\\')",
    "CREATE TYPE item AS (what text, price numeric)",
    "CREATE DOMAIN ints AS int[]",
    "CREATE DOMAIN feeling AS mood",
    "CREATE DOMAIN felt AS feeling",
    "CREATE DOMAIN span AS int4range",
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
    "feeling": ("z", "a'b", "\\"),
    "felt": ("z", "a'b", "\\"),
    "span": ("[1,5)", "empty", "[10,)"),
    "ints": ("{1}", "{10}", "{9}"),
    "thing": ("(a,1)", "(B,10)", "(B,9)"),
    "citext": ("a", "B", "c d"),
    "ltree": ("a.b", "a", "B.c"),
}


KEYS = {"alone": ("k",), "within": ("g", "k", "b")}
NAMES = {(declared, how): re.sub(r"\W", "_", f"{declared} {how}").lower() for declared in TYPES for how in KEYS}
"""Their tables, by type and by where in the key it stands."""


@dataclass(frozen=True)
class Parts:
    """The rows of a table as both readers read them, page by page, and their numbers part by part."""

    by_copy: list[pa.Table]
    by_connectorx: list[pa.Table | None]
    parts: list[list[int]]


@dataclass(frozen=True)
class Seen:
    """What became of all tables, in this order; each a table's name and its rows."""

    ordered: Mapping[str, list[int]]
    first: Mapping[str, list[Row]]
    idle: Mapping[str, list[Row]]
    parts: Mapping[str, Parts]
    changed: Mapping[str, list[Row]]
    held: Mapping[str, Mapping[int, Row]]
    asked: Mapping[str, list[Row]]
    purged: Mapping[str, list[Row]]


@pytest.fixture(scope="module")
def seen(pg_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Follow all of them in one project: to open one takes longer than to follow a table."""
    with fresh_database(pg_server) as pg:
        s1 = pg.connect()
        make(s1, *SETUP)
        for (declared, how), name in NAMES.items():
            _create(s1, name, declared, KEYS[how])
        ordered = {name: [n for (n,) in s1.execute(f"SELECT n FROM {name} ORDER BY k")] for name in NAMES.values()}
        tables = {name: {"page_size": 1, "chunk_size": 1} for name in NAMES.values()}
        project = Project(tmp_path_factory.mktemp("keys"), pg.reader_url, tables, backfill={"parallelism": 2})
        first, idle, parts = project.poll(), project.poll(), _parts(project, pg)
        make(s1, *(f"UPDATE {name} SET updated_at = now()" for name in tables))
        changed = project.poll()
        held = {
            name: {row["n"]: row for row in project.merged(name, *KEYS[how]).values()}
            for (_, how), name in NAMES.items()
        }
        make(s1, *(f"DELETE FROM {name} WHERE n < 2" for name in tables))
        with sidecar.open(project.path) as sc:
            for (_, how), name in NAMES.items():
                keys = [tuple(row[part] for part in KEYS[how]) for n, row in held[name].items() if n != 1]
                sc.request_backfill(name, keys=keys, purge=True)
        asked = project.poll()
        with sidecar.open(project.path) as sc:
            for name in tables:
                sc.request_backfill(name, purge=True)
        yield Seen(ordered, first, idle, parts, changed, held, asked, project.poll())


@pytest.mark.parametrize("how", KEYS)
@pytest.mark.parametrize("declared", TYPES)
def test_a_key_of_any_type_is_read_in_parts_changed_and_purged(seen: Seen, declared: str, how: str) -> None:
    name = NAMES[declared, how]
    assert sorted(row["n"] for row in seen.first[name]) == [0, 1, 2]
    assert seen.idle[name] == []
    found = seen.parts[name]
    for one, other in zip(found.by_copy, found.by_connectorx, strict=True):
        assert other is not None
        assert one.equals(other)
    assert [n for page in found.by_copy for n in page.column("n").to_pylist()] == seen.ordered[name]
    assert [n for part in found.parts for n in part] == seen.ordered[name]
    assert len(found.parts) > 1
    assert sorted(row["n"] for row in seen.changed[name]) == [0, 1, 2]
    assert sorted(seen.held[name]) == [0, 1, 2]
    assert _kinds(seen.asked[name]) == [(0, "delete"), (2, "insert")]
    assert _kinds(seen.purged[name]) == [(1, "delete"), (2, "insert")]


def _create(s1: Connection, name: str, declared: str, key: tuple[str, ...]) -> None:
    stamp = "updated_at timestamptz NOT NULL DEFAULT now() - interval '1 hour'"
    columns = f"n int, g int DEFAULT 1, b text DEFAULT 'b', k {declared}, {stamp}"
    make(s1, f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({', '.join(key)}))")
    for n, text in enumerate(TYPES[declared]):
        s1.execute(f"INSERT INTO {name} (n, k) VALUES ({n}, %s::text::{declared})".encode(), (text,))


def _parts(project: Project, pg: Database) -> dict[str, Parts]:
    with sidecar.open(project.path, read_only=True) as sc:
        tracked = dict(sc.tracked)
    connector = PostgresConnector(Source(pg.reader_url))
    with connector.snapshot():
        found = {name: _parts_of(connector, table) for name, table in tracked.items()}
    connector.close()
    return found


def _parts_of(connector: PostgresConnector, table: Tracked) -> Parts:
    by_copy, by_connectorx, after = [], [], None
    whole = Page(table, Pass("all", None), {}, None, 1)
    while len(rows := connector.read(page := Page(table, whole.scan, {}, after, 1))):
        with connector._session.snapshot(table.name) as view:
            by_connectorx.append(connector._reader.bulk(Statements(page, view.xmax)))
        by_copy.append(rows)
        after = codec.unpack(codec.pack(codec.position(rows, table.key)))
    ends: list[Position | None] = [None, *connector.split(whole, 3), None]
    parts = [
        connector.read(Page(table, whole.scan, {}, low, 100, until=high)) for low, high in itertools.pairwise(ends)
    ]
    return Parts(by_copy, by_connectorx, [part.column("n").to_pylist() for part in parts])


def _kinds(rows: Sequence[Row]) -> list[tuple[int, str]]:
    return sorted((row["n"], row["_change_type"]) for row in rows)


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
