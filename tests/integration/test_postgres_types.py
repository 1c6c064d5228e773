"""Types, and the settings that say how they arrive: what is asked, what cannot be, and what no role changes."""

from __future__ import annotations

import datetime as dt
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar import codec
from sidecar.config import Defaults, TableSettings
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import Page, Tracked
from sidecar.polls.changes import change_schema
from sidecar.terminal.show import objects
from sidecar.testing.contract import Follower, scan, values
from sidecar.tracking import track
from tests.servers import Database, make

Connection = psycopg.Connection[tuple[Any, ...]]

STAMP = "updated_at timestamptz NOT NULL DEFAULT '2024-05-01 10:00+00'"

LEDGER = (
    f"""CREATE TABLE ledger (id int PRIMARY KEY, amount numeric, fee numeric, wide numeric(50, 2), neat numeric(12, 2),
      tags text[], prices numeric[], due date, seen timestamptz, ratio float8, doc jsonb, note text, {STAMP})""",
    """INSERT INTO ledger VALUES (1, 12345678901234567890.0123456789, 0.1, 1e40, 1.5, '{a,NULL}', '{1.5,2}',
      '2024-05-01', '2024-05-01 10:00+00', 0.5, '{"k": 9007199254740993}', 'n')""",
)


def follow(connector: PostgresConnector, name: str, defaults: dict[str, Any] | None = None, **own: Any) -> Tracked:
    """Return *name* as it is followed under these settings."""
    described = connector.describe(name)
    usual = Defaults.model_validate(defaults or {})
    return track(described, TableSettings.model_validate(own), usual, connector.typed)


def read(connector: PostgresConnector, followed: Tracked) -> pa.Table:
    """Return the first page, after both readers have given it alike."""
    with connector._session.snapshot() as view:
        statements = Statements(Page(followed, followed.passes[0], {}, None, 100), view.xmax)
        one, other = connector._reader.page(statements), connector._reader.bulk(statements)
    assert other is not None, "connectorx gave up"
    assert one.schema == other.schema
    assert repr(one.to_pylist()) == repr(other.to_pylist())
    types = {c.name: c.arrow for c in followed.columns}
    assert {name: one.schema.field(name).type for name in types} == types
    return one


def types_of(followed: Tracked) -> dict[str, pa.DataType]:
    return {c.name: c.arrow for c in followed.columns}


def test_numbers_arrive_as_the_settings_ask_column_by_column(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *LEDGER)
    own = {"numeric": {"amount": "decimal(38,10)", "Fee": "double", "prices": "decimal(5,1)"}}
    followed = follow(connector, "ledger", {"numeric": "string"}, **own)
    (row,) = read(connector, followed).to_pylist()
    assert (row["amount"], row["fee"]) == (Decimal("12345678901234567890.0123456789"), 0.1)
    assert (row["wide"], row["neat"]) == ("1" + "0" * 40 + ".00", Decimal("1.50"))
    assert row["prices"] == [Decimal("1.5"), Decimal("2.0")]


