"""A sink whose place is another one than before, or whose format is hardly one: said when a run, or a check, begins."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

import sidecar
from sidecar.cli import execute
from sidecar.settings import formats
from sidecar.state import ConsumerPosition
from tests.conftest import SQLiteFile

SETTINGS = """
[source]
url = "sqlite:///{name}"
[tables.orders]
[sinks.files]
path = "files"
[sinks.mirror]
format = "delta"
mode = "mirror"
path = "mirror"
compact_every = "10000d"
[sinks.there]
path = "there"
[sinks.far]
format = "iceberg"
path = "s3://far/away"
[sinks.store]
path = "dbfs:/lake"
[sinks.nearly]
format = "parkett"
path = "nearly"
"""


@pytest.fixture
def shop(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shop of which all sinks have been given everything."""
    sqlite_db.connection.executescript(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL);"
        "CREATE INDEX by_time ON orders (updated_at, id);"
        "INSERT INTO orders VALUES (1, '2024-05-01T10:00:00Z');"
    )
    monkeypatch.chdir(sqlite_db.path.parent)
    Path("sidecar.toml").write_text(SETTINGS.format(name=sqlite_db.path.name))
    Path("there/orders").mkdir(parents=True)
    with sidecar.open("sidecar.toml") as sc:
        sc.poll()
        for sink in ("files", "mirror", "there", "far", "store", "nearly"):
            sc.store.save_position("orders", sink, ConsumerPosition(1))


@pytest.mark.usefixtures("shop")
def test_a_run_says_at_its_start_what_its_sinks_have_lost_and_may_lack(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sidecar"), sidecar.open("sidecar.toml") as sc:
        assert sc.run(once=True) == 0
    nearly, files, mirror = (record.getMessage() for record in caplog.records)
    assert nearly.startswith('sink "nearly": format = "parkett": did you mean "parquet"?')
    assert files.startswith('sink "files", table "orders": has been given the changes up to offset 1, and ')
    assert "files/orders is not there. Only what comes after that will be there." in files
    assert "mirror/orders is not there. It cannot go on without that." in mirror


@pytest.mark.usefixtures("shop")
def test_a_check_finds_it_as_well(capfd: pytest.CaptureFixture[str]) -> None:
    assert execute(["check"]) == 1
    sys.stdout.flush()
    out = capfd.readouterr().out
    assert 'warning: sink "nearly": format = "parkett": did you mean "parquet"?' in out
    assert 'warning: sink "files", table "orders": has been given' in out
    assert 'error: sink "mirror", table "orders": has been given' in out
    assert 'sink "there"' not in out


@pytest.mark.parametrize("format_", ["parqet", "detla", "iceburg", "josn", "kafak", "textt"])
def test_a_format_that_is_nearly_a_known_one_is_doubted(format_: str) -> None:
    said = formats.doubt(format_)
    assert said is not None
    assert "did you mean" in said


@pytest.mark.parametrize("format_", [
    *formats.KNOWN, "Delta", "JDBC", "ICEBERG", "bigquery", "mongodb", "snowflake", "deltaSharing", "paimon", "lance",
    "rate", "com.databricks.spark.csv", "io.delta.sql", "geoparquet", "geojson", "vortex", "arrow", "carbon", "cobol",
    "iceberg-rest", "org.apache.spark.sql.cassandra", "oracle", "excel", "redshift", "es", "redis", "memory", "doris",
])  # fmt: skip
def test_formats_that_packages_have_are_not_doubted(format_: str) -> None:
    assert formats.doubt(format_) is None


def test_a_format_of_ours_in_another_case_is_spelt_out() -> None:
    assert formats.doubt("Parquet") == (
        'format = "Parquet": write "parquet"; only so spelt it is one of the formats whose files are known here'
    )
