"""Any value of any type arrives exactly, by both readers, and through the log in Spark.

What the server says of its values is asked in another session, as text for what arrives as text, and as JSON for the
rest: the server takes its arrays and composites apart, and not the parser that is under test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar import codec
from sidecar.connector import Source
from sidecar.feed import dataframe
from sidecar.model import Page
from sidecar.testing.contract import Follower, tracked
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connection = psycopg.Connection[tuple[Any, ...]]
Values = st.SearchStrategy[Any]

QUICK = settings(
    max_examples=1_500 if os.environ.get("SIDECAR_SOAK") else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

letters = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
texts = st.text(letters, max_size=8) | st.text('"\\{}(),=> \n\r\t;NULnul\xa0é', max_size=8) | st.just("NULL")
micros = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999) | st.sampled_from([-1, 0, 1])


def whole(bits: int, least: int | None = None) -> Values:
    low = -(2 ** (bits - 1)) if least is None else least
    high = 2 ** (bits - 1) - 1 if least is None else 2**bits - 1
    return (st.integers(low, high) | st.sampled_from([low, high])).map(str)


def stamp(zone: str) -> Values:
    return st.datetimes().map(lambda d: d.isoformat(" ") + zone)


def numbers(places: int | None, digits: int) -> Values:
    """Texts of exact numbers, with *places* decimals; with any number of them for None."""
    scale = st.integers(-20, 40) if places is None else st.just(places)
    return st.builds(_number, st.integers(-(10**digits) + 1, 10**digits - 1), scale)


def _number(digits: int, scale: int) -> str:
    # Python's Decimal would round to 28 digits.
    text = str(abs(digits)).zfill(scale + 1) if scale > 0 else str(abs(digits)) + "0" * -scale
    point = len(text) - max(scale, 0)
    return f"{'-' if digits < 0 else ''}{text[:point]}.{text[point:]}"


reals = st.floats(allow_nan=True, allow_infinity=True).map(repr)
singles = st.floats(width=32, allow_nan=True, allow_infinity=True).map(repr)
days = st.dates().map(str)
bytes_ = st.binary(max_size=6).map(lambda b: "\\x" + b.hex())
intervals = st.builds("{} mons {} days {} microseconds".format, *[st.integers(-(10**k), 10**k) for k in (4, 5, 12)])
addresses = st.ip_addresses().map(str)
bits = st.text("01", min_size=5, max_size=5)
moods = st.sampled_from(["ok", "b'ad", "NULL", "a,b", '"'])
objects = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).map(json.dumps)
spans = st.tuples(st.integers(-5, 5), st.integers(0, 9)).map(lambda p: f"[{p[0]},{p[0] + p[1]})")


def lists(inner: Values) -> Values:
    return st.lists(st.none() | inner, max_size=4)


def grids(inner: Values) -> Values:
    """Lists of lists of one length, or nothing."""

    def grid(shape: tuple[int, int]) -> Values:
        return st.lists(
            st.lists(st.none() | inner, min_size=shape[1], max_size=shape[1]), min_size=1, max_size=shape[0]
        )

    return st.just([]) | st.tuples(st.integers(1, 3), st.integers(1, 3)).flatmap(grid)


@dataclass(frozen=True)
class Type:
    """A column's type, the values it is given, and how they are written and told in SQL."""

    sql: str
    values: Values
    write: str = "%s::text::{}"
    tell: str = "to_json({})"


PAIR = st.tuples(st.none() | whole(32), st.none() | texts, st.none() | moods, st.none() | numbers(2, 8))
LIST = "%s::text[]::{}"
TEXT = "to_json({}::text)"

