"""G4 at every named crash point of a poll and of retention: the process dies there, and the next one goes on.

The points of backfills are in `test_backfill_points.py`, those of sinks in `test_sinks_that_are_killed.py`.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar import faults
from tests.fault.harness import KILLED, PATIENCE, PostgresSource, Project, SQLiteSource, Writer, clean, holds
from tests.fault.sink_points import MIRROR_POINTS, SINK_POINTS
from tests.fault.test_backfill_points import ASKING_POINTS, COPYING_POINTS
from tests.fault.test_bases_that_are_killed import BASE_POINTS
from tests.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_POINTS = ("page-read", "segment-written", "segment-renamed", "watermark-saved", "poll-completed")
SCHEMA_POINTS = ("schema-written",)
RETENTION_POINTS = ("floor-written", "segment-dropped")
QUARANTINE_POINTS = ("rows-set-aside",)
COUNTS = {name: (1, 2) if name == "poll-completed" else (1, 2, 5) for name in POLL_POINTS}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def test_every_point_that_the_code_passes_is_tried() -> None:
    code = "".join(p.read_text() for p in Path(faults.__file__).parent.rglob("*.py"))
    passed = set(re.findall(r'faults\.point\("([\w-]+)"\)', code))
    assert passed <= set(faults.POINTS)
    ours = {*POLL_POINTS, *SCHEMA_POINTS, *RETENTION_POINTS, *QUARANTINE_POINTS}
    assert {*ours, *COPYING_POINTS, *ASKING_POINTS, *SINK_POINTS, *MIRROR_POINTS, *BASE_POINTS} == passed


@pytest.mark.parametrize("name", POLL_POINTS)
def test_kills_at_a_point_lose_and_repeat_nothing(source: SQLiteSource, tmp_path: Path, name: str) -> None:
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=1)
    writer.write(120)
    for count in COUNTS[name]:
        assert project.run(crash=f"{name}:{count}").code == KILLED, "the point was not reached"
        writer.write(80)
    clean(project.run())
    holds(source, project)
    writer.write(60)
    assert project.run(crash=f"{name}:2").code == KILLED
    shutil.rmtree(project.database)
    writer.write(30)
    clean(project.run())
    holds(source, project)


@pytest.mark.parametrize("name", POLL_POINTS)
def test_kills_at_a_point_while_postgresql_is_read_lose_and_repeat_nothing(
    pg: Database, tmp_path: Path, name: str
) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=2)
    writer.write(120)
    for count in COUNTS[name][1:]:
        assert project.run(crash=f"{name}:{count}").code == KILLED, "the point was not reached"
        writer.write(80)
    clean(project.run())
    holds(source, project)


def test_the_environment_names_the_point(source: SQLiteSource, tmp_path: Path) -> None:
    project = Project(tmp_path / "project", source.url)
    Writer(source, seed=3).write(60)
    process = project.start("run", "--once", SIDECAR_CRASH_AT="segment-renamed:2")
    process.communicate(timeout=PATIENCE)
    assert process.returncode == KILLED
    clean(project.run())
    holds(source, project)


def test_a_point_that_does_not_exist_is_refused(source: SQLiteSource, tmp_path: Path) -> None:
    process = Project(tmp_path / "project", source.url).start("run", "--once", SIDECAR_CRASH_AT="nowhere")
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, KILLED)
    assert "nowhere" in said


def test_half_written_segments_are_swept_up(source: SQLiteSource, tmp_path: Path) -> None:
    project = Project(tmp_path / "project", source.url)
    Writer(source, seed=4).write(60)
    assert project.run(crash="segment-written:2").code == KILLED
    folder = project.log().folder
    assert list(folder.glob(".*.tmp")), "the kill should have left one"
    clean(project.run())
    assert not list(folder.glob(".*"))
    holds(source, project)


def test_a_kill_between_a_new_column_and_its_first_segment_costs_nothing(
    spark: SparkSession, source: SQLiteSource, tmp_path: Path
) -> None:
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=6)
    writer.write(60)
    clean(project.run())
    # By a row that is there: the writer fills a table of its own columns.
    with contextlib.closing(sqlite3.connect(source.path, isolation_level=None)) as owner:
        owner.execute("ALTER TABLE t ADD COLUMN more TEXT")
        owner.execute(
            "UPDATE t SET v = v + 1000000, more = 'm', updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = 1"
        )
    assert project.run(crash="schema-written:1").code == KILLED, "the point was not reached"
    # The columns are there before their first segment: what there is reads as them.
    assert {row["more"] for row in spark.read.parquet(str(project.log().folder)).collect()} == {None}
    clean(project.run())
    assert {row["more"] for row in spark.read.parquet(str(project.log().folder)).collect()} == {None, "m"}
    holds(source, project)


@pytest.mark.parametrize("point", ["floor-written:1", "segment-dropped:1", "segment-dropped:3"])
def test_a_kill_while_old_segments_are_dropped_repeats_nothing(
    source: SQLiteSource, tmp_path: Path, point: str
) -> None:
    # Within the lookback: what was delivered is met again, and only the state knows that it was.
    project, writer = Project(tmp_path / "project", source.url, lookback="1h"), Writer(source, seed=5)
    writer.write(150)
    clean(project.run())
    project.keep()
    project.retention = "1us"
    project.write_settings()
    assert project.run(crash=point).code == KILLED, "the point was not reached"
    assert project.log().floor() > 0
    project.retention = None
    project.write_settings()
    writer.write(20)
    clean(project.run())
    holds(source, project)
    project.keep()
    shutil.rmtree(project.database)
    writer.write(20)
    clean(project.run())
    holds(source, project)