def test_what_is_said_in_general_holds_where_it_can(admin: Connection, connector: PostgresConnector) -> None:
    make(admin, *LEDGER)
    asked = {"numeric": "double", "infinity": "keep as string", "arrays": "string"}
    found = types_of(follow(connector, "ledger", asked))
    assert {name: str(type_) for name, type_ in found.items()} == {
        "id": "int32",
        "amount": "double",
        "fee": "double",
        "wide": "double",
        "ratio": "double",
        # A decimal, a date and a timestamp have no place for NaN and infinity. What polls go by stays what it is.
        "neat": "string",
        "due": "string",
        "seen": "string",
        "updated_at": "timestamp[us, tz=UTC]",
        "tags": "string",
        "prices": "string",
        "doc": "string",
        "note": "string",
    }
    (row,) = read(connector, follow(connector, "ledger", asked)).to_pylist()
    assert (row["neat"], row["seen"]) == ("1.50", "2024-05-01 10:00:00+00")
    assert (row["tags"], row["prices"]) == ("{a,NULL}", "{1.5,2}")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"numeric": {"amuont": "double"}}, 'numeric: there is no column "amuont"; did you mean "amount"?'),
        (
            {"numeric": {"note": "double"}},
            '"note" is text; the setting is for numerics .*here: amount, fee, wide, prices',
        ),
        ({"numeric": {"neat": "double"}}, r'"neat" is numeric\(12,2\); the setting is for numerics'),
        ({"infinity": {"note": "null"}}, '"note" is text; the setting is for numerics, floating-point'),
        ({"infinity": {"ratio": "keep as string"}}, '"ratio" holds NaN and infinities as it is'),
        ({"infinity": {"updated_at": "keep as string"}}, '"updated_at" is a cursor column'),
        ({"arrays": {"note": "string"}}, '"note" is text; the setting is for arrays, here: tags, prices'),
        ({"json": {"note": "variant"}}, '"note" is text; the setting is for json and jsonb, here: doc'),
        ({"primary_key": ["amount"], "numeric": {"amount": "double"}}, '"amount" is a part of the key'),
        ({"primary_key": ["tags"], "arrays": {"tags": "list"}}, '"tags" is a part of the key, and arrives as'),
    ],
)
def test_what_cannot_be_asked_is_said_before_a_row_is_read(
    admin: Connection, connector: PostgresConnector, own: dict[str, Any], said: str
) -> None:
    make(admin, *LEDGER)
    with pytest.raises(SettingsError, match=said) as caught:
        follow(connector, "ledger", **own)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("own", "change", "said"),
    [
        ({"numeric": {"amount": "decimal(38,4)"}}, "amount = 0.12345", r'"amount" \(numeric\) holds 0.12345, .*id=1'),
        ({"numeric": {"amount": "decimal(5,1)"}}, "amount = 1e9", r'"amount" \(numeric\) holds 1000000000, .*id=1'),
        ({"numeric": {"amount": "double"}}, "amount = 1e400", r'"amount" \(numeric\) holds 1000.*401 characters.*id=1'),
        ({}, "neat = 'NaN'", r'"neat" \(numeric\(12,2\)\) holds NaN or infinity, .* \(key: id=1\)'),
        ({}, "due = 'infinity'", r'"due" \(date\) holds 1 time .*infinite or outside the years.* \(key: id=1\)'),
        ({}, "seen = '0044-03-15 BC'", r'"seen" \(timestamp with time zone\) holds 1 time .* \(key: id=1\)'),
        ({}, "tags = '{{a}}'", r'"tags" \(text\[\]\) holds an array of 2 dimensions.*arrays = \{ tags = "string" \}'),
        ({}, "tags = '[5:5]={a}'", r'"tags" \(text\[\]\) holds an array that counts from another number than 1'),
        (
            {"infinity": {"prices": "error"}, "numeric": {"prices": "decimal(9,2)"}},
            "prices = '{NaN}'",
            '"prices" .* holds NaN',
        ),
    ],
)
def test_a_value_that_cannot_be_kept_is_named_with_its_key(
    admin: Connection, connector: PostgresConnector, own: dict[str, Any], change: str, said: str
) -> None:
    make(admin, *LEDGER, f"UPDATE ledger SET {change}")
    followed = follow(connector, "ledger", **own)
    for ask in (connector._reader.page, connector._reader.bulk):
        with (
            connector._session.snapshot() as view,
            pytest.raises(SettingsError, match='^table "ledger": column ' + said),
        ):
            ask(Statements(Page(followed, followed.passes[0], {}, None, 100), view.xmax))


def test_infinities_become_null_with_a_word_or_stay_as_text_where_that_is_asked(
    admin: Connection, connector: PostgresConnector, caplog: pytest.LogCaptureFixture
) -> None:
    odd = "neat = 'NaN', amount = 'Infinity', ratio = '-Infinity', due = '-infinity', seen = '15000-12-31 23:40:28+00'"
    make(admin, *LEDGER, f"UPDATE ledger SET {odd}, prices = '{{1,NaN}}'")
    with caplog.at_level(logging.WARNING, "sidecar"):
        (row,) = read(connector, follow(connector, "ledger", infinity="null")).to_pylist()
    assert [row[name] for name in ("neat", "amount", "ratio", "due", "seen")] == [None] * 5
    assert row["prices"] == ["1", None]
    said = {record.getMessage() for record in caplog.records}
    assert len(said) == 6
    assert all("delivered as NULL (first key: id=1)" in text for text in said)
    (row,) = read(connector, follow(connector, "ledger", infinity="keep as string")).to_pylist()
    assert (row["neat"], row["amount"], row["ratio"]) == ("NaN", "Infinity", float("-inf"))
    assert (row["due"], row["seen"]) == ("-infinity", "15000-12-31 23:40:28+00")