TYPES: Mapping[str, Type] = {
    "bo": Type("bool", st.sampled_from(["t", "f"])),
    "i2": Type("int2", whole(16)),
    "i8": Type("int8", whole(64)),
    "oi": Type("oid", whole(32, 0), tell="to_json({}::int8)"),
    "f4": Type("float4", singles),
    "f8": Type("float8", reals),
    "nu": Type("numeric", numbers(None, 60) | st.sampled_from(["NaN", "Infinity", "-Infinity"]), tell=TEXT),
    "n2": Type("numeric(12, 2)", numbers(2, 12)),
    "nx": Type("numeric(38, 38)", numbers(38, 38)),
    "te": Type("text", texts),
    "ch": Type("char(8)", texts.map(lambda t: t[:8])),
    "ba": Type("bytea", bytes_, tell="to_json(encode({}, 'hex'))"),
    "da": Type("date", days),
    "ts": Type("timestamp", stamp("")),
    "tz": Type("timestamptz", stamp("+00") | stamp("+13:59")),
    "ti": Type("time", st.times().map(str) | st.just("24:00"), tell=TEXT),
    "tt": Type("timetz", st.times().map(lambda t: f"{t}-11:30"), tell=TEXT),
    "iv": Type("interval", intervals, tell=TEXT),
    "uu": Type("uuid", st.uuids().map(str), tell=TEXT),
    "en": Type("mood", moods, tell=TEXT),
    "ip": Type("inet", addresses, tell=TEXT),
    "vb": Type("varbit", st.text("01", max_size=9), tell=TEXT),
    "mo": Type("money", numbers(2, 12), tell=TEXT),
    "js": Type("json", objects, tell=TEXT),
    "jb": Type("jsonb", objects.filter(lambda t: "\\u0000" not in t), tell=TEXT),
    "ra": Type("int4range", spans, tell=TEXT),
    "mr": Type("int4multirange", st.lists(spans, max_size=3).map(lambda s: "{" + ",".join(s) + "}"), tell=TEXT),
    "tv": Type("tsvector", texts, write="array_to_tsvector(ARRAY[%s::text || '.'])::{}", tell=TEXT),
    "la_i": Type("int4[]", lists(whole(32)), LIST),
    "la_t": Type("text[]", lists(texts), LIST),
    "la_c": Type("char(4)[]", lists(texts.map(lambda t: t[:4])), LIST),
    "la_n": Type("numeric(20,10)[]", lists(numbers(10, 20)), LIST),
    "la_u": Type("numeric[]", lists(numbers(None, 30)), LIST, tell="to_json({}::text[])"),
    "la_f": Type("float8[]", lists(reals), LIST),
    "la_z": Type("timestamptz[]", lists(stamp("+00")), LIST),
    "la_s": Type("timestamp[]", lists(stamp("")), LIST),
    "la_d": Type("date[]", lists(days), LIST),
    "la_b": Type("bool[]", lists(st.sampled_from(["t", "f"])), LIST),
    "la_y": Type("bytea[]", lists(bytes_), LIST),
    "la_j": Type("jsonb[]", lists(objects.filter(lambda t: "\\u0000" not in t)), LIST, tell="to_json({}::text[])"),
    "la_e": Type("mood[]", lists(moods), LIST),
    "la_r": Type("int4range[]", lists(spans), LIST),
    "la_o": Type("codes[]", lists(texts.map(lambda t: t[:4])), LIST),
    "gr_i": Type("int8[][]", grids(whole(64)), LIST),
    "gr_t": Type("text[][]", grids(texts), LIST),
    "gr_d": Type("board", grids(numbers(2, 8)), LIST),
    "co": Type("pair", PAIR, "ROW(%s::text::int, %s::text, %s::text::mood, %s::text::numeric(9, 2))::{}"),
    "deep": Type(
        "deep",
        st.tuples(lists(texts), *[st.none() | whole(32), st.none() | texts] * 2, lists(stamp("+00"))),
        "ROW(%s::text[], ARRAY[ROW(%s::text::int, %s::text, NULL, NULL)::pair,"
        " ROW(%s::text::int, %s::text, 'ok', 1.5)::pair, NULL], %s::text[]::timestamptz[])::{}",
    ),
    "hs": Type("hstore", st.dictionaries(texts, st.none() | texts, max_size=3), "hstore(%s::text[], %s::text[])"),
}

SETUP = (
    "CREATE EXTENSION IF NOT EXISTS hstore",
    """CREATE TYPE mood AS ENUM ('ok', 'b''ad', 'NULL', 'a,b', '"')""",
    "CREATE DOMAIN codes AS varchar(4)",
    "CREATE DOMAIN board AS numeric(9, 2)[][]",
    'CREATE TYPE pair AS (x int, "y z" text, m mood, n numeric(9, 2))',
    "CREATE TYPE deep AS (t text[], p pair[], z timestamptz[])",
    f"CREATE TABLE zoo (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now(), "
    f"{', '.join(f'{name} {type_.sql}' for name, type_ in TYPES.items())})",
)

rows = st.lists(
    st.fixed_dictionaries({}, optional={name: type_.values for name, type_ in TYPES.items()}), min_size=1, max_size=4
)


def insert(admin: Connection, found: list[dict[str, Any]]) -> None:
    admin.execute("TRUNCATE zoo")
    for key, row in enumerate(found, 1):
        names = ["id", *row]
        written = ["%s", *(TYPES[name].write.format(TYPES[name].sql) for name in row)]
        values: list[Any] = [key]
        for value in row.values():
            if isinstance(value, dict):
                values += [list(value), list(value.values())]
            else:
                values += value if isinstance(value, tuple) else [value]
        admin.execute(f"INSERT INTO zoo ({', '.join(names)}) VALUES ({', '.join(written)})".encode(), values)


