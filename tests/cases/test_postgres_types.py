# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Types that others lose: in the log, in a Parquet sink, and in Spark."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import sidecar
from sidecar.clock import SystemClock
from tests.cases.harness import Project
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = """\
CREATE TABLE ledger (id int PRIMARY KEY, amount numeric, fee numeric(20,10), created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO ledger VALUES
 (1, 123456789012345678901234567890.123456789, 0.0000000001, '2024-05-01 10:00+00','2024-05-01 10:00+00'),
 (2, 0.1, 1.5, '2024-05-01 10:01+00','2024-05-01 10:01+00'),
 (3, 'NaN', 'NaN', '2024-05-01 10:02+00','2024-05-01 10:02+00'),
 (4, 1e-20, NULL, '2024-05-01 10:03+00','2024-05-01 10:03+00');
"""

ZOO = """\
CREATE TYPE mood AS ENUM ('ok', 'bad');
CREATE TABLE zoo (id int PRIMARY KEY, u uuid, us uuid[], ts text[], ns numeric[], j json, jb jsonb, iv interval, m mood, b bytea, tt timetz, ip inet, mo money, r int4range,
  d date, t timestamp, f float8, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
CREATE TABLE plain (id int PRIMARY KEY, v text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO zoo VALUES (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}', '{"a,b","c\\"d",NULL}', '{1.5,NULL}', '{"k": 9007199254740993}', '{"k": 9007199254740993}',
  '1 mon 2 days 03:04:05.000006', 'ok', '\\x00ff27', '10:00:00+02', '192.168.0.1/24', '12.34', '[1,5)', '2024-05-01', '2024-05-01 10:00:00.000001', 'NaN', '2024-05-01 10:00+00','2024-05-01 10:00+00'),
 (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '0044-03-15 BC', '15000-12-31 23:40:28', '-Infinity', '2024-05-01 10:01+00','2024-05-01 10:01+00'),
 (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'infinity', '-infinity', 0, '2024-05-01 10:02+00','2024-05-01 10:02+00');
INSERT INTO plain VALUES (1, 'must arrive', '2024-05-01 10:00+00','2024-05-01 10:00+00');
"""

LAKE = {"lake": {"format": "parquet", "path": "lake"}}


def run(project: Project, spark: SparkSession) -> int:
    """Poll, and write to the sinks; return the exit code."""
    with sidecar.open(project.path) as sc:
        return sc.run(spark, once=True)


def lake(project: Project, spark: SparkSession, table: str) -> list[dict[str, Any]]:
    """Return what the Parquet sink holds of *table*, by id."""
    frame = spark.read.parquet(str(project.folder / "lake" / table)).orderBy("id")
    return [row.asDict(recursive=True) for row in frame.collect()]


AMOUNTS = ["123456789012345678901234567890.123456789", "0.1", "NaN", "0.00000000000000000001", "0.000001"]


