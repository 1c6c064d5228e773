# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Cases of keyed sinks: a key that stands twice in one batch, and batches of nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.feed import dataframe
from sidecar.mirrors.mirror import MirrorSink
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING
from sidecar.sinks import Batch, FileSink, FunctionSink, Sink
from tests.cases.harness import Project, fold, sqlite_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EMPT = """\
CREATE TABLE empt (id INTEGER PRIMARY KEY, n INTEGER, r REAL, t TEXT, b BLOB, d DATETIME, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
"""
ROW = "INSERT INTO empt VALUES (1, 5, 1.5, 'x', X'01', '2024-05-01 09:00:00', '2024-05-01 10:00:00','2024-05-01 10:00:00')"

HELD = [{"id": 1, "bal": 10}, {"id": 2, "bal": 25}]

# A keyed sink of one's own: what `batch` says is all that it needs to be one.
BOOKS = """
from sidecar.mirrors.newest import Named, last_of_each, ordered
from sidecar.mirrors.keys import Keys

calls, held = [], {}

def keep(frame, batch):
    calls.append((batch, frame.dtypes))
    changes = ordered(frame.toArrow(), Named("_"))
    for row in changes.take(last_of_each(Keys(batch.key, changes).codes)).to_pylist():
        key = tuple(row[name] for name in batch.key)
        held.pop(key, None)
        if row["_change_type"] != "delete":
            held[key] = row
"""


def image(kind: str, origin: str, id_: int, bal: int, at: int) -> dict[str, Any]:
    when = datetime(2024, 5, 1, at, tzinfo=UTC)
    return {
        "_change_type": kind, "_commit_version": 1, "_commit_timestamp": when, "_origin": origin, "id": id_, "bal": bal,
    }  # fmt: skip


def accounts() -> pa.Table:
    """A batch of one offset, in no order: the backfill's images, the newer update of 2, and 3 inserted and deleted."""
    rows = [
        image("update_postimage", "poll", 2, 25, 11),
        image("delete", "poll", 3, 30, 11),
        image("insert", "backfill", 1, 10, 12),
        image("insert", "backfill", 2, 20, 12),
        image("insert", "poll", 3, 30, 11),
    ]
    types = {"_commit_timestamp": pa.timestamp("us", "UTC")}
    return pa.table({name: pa.array([r[name] for r in rows], types.get(name)) for name in rows[0]})


def sinks(folder: Path) -> dict[str, Sink]:
    (folder / "keyed_books.py").write_text(BOOKS)
    lake = str(folder / "lake")
    return {
        "parquet": FileSink("lake", path=lake),
        "mirror": MirrorSink("lake", path=lake),
        "marked": MirrorSink("lake", path=lake, kind="marked"),
        "history": MirrorSink("lake", path=lake, kind="history"),
        "foreach": FunctionSink("lake", search=folder, function="keyed_books:keep"),
    }


def balances(spark: SparkSession, kind: str, folder: Path) -> list[Any]:
    """Return what the sink holds now, as its reader would ask."""
    if kind == "foreach":
        import keyed_books  # type: ignore[import-not-found]

        rows = list(keyed_books.held.values())
    elif kind == "parquet":
        changes = [r.asDict() for r in spark.read.parquet(str(folder / "lake" / "accts")).collect()]
        # The same rule, which whoever folds an append-only table has to apply.
        changes.sort(key=lambda r: (r["_origin"] != "backfill", r["_commit_timestamp"], r["_change_type"] == "delete"))
        rows = list(fold(changes, "id").values())
    else:
        from sidecar.mirrors.mirror import dataframe as mirrored

        found = mirrored(spark, str(folder / "lake" / "accts"))
        current = {"mirror": "true", "marked": "_deleted_at IS NULL", "history": "_is_current"}[kind]
        rows = [r.asDict() for r in found.where(current).collect()]
    return sorted(({"id": r["id"], "bal": r["bal"]} for r in rows), key=lambda r: r["id"])


@pytest.mark.parametrize("kind", ["parquet", "mirror", "marked", "history", "foreach"])
def test_rc69_of_one_key_twice_in_a_batch_the_newest_state_wins(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    log = ChangeLog(tmp_path / "log", "accts")
    log.append(1, accounts(), Watermark("id by u", offset=1), NOTHING, committed=1, origin="poll")
    sink = sinks(tmp_path)[kind]
    for _ in range(2):
        sink.write(dataframe(spark, log), Batch("accts", 1, 1, key=("id",), log="a log"), "_commit_version")
        assert balances(spark, kind, tmp_path) == HELD


@pytest.mark.parametrize("kind", ["parquet", "mirror", "history", "foreach"])
def test_rc70_polls_of_nothing_leave_a_sink_readable_and_its_types_right(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    settings = {
        "parquet": {"path": "lake"},
        "mirror": {"path": "lake", "format": "delta", "mode": "mirror"},
        "history": {"path": "lake", "format": "delta", "mode": "mirror", "history": True},
        "foreach": {"foreach": "rc70_books:keep"},
    }[kind]
    project = Project(
        tmp_path,
        f"sqlite:///{tmp_path}/source/empt.db",
        {"empt": {"updated_at": "updated_at"}},
        sinks={"lake": settings},
    )
    (tmp_path / "rc70_books.py").write_text(BOOKS)
    source = sqlite_file(tmp_path / "source" / "empt.db", EMPT)

    def run() -> list[tuple[str, str]]:
        with sidecar.open(project.path) as sc:
            assert sc.run(spark, once=True) == 0
            return list(sc.dataframe(spark, "empt", since=sc.log("empt").last()).dtypes)

    first = run()
    source.execute(ROW)
    second, third = run(), run()
    source.close()
    # Before there is a row, nobody can tell whether a DATETIME is one; it is the one thing that may differ.
    assert [t for t in first if t[0] != "d"] == [t for t in second if t[0] != "d"]
    assert second == third
    assert dict(second).items() >= {("n", "bigint"), ("r", "double"), ("t", "string"), ("b", "binary")}
    if kind == "foreach":
        import rc70_books  # type: ignore[import-not-found]

        assert [dict(types)["n"] for _, types in rc70_books.calls] == ["bigint"]
        assert [(r["n"], r["t"]) for r in rc70_books.held.values()] == [(5, "x")]
        return
    if kind == "parquet":
        found = spark.read.parquet(str(tmp_path / "lake" / "empt"))
    else:
        from sidecar.mirrors.mirror import dataframe as mirrored

        found = mirrored(spark, str(tmp_path / "lake" / "empt"))
    assert dict(found.dtypes).items() >= {("n", "bigint"), ("r", "double"), ("t", "string"), ("b", "binary")}
    assert [(r["n"], r["r"], r["t"], bytes(r["b"])) for r in found.collect()] == [(5, 1.5, "x", b"\x01")]
