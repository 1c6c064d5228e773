"""G5 at every named crash point of a sink: the process dies there, and what is read back holds each offset once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.changelog import ChangeLog
from tests.fault.harness import KILLED, PATIENCE, Project, SQLiteSource, Writer, holds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS = """
[sinks.lake]
path = "{folder}/lake"
[sinks.books]
foreach = "fault_books:enter"
"""

# Called again if its process dies before it has returned: it writes where a second time changes nothing.
BOOKS = """
import json
from pathlib import Path

def enter(frame, batch):
    rows = sorted([r["_commit_version"], r["id"], r["v"]] for r in frame.collect())
    folder = Path(__file__).parent / "books"
    folder.mkdir(exist_ok=True)
    (folder / f"{batch.table}-{batch.first}-{batch.last}.json").write_text(json.dumps(rows))
"""


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def project_with_sinks(source: SQLiteSource, folder: Path) -> Project:
    project = Project(folder, source.url, page_size=20, sinks=SINKS.format(folder=folder))
    (folder / "fault_books.py").write_text(BOOKS)
    return project


def read_back(spark: SparkSession, project: Project, source: SQLiteSource) -> None:
    """Assert that the Parquet sink and the function's books hold what the log holds, once."""
    for table in ("t", "u"):
        log = project.log(table)
        expected = Counter((row["_commit_version"], row["id"], row["v"]) for row in project.changes(table))
        frame = spark.read.parquet(str(project.folder / "lake" / table))
        lake = Counter((row["_commit_version"], row["id"], row["v"]) for row in frame.collect())
        assert lake == expected
        files = sorted((project.folder / "books").glob(f"{table}-*.json"))
        books = Counter(tuple(row) for path in files for row in json.loads(path.read_text()))
        assert books == expected
        assert positions(log) == {"lake": log.last(), "books": log.last()}
    holds(source, project)


def positions(log: ChangeLog) -> dict[str, Any]:
    found = [json.loads(p.read_text()) for p in (log.folder / "_positions").glob("*.json")]
    assert all(p["intended"] is None for p in found)
    return {p["consumer"]: p["acknowledged"] for p in found}


# Each run begins with changes in both tables, and goes first to the batch that the kill before has left behind.
POINTS = [
    *("position-filed:1", "batch-intended:1", "batch-staged:1", "batch-moved:1", "batch-moved:2", "position-filed:2"),
    *("position-saved:1", "position-saved:2", "columns-summarized:1", "batch-intended:2", "batch-staged:2", ""),
]


@pytest.mark.timeout(900)
def test_a_kill_at_any_point_of_a_sink_leaves_each_offset_there_once(
    spark: SparkSession, source: SQLiteSource, tmp_path: Path
) -> None:
    project, writer = project_with_sinks(source, tmp_path / "project"), Writer(source, seed=1)
    writer.write(150)
    command = [sys.executable, "-m", "tests.fault.sink_points", str(project.settings), str(source.path), *POINTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [KILLED] * (len(POINTS) - 1) + [0], (list(zip(POINTS, codes, strict=True)), done.stderr)
    assert "Traceback" not in done.stderr
    read_back(spark, project, source)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["batch-staged:1", "batch-moved:1", "position-filed:2", "position-saved:1"])
def test_a_kill_takes_the_processs_own_spark_along_and_costs_nothing(
    spark: SparkSession, source: SQLiteSource, tmp_path: Path, point: str
) -> None:
    project, writer = project_with_sinks(source, tmp_path / "project"), Writer(source, seed=1)
    writer.write(100)
    process = project.start("run", "--once", SIDECAR_CRASH_AT=point)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == KILLED, said
    writer.write(20)
    process = project.start("run", "--once")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    read_back(spark, project, source)
