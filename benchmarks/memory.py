"""Does a first load's memory grow with the table? The peaks of the Python and the Java process, small against large."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench import NAMES, Bench, python, settings
from benchmarks.measure import Answer, Contender, Sample, take_turns

MOST = 3
"""Peaks scatter little, and a large load takes a while."""


def ask(bench: Bench) -> Answer:
    """Return the answer for each source."""
    contenders = []
    for scheme in bench.sources:
        small = f"{NAMES[scheme]}: {bench.small:,} rows"
        for rows in (bench.small, bench.large):
            url, name = bench.source(scheme, rows), f"{NAMES[scheme]}: {rows:,} rows"
            contenders.append(_loaded(bench, name, url, against=None if name == small else small))
    results = take_turns(contenders, min(bench.runs, MOST), warm=0, say=bench.say)
    notes = ["The greatest resident size (VmHWM) of each process; Sidecar bounds Java's heap to 1 GiB."]
    return Answer("memory", "Peak memory of a first load to Parquet", "MB", results, notes)


def _loaded(bench: Bench, name: str, url: str, *, against: str | None) -> Contender:
    def run() -> Sample:
        with bench.scratch() as folder:
            command = python("-m", "benchmarks.memory", str(settings(folder, url)))
            done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
        peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return Sample(peaks["Python"] + peaks["Java"], peaks)

    return Contender(name, run, against)


def peak(process: int) -> float:
    """Return the greatest resident size that *process* has had so far, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None, "Linux says it of every process"
    return int(found[1]) * 1024 / 1e6


def main(path: str) -> None:
    """Run the project at *path* once, in this process, and print both peaks."""
    import sidecar
    from sidecar.spark import close, session

    spark = session()
    with sidecar.open(path) as sc:
        code = sc.run(spark, once=True)
    jvm: Any = spark._jvm
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    print(json.dumps({"Python": peak(os.getpid()), "Java": peak(java)}))
    close(spark)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1])
