"""What does Spark's start cost: from a process's start to the first rows in a table, with the archive and without?"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bench import HOME, Bench, python
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed

ROWS = 1_000
PLAIN, WITHOUT, WITH = "pyspark as it is", "Sidecar, no archive", "Sidecar, archive"

AIM = 0.65
"""Of what a start costs without the archive."""

# The three do the same; what differs is where the session comes from.
START_PLAIN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
"""
START_SIDECAR = """
from sidecar.lake.spark import session
spark = session()
"""
# Java is waited for, or its processor time would be nobody's.
WORK = """
import sys
spark.read.schema("id bigint").parquet(sys.argv[1]).write.mode("overwrite").parquet(sys.argv[2])
java = spark.sparkContext._gateway
spark.stop()
java.shutdown()
java.proc.stdin.close()
java.proc.wait()
"""


def ask(bench: Bench) -> Answer:
    """Return the answer; the archive is made first, in a folder that is removed again."""
    with bench.scratch() as folder:
        _rows(folder / "rows")
        cache = {"XDG_CACHE_HOME": str(folder / "cache")}
        on, off = cache | {"SIDECAR_FAST_START": "true"}, cache | {"SIDECAR_FAST_START": "false"}
        bench.say("making the archive")
        made = timed(lambda: _run(folder, on, "-m", "sidecar.lake.archive_maker"))
        size = sum(file.stat().st_size for file in (folder / "cache" / "sidecar").glob("*.jsa"))
        contenders = [
            Contender(PLAIN, lambda: _started(folder, off, START_PLAIN)),
            Contender(WITHOUT, lambda: _started(folder, off, START_SIDECAR), PLAIN),
            Contender(WITH, lambda: _started(folder, on, START_SIDECAR), WITHOUT, aim=AIM),
        ]
        results = take_turns(contenders, bench.runs, say=bench.say)
    notes = [
        f"A process of its own each time: start, read {ROWS:,} rows from Parquet, write them to Parquet, stop.",
        f"The archive: {size / 1e6:,.0f} MB, made in {made.value:.0f} s.",
    ]
    return Answer("session", "Spark's start and first job, from a process's start to its end", "s", results, notes)


def _rows(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array(range(ROWS), pa.int64())}), folder / "rows.parquet")


def _started(folder: Path, environment: Mapping[str, str], start: str) -> Sample:
    """Return how long it takes, and its processor time, to which a busy machine adds less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    arguments = ("-c", start + WORK, str(folder / "rows"), str(folder / "out"))
    sample = timed(lambda: _run(folder, environment, *arguments))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(sample.value, {"processor": used})


def _run(folder: Path, environment: Mapping[str, str], *arguments: str) -> None:
    path = os.pathsep.join(filter(None, (str(HOME.parent), os.environ.get("PYTHONPATH"))))
    own = {**os.environ, **environment, "PYTHONPATH": path}
    done = subprocess.run(python(*arguments), cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"it ended with exit code {done.returncode}: {done.stderr[-500:]}")
