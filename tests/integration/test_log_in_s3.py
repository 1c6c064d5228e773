"""The whole way over a log in S3, its secret in the environment: source, log, sink, lost state, retention."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import sidecar
from sidecar.backfilling import turns
from sidecar.clock import SECOND, FakeClock, iso
from sidecar.log.storage import locate
from tests import stores
from tests.conftest import SQLiteFile
from tests.stores import KEY, SECRET, Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings(folder: Path, s3: Store, url: str, more: str = "") -> Path:
    path = folder / "sidecar.toml"
    path.write_text(
        f'[source]\nurl = "{url}"\n[state]\npath = "state"\n{more}{s3.settings}[tables.orders]\n'
        '[sinks.lake]\nformat = "parquet"\npath = "lake"\n'
        '[sinks.copy]\nformat = "delta"\nmode = "mirror"\npath = "copy"\n'
    )
    return path


def test_a_log_in_s3_goes_the_whole_way_to_a_sink_and_shows_no_secret(
    spark: SparkSession,
    sqlite_db: SQLiteFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    clock: FakeClock,
) -> None:
    monkeypatch.setenv("S3_KEY", KEY)
    monkeypatch.setenv("S3_SECRET", SECRET)
    write = sqlite_db.connection.execute
    write("CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, updated_at TEXT NOT NULL)")

    def change(total: float, *ids: int) -> None:
        for key in ids:
            write("INSERT OR REPLACE INTO orders VALUES (?, ?, ?)", (key, total, iso(clock.now())))

    caplog.set_level("DEBUG", "sidecar")
    with stores.store("whole-way") as s3:
        path = settings(tmp_path, s3, sqlite_db.url)

        def run() -> None:
            with sidecar.open(path, clock=clock) as sc:
                assert sc.run(spark, once=True) == 0
            clock.advance(600 * SECOND)

        change(1.0, *range(50))
        run()
        change(2.0, 1, 2, 3)
        run()
        with sidecar.open(path, clock=clock, read_only=True) as sc:
            told = sc.current(spark, "orders")
            assert (told.count(), told.where("total = 2.0").count()) == (50, 3)
        shutil.rmtree(tmp_path / "state" / "db")
        change(3.0, 3, 4)
        settings(tmp_path, s3, sqlite_db.url, 'retention = "5m"\n')
        run()
        run()
        lake = pq.read_table(tmp_path / "lake" / "orders").to_pylist()
        assert len(lake) == 55, "each change is in the sink, and once"
        newest = {row["id"]: row["total"] for row in sorted(lake, key=lambda row: row["_commit_version"])}
        assert newest == dict(write("SELECT id, total FROM orders").fetchall())

        copy = pa.table(DeltaTable(str(tmp_path / "copy" / "orders")).to_pyarrow_table()).to_pylist()
        assert {row["id"]: row["total"] for row in copy} == newest
        assert len(copy) == 50

        names = s3.names("logs/orders")
        assert "logs/orders/_floor.json" in names, "retention has dropped what the sink has"
        assert "logs/orders/_positions/lake.json" in names
        left = [f"{s3.bucket}/{name}" for name in names if name.endswith(".parquet")]
        assert len(left) == 1
        rows = ds.dataset(left, filesystem=s3.files()).to_table().to_pylist()
        assert sorted(row["id"] for row in rows) == [3, 4]

        with sidecar.open(path, clock=clock, read_only=True) as sc:
            floor = sc.log("orders").floor()
            assert sorted(r["id"] for r in sc.dataframe(spark, "orders", floor).collect()) == [3, 4]

        kept = [*(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file() and p != path)]
        kept += [s3.files().open_input_file(f"{s3.bucket}/{name}").read() for name in s3.names()]
        assert not any(SECRET.encode() in content for content in kept)
        assert SECRET not in caplog.text


def test_chunks_that_executors_read_come_through_the_store(tmp_path: Path) -> None:
    with stores.store("staged") as s3:
        folder = locate(s3.url, {**s3.options, "access_key": KEY, "secret_key": SECRET}) / "t" / "_staging"
        data = pq.read_table(_some(tmp_path))
        name = turns._put(folder, data)
        assert turns.load(folder / name) == data
        assert s3.names() == [], "what has been taken is gone"


def _some(folder: Path) -> Path:
    path = folder / "some.parquet"
    pq.write_table(pa.table({"id": [1, 2, None], "text": ["a", None, "ß"]}), path)
    return path
