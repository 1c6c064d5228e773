"""What PostgreSQL's catalog says of tables, for the role that reads."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest

from connectors.postgres import PostgresConnector
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.testing.contract import scan, tracked, values
from tests.servers import Database, make

Connection = psycopg.Connection[tuple[Any, ...]]
STAMPS = "created_at timestamptz, updated_at timestamptz"
AT = "'2024-05-01 10:00+00', '2024-05-01 10:00+00'"


def grant(admin: Connection, pg: Database, what: str) -> None:
    make(admin, f'GRANT {what} TO "{pg.reader}"')


def test_tables_views_and_partitioned_parents_are_listed_once_partitions_never(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        f"CREATE TABLE meas (id int, region text, {STAMPS}, PRIMARY KEY (region, id)) PARTITION BY LIST (region)",
        "CREATE TABLE meas_eu PARTITION OF meas FOR VALUES IN ('eu')",
        "CREATE TABLE meas_us PARTITION OF meas FOR VALUES IN ('us') PARTITION BY LIST (id)",
        "CREATE TABLE meas_us_1 PARTITION OF meas_us DEFAULT",
        "CREATE VIEW seen AS SELECT * FROM meas",
        "CREATE MATERIALIZED VIEW stored AS SELECT * FROM meas",
        "CREATE TEMPORARY TABLE passing (id int)",
        f"INSERT INTO meas VALUES (1, 'eu', {AT}), (1, 'us', {AT})",
    )
    assert connector.tables() == ["meas", "seen", "stored"]
    table = connector.describe("meas")
    assert (table.primary_key, table.kind) == (("region", "id"), "table")
    assert values(scan(connector, tracked(connector, "meas", 1)), "region", "id") == [("eu", 1), ("us", 1)]
    assert connector.describe("seen").kind == connector.describe("stored").kind == "view"


def test_names_are_exact_and_bare_in_public_only(admin: Connection, pg: Database, connector: PostgresConnector) -> None:
    make(admin, 'CREATE SCHEMA "My-App"', "CREATE SCHEMA sales", 'CREATE SCHEMA "x.y"')
    for schema in ("My-App", "sales", "x.y"):
        grant(admin, pg, f'USAGE ON SCHEMA "{schema}"')
    made = ("sales.orders", 'sales."Orders"', '"My-App"."Order"', '"x.y"."a""b"', "public.orders", '"My table"')
    for name in made:
        make(admin, f"CREATE TABLE {name} (id int PRIMARY KEY, {STAMPS})")
        grant(admin, pg, f"SELECT ON {name}")
    known = ["My table", "orders", "My-App.Order", "sales.Orders", "sales.orders", '"x.y"."a""b"']
    assert sorted(connector.tables()) == sorted(known)
    assert [connector.describe(name).name for name in known] == known
    assert connector.describe("public.orders").name == "orders"
    assert connector.describe('"My-App"."Order"').name == "My-App.Order"
    assert connector.describe('"x.y"."a""b"').path == ("x.y", 'a"b')
    with pytest.raises(SettingsError, match=r"nearest: .*sales\.Orders"):
        connector.describe("sales.ORDERS")
    with pytest.raises(SettingsError, match="not found"):
        connector.describe("a.b.c")


def test_a_bare_name_outside_public_is_looked_for_on_the_search_path(
    admin: Connection, pg: Database, connector: PostgresConnector
) -> None:
    make(
        admin,
        "CREATE SCHEMA app",
        f"CREATE TABLE app.orders (id int PRIMARY KEY, {STAMPS})",
        f'ALTER ROLE "{pg.reader}" SET search_path = nowhere, app, public',
    )
    grant(admin, pg, "USAGE ON SCHEMA app")
    grant(admin, pg, "SELECT ON app.orders")
    assert connector.describe("orders").name == "app.orders"
    make(admin, f"CREATE TABLE orders (id int PRIMARY KEY, {STAMPS})")
    assert connector.describe("orders").name == "orders"


def test_columns_are_those_that_the_role_may_read(admin: Connection, pg: Database) -> None:
    make(
        admin,
        f"CREATE TABLE staff (id int PRIMARY KEY, name text NOT NULL, dropped int, tax_no text, {STAMPS})",
        "ALTER TABLE staff DROP COLUMN dropped",
        f"INSERT INTO staff VALUES (1, 'n1', 'secret', {AT})",
        f'ALTER ROLE "{pg.reader}" SET default_transaction_read_only = on',
        f'REVOKE ALL ON staff FROM "{pg.reader}"',
    )
    grant(admin, pg, "SELECT (id, name, created_at, updated_at) ON staff")
    before = admin.execute("SELECT count(*) FROM pg_class").fetchall()
    connector = PostgresConnector(Source(pg.reader_url))
    assert connector.tables() == ["staff"]
    table = connector.describe("staff")
    assert [(c.name, c.nullable) for c in table.columns] == [
        ("id", False),
        ("name", False),
        ("created_at", True),
        ("updated_at", True),
    ]
    followed = tracked(connector, "staff")
    assert values(scan(connector, followed), "id", "name") == [(1, "n1")]
    assert any('"tax_no"' in f.message for f in connector.check(followed))
    connector.close()
    assert admin.execute("SELECT count(*) FROM pg_class").fetchall() == before


def test_a_key_that_the_role_may_not_read_is_refused_by_name(
    admin: Connection, pg: Database, connector: PostgresConnector
) -> None:
    make(
        admin,
        f"CREATE TABLE staff (id int PRIMARY KEY, name text, {STAMPS})",
        f'REVOKE ALL ON staff FROM "{pg.reader}"',
    )
    with pytest.raises(SettingsError, match='table "staff": permission denied'):
        connector.describe("staff")
    grant(admin, pg, "SELECT (name) ON staff")
    with pytest.raises(SettingsError, match='table "staff": permission denied for column "id"'):
        connector.describe("staff")


def test_a_key_stands_in_its_declared_order_without_included_columns(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(admin, f"CREATE TABLE pairs (a int, b int, c int, {STAMPS}, PRIMARY KEY (c, a) INCLUDE (b))")
    assert connector.describe("pairs").primary_key == ("c", "a")


def test_a_domain_is_what_it_is_made_of(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE DOMAIN price AS numeric(12, 2)",
        "CREATE DOMAIN net AS price CHECK (VALUE > 0)",
        f"CREATE TABLE goods (id int PRIMARY KEY, p net, {STAMPS})",
    )
    column = connector.describe("goods").column("p")
    assert column is not None
    assert (column.type, column.arrow) == ("numeric(12,2)", pa.decimal128(12, 2))


def test_a_type_of_one_s_own_with_a_builtin_name_is_a_text(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TYPE date AS ENUM ('today')",
        f"CREATE TABLE own (id int PRIMARY KEY, d public.date, {STAMPS})",
        f"INSERT INTO own VALUES (1, 'today', {AT})",
    )
    assert values(scan(connector, tracked(connector, "own")), "d") == [("today",)]


def test_a_partition_elsewhere_leaves_the_whole_without_versions(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        "CREATE EXTENSION IF NOT EXISTS file_fdw",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER file_fdw",
        f"CREATE TABLE meas (id int NOT NULL, region text NOT NULL, {STAMPS}) PARTITION BY LIST (region)",
        "CREATE TABLE meas_eu PARTITION OF meas FOR VALUES IN ('eu')",
    )
    assert connector.describe("meas").kind == "table"
    make(
        admin,
        "CREATE FOREIGN TABLE meas_far PARTITION OF meas FOR VALUES IN ('far') "
        "SERVER elsewhere OPTIONS (filename '/dev/null')",
    )
    assert connector.describe("meas").kind == "view"
