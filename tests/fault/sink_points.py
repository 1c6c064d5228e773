"""A process that starts Spark once and runs a project's sinks in forks of itself, each killed at a crash point.

A fork holds the state, reads the source and drives Spark as any runner does, and dies by SIGKILL. The JVM is the
parent's and outlives it, so a kill costs milliseconds instead of the ten seconds of Spark's start. Crash points lie
between calls to the JVM, never inside one, so the connection that the forks inherit stays in step.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SINK_POINTS = (
    *("batch-intended", "row-groups-copied", "batch-staged", "columns-summarized", "batch-moved"),
    *("sink-committed", "position-filed", "position-saved"),
)
MIRROR_POINTS = ("mirror-created", "mirror-evolved", "mirror-written", "mirror-committed", "mirror-compacted")


KEPT = "rows.kept"
"""The schema of a catalog in the JVM's memory for mirrors; what its tables hold at the end is printed."""


def main(jobs: list[tuple[Path, Path, list[str]]]) -> None:
    """For each of *jobs* (settings, source, points), change the source and run once for each of the points, in turn.

    Prints the exit codes, as a JSON list a job; and the tables of the catalog, where there is more than one job.
    """
    from sidecar.lake import compaction, spark
    from tests import row_catalog

    # Where there is retention: any byte is worth a base.
    compaction.FIRST_BYTES = compaction.SHARE = 0
    # A partition a segment, so that a batch has more than one file.
    conf = {"spark.sql.files.maxPartitionBytes": "8k"}
    # To compile the plans of so few rows takes longer than to run them.
    conf |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    session = spark.session("sidecar-fault-tests", config=conf)
    with tempfile.TemporaryDirectory() as classes:
        if len(jobs) > 1:
            row_catalog.install(session, Path(classes))
        for settings, source, points in jobs:
            run(settings, source, points, session)
        if len(jobs) > 1:
            print(json.dumps({name: rows(session.table(f"{KEPT}.{name}")) for name in ("now_t", "past_t")}))
        spark.close(session)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return what *frame* holds; times are microseconds."""
    times = {name: f"unix_micros({name}) AS {name}" for name in ("_valid_from", "_valid_to")}
    return [row.asDict() for row in frame.selectExpr(*(times.get(name, name) for name in frame.columns)).collect()]


def run(settings: Path, source: Path, points: list[str], session: SparkSession | None) -> None:
    from sidecar import faults, project
    from sidecar.delivering import row_groups

    codes = []
    for number, point in enumerate(points):
        change(source, number)
        if point.startswith(("columns-summarized", "mirror-evolved")):
            alter(source)
        process = os.fork()
        if process == 0:
            code = 70
            try:
                name, _, count = point.partition(":")
                if name == "row-groups-copied":
                    row_groups.LEAST = 0  # of segments of any size
                if name:
                    faults._left[name] = int(count or 1)
                with project.open_project(settings) as sidecar:
                    code = sidecar.run(session, once=True)
            finally:
                sys.stderr.flush()
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    print(json.dumps(codes))


def change(source: Path, number: int) -> None:
    writer = sqlite3.connect(source)
    for table in ("t", "u"):
        writer.execute(
            f"UPDATE {table} SET v = v + 100000, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id % 4 = ?",
            (number % 4,),
        )
    writer.commit()
    writer.close()


def alter(source: Path) -> None:
    writer = sqlite3.connect(source)
    writer.execute("ALTER TABLE t ADD COLUMN more TEXT")
    writer.commit()
    writer.close()


if __name__ == "__main__":
    if sys.argv[1] == "--without-spark":
        run(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:], None)
    else:
        jobs = [job.split("\n") for job in "\n".join(sys.argv[1:]).split("\n--\n")]
        main([(Path(settings), Path(source), points) for settings, source, *points in jobs])
