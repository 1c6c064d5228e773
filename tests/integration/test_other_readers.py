"""DuckDB and Polars read a log, and a Delta table beside it, as they are: types, values, and columns that changed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

import sidecar
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make

STAMP = dt.datetime(2026, 5, 1, 10, 0, 0, 1, tzinfo=dt.UTC)
BEFORE = """
    CREATE TABLE t (id int PRIMARY KEY, price numeric(9, 2), plain timestamp, day date, photo bytea, gone text,
        many int[], updated_at timestamptz, deleted_at timestamptz)
"""
FIRST = """
    INSERT INTO t SELECT n, n + 0.10, timestamp '2024-03-31 02:30:00.000001', date '0001-01-01', '\\x00ff', 'x',
        ARRAY[n, NULL], timestamptz '2026-05-01 10:00:00.000001+00' FROM generate_series(1, 4) n
"""
AFTER = (
    "ALTER TABLE t ALTER id TYPE bigint, ALTER price TYPE numeric(14, 4), DROP gone, ADD added double precision",
    "UPDATE t SET price = 12345678.1234, added = 'NaN', updated_at = now() WHERE id = 2",
    "UPDATE t SET deleted_at = now(), updated_at = now() WHERE id = 3",
    "INSERT INTO t (id, updated_at) VALUES (4294967296, now())",
)
TYPES = {
    "_change_type": pl.String,
    "_commit_version": pl.Int64,
    "_commit_timestamp": pl.Datetime("us", "UTC"),
    "_origin": pl.String,
    "id": pl.Int64,
    "price": pl.Decimal(14, 4),
    "plain": pl.Datetime("us"),
    "day": pl.Date,
    "photo": pl.Binary,
    "gone": pl.String,
    "updated_at": pl.Datetime("us", "UTC"),
    "deleted_at": pl.Datetime("us", "UTC"),
    "added": pl.Float64,
}
CURRENT = {1: Decimal("1.1000"), 2: Decimal("12345678.1234"), 4: Decimal("4.1000"), 4294967296: None}


@pytest.fixture
def log(pg: Database, tmp_path: Path) -> Path:
    """A log whose columns have come, gone and grown."""
    admin = pg.connect()
    make(admin, BEFORE, FIRST)
    project = Project(tmp_path / "project", pg.reader_url, {"t": {}})
    project.poll()
    make(admin, *AFTER)
    project.poll()
    folder = tmp_path / "project" / "state" / "log" / "t"
    # What may stand beside the segments.
    (folder / "_floor.json").write_text("{}")
    (folder / "_positions").mkdir(exist_ok=True)
    return folder


def test_duckdb_reads_the_log_by_name(log: Path) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    changes = connection.sql(f"SELECT * FROM read_parquet('{log}/*.parquet', union_by_name = true)")
    types = dict(zip(changes.columns, map(str, changes.types), strict=True))
    assert (types["id"], types["price"], types["many"]) == ("BIGINT", "DECIMAL(14,4)", "INTEGER[]")
    assert (types["plain"], types["updated_at"]) == ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
    found = connection.sql(
        "SELECT id, price FROM changes"
        " QUALIFY row_number() OVER (PARTITION BY id ORDER BY _commit_version DESC) = 1 AND _change_type <> 'delete'"
    ).fetchall()
    assert dict(found) == CURRENT
    first = changes.filter("id = 1 AND _commit_version = 1")
    [(plain, updated, day, photo)] = first.select("plain, updated_at, day, photo").fetchall()
    assert plain == dt.datetime(2024, 3, 31, 2, 30, 0, 1)  # noqa: DTZ001  it has none
    assert (updated.astimezone(dt.UTC), day, photo) == (STAMP, dt.date(1, 1, 1), b"\x00\xff")


def test_polars_reads_the_log_file_by_file(log: Path) -> None:
    files = [pl.scan_parquet(file) for file in sorted(log.glob("*.parquet"))]
    changes = pl.concat(files, how="diagonal_relaxed")
    schema = changes.collect_schema()
    assert {name: schema[name] for name in TYPES} == TYPES
    current = changes.sort("_commit_version").unique("id", keep="last").filter(pl.col("_change_type") != "delete")
    assert {row["id"]: row["price"] for row in current.collect().to_dicts()} == CURRENT
    [first] = changes.filter(id=1, _commit_version=1).collect().to_dicts()
    assert (first["updated_at"], first["day"], first["photo"]) == (STAMP, dt.date(1, 1, 1), b"\x00\xff")
    assert first["many"] == [1, None]


def read_by_all_columns(folder: Path) -> pa.Table:
    """Return what is in *folder*, as docs/spark.md has it read for pandas."""
    files = ds.dataset(sorted(map(str, folder.glob("*.parquet"))))
    columns = pa.unify_schemas([file.physical_schema for file in files.get_fragments()], promote_options="permissive")
    return ds.dataset(files.files, schema=columns).to_table()


def test_pandas_has_the_columns_that_were_added_and_grew_once_it_is_told_of_them(log: Path) -> None:
    table = read_by_all_columns(log)
    assert (table.schema.field("id").type, table.schema.field("price").type) == (pa.int64(), pa.decimal128(14, 4))
    changes = table.to_pandas()
    assert {"gone", "added"} <= set(changes.columns)
    newest = changes.sort_values("_commit_version").groupby("id").tail(1)
    current = newest[newest["_change_type"] != "delete"]
    assert dict(zip(current["id"], current["price"], strict=True)) == CURRENT


@pytest.mark.spark
def test_pandas_and_duckdb_have_the_columns_that_were_added_to_a_sinks_files(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession
) -> None:
    db = sqlite_db.connection
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    lake = tmp_path / "lake"
    project = Project(tmp_path, sqlite_db.url, {"t": {}}, sinks={"lake": {"format": "parquet", "path": str(lake)}})
    for change in (
        "INSERT INTO t VALUES (0, '2026-05-01T10:00:00Z')",
        "ALTER TABLE t ADD COLUMN note TEXT; INSERT INTO t VALUES (1, '2026-05-02T10:00:00Z', 'n')",
    ):
        db.executescript(change)
        with sidecar.open(project.path) as sc:
            assert sc.run(spark, once=True) == 0
    assert "note" not in pd.read_parquet(lake / "t").columns, "the reason for what docs/spark.md says"
    rows = read_by_all_columns(lake / "t").to_pandas()
    assert dict(zip(rows["id"], rows["note"], strict=True)) == {0: None, 1: "n"}
    found = duckdb.connect().sql(f"SELECT id, note FROM read_parquet('{lake}/t/*.parquet', union_by_name = true)")
    assert dict(found.fetchall()) == {0: None, 1: "n"}


def test_both_read_a_delta_table_without_an_extension(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    path = str(tmp_path / "lake" / "t")
    columns: dict[str, Any] = {
        "id": pa.array([1, 2, 3], pa.int64()),
        "price": pa.array([Decimal("1.10"), None, Decimal("3.30")], pa.decimal128(12, 2)),
        "updated_at": pa.array([STAMP] * 3, pa.timestamp("us", "UTC")),
    }
    write_deltalake(path, pa.table(columns))
    DeltaTable(path).delete("id = 3")
    lake = DeltaTable(path).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.register("lake", lake)
    expected = [(1, Decimal("1.10")), (2, None)]
    assert connection.sql("SELECT id, price FROM lake ORDER BY id").fetchall() == expected
    found = pl.read_delta(path)
    assert found.select("id", "price").sort("id").rows() == expected
    assert found["updated_at"].to_list() == [STAMP] * 2
