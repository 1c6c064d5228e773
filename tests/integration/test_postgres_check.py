"""`sidecar check` on PostgreSQL: what stands in the way is named, with what to do; and nothing else is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import psycopg

from connectors.postgres import PostgresConnector
from sidecar.clock import FakeClock, SystemClock
from sidecar.connector import Finding, Source
from sidecar.testing.contract import tracked
from tests.servers import Database, make

Connection = psycopg.Connection[tuple[Any, ...]]
STAMPS = "created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL"


def about(found: Sequence[Finding], words: str) -> Finding:
    return next(f for f in found if words in f.message)


LARGE = (
    f"CREATE TABLE orders (id int PRIMARY KEY, note text, {STAMPS}, deleted_at timestamptz)",
    "INSERT INTO orders SELECT n, repeat('x', 100), now(), now() - n * interval '1 s' FROM generate_series(1, 20000) n",
)


def test_a_well_kept_table_has_no_findings(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        *LARGE,
        "CREATE INDEX ON orders (updated_at, id)",
        "CREATE INDEX ON orders (deleted_at, id) WHERE deleted_at IS NOT NULL",
    )
    assert connector.check(tracked(connector, "orders")) == []


def test_a_missing_index_is_named_with_the_statement_that_makes_it(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(admin, *LARGE)
    followed = tracked(connector, "orders")
    found = connector.check(followed)
    assert [f.where for f in found] == ["orders.updated_at", "orders.deleted_at"]
    assert all("no index serves" in f.message and "Seq Scan" in f.message for f in found)
    for finding in found:
        make(admin, finding.advice)
    assert 'WHERE "deleted_at" IS NOT NULL' in found[1].advice
    assert connector.check(followed) == []


def test_an_index_on_the_cursor_alone_is_told_from_none(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *LARGE, "CREATE INDEX ON orders (updated_at)", "ANALYZE orders")
    assert "lacks the key" in connector.check(tracked(connector, "orders"))[0].message


def test_a_partitioned_parent_gets_a_statement_that_its_server_takes(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        f"CREATE TABLE meas (id int PRIMARY KEY, note text, {STAMPS}) PARTITION BY RANGE (id)",
        "CREATE TABLE meas_1 PARTITION OF meas FOR VALUES FROM (0) TO (10000)",
        "CREATE TABLE meas_2 PARTITION OF meas DEFAULT",
        "INSERT INTO meas SELECT n, repeat('x', 100), now(), now() FROM generate_series(1, 20000) n",
    )
    followed = tracked(connector, "meas")
    make(admin, about(connector.check(followed), "no index").advice)
    assert connector.check(followed) == []


def test_values_that_polls_trip_over_are_counted_and_shown(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TABLE odd (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)",
        "INSERT INTO odd VALUES (1, now(), NULL), (2, now(), NULL), (3, now(), 'infinity'), (4, now(), '9999-12-31')",
    )
    found = connector.check(tracked(connector, "odd"))
    assert "2 NULLs (first key: id=1)" in about(found, "NULL").message
    assert "1 value is infinite" in about(found, "id=3").message
    assert "1 value lies in the future (first key: id=4)" in about(found, "future").message


def test_a_zoneless_cursor_asks_for_its_zone(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, "CREATE TABLE local (id int PRIMARY KEY, updated_at timestamp NOT NULL)")
    assert "timestamp without time zone" in connector.check(tracked(connector, "local"))[0].message
    assert connector.check(tracked(connector, "local", timezone="Europe/Berlin")) == []


def test_a_future_is_one_of_the_column_s_own_zone(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TABLE local (id int PRIMARY KEY, updated_at timestamp NOT NULL)",
        "INSERT INTO local VALUES (1, now() AT TIME ZONE 'Asia/Tokyo')",
    )
    assert connector.check(tracked(connector, "local", timezone="Asia/Tokyo")) == []
    assert about(connector.check(tracked(connector, "local", timezone="UTC")), "future").level == "warning"


def test_numbers_with_a_unit_can_lie_in_the_future(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TABLE ticks (id int PRIMARY KEY, updated_at bigint NOT NULL)",
        "INSERT INTO ticks VALUES (1, extract(epoch FROM now()) * 1000)",
    )
    assert connector.check(tracked(connector, "ticks", unit="ms")) == []
    assert connector.check(tracked(connector, "ticks")) == []
    assert about(connector.check(tracked(connector, "ticks", unit="s")), "future").level == "warning"


def test_a_chosen_key_must_tell_rows_apart(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        f"CREATE TABLE bare (a int, b text, {STAMPS})",
        "INSERT INTO bare VALUES (1, 'x', now(), now()), (1, 'x', now(), now()), (NULL, 'y', now(), now())",
    )
    followed = dataclasses.replace(tracked(connector, "bare"), key=("a", "b"), key_is_unique=False)
    found = connector.check(followed)
    assert about(found, "no primary key").level == "warning"
    assert about(found, "not unique (first: a=1, b=x)").level == "error"
    assert about(found, "key column with 1 NULL:").where == "bare.a"


def test_a_materialized_view_asks_for_a_longer_lookback(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *LARGE, "CREATE MATERIALIZED VIEW stored AS SELECT * FROM orders")
    followed = dataclasses.replace(tracked(connector, "stored"), key=("id",))
    found = connector.check(followed)
    assert about(found, "refreshed").level == "warning"
    make(admin, about(found, "by updated_at").advice)


def test_clocks_apart_are_told_with_the_figure(pg: Database, admin: Connection) -> None:
    make(admin, f"CREATE TABLE t (id int PRIMARY KEY, {STAMPS})")
    connector = PostgresConnector(Source(pg.reader_url, clock=FakeClock(SystemClock().now() - 5_000_000)))
    message = about(connector.check(tracked(connector, "t")), "clock").message
    assert "ahead of" in message
    connector.close()


def test_policies_that_decide_which_rows_are_seen_are_pointed_out(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(admin, f"CREATE TABLE seen (id int PRIMARY KEY, {STAMPS})", "INSERT INTO seen VALUES (1, now(), now())")
    assert connector.check(tracked(connector, "seen")) == []
    make(admin, "ALTER TABLE seen ENABLE ROW LEVEL SECURITY", "CREATE POLICY first ON seen FOR SELECT USING (id = 1)")
    (found,) = connector.check(tracked(connector, "seen"))
    assert (found.level, found.where) == ("warning", "seen")
    assert "row-level security is on for this role" in found.message


def test_a_table_that_a_subscription_fills_is_named(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        f"CREATE TABLE parted (id int PRIMARY KEY, {STAMPS}) PARTITION BY LIST (id)",
        "CREATE TABLE one PARTITION OF parted FOR VALUES IN (1)",
        f"CREATE TABLE own (id int PRIMARY KEY, {STAMPS})",
        "CREATE SUBSCRIPTION s CONNECTION 'dbname=elsewhere' PUBLICATION p WITH (connect = false, slot_name = NONE)",
        "SET allow_system_table_mods = on",
        "INSERT INTO pg_subscription_rel SELECT oid, 'one'::regclass, 'r', NULL FROM pg_subscription"
        " WHERE subdbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    try:
        (found,) = connector.check(tracked(connector, "parted"))
        assert "a subscription fills it" in found.message
        assert connector.check(tracked(connector, "own")) == []
    finally:
        make(admin, "DROP SUBSCRIPTION s")
