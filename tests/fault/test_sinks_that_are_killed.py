"""G5 at every named crash point of a sink: the process dies there, and what is read back holds each offset once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import EPOCH
from tests.fault.harness import KILLED, PATIENCE, Project, SQLiteSource, Writer, holds
from tests.fault.sink_points import KEPT, MIRROR_POINTS

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


MIRRORS = """
[sinks.now]
mode = "mirror"
table = "{kept}.now_{{table}}"
tables = ["t"]
[sinks.past]
mode = "mirror"
history = true
table = "{kept}.past_{{table}}"
tables = ["t"]
"""

# Each run begins with changes in both tables, and goes first to the batch that the kill before has left behind.
POINTS = [
    *("position-filed:1", "batch-intended:1", "row-groups-copied:1", "batch-staged:1", "batch-moved:1"),
    *("batch-moved:2", "position-filed:2", "position-saved:1", "position-saved:2", "columns-summarized:1"),
    *("batch-intended:2", "batch-staged:2", ""),
]
# Both tables are there after the second.
MIRROR_AT = [
    *("mirror-created:1", "mirror-created:1", "mirror-written:2", "mirror-committed:2", "mirror-evolved:2"),
    *("mirror-committed:2", ""),
]


@dataclass(frozen=True)
class Killed:
    """What is left of projects that were killed at each of their points, and the tables of their catalog."""

    sinks: Project
    mirrors: Project
    source: SQLiteSource
    tables: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """Kill both projects' runs, with one Spark."""
    folder = tmp_path_factory.mktemp("killed")
    source, other = (SQLiteSource(folder / name / "source.db") for name in ("source", "other"))
    for one in (source, other):
        Writer(one, seed=1).write(150)
    sinks = project_with_sinks(source, folder / "sinks")
    mirrors = Project(folder / "mirrors", other.url, page_size=20, sinks=MIRRORS.format(kept=KEPT))
    command = [sys.executable, "-m", "tests.fault.sink_points", str(mirrors.settings), str(other.path), *MIRROR_AT]
    command += ["--", str(sinks.settings), str(source.path), *POINTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=6 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    *codes, tables = (json.loads(line) for line in done.stdout.splitlines()[-3:])
    for points, found in zip((MIRROR_AT, POINTS), codes, strict=True):
        assert found == [KILLED] * (len(points) - 1) + [0], (list(zip(points, found, strict=True)), done.stderr)
    assert "Traceback" not in done.stderr
    yield Killed(sinks, mirrors, source, tables)
    source.close()
    other.close()


@pytest.mark.timeout(900)
def test_a_kill_at_any_point_of_a_sink_leaves_each_offset_there_once(spark: SparkSession, killed: Killed) -> None:
    read_back(spark, killed.sinks, killed.source)


@pytest.mark.timeout(900)
def test_a_kill_at_any_point_of_a_mirror_in_a_catalog_leaves_both_kinds_exact(killed: Killed) -> None:
    assert {p.partition(":")[0] for p in MIRROR_AT} >= {*MIRROR_POINTS} - {"mirror-compacted"}
    changes = killed.mirrors.changes("t")
    versions = [(*row, row[3] is None) for row in history(changes)]
    past = [
        tuple(row[n] for n in ("id", "v", "_valid_from", "_valid_to", "_is_current")) for row in killed.tables["past_t"]
    ]
    assert sorted(past, key=repr) == sorted(versions, key=repr)
    current = sorted((row[0], row[1]) for row in versions if row[-1])
    assert sorted((row["id"], row["v"]) for row in killed.tables["now_t"]) == current


def history(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Fold *changes*, in log order, by time: key, version, and from when until when it was valid."""
    done, running = [], dict[int, tuple[int, int]]()
    for change in changes:
        key, now = change["id"], (change["_commit_timestamp"] - EPOCH) // timedelta(microseconds=1)
        if key in running:
            version, since = running.pop(key)
            done.append((key, version, since, max(since, now)))
        if change["_change_type"] != "delete":
            running[key] = change["v"], now
    return [*done, *((key, v, since, None) for key, (v, since) in running.items())]


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