HOSTILE = {
    "TimeZone": "America/St_Johns",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "lc_monetary": "C.UTF-8",
    "xmloption": "document",
    "xmlbinary": "hex",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "search_path": '"$user"',
    "client_encoding": "LATIN1",
    "default_transaction_isolation": "serializable",
}

SPOKEN = (
    "CREATE TYPE pair AS (at timestamptz, b bytea, f float8)",
    f"""CREATE TABLE public.spoken (id int PRIMARY KEY, tz timestamptz, ts timestamp, d date, tzs timestamptz[],
      iv interval, ivs interval[], f4 float4, f8 float8, f8s float8[], by bytea, bys bytea[], mo money,
      t text, n numeric, tt timetz, r tstzrange, c pair, cs pair[], {STAMP})""",
    r"""INSERT INTO public.spoken VALUES (1, '2024-05-01 10:00:00.000001+00', '2024-05-01 10:00', '2024-05-02',
      '{2024-05-01 10:00+00}', '1 mon -2 days 03:04:05.000006', '{-1 year 2 days}', 0.1, 0.1, '{0.1,1e-300}',
      '\x00ff5c',
      '{"\\x00ff5c"}', 1234.5, 'back\slash ''é', 0.1, '10:00:00+02', '[2024-05-01 10:00+00,)',
      ('2024-05-01 10:00:00.000001+00', '\x5c', 0.1), ARRAY[ROW('2024-05-01+00', '\x5c', 0.1)::pair])""",
)


def test_what_a_role_sets_for_its_sessions_changes_no_value(admin: Connection, pg: Database) -> None:
    make(admin, *SPOKEN)
    found = []
    for hostile in (False, True):
        if hostile:
            for name, value in HOSTILE.items():
                admin.execute(f"ALTER ROLE {pg.reader} SET {name} = '{value}'".encode())
        connector = PostgresConnector(Source(pg.reader_url))
        found.append(read(connector, follow(connector, "spoken")))
        connector.close()
    assert found[0].equals(found[1])
    (row,) = found[0].to_pylist()
    assert (row["mo"], row["iv"], row["tt"]) == ("$1,234.50", "1 mon -2 days +03:04:05.000006", "10:00:00+02")
    assert (row["by"], row["bys"], row["f8s"]) == (b"\x00\xff\\", [b"\x00\xff\\"], [0.1, 1e-300])
    assert row["tz"] == dt.datetime(2024, 5, 1, 10, 0, 0, 1, tzinfo=dt.UTC)
    assert row["c"] == {"at": row["tz"], "b": b"\\", "f": 0.1}