def told(admin: Connection) -> list[dict[str, Any]]:
    """Return what the server says of its values: JSON, with numbers as they are written."""
    listed = ", ".join(f"({type_.tell.format(name)})::text" for name, type_ in TYPES.items())
    found = admin.execute(f"SELECT {listed} FROM zoo ORDER BY id".encode()).fetchall()
    return [
        {
            name: None if value is None else json.loads(value, parse_int=Decimal, parse_float=Decimal)
            for name, value in zip(TYPES, row, strict=True)
        }
        for row in found
    ]


def alike(ours: Any, theirs: Any, type_: pa.DataType) -> bool:
    """Return whether a value of Arrow's is what the server says it is."""
    if ours is None or theirs is None:
        return ours is theirs
    for test, compare in COMPARED.items():
        if test(type_):
            return compare(ours, theirs, type_)
    return bool(ours == theirs)


def _floats(ours: float, theirs: Any, type_: pa.DataType) -> bool:
    exact = np.float32(str(theirs)) if pa.types.is_float32(type_) else np.float64(str(theirs))
    return repr(float(exact)) == repr(ours)


COMPARED: Mapping[Callable[[pa.DataType], bool], Callable[[Any, Any, pa.DataType], bool]] = {
    pa.types.is_map: lambda a, b, _: dict(a) == b and len(a) == len(b),
    pa.types.is_list: lambda a, b, t: (
        len(a) == len(b) and all(alike(x, y, t.value_type) for x, y in zip(a, b, strict=True))
    ),
    pa.types.is_struct: lambda a, b, t: list(a) == list(b) and all(alike(a[f.name], b[f.name], f.type) for f in t),
    pa.types.is_floating: _floats,
    pa.types.is_timestamp: lambda a, b, _: a == datetime.fromisoformat(b),
    pa.types.is_date: lambda a, b, _: a == date.fromisoformat(b),
    pa.types.is_binary: lambda a, b, _: a.hex() == b.removeprefix("\\x"),
}


def differences(data: pa.Table, admin: Connection) -> list[str]:
    expected = told(admin)
    assert len(data) == len(expected)
    found = []
    for name in TYPES:
        type_ = data.schema.field(name).type
        for ours, row in zip(data.column(name).to_pylist(), expected, strict=True):
            if not alike(ours, row[name], type_):
                found.append(f"{name}: {ours!r} is not {row[name]!r}")
    return found


@pytest.fixture
def admin(pg: Database) -> Connection:
    connection = pg.connect()
    connection.execute("SET TimeZone = 'UTC'")
    make(connection, *SETUP)
    return connection


def test_any_value_of_any_type_arrives_exactly_by_both_readers(admin: Connection, pg: Database) -> None:
    connector = PostgresConnector(Source(pg.reader_url))
    followed = tracked(connector, "zoo")

    @QUICK
    @given(rows)
    def holds(some: list[dict[str, Any]]) -> None:
        insert(admin, some)
        page = Page(followed, followed.passes[0], {}, None, 100)
        with connector._session.snapshot() as view:
            statements = Statements(page, view.xmax)
            by_copy, by_connectorx = connector._reader.page(statements), connector._reader.bulk(statements)
        assert by_connectorx is not None, "connectorx gave up"
        assert by_copy.schema == by_connectorx.schema
        for data in (by_copy.sort_by("id"), by_connectorx.sort_by("id")):
            assert differences(data, admin) == []

    holds()
    connector.close()


def test_any_value_of_any_type_arrives_exactly_in_spark(
    admin: Connection, pg: Database, spark: SparkSession, tmp_path: Path
) -> None:
    connector = PostgresConnector(Source(pg.reader_url))
    count = 0

    @settings(QUICK, max_examples=2)
    @given(st.lists(st.fixed_dictionaries({name: t.values for name, t in TYPES.items()}), min_size=3, max_size=9))
    def holds(some: list[dict[str, Any]]) -> None:
        nonlocal count
        count += 1
        insert(admin, some)
        follower = Follower(connector, tracked(connector, "zoo"), tmp_path / str(count))
        follower.poll()
        frame = dataframe(spark, follower.log).orderBy("id")
        seen = frame.toArrow()
        kept = follower.log.get(1)
        assert kept is not None
        assert differences(kept.sort_by("id"), admin) == []
        for name in TYPES:
            both = [repr(codec.plain(data.column(name))) for data in (kept.sort_by("id"), seen)]
            assert both[0] == both[1], name
        plainest = [n for n in TYPES if n.startswith(("la_t", "gr", "co", "hs", "te", "n2", "la_n"))]
        collected = [row.asDict(recursive=True) for row in frame.collect()]
        for name in plainest:
            expected = kept.sort_by("id").column(name).to_pylist(maps_as_pydicts="strict")
            assert [row[name] for row in collected] == expected, name

    holds()
    connector.close()
