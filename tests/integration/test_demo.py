"""`sidecar demo`, from an empty folder to Parquet that Spark reads, and the project that it leaves."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from sidecar.cli import execute
from sidecar.clock import FakeClock
from sidecar.errors import SettingsError
from sidecar.terminal import demo, demo_shop


def test_the_demo_shows_changes_and_leaves_a_project_that_works(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    code = demo.run(Path("shop"), seconds=3, console=Console(file=output, width=200))
    text = output.getvalue()
    assert code == 0
    assert "2,000 rows" in text
    assert "insert" in text
    assert text.count("rows, equal") == 3
    assert "sidecar status" in text
    # Somebody else's session is left to them.
    assert spark.range(1).count() == 1

    monkeypatch.chdir("shop")
    with sqlite3.connect("shop.db") as connection:
        connection.execute(
            "UPDATE orders SET status = 'lost', updated_at = strftime('%Y-%m-%dT%H:%M:%fZ') WHERE id = 1"
        )
    connection.close()
    capfd.readouterr()
    assert execute(["run", "--once"]) == 0
    assert "table=orders rows=1 " in capfd.readouterr().err
    assert execute(["changes", "orders", "--format", "jsonl"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["status"] == "lost"
    assert execute(["status", "--json"]) == 0
    assert {row["table"]: row["sinks"]["lake"]["behind"] for row in json.loads(capfd.readouterr().out)} == {
        "customers": 0,
        "orders": 0,
        "products": 0,
    }
    assert execute(["check"]) == 0


def test_the_demo_leaves_a_folder_alone_that_is_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SettingsError, match="name another folder"):
        demo.run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_the_shop_is_the_same_each_time_and_has_some_of_everything(tmp_path: Path) -> None:
    dumps = []
    for name in ("a.db", "b.db"):
        demo_shop.make(tmp_path / name, FakeClock())
        connection = sqlite3.connect(tmp_path / name)
        dumps.append(list(connection.iterdump()))
        deleted = connection.execute("SELECT count(*) FROM orders WHERE deleted_at IS NOT NULL").fetchone()[0]
        updated = connection.execute("SELECT count(*) FROM orders WHERE updated_at > created_at").fetchone()[0]
        connection.close()
        assert 0 < deleted < updated < demo_shop.ORDERS
    assert dumps[0] == dumps[1]
