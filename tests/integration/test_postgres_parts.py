"""What PostgreSQL is asked for while a backfill runs: keys that divide, values of any type, pages that grow, strain."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import postgres_read
from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import Among, Page, Pass, Position, Scope, Tracked
from sidecar.testing.chunks import chunk, ends
from sidecar.testing.contract import tracked, values
from tests.servers import Database, NoServer
from tests.standby import caught_up, standby_of

Connection = psycopg.Connection[tuple[Any, ...]]
STAMPS = "created_at timestamptz DEFAULT now(), updated_at timestamptz DEFAULT now()"
ALL = Pass("all", None)


def make(admin: Connection, *statements: str) -> None:
    for statement in statements:
        admin.execute(statement.encode())


def page(followed: Tracked, **changes: Any) -> Page:
    return dataclasses.replace(Page(followed, ALL, {}, None, 1000), **changes)


def sizes(connector: PostgresConnector, followed: Tracked, cuts: Sequence[Position]) -> list[int]:
    with connector.snapshot():
        return [len(chunk(connector, followed, low, high, limit=5000)) for low, high in ends(cuts)]


TABLES = {
    "crowded": (
        f"CREATE TABLE crowded (id bigint PRIMARY KEY, v text, {STAMPS})",
        "INSERT INTO crowded SELECT CASE WHEN n < 27000 THEN n ELSE n * 1000 END, repeat('x', 900)"
        " FROM generate_series(1, 30000) n",
    ),
    "partitioned": (
        f"CREATE TABLE partitioned (r int, k uuid, v text, {STAMPS}, PRIMARY KEY (r, k)) PARTITION BY LIST (r)",
        "CREATE TABLE p1 PARTITION OF partitioned FOR VALUES IN (1, 2)",
        "CREATE TABLE p2 PARTITION OF partitioned DEFAULT",
        "INSERT INTO partitioned SELECT n % 5, gen_random_uuid(), repeat('x', 900) FROM generate_series(1, 30000) n",
    ),
    "few": (
        f"CREATE TABLE few (k text PRIMARY KEY, {STAMPS})",
        "INSERT INTO few SELECT 'k|' || n || E'\\\\' FROM generate_series(1, 1000) n",
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_keys_divide_a_table_whatever_its_gaps(admin: Connection, connector: PostgresConnector, table: str) -> None:
    make(admin, *TABLES[table])
    followed = tracked(connector, table)
    cuts = connector.split(page(followed), 8)
    assert len(cuts) == 7
    found = sizes(connector, followed, cuts)
    assert sum(found) == (1000 if table == "few" else 30_000)
    assert max(found) < 1.5 * sum(found) / 8
    inside = connector.split(page(followed, after=cuts[1], until=cuts[4]), 3)
    assert len(inside) == 2
    assert len(chunk(connector, followed, cuts[1], inside[0])) > 0
    assert connector.split(page(followed), 1) == ()


def test_what_cannot_be_sampled_is_not_divided(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *TABLES["few"], "CREATE VIEW seen AS SELECT * FROM few")
    make(admin, f"CREATE TABLE empty (id int PRIMARY KEY, {STAMPS})")
    seen = dataclasses.replace(tracked(connector, "seen"), key=("k",))
    with connector.copying():
        assert connector.split(page(seen), 8) == ()
        assert connector.split(page(tracked(connector, "empty")), 8) == ()
        assert connector.split(page(tracked(connector, "few"), scope=Scope("true")), 8) == ()


def test_pages_may_grow_and_shrink_in_one_run(
    admin: Connection, connector: PostgresConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_read, "BULK", 100)
    monkeypatch.setattr(postgres_read, "_AHEAD_ROWS", 300)
    make(admin, f"CREATE TABLE long (id int PRIMARY KEY, at timestamptz, {STAMPS})")
    make(
        admin,
        "INSERT INTO long SELECT n, CASE WHEN n = 777 THEN 'infinity' ELSE now() END FROM generate_series(1, 1000) n",
    )
    followed = dataclasses.replace(
        tracked(connector, "long"),
        columns=tuple(c for c in connector.describe("long").columns if c.name != "at"),
    )
    for limits in ([50, 70, 10, 300, 301, 5], [1000, 1], [100, 100, 99, 101, 600], [999, 2]):
        found: list[Position] = []
        asked = page(followed, until=(990,))
        with connector.copying():
            for limit in itertools.cycle(limits):
                rows = values([connector.read(dataclasses.replace(asked, limit=limit))], "id")
                found += rows
                if len(rows) < limit:
                    break
                asked = dataclasses.replace(asked, after=rows[-1])
        assert found == [(n,) for n in range(1, 991)]


def test_a_large_chunk_is_left_to_connectorx_at_once(
    admin: Connection, connector: PostgresConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_read, "CHUNK", 100)
    make(admin, *TABLES["few"])
    followed = tracked(connector, "few")
    bulk, asked = connector._reader.bulk, list[int]()

    def counted(statements: Statements) -> pa.Table | None:
        asked.append(statements.page.limit)
        return bulk(statements)

    monkeypatch.setattr(connector._reader, "bulk", counted)
    whole = chunk(connector, followed, limit=1001)
    assert asked == [], "a small table may be all that there is"
    with connector.copying():
        assert chunk(connector, followed, whole[10], whole[500], limit=200) == whole[11:501]
        assert chunk(connector, followed, whole[10], whole[50], limit=99) == whole[11:51]
    assert asked[0] == 200


@pytest.mark.parametrize("row", ["(NULL, 4)", "(3, NULL)", "(NULL, NULL)"])
def test_a_null_in_a_key_is_named_with_its_row_by_a_chunk(
    admin: Connection, connector: PostgresConnector, row: str
) -> None:
    make(
        admin,
        f"CREATE TABLE bare (a int, b int, {STAMPS}, UNIQUE (a, b))",
        "INSERT INTO bare SELECT n / 3, n % 3 FROM generate_series(0, 29) n",
        f"INSERT INTO bare VALUES {row}",
    )
    followed = dataclasses.replace(tracked(connector, "bare"), key=("a", "b"), key_is_unique=False)
    for limit in (1, 2, 3, 100):
        failed = []
        for low, high in ends([(1, 1), (3, 0), (3, 1), (3, 2), (6, 2)]):
            try:
                chunk(connector, followed, low, high, limit=limit)
            except SettingsError as error:
                failed.append(str(error))
        assert failed, "no chunk passes it over"
        assert all("holds a NULL" in text and "ctid (0,31) of bare" in text for text in failed)
        assert row == "(NULL, NULL)" or any("a='3'" in text or "b='4'" in text for text in failed)


VALUES = {
    "int2": ["-32768", "0", "7"],
    "int4": ["-5", "0", "2147483647"],
    "int8": ["-9223372036854775808", "9007199254740993", "9223372036854775807"],
    "numeric": ["1.10", "-0.000000000000000000001", "123456789012345678901234567890"],
    "numeric(10,2)": ["1.10", "2.00", "-3.5"],
    "float4": ["0.1", "1e20", "-3"],
    "float8": ["0.1", "1e300", "-0.3333333333333333"],
    "text": ["o'b", 'q"\\', "a|b"],
    'text COLLATE "C"': ["o'b", "é", ""],
    "varchar(3)": ["abc", "ab", "é"],
    "char(4)": ["ab", "abcd", ""],
    "uuid": ["00000000-0000-0000-0000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "bytea": ["\\x00ff", "\\x", "\\x5c27"],
    "date": ["2024-05-01", "0001-01-01", "9999-12-31"],
    "timestamp": ["2024-05-01 10:00:00.000001", "1969-12-31 23:59:59.999999"],
    "timestamptz": ["2024-05-01 10:00:00.000001+02", "1969-12-31 23:59:59.999999Z"],
    "time": ["10:00:00.000001", "24:00:00"],
    "bool": ["true"],
    "oid": ["1", "4294967295"],
    "mood": ["it's", "so, so"],
    "inet": ["10.0.0.1", "10.0.0.0/8"],
    "interval": ["1 day 02:03:04"],
    "positive": ["5", "7"],
    "jsonb": ['{"a": 1}'],
}


@pytest.mark.parametrize("type_", VALUES)
def test_rows_are_found_among_values_of_any_type(admin: Connection, connector: PostgresConnector, type_: str) -> None:
    make(
        admin,
        "CREATE TYPE mood AS ENUM ('it''s', 'so, so', 'none')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        f"CREATE TABLE typed (id int PRIMARY KEY, v {type_}, n int, {STAMPS})",
    )
    for at, text in enumerate(VALUES[type_]):
        admin.execute(f"INSERT INTO typed VALUES (%s, %s::{type_}, 1)".encode(), (at, text))
    admin.execute(b"INSERT INTO typed VALUES (99, NULL, 1)")
    followed = tracked(connector, "typed")
    held = values([connector.read(page(followed, after=(-1,)))], "v")[:-1]
    for at, (value,) in enumerate(held):
        one = Scope(among=Among(("v",), ((value,),)))
        assert chunk(connector, followed, scope=one) == [(at,)]
        two = Scope(among=Among(("n", "v"), ((1, value), (2, value))))
        assert chunk(connector, followed, scope=two) == [(at,)]
    every = Scope(among=Among(("v",), tuple((v,) for (v,) in held)))
    assert chunk(connector, followed, scope=every) == [(n,) for n in range(len(held))]


def test_a_thousand_values_are_asked_for_at_once(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, f"CREATE TABLE many (id int PRIMARY KEY, v text, {STAMPS})")
    make(admin, "INSERT INTO many SELECT n, 'v' || n FROM generate_series(1, 3000) n")
    followed = tracked(connector, "many")
    texts = Among(("v",), tuple((f"v{n}",) for n in range(1, 1001)))
    assert chunk(connector, followed, scope=Scope(among=texts)) == [(n,) for n in range(1, 1001)]
    pairs = Among(("v", "id"), tuple((f"v{n}", n) for n in range(1, 1001)))
    assert chunk(connector, followed, limit=300, scope=Scope(among=pairs)) == [(n,) for n in range(1, 1001)]


def test_a_standby_hands_out_its_snapshot_and_says_how_far_it_is_behind(pg: Database, admin: Connection) -> None:
    make(admin, *TABLES["few"])
    try:
        with standby_of(pg) as url:
            there, other = PostgresConnector(Source(url)), PostgresConnector(Source(url))
            try:
                caught_up(admin, url)
                followed = tracked(there, "few")
                with there.copying() as name:
                    assert name is not None
                    with other.join(name):
                        cuts = other.split(page(followed), 4)
                        assert sum(sizes(other, followed, cuts)) == 1000
                    assert there.strain().lock_wait == 0
                    lag = there.strain().replication_lag
                    assert lag is not None
                    assert 0 <= lag < 60
                blind = PostgresConnector(Source(pg.reader_url))
                assert blind.strain().replication_lag is None, "it sees that there is a standby, and no more"
                blind.close()
                make(admin, f'GRANT pg_read_all_stats TO "{pg.reader}"')
                connector = PostgresConnector(Source(pg.reader_url))
                lag = connector.strain().replication_lag
                assert lag is not None
                assert 0 <= lag < 60
                connector.close()
            finally:
                there.close()
                other.close()
    except NoServer as error:
        pytest.skip(str(error))


def test_who_waits_for_a_lock_is_seen_in_a_copy_too(
    pg: Database, admin: Connection, connector: PostgresConnector
) -> None:
    make(admin, f"CREATE TABLE busy (id int PRIMARY KEY, {STAMPS})", "INSERT INTO busy VALUES (1)")
    with connector.copying():
        assert connector.strain().lock_wait == 0
        with pg.connect() as holder, pg.connect() as waiter:
            with holder.transaction():
                holder.execute("UPDATE busy SET updated_at = now()")
                thread = threading.Thread(target=lambda: waiter.execute("UPDATE busy SET updated_at = now()"))
                thread.start()
                seen = 0.0
                while seen < 0.05:
                    seen = connector.strain().lock_wait or 0.0
            thread.join()
        assert connector.strain().lock_wait == 0
        assert len(connector.read(page(tracked(connector, "busy")))) == 1


PARTS: dict[str, Any] = {
    "int8": st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.sampled_from([-(2**63), 2**63 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 0]),
    ),
    'text COLLATE "en-x-icu"': st.text("aAbB eéE_-|,'\"\\ßöo1", max_size=4),
    'text COLLATE "C"': st.text("aA|,'é", max_size=3),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-1000, max_value=1000).map(str),
    "uuid": st.uuids().map(str),
    "bytea": st.binary(max_size=3),
}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_chunks_of_random_composite_keys_are_the_table_in_its_own_order(pg_icu: Database, data: st.DataObject) -> None:
    types = data.draw(st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=3))
    # Few values of each part, so that many rows share the first ones.
    pools = [data.draw(st.lists(PARTS[t], min_size=1, max_size=8, unique=True)) for t in types]
    rows = data.draw(st.lists(st.tuples(*map(st.sampled_from, pools)), min_size=1, max_size=40, unique=True))
    names = [f"k{n}" for n in range(len(types))]
    with pg_icu.connect() as admin:
        listed = ", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))
        make(
            admin,
            "DROP TABLE IF EXISTS keyed",
            f"CREATE TABLE keyed ({listed}, {STAMPS}, PRIMARY KEY ({', '.join(names)}))",
        )
        marks = ", ".join(f"%s::{t.split()[0]}" for t in types)
        with admin.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO keyed ({', '.join(names)}) VALUES ({marks}) ON CONFLICT DO NOTHING".encode(), rows
            )
        shown = ", ".join(f"{n}::text" for n in names)
        order = ", ".join(f"keyed.{n}" for n in names)
        wanted = admin.execute(f"SELECT {shown} FROM keyed ORDER BY {order}".encode()).fetchall()
    connector = PostgresConnector(Source(pg_icu.reader_url))
    try:
        followed = tracked(connector, "keyed")
        whole = chunk(connector, followed, limit=data.draw(st.integers(1, 50)))
        assert [tuple(f"\\x{p.hex()}" if isinstance(p, bytes) else str(p) for p in key) for key in whole] == wanted
        cuts = data.draw(st.lists(st.sampled_from(whole), unique=True, max_size=5))
        cuts.sort(key=whole.index)
        limit = data.draw(st.integers(1, 7))
        parts = [chunk(connector, followed, low, high, limit=limit) for low, high in ends(cuts)]
        assert list(itertools.chain(*parts)) == whole
        divided = connector.split(page(followed), data.draw(st.integers(1, 10)))
        assert [whole.index(key) for key in divided] == sorted(whole.index(key) for key in divided)
    finally:
        connector.close()
