"""G4 at every named crash point of a base: the process dies there, and the table can be told all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sidecar
from sidecar.log import bases
from tests.fault.harness import KILLED, PATIENCE, Project, SQLiteSource, Writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


# Of the table t, and then of u: whichever comes first dies.
BASE_POINTS = ("base-written", "base-renamed", "base-hidden")
POINTS = [*BASE_POINTS[:2], "floor-written", BASE_POINTS[2], ""]


@pytest.mark.timeout(900)
def test_a_kill_at_any_point_of_a_base_leaves_the_table_to_be_told(
    spark: SparkSession, source: SQLiteSource, tmp_path: Path
) -> None:
    project = Project(tmp_path / "project", source.url, page_size=20, retention="1us", bases=True)
    Writer(source, seed=1).write(100)
    command = [sys.executable, "-m", "tests.fault.sink_points", str(project.settings), str(source.path), *POINTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [KILLED] * (len(POINTS) - 1) + [0], (list(zip(POINTS, codes, strict=True)), done.stderr)
    assert "Traceback" not in done.stderr
    with sidecar.open(project.settings, read_only=True) as sc:
        for table in ("t", "u"):
            log = sc.log(table)
            assert log.floor() > 0
            assert bases.offsets(log) == [log.floor()]
            assert [p.name for p in (log.folder / "_bases").iterdir()] == [f"{log.floor():020d}"]
            found = {row["id"]: (row["v"], False) for row in sc.current(spark, table).collect()}
            assert found == {key: said for key, said in source.content(table).items() if not said[1]}
