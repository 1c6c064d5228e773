"""`spark.read.format("sidecar")` gives what the feed gives."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType, VariantType

import sidecar
from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError
from sidecar.lake.datasource import SidecarDataSource
from sidecar.lake.log_reader import tasks
from sidecar.model import VARIANT
from tests.integration.logs import append, ids, log_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def known(spark: SparkSession) -> SparkSession:
    sidecar.register(spark)
    return spark


def read(spark: SparkSession, state: Path, **options: object) -> DataFrame:
    found = spark.read.format("sidecar").option("path", str(state)).option("table", "t")
    for name, value in options.items():
        found = found.option(name, str(value))
    return found.load()


def rows(frame: DataFrame) -> list[Any]:
    """The rows in log order; VARIANTs as text."""
    columns = []
    for field in frame.schema:
        column = functions.col("`" + field.name.replace("`", "``") + "`")
        columns.append(functions.to_json(column) if isinstance(field.dataType, VariantType) else column)
    return sorted(frame.select(*columns).collect(), key=lambda r: (r["_commit_version"], repr(r)))


def assert_alike(spark: SparkSession, state: Path, since: int = 0, until: int | None = None) -> None:
    options = {"since": since} | ({} if until is None else {"until": until})
    found, expected = read(spark, state, **options), feed.dataframe(spark, log_in(state), since, until)
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)


EVERY = {
    "id": (pa.int64(), [1, 2]),
    "flag": (pa.bool_(), [True, None]),
    "tiny": (pa.int8(), [-128, None]),
    "small": (pa.int16(), [32767, None]),
    "int": (pa.int32(), [-(2**31), None]),
    "real": (pa.float32(), [1.5, None]),
    "double": (pa.float64(), [float("inf"), None]),
    "total": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), None]),
    "text": (pa.string(), ["größe 🙂", None]),
    "raw": (pa.binary(), [b"\0\xff", None]),
    "day": (pa.date32(), [dt.date(1, 1, 1), None]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 3, 31, 1, 30, 0, 123456, dt.UTC), None]),
    "local": (pa.timestamp("us"), [dt.datetime(2024, 3, 31, 2, 30, 0, 654321), None]),  # noqa: DTZ001
    "list": (pa.list_(pa.int32()), [[1, None], None]),
    "lists": (pa.list_(pa.list_(pa.timestamp("us", "UTC"))), [[[dt.datetime(2024, 1, 1, tzinfo=dt.UTC)], []], None]),
    "pair": (
        pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b c", pa.list_(pa.string()))]),
        [{"a": 1, "b c": ["x", None]}, None],
    ),
    "map": (pa.map_(pa.string(), pa.string()), [[("k", None), ("l", "v")], None]),
    "sp ace`d": (pa.string(), ["x", "y"]),
}


def test_every_type_comes_as_the_feed_gives_it(known: SparkSession, tmp_path: Path) -> None:
    fields = [pa.field(name, type_, nullable=name != "id") for name, (type_, _) in EVERY.items()]
    fields.append(pa.field("doc", pa.string(), metadata=VARIANT))
    doc = ['{"b": 1.50, "a": [1, null, "x", {}], "n": -0, "e": 1e2, "t": true, "long": 12345678901234567890}', None]
    arrays = [pa.array(values, type_) for type_, values in EVERY.values()]
    append(log_in(tmp_path), pa.table([*arrays, pa.array(doc)], schema=pa.schema(fields)))
    assert_alike(known, tmp_path)
    assert_alike(known, tmp_path, since=1)


def test_a_text_that_spark_does_not_take_for_a_variant_is_named_by_its_column(
    known: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("doc", pa.string(), metadata=VARIANT)])
    append(log_in(tmp_path), pa.table([pa.array(['{"a": 1, "a": "secret"}'])], schema=schema))
    with pytest.raises(PySparkException, match=r'column "doc" .* a key stands twice') as caught:
        read(known, tmp_path).collect()
    assert "secret" not in str(caught.value)


def several(state: Path) -> ChangeLog:
    """A log whose columns came, went, and grew, and then became others, from offset 5 on."""
    log = log_in(state)
    decimal = pa.array([Decimal("1.50")], pa.decimal128(5, 2))
    append(log, pa.table({"id": pa.array([1], pa.int32()), "gone": ["a"], "d": decimal}))
    append(
        log,
        pa.table({"id": pa.array([2], pa.int64()), "gone": ["b"], "d": decimal, "f": pa.array([0.1], pa.float32())}),
    )
    append(log, pa.table({"new": ["c"], "id": pa.array([3], pa.int64()), "d": decimal.cast(pa.decimal128(12, 4))}))
    append(log, pa.table({"new": ["d"], "id": pa.array([4], pa.int64()), "f": pa.array([0.1])}))
    append(log, pa.table({"new": pa.array([5], pa.int64()), "id": pa.array([5], pa.int64())}))
    append(log, pa.table({"new": pa.array([6], pa.int64()), "id": pa.array([6], pa.int64()), "more": ["x"]}))
    return log


@pytest.mark.parametrize(("since", "until"), [(0, 4), (1, 3), (4, None), (6, None)])
def test_a_range_has_the_columns_that_the_feed_gives_it(
    known: SparkSession, tmp_path: Path, since: int, until: int | None
) -> None:
    several(tmp_path)
    assert_alike(known, tmp_path, since, until)


def test_a_range_that_cannot_be_read_as_one_says_where_to_part_it(known: SparkSession, tmp_path: Path) -> None:
    several(tmp_path)
    with pytest.raises(PySparkException, match="Read them apart: until=4, and since=4"):
        read(known, tmp_path).collect()


def test_a_range_is_what_the_log_held_when_it_was_loaded(known: SparkSession, tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 2)
    frame = read(known, tmp_path)
    append(log, pa.table({"id": pa.array([9], pa.int64()), "more": ["x"]}))
    assert {r["_commit_version"] for r in frame.collect()} == {1, 2}


def test_what_retention_has_dropped_is_an_error_that_says_where_the_log_begins(
    known: SparkSession, tmp_path: Path
) -> None:
    log = ids(log_in(tmp_path), 5)
    metadata = log.metadata(5)
    assert metadata is not None
    log.drop(3, metadata.watermark, log.remembered(5))
    for until in ({}, {"until": 2}):
        with pytest.raises(PySparkException, match="gone by retention; the log begins at 4"):
            read(known, tmp_path, since=0, **until).collect()
    assert sorted({row["_commit_version"] for row in read(known, tmp_path).collect()}) == [4, 5]
    assert_alike(known, tmp_path, since=3)


def test_many_small_segments_make_few_tasks(known: SparkSession, tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 40)
    frame = read(known, tmp_path)
    assert frame.rdd.getNumPartitions() <= 2
    assert frame.count() == 120
    parts = [p.value for p in tasks([s.path for s in log.list()] * 10, cores=4)]
    assert [round(len(part), -1) for part in parts] == [100] * 4
    assert [path for part in parts for path in part] == [s.path for s in log.list()] * 10


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "t"}, r"option\(\"path\", …\) is missing"),
        ({"path": "{state}"}, "missing: with a log there are: shop.orders, t"),
        ({"path": "{state}", "table": "Orders"}, 'table "Orders" has no log in .*did you mean "shop.orders"'),
        ({"path": "{state}/log", "table": "t"}, "holds no change logs"),
        ({"path": "{state}", "table": "t", "sinc": "1"}, 'unknown option "sinc"; did you mean "since"'),
        ({"path": "{state}", "table": "t", "UNTIL": "-1"}, 'until="-1": a whole number from 0 on'),
        ({"path": "{state}", "table": "t", "consumer": "c"}, "consumer is an option of readStream"),
    ],
)
def test_options_that_make_no_sense_say_what_to_do(tmp_path: Path, options: dict[str, str], said: str) -> None:
    for table in ("t", "shop.orders"):
        ids(log_in(tmp_path, table), 1)
    source = SidecarDataSource(CaseInsensitiveDict({k: v.format(state=tmp_path) for k, v in options.items()}))
    with pytest.raises(SettingsError, match=said):
        source.reader(source.schema())


def test_columns_of_the_user_s_own_are_refused(tmp_path: Path) -> None:
    ids(log_in(tmp_path), 1)
    source = SidecarDataSource(CaseInsensitiveDict({"Path": str(tmp_path), "TABLE": "t"}))
    for make in (source.reader, source.streamReader):
        with pytest.raises(SettingsError, match=r"leave \.schema\(…\) out"):
            make(StructType())


def test_a_damaged_segment_is_named(known: SparkSession, tmp_path: Path) -> None:
    log = ids(log_in(tmp_path), 2, rows=2000)
    path = log.path(2)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 3] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(PySparkException, match=r"0002\.parquet: not a readable segment"):
        read(known, tmp_path).collect()


PLAIN = """
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate())
print("rows:", spark.read.format("sidecar").load({state!r}, table="t").count())
spark.stop()
"""


def test_a_plain_session_finds_it_without_being_told(tmp_path: Path) -> None:
    ids(log_in(tmp_path), 2)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/sidecar/discovery", "PYSPARK_PYTHON": sys.executable}
    code = PLAIN.format(state=str(tmp_path))
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "rows: 6" in ran.stdout, ran.stderr[-2000:]