KEYS = {
    "bool": ["f", "t"],
    "oid": ["1", "4294967295"],
    "bytea": ["\\x", "\\x00", "\\x5c27", "\\xff"],
    "timestamptz": ["0001-01-01 00:00+00", "2024-05-01 10:00:00.000001+00", "9999-12-31 23:59:59.999999+00"],
    "timestamp": ["0001-01-01 00:00", "2024-05-01 10:00:00.000001"],
    "time": ["00:00", "10:00:00.000001", "24:00"],
    "timetz": ["10:00+02", "10:00+00"],
    "interval": ["-1 days", "1 mon", "32 days", "1 year"],
    "inet": ["10.0.0.1", "10.0.0.1/8", "192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8", "192.168.0.0/24"],
    "macaddr": ["08:00:2b:01:02:03", "08:00:2b:01:02:04"],
    "macaddr8": ["08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:06"],
    "bit(3)": ["001", "101"],
    "varbit": ["", "01", "1"],
    "money": ["-1", "1234.5"],
    "int4range": ["empty", "[1,5)", "[2,3)"],
    "int4multirange": ["{}", "{[1,5)}"],
    "jsonb": ["null", '{"a": 1}'],
    "pg_lsn": ["0/1", "16/B374D848"],
    "tsvector": ["'a'", "'b'"],
    '"char"': ["a", "b"],
    "citext": ["A", "b", "C"],
    "ltree": ["a", "a.b"],
    "float8": ["-Infinity", "-0.1", "5e-324", "0.1", "1e300", "Infinity", "NaN"],
    "uuid": ["00000000-0000-0000-0000-000000000001", "f0000000-0000-0000-0000-000000000001"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_may_be_of_any_plain_type(admin: Connection, pg: Database, kind: str, tmp_path: Path) -> None:
    if kind in ("citext", "ltree"):
        admin.execute(f"CREATE EXTENSION {kind}".encode())
    make(admin, f"CREATE TABLE keyed (k {kind} PRIMARY KEY, n int DEFAULT 0, {STAMP})")
    for key in reversed(KEYS[kind]):
        admin.execute(f"INSERT INTO keyed (k) VALUES (%s::text::{kind})".encode(), (key,))
    connector = PostgresConnector(Source(pg.reader_url))
    followed = follow(connector, "keyed", page_size=1)
    walked = [k for (k,) in values(scan(connector, followed), "k")]
    assert len(walked) == len(set(map(repr, walked))) == len(KEYS[kind])
    follower = Follower(connector, followed, tmp_path)
    assert len(follower.poll()) == len(KEYS[kind])
    admin.execute(f"UPDATE keyed SET n = 1, updated_at = now() WHERE k = %s::text::{kind}".encode(), (KEYS[kind][0],))
    assert [row["n"] for row in follower.poll()] == [1]
    assert follower.poll() == []
    connector.close()


def test_a_key_with_infinite_times_is_walked_as_text_where_that_is_asked(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        f"CREATE TABLE spans (upto date, at timestamptz, n numeric(5, 2), PRIMARY KEY (upto, at, n), {STAMP})",
        """INSERT INTO spans SELECT d, t, n FROM unnest('{infinity,-infinity,2024-05-01,0044-03-15 BC}'::date[]) d,
          unnest('{infinity,2024-05-01 10:00:00.000001+00,15000-01-01+00}'::timestamptz[]) t,
          unnest('{NaN,-1.5,2}'::numeric[]) n""",
    )
    with pytest.raises(SettingsError, match=r'"spans": column "upto" .*a key cannot be NULL|"n" .*NaN'):
        scan(connector, follow(connector, "spans", page_size=1))
    followed = follow(connector, "spans", page_size=1, infinity="keep as string")
    walked = values(scan(connector, followed), "upto", "at", "n")
    order = admin.execute("SELECT upto::text, n::text FROM spans ORDER BY spans.upto, spans.at, spans.n").fetchall()
    assert [(d, n) for d, _, n in walked] == order
    assert len(set(walked)) == 36


def test_generated_and_identity_columns_are_columns(admin: Connection, connector: PostgresConnector) -> None:
    make(
        admin,
        "CREATE TABLE made (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int,"
        f" twice int GENERATED ALWAYS AS (n * 2) STORED, two int[] GENERATED ALWAYS AS (ARRAY[n, n]) STORED, {STAMP})",
        "INSERT INTO made (n) VALUES (7), (NULL)",
    )
    rows = read(connector, follow(connector, "made")).to_pylist()
    assert [(r["id"], r["twice"], r["two"]) for r in rows] == [(1, 14, [7, 7]), (2, None, [None, None])]


def test_types_may_change_between_two_polls(admin: Connection, connector: PostgresConnector, tmp_path: Path) -> None:
    make(
        admin,
        "CREATE TYPE mood AS ENUM ('ok')",
        "CREATE TYPE gone AS (x int)",
        f"CREATE TABLE moods (id int PRIMARY KEY, m mood, ms mood[], g gone, {STAMP})",
        "INSERT INTO moods VALUES (1, 'ok', '{ok}', '(1)')",
    )
    follower = Follower(connector, follow(connector, "moods"), tmp_path)
    assert [row["g"] for row in follower.poll()] == [{"x": 1}]
    make(admin, "ALTER TYPE mood ADD VALUE 'new'", "INSERT INTO moods VALUES (2, 'new', '{ok,new}', '(2)', now())")
    assert [(row["m"], row["ms"]) for row in follower.poll()] == [("new", ["ok", "new"])]
    make(admin, "DROP TYPE gone CASCADE", "INSERT INTO moods VALUES (3, 'ok', '{}', now())")
    follower.followed = follow(connector, "moods")
    assert [(row["m"], row["ms"]) for row in follower.poll()] == [("ok", [])]


def test_composites_domains_and_hstores_are_what_they_are_made_of(
    admin: Connection, connector: PostgresConnector
) -> None:
    make(
        admin,
        "CREATE SCHEMA ext",
        "CREATE EXTENSION hstore SCHEMA ext",
        "CREATE TYPE hstore AS (n int)",
        "CREATE DOMAIN price AS numeric(10, 2)",
        "CREATE DOMAIN prices AS price[]",
        "CREATE TYPE item AS (what text, price price, more prices)",
        "ALTER TYPE item ADD ATTRIBUTE dropped int, ADD ATTRIBUTE h ext.hstore",
        "ALTER TYPE item DROP ATTRIBUTE dropped",
        "CREATE DOMAIN good_item AS item",
        f"CREATE TABLE made (id int PRIMARY KEY, l good_item, ls item[], p prices, h ext.hstore, own hstore, b box[],"
        f"{STAMP})",
        """INSERT INTO made VALUES (1, '("a, b",1.5,"{1,NULL}","k=>v")', ARRAY['(,,,)'::item, NULL], '{2.50}',
          'a=>NULL', '(7)', '{(3,4),(1,2);(1,1),(0,0)}')""",
    )
    followed = follow(connector, "made")
    price, text = pa.decimal128(10, 2), pa.string()
    line = pa.struct([("what", text), ("price", price), ("more", pa.list_(price)), ("h", pa.map_(text, text))])
    assert types_of(followed) | {"id": None, "updated_at": None} == {
        "id": None,
        "l": line,
        "ls": pa.list_(line),
        "p": pa.list_(price),
        "h": pa.map_(text, text),
        "own": pa.struct([("n", pa.int32())]),
        "b": pa.list_(text),
        "updated_at": None,
    }
    rows = read(connector, followed)
    (row,) = rows.to_pylist()
    assert row["l"] == {"what": "a, b", "price": Decimal("1.50"), "more": [Decimal(1), None], "h": [("k", "v")]}
    assert row["ls"] == [{"what": None, "price": None, "more": None, "h": None}, None]
    assert (row["h"], row["own"], row["b"]) == ([("a", None)], {"n": 7}, ["(3,4),(1,2)", "(1,1),(0,0)"])
    (plain,) = codec.rows(rows, ["l", "p"])
    assert repr(plain) == "({'what': 'a, b', 'price': '1.50', 'more': ['1.00', None], 'h': [('k', 'v')]}, ['2.50'])"
    (shown,) = objects(rows.select(["l", "h"]))
    assert shown == {
        "l": {"what": "a, b", "price": "1.50", "more": ["1.00", None], "h": {"k": "v"}},
        "h": {"a": None},
    }


def test_nested_values_tell_a_changed_row_from_one_that_was_delivered(
    admin: Connection, connector: PostgresConnector, tmp_path: Path
) -> None:
    """A view has no row versions: its rows are told apart by their content."""
    make(
        admin,
        "CREATE TYPE pair AS (n numeric(9, 2), at timestamptz)",
        f"CREATE TABLE base (id int PRIMARY KEY, a int[], p pair, ps pair[], {STAMP})",
        "CREATE VIEW seen AS SELECT * FROM base",
        "INSERT INTO base VALUES (1, '{1,2}', '(1.5,2024-05-01)', '{}', now()), (2, NULL, NULL, NULL, now())",
    )
    follower = Follower(connector, follow(connector, "seen", primary_key=["id"]), tmp_path)
    assert len(follower.poll()) == 2
    assert follower.poll() == []
    admin.execute("UPDATE base SET ps = ARRAY['(1.5,2024-05-01 00:00:00.000001)'::pair] WHERE id = 1")
    assert [row["id"] for row in follower.poll()] == [1]
    assert follower.poll() == []


def test_json_that_is_to_be_a_variant_is_text_in_the_log_and_marked(
    admin: Connection, connector: PostgresConnector, tmp_path: Path
) -> None:
    make(admin, *LEDGER)
    follower = Follower(connector, follow(connector, "ledger", json="variant"), tmp_path)
    assert [row["doc"] for row in follower.poll()] == ['{"k": 9007199254740993}']
    schema = follower.log.schema()
    assert schema is not None
    for found in (schema, change_schema(follower.followed)):
        assert found.field("doc").metadata == {b"sidecar": b"variant"}
        assert found.field("note").metadata is None
