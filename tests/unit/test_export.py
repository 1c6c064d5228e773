"""A table in one file: whole or not at all, and its values as `sidecar changes` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sidecar
from sidecar.lake import compaction, current
from sidecar.lake.export import export
from sidecar.polls.deliveries import NOTHING
from tests.conftest import Command, SQLiteFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> SQLiteFile:
    """A shop whose log has two versions of a row, and settings; the working directory is theirs."""
    db = sqlite_db.connection
    db.executescript(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, raw BLOB, note TEXT, updated_at TIMESTAMP NOT NULL);"
        "INSERT INTO orders VALUES (1, 1.5, x'00ff', '', '2024-05-01 10:00:00'),"
        "  (2, 9e999, NULL, NULL, '2024-05-01 11:00:00'),"
        "  (9007199254740993, NULL, NULL, 'a \"b\", c' || char(10) || ' é ', '2024-05-01 12:00:00');"
    )
    monkeypatch.chdir(sqlite_db.path.parent)
    Path("sidecar.toml").write_text(f'[source]\nurl = "sqlite:///{sqlite_db.path.name}"\n[tables.orders]\n')
    with sidecar.open("sidecar.toml") as sc:
        sc.poll()
        db.execute("UPDATE orders SET total = 2.5, updated_at = '2024-05-02 10:00:00' WHERE id = 1")
        sc.poll()
    db.close()
    sqlite_db.path.unlink()
    return sqlite_db


def test_a_table_is_written_into_one_file_of_each_format_without_the_source(
    spark: SparkSession, shop: SQLiteFile, command: Command
) -> None:
    assert command("export", "orders", "-o", "orders.parquet")[:2] == (0, "orders: 3 rows in orders.parquet\n")
    found = pq.read_table("orders.parquet")
    assert found.schema.field("updated_at").type == pa.timestamp("us")
    assert sorted(found["id"].to_pylist()) == [1, 2, 9007199254740993]
    assert found.filter(pa.compute.equal(found["id"], 1))["total"].to_pylist() == [2.5]

    assert command("export", "orders", "--as-of", "1", "-o", "orders.jsonl")[0] == 0
    lines = sorted(map(json.loads, Path("orders.jsonl").read_text().splitlines()), key=lambda row: row["id"])
    assert lines[:2] == [
        {"id": 1, "total": 1.5, "raw": "AP8=", "note": "", "updated_at": "2024-05-01T10:00:00"},
        {"id": 2, "total": "Infinity", "raw": None, "note": None, "updated_at": "2024-05-01T11:00:00"},
    ]

    assert command("export", "orders", "--as-of", "2100-01-01T00:00Z", "-o", "orders.csv")[0] == 0
    text = Path("orders.csv").read_bytes().decode()
    assert text.startswith("id,total,raw,note,updated_at\r\n")
    assert '1,2.5,AP8=,"",2024-05-02T10:00:00\r\n' in text
    assert "2,Infinity,,,2024-05-01T11:00:00\r\n" in text
    assert '9007199254740993,,,"a ""b"", c\n é ",2024-05-01T12:00:00\r\n' in text
    assert sorted(p.name for p in Path().iterdir() if "orders" in p.name) == [
        *("orders.csv", "orders.jsonl", "orders.parquet")
    ]


def test_a_file_that_is_there_is_written_over_only_by_force(
    spark: SparkSession, shop: SQLiteFile, command: Command
) -> None:
    Path("orders.csv").write_text("mine")
    code, _, err = command("export", "orders", "-o", "orders.csv")
    assert (code, Path("orders.csv").read_text()) == (2, "mine")
    assert "--force" in err
    assert command("export", "orders", "-o", "orders.csv", "--force")[0] == 0
    assert Path("orders.csv").read_text().startswith("id,")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders", "-o", "orders.xlsx"), "name it .parquet, .csv, or .jsonl"),
        (("orders", "-o", "none/orders.csv"), "there is no folder"),
        (("orders", "-o", "o.csv", "--as-of", "2024-05-01"), "says no zone"),
        (("orders", "-o", "o.csv", "--as-of", "lately"), "is neither an offset nor a time"),
        (("orders", "-o", "o.csv", "--as-of", "99"), "its log ends at 2"),
        (("order", "-o", "o.csv"), "has no change log yet; there are: orders"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_line_and_leaves_nothing(
    shop: SQLiteFile, command: Command, arguments: tuple[str, ...], said: str
) -> None:
    code, out, err = command("export", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert said in err
    assert not list(Path().glob("*.csv"))


def test_an_export_cut_short_leaves_no_file(spark: SparkSession, shop: SQLiteFile, tmp_path: Path) -> None:
    def gone(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with sidecar.open("sidecar.toml", read_only=True) as sc, pytest.raises(KeyboardInterrupt):
        export(sc, "orders", None, tmp_path / "orders.csv", progress=gone)
    assert not (tmp_path / "orders.csv").exists()
    assert not (tmp_path / ".orders.csv.parts").exists()


def test_what_retention_takes_away_meanwhile_is_read_from_its_base(
    spark: SparkSession, shop: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, asked = current.plan, []

    def plan(*arguments: Any) -> current.Plan:
        """Let retention have its turn once what is to be read is known."""
        made = planned(*arguments)
        asked.append(made)
        if len(asked) == 1:
            metadata = log.metadata(2)
            assert metadata is not None
            compaction.compact(spark, log, 2, lambda: pa.schema([]))
            log.drop(2, metadata.watermark, NOTHING)
        return made

    with sidecar.open("sidecar.toml", read_only=True) as sc:
        log = sc.log("orders")
        monkeypatch.setattr(current, "plan", plan)
        assert export(sc, "orders", 2, tmp_path / "orders.csv", progress=lambda done, total: None) == 3
    assert [made.base is None for made in asked] == [True, True, False]