def test_amounts_of_any_number_of_digits_are_read_back_exactly(
    tmp_path: Path, pg: Database, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-45"""
    s1 = pg.connect()
    s1.execute(LEDGER)
    project = Project(tmp_path, pg.reader_url, {"ledger": {"infinity": {"fee": "null"}}}, sinks=LAKE)
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert run(project, spark) == 0
    assert '"ledger": column "fee" holds 1 value on' in caplog.text
    assert "(first key: id=3)" in caplog.text
    s1.execute("INSERT INTO ledger VALUES (5, 0.000001, 2.25, '2024-05-01 10:04+00','2024-05-01 10:04+00')")
    assert run(project, spark) == 0
    found = lake(project, spark, "ledger")
    assert [row["amount"] for row in found] == AMOUNTS
    assert [row["fee"] for row in found] == [Decimal("1e-10"), Decimal("1.5"), None, None, Decimal("2.25")]


def test_a_number_that_no_decimal_holds_is_named_until_the_settings_say_what_it_is(
    tmp_path: Path, pg: Database
) -> None:
    """RC-45"""
    pg.connect().execute(LEDGER)
    asked = {"numeric": "decimal(38,9)", "infinity": {"fee": "null", "amount": "null"}}
    project = Project(tmp_path, pg.reader_url, {"ledger": asked})
    said = project.cli("run", "--once")
    assert said.code != 0
    assert 'column "amount" (numeric) holds 123456789012345678901234567890.123456789' in said.err
    assert "(key: id=1)" in said.err
    project.tables = {"ledger": {"infinity": "keep as string"}}
    project.write()
    assert [row["fee"] for row in project.poll()["ledger"]] == ["0.0000000001", "1.5000000000", "NaN", None]


def test_every_column_of_the_zoo_arrives_or_is_named_and_the_plain_table_beside_it_always(
    tmp_path: Path, pg: Database, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-46"""
    pg.connect().execute(ZOO)
    project = Project(tmp_path, pg.reader_url, {"zoo": {}, "plain": {}}, sinks=LAKE)
    said = project.cli("run", "--once")
    assert 'table "zoo": column "d" (date) holds 2 times' in said.err
    assert "(key: id=2)" in said.err
    assert [row["v"] for row in project.rows("plain")] == ["must arrive"]
    assert project.rows("zoo") == []
    project.tables = {"zoo": {"infinity": {"d": "keep as string", "t": "null"}}, "plain": {}}
    project.write()
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert run(project, spark) == 0
    assert '"zoo": column "t" holds 2 times' in caplog.text
    found = lake(project, spark, "zoo")
    assert {k: v for k, v in found[0].items() if k not in ("created_at", "updated_at", "f") and k[0] != "_"} == {
        "id": 1,
        "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "us": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None],
        "ts": ["a,b", 'c"d', None],
        "ns": ["1.5", None],
        "j": '{"k": 9007199254740993}',
        "jb": '{"k": 9007199254740993}',
        "iv": "1 mon 2 days 03:04:05.000006",
        "m": "ok",
        "b": b"\x00\xff\x27",
        "tt": "10:00:00+02",
        "ip": "192.168.0.1/24",
        "mo": "$12.34",
        "r": "[1,5)",
        "d": "2024-05-01",
        "t": datetime(2024, 5, 1, 10, 0, 0, 1),  # noqa: DTZ001  zone-less, as the column is
    }
    assert [str(row["f"]) for row in found] == ["nan", "-inf", "0.0"]
    assert [row["d"] for row in found] == ["2024-05-01", "0044-03-15 BC", "infinity"]
    assert [row["t"] for row in found[1:]] == [None, None]
    assert [row["v"] for row in lake(project, spark, "plain")] == ["must arrive"]


NESTED = (
    "CREATE EXTENSION hstore",
    "CREATE TYPE item AS (what text, price numeric(9, 2), at timestamptz)",
    """CREATE TABLE carts (id int PRIMARY KEY, items item[], tags hstore, grid int[][], days date[], doc jsonb,
      updated_at timestamptz NOT NULL DEFAULT '2024-05-01 10:00+00')""",
    """INSERT INTO carts VALUES (1, ARRAY[ROW('a "b"', 1.5, '2024-05-01 10:00:00.000001+00')::item, NULL], 'a=>1, b=>NULL',
      '{{1,2},{3,NULL}}', '{2024-05-01}', '{"n": 12345678901234567890.5}'), (2, NULL, NULL, NULL, NULL, NULL)""",
)


def test_lists_structs_maps_and_variants_are_spark_s_own(tmp_path: Path, pg: Database, spark: SparkSession) -> None:
    make(pg.connect(), *NESTED)
    project = Project(tmp_path, pg.reader_url, {"carts": {"json": "variant"}}, sinks=LAKE)
    assert run(project, spark) == 0
    frame = spark.read.parquet(str(tmp_path / "lake" / "carts"))
    types = dict(frame.dtypes)
    assert types["items"] == "array<struct<what:string,price:decimal(9,2),at:timestamp>>"
    assert (types["tags"], types["grid"], types["days"]) == ("map<string,string>", "array<array<int>>", "array<date>")
    assert types["doc"] == "variant"
    one, two = lake(project, spark, "carts")
    assert one["tags"] == {"a": "1", "b": None}
    assert (one["grid"], one["days"]) == ([[1, 2], [3, None]], [date(2024, 5, 1)])
    assert [i and (i["what"], i["price"]) for i in one["items"]] == [('a "b"', Decimal("1.50")), None]
    assert [two[name] for name in ("items", "tags", "grid", "days", "doc")] == [None] * 5
    (number,) = frame.selectExpr("variant_get(doc, '$.n', 'decimal(21,1)') AS n").where("n IS NOT NULL").collect()
    assert number["n"] == Decimal("12345678901234567890.5")
    said = project.cli("changes", "carts", "--format", "jsonl")
    assert said.code == 0, said.err
    assert '"tags":{"a":"1","b":null},"grid":[[1,2],[3,null]]' in said.out
    assert '"price":"1.50","at":"2024-05-01T10:00:00.000001Z"' in said.out
    assert project.cli("changes", "carts", "--format", "table").code == 0


def test_a_sink_whose_format_holds_no_lists_says_which_column(
    tmp_path: Path, pg: Database, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    make(pg.connect(), *NESTED)
    project = Project(tmp_path, pg.reader_url, {"carts": {}}, sinks={"sheet": {"format": "csv", "path": "sheet"}})
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert run(project, spark) == 6
    assert 'sink "sheet", table "carts", offsets 1 to 1' in caplog.text
    assert "CSV datasource doesn't support the column `items` of the type" in caplog.text
    assert len(project.rows("carts")) == 2


STAMPS = [
    "0001-01-01 00:00:00",
    "1883-11-18 17:00:00.000001",
    "1969-12-31 23:59:59.999999",
    "2024-03-31 01:30:00.000001",
    "2024-10-27 01:30:00.123456",
    "9999-12-31 23:59:59.999999",
]


@pytest.fixture(params=["America/St_Johns", "Pacific/Kiritimati"])
def elsewhere(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """A zone that this process, and Spark's session, are in."""
    import time

    before, spark_before = os.environ.get("TZ"), str(spark.conf.get("spark.sql.session.timeZone"))
    os.environ["TZ"] = request.param
    time.tzset()
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kathmandu")
    try:
        yield request.param
    finally:
        spark.conf.set("spark.sql.session.timeZone", spark_before)
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def test_times_are_exact_whatever_zone_anyone_is_in(
    tmp_path: Path, pg: Database, spark: SparkSession, elsewhere: str
) -> None:
    s1 = pg.connect()
    s1.execute(f"ALTER ROLE {pg.reader} SET TimeZone = '{elsewhere}'")
    make(
        s1,
        "CREATE TABLE times (id int PRIMARY KEY, at timestamptz, reading timestamp, ats timestamptz[],"
        " updated_at timestamptz NOT NULL DEFAULT now())",
        "SET TimeZone = 'UTC'",
    )
    for n, text in enumerate(STAMPS):
        s1.execute("INSERT INTO times VALUES (%s, %s, %s, ARRAY[%s::timestamptz])", (n, text, text, text))
    project = Project(tmp_path, pg.reader_url, {"times": {}})
    project.poll(clock=SystemClock())
    with sidecar.open(project.path) as sc:
        frame = sc.dataframe(spark, "times")
        types = dict(frame.dtypes)
        assert (types["at"], types["reading"], types["ats"]) == ("timestamp", "timestamp_ntz", "array<timestamp>")
        rows = frame.selectExpr(
            "unix_micros(at) AS at", "CAST(reading AS string) AS reading", "unix_micros(ats[0]) AS ats", "id"
        )
        found = [tuple(row) for row in rows.orderBy("id").collect()]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    micros = [(datetime.fromisoformat(s).replace(tzinfo=UTC) - epoch) // timedelta(microseconds=1) for s in STAMPS]
    assert found == [(m, s, m, n) for n, (m, s) in enumerate(zip(micros, STAMPS, strict=True))]


def test_a_number_of_more_digits_than_a_decimal_has_is_an_error_and_no_other_number(
    tmp_path: Path, pg: Database
) -> None:
    s1 = pg.connect()
    s1.execute("CREATE TABLE n (id int PRIMARY KEY, n numeric, created_at timestamptz, updated_at timestamptz)")
    s1.execute("INSERT INTO n VALUES (1, 12345678901234567890123456789012345.1234567890, now(), now())")
    project = Project(tmp_path, pg.reader_url, {"n": {"numeric": "decimal(38,10)"}})
    said = project.cli("run", "--once")
    assert said.code != 0
    assert 'column "n" (numeric) holds 12345678901234567890123456789012345.1234567890' in said.err
    s1.execute("UPDATE n SET n = 0.1000000000000000000000000000000000000000, updated_at = now()")
    assert [row["n"] for row in project.poll()["n"]] == [Decimal("0.1")]
