"""Changes in Debezium's form: a consumer that knows nothing but that form ends with the source's rows."""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import sidecar
from sidecar.errors import SettingsError
from tests.cases.harness import Project
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Event = tuple[dict[str, Any], dict[str, Any] | None]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STAMP = "2026-05-01 10:00:00.{:06d}+00"


def events(frame: DataFrame) -> list[Event]:
    """Return what a topic would hold, key by key in order."""
    return [(json.loads(row.key), row.value and json.loads(row.value)) for row in frame.collect()]


def consume(found: list[Event]) -> dict[Any, dict[str, Any]]:
    """Do what a consumer of Debezium's events does: keep the newest row of each key."""
    rows: dict[Any, dict[str, Any]] = {}
    for key, value in found:
        name = tuple(key.values())
        if value is None:
            assert name not in rows, "a tombstone comes after its delete"
        elif value["op"] == "d":
            assert value["after"] is None
            rows.pop(name, None)
        else:
            assert value["before"] is None
            rows[name] = value["after"]
    return rows


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose log holds each kind of change, over several segments; nobody writes to it any more."""
    folder = tmp_path_factory.mktemp("shop")
    source = sqlite3.connect(folder / "shop.db", isolation_level=None)
    source.execute(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, total REAL, photo BLOB,"
        " created_at TIMESTAMP, updated_at TIMESTAMP, deleted_at TIMESTAMP)"
    )

    def write(id_: int, status: str, created: int, updated: int, deleted: int | None = None) -> None:
        stamps = [None if at is None else STAMP.format(at) for at in (created, updated, deleted)]
        row = (id_, status, id_ / 3, bytes([id_, 255]), *stamps)
        source.execute("INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    write(1, "new", 1, 1)
    write(2, "new", 2, 2)
    write(3, "new", 3, 3)
    project = Project(folder, f"sqlite:///{folder / 'shop.db'}", {"orders": {}})
    project.poll()
    write(2, "paid", 2, 10)
    write(4, "new", 11, 11)
    project.poll()
    write(3, "gone", 3, 20, 20)
    write(2, "sent", 2, 21)
    source.close()
    project.poll()
    return project


def feed(spark: SparkSession, project: Project, table: str = "orders") -> DataFrame:
    with sidecar.open(project.path, read_only=True) as sc:
        return sc.dataframe(spark, table)


def test_a_consumer_of_the_events_ends_with_the_sources_rows(spark: SparkSession, shop: Project) -> None:
    found = events(sidecar.debezium_json(feed(spark, shop), keys=["id"], table="orders"))
    ops = {id_: [value["op"] if value else None for key, value in found if key == {"id": id_}] for id_ in (1, 2, 3, 4)}
    assert ops == {1: ["r"], 2: ["r", "u", "u"], 3: ["r", "d", None], 4: ["c"]}
    with contextlib.closing(sqlite3.connect(shop.folder / "shop.db")) as source:
        source.row_factory = sqlite3.Row
        rows = source.execute("SELECT * FROM orders WHERE deleted_at IS NULL").fetchall()
    expected = {(row["id"],): dict(row) for row in rows}
    got = consume(found)
    for row in got.values():
        row["photo"] = base64.b64decode(row["photo"])
        for stamp in ("created_at", "updated_at"):
            row[stamp] = str(datetime.fromisoformat(row[stamp])).removesuffix(":00")
    assert got == expected


def test_a_key_of_several_columns_is_one_key(spark: SparkSession, pg: Database, tmp_path: Path) -> None:
    admin: psycopg.Connection[tuple[Any, ...]] = pg.connect()
    make(
        admin,
        "CREATE TABLE lines (tenant int, no int, note text, updated_at timestamptz DEFAULT now(),"
        " created_at timestamptz DEFAULT now(), deleted_at timestamptz, PRIMARY KEY (tenant, no))",
        "INSERT INTO lines SELECT n % 2, n, 'before' FROM generate_series(1, 6) n",
    )
    project = Project(tmp_path / "project", pg.reader_url, {"lines": {}})
    project.poll()
    make(
        admin,
        "UPDATE lines SET note = 'changed', updated_at = clock_timestamp() WHERE no IN (1, 2)",
        "UPDATE lines SET deleted_at = clock_timestamp(), updated_at = clock_timestamp() WHERE no = 3",
        "INSERT INTO lines VALUES (1, 7, 'new')",
    )
    project.poll()
    found = events(sidecar.debezium_json(feed(spark, project, "lines"), keys=["no", "tenant"], table="public.lines"))
    assert {value["op"] for _, value in found if value} == {"r", "u", "d", "c"}
    rows = admin.execute("SELECT no, tenant, note FROM lines WHERE deleted_at IS NULL").fetchall()
    assert {key: row["note"] for key, row in consume(found).items()} == {(no, tenant): n for no, tenant, n in rows}


def test_the_envelope_is_debeziums(spark: SparkSession, shop: Project) -> None:
    found = sidecar.debezium(
        feed(spark, shop), keys=["id"], table="main.orders", source={"connector": "sqlite", "name": "shop", "db": "s"}
    )
    assert found.columns == ["key", "before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns"]
    rows = {(row.key.id, row.op): row for row in found.collect()}
    backfilled, updated, gone = rows[1, "r"], rows[2, "u"], rows[3, "d"]
    assert backfilled.before is None
    assert backfilled.after.photo == bytes([1, 255])
    assert backfilled.source.snapshot == "true"
    assert (updated.before, updated.source.snapshot) == (None, "false")
    assert (gone.after, gone.before.status, gone.before.id) == (None, "gone", 3)
    source = gone.source.asDict()
    assert {k: source[k] for k in ("connector", "name", "db", "schema", "table", "lsn", "sequence")} == {
        "connector": "sqlite",
        "name": "shop",
        "db": "s",
        "schema": "main",
        "table": "orders",
        "lsn": 3,
        "sequence": '[null,"3"]',
    }
    polled = {row._commit_version: row._commit_timestamp for row in feed(spark, shop).collect()}[3]
    assert datetime.fromtimestamp(gone.ts_us / 1e6, UTC).replace(tzinfo=None) == polled.replace(tzinfo=None)
    assert (gone.ts_ms, gone.ts_ns) == (gone.ts_us // 1000, gone.ts_us * 1000)
    assert (source["ts_ms"], source["ts_us"], source["ts_ns"]) == (gone.ts_ms, gone.ts_us, gone.ts_ns)


def test_without_keys_there_is_no_key_column(spark: SparkSession, shop: Project) -> None:
    found = sidecar.debezium(feed(spark, shop))
    assert found.columns[0] == "before"
    assert found.where("source.table IS NOT NULL").isEmpty()
    with pytest.raises(SettingsError, match="keys="):
        sidecar.debezium_json(feed(spark, shop), keys=[])
    with pytest.raises(SettingsError, match='did you mean "id"'):
        sidecar.debezium(feed(spark, shop), keys=["ID"])
    with pytest.raises(SettingsError, match=r'give a list, keys=\["id"\]'):
        sidecar.debezium(feed(spark, shop), keys="id")


def test_a_stream_takes_the_same_form(spark: SparkSession, shop: Project, tmp_path: Path) -> None:
    log = str(shop.folder / "state" / "log" / "orders")
    batch = feed(spark, shop)
    stream = spark.readStream.schema(batch.schema).parquet(log)
    found = sidecar.debezium_json(stream, keys=["id"])
    query = found.writeStream.format("memory").queryName("debezium").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    expected = sidecar.debezium_json(batch, keys=["id"])
    assert sorted(map(str, events(spark.table("debezium")))) == sorted(map(str, events(expected)))


def test_without_tombstones_a_delete_is_one_event(spark: SparkSession, shop: Project) -> None:
    found = events(sidecar.debezium_json(feed(spark, shop), keys=["id"], tombstones=False))
    assert all(value is not None for _, value in found)
    assert len(found) == feed(spark, shop).count()


def test_one_keys_events_are_in_order_however_the_log_is_read(spark: SparkSession, shop: Project) -> None:
    reversed_ = feed(spark, shop).orderBy("_commit_version", ascending=False)
    found = sidecar.debezium_json(reversed_, keys=["id"])
    order = [value["source"]["lsn"] for key, value in events(found) if key == {"id": 2} and value]
    assert order == sorted(order)
    assert len(order) == 3


@pytest.mark.parametrize("prefix", ["_", "sidecar_"])
def test_names_may_be_anything(spark: SparkSession, prefix: str) -> None:
    names = ["a.b", "a`b", 'q"q', "Price (EUR), net", "key", "op", "after", "change_type", "größe"]
    metadata = f"'insert' AS {prefix}change_type, 7L AS {prefix}commit_version, "
    metadata += f"timestamp'2026-05-01' AS {prefix}commit_timestamp, 'poll' AS {prefix}origin"
    columns = ", ".join(f"{at} AS `{name.replace('`', '``')}`" for at, name in enumerate(names))
    df = spark.sql(f"SELECT {metadata}, {columns}")
    [(key, value)] = events(sidecar.debezium_json(df, keys=["a`b", "key"]))
    assert key == {"a`b": 1, "key": 4}
    assert value is not None
    assert value["after"] == {name: at for at, name in enumerate(names)}


def test_a_dataframe_that_is_no_feed_is_an_error(spark: SparkSession, shop: Project) -> None:
    with pytest.raises(SettingsError, match="is no feed: it lacks _change_type, _commit_version"):
        sidecar.debezium(spark.range(1))
    with pytest.raises(SettingsError, match='unknown "tabel"; did you mean'):
        sidecar.debezium(feed(spark, shop), source={"tabel": "orders"})
    twice = feed(spark, shop).selectExpr("*", *(f"{m} AS x{m}" for m in feed(spark, shop).columns[:4]))
    with pytest.raises(SettingsError, match="prefix="):
        sidecar.debezium(twice)
    assert "x_change_type" in sidecar.debezium(twice, prefix="_").select("after.*").columns


TYPES: Mapping[str, tuple[str, Any]] = {
    # PostgreSQL's literal → what the page of Debezium's connector says of the type.
    "i8": ("bigint '-9223372036854775808'", -(2**63)),
    "flag": ("true", True),
    "num": ("numeric(20, 4) '1234567890123456.1000'", "1234567890123456.1000"),
    "tiny": ("numeric(12, 10) '0.0000000001'", "0.0000000001"),
    "anynum": ("numeric '1e-20'", "0.00000000000000000001"),
    "dbl": ("double precision '0.1'", 0.1),
    "nan": ("double precision 'NaN'", "NaN"),
    "inf": ("double precision '-Infinity'", "-Infinity"),
    # An hour that Berlin's clocks skip, and one that they show twice.
    "plain": ("timestamp '2024-03-31 02:30:00.000001'", 1711852200000001),
    "old": ("timestamp '0001-01-01 10:00:00'", -62135560800000000),
    "zoned": ("timestamptz '2024-10-27 01:30:00.0001+00'", "2024-10-27T01:30:00.0001Z"),
    "whole": ("timestamptz '2024-05-01 12:00:00+02'", "2024-05-01T10:00:00Z"),
    "day": ("date '1969-12-31'", -1),
    "bytes": (r"bytea '\x00ff27'", "AP8n"),
    "doc": ("""jsonb '{"k": 1.10}'""", '{"k": 1.10}'),
    "many": ("ARRAY[numeric '1.5', NULL]::numeric(9,2)[]", ["1.50", None]),
    "days": ("ARRAY[timestamptz '2024-05-01 10:00:00.1+00']", ["2024-05-01T10:00:00.1Z"]),
    "pair": ("ROW(date '1970-01-02', NULL)::pair", {"d": 1, "n": None}),
    "nothing": ("NULL::pair", None),
    "text": ("'größe\t\"'::text", 'größe\t"'),
}


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """A session whose clock skips an hour and shows another one twice."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.usefixtures("berlin")
def test_values_are_as_debezium_gives_them(spark: SparkSession, pg: Database, tmp_path: Path) -> None:
    admin: psycopg.Connection[tuple[Any, ...]] = pg.connect()
    make(admin, "CREATE TYPE pair AS (d date, n numeric(9, 2))")
    literals = ", ".join(f"{literal} AS {name}" for name, (literal, _) in TYPES.items())
    make(
        admin,
        f"CREATE TABLE t AS SELECT 1 AS id, {literals}, timestamptz '2026-05-01 10:00+00' AS updated_at",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
    )
    project = Project(tmp_path / "project", pg.reader_url, {"public.t": {}})
    project.poll()
    [(key, value)] = events(sidecar.debezium_json(feed(spark, project, "t"), keys=["id"], table="public.t"))
    assert (key, value and value["op"]) == ({"id": 1}, "r")
    assert value is not None
    assert {name: value["after"][name] for name in TYPES} == {name: form for name, (_, form) in TYPES.items()}
    assert EPOCH + timedelta(days=value["after"]["day"]) == datetime(1969, 12, 31, tzinfo=UTC)
    assert Decimal(value["after"]["anynum"]) == Decimal("1e-20")
    assert date(1970, 1, 1) + timedelta(days=value["after"]["pair"]["d"]) == date(1970, 1, 2)


def test_a_variant_is_text_again(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT 'insert' AS _change_type, 1L AS _commit_version, timestamp'2026-05-01' AS _commit_timestamp,"
        " 'poll' AS _origin, 1 AS id, parse_json('{\"k\": [1, null]}') AS v, map('a', 1.50BD, 'b', null) AS m"
    )
    [(_, value)] = events(sidecar.debezium_json(df, keys=["id"]))
    assert value is not None
    assert json.loads(value["after"]["v"]) == {"k": [1, None]}
    assert value["after"]["m"] == {"a": "1.50", "b": None}
