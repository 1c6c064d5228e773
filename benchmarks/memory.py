"""Does a first load's memory grow with the table? The peaks of each tool's processes, small against large."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bench import NAMES, Bench, python, settings
from benchmarks.first_load import PARTITIONS, READERS, jdbc_options
from benchmarks.measure import Answer, Contender, Sample, take_turns
from benchmarks.peers import INGESTR, dlt, ingestr

MOST = 1
"""Peaks scatter little, and a large load takes a while."""


def ask(bench: Bench) -> Answer:
    """Return the answer for each source, and for whoever else copies PostgreSQL's table."""
    contenders = []
    for scheme in bench.sources:
        for readers in READERS if scheme == "postgresql" else (1,):
            name = f"{NAMES[scheme]}: Sidecar, readers: {readers}"
            contenders += _both(bench, scheme, name, _sidecar(bench, readers))
    if "postgresql" in bench.sources:
        if bench.jdbc_jar is not None:
            name = f"PostgreSQL: Spark JDBC, partitions: {PARTITIONS}"
            contenders += _both(bench, "postgresql", name, _jdbc(bench, bench.jdbc_jar))
        for name, load in (("dlt, connectorx", dlt(bench.folder)), (f"ingestr {INGESTR}", ingestr(bench.folder))):
            if load is not None:
                contenders += _both(bench, "postgresql", f"PostgreSQL: {name}", _peer(bench, load))
    results = take_turns(contenders, min(bench.runs, MOST), warm=0, say=bench.say)
    notes = ["The greatest resident size (VmHWM) of each process; Java's heap is bounded to 1 GiB."]
    return Answer("memory", "Peak memory of a first load to Parquet", "MB", results, notes)


Load = Callable[[str, int], Sample]
"""Loads from a URL so many rows, and gives the peak."""


def _both(bench: Bench, scheme: str, name: str, load: Load) -> list[Contender]:
    small, large = bench.source(scheme, bench.small), bench.source(scheme, bench.large)
    first = f"{name}: {bench.small:,} rows"
    return [
        Contender(first, lambda: load(small, bench.small)),
        Contender(f"{name}: {bench.large:,} rows", lambda: load(large, bench.large), first),
    ]


def _sidecar(bench: Bench, readers: int) -> Load:
    def load(url: str, rows: int) -> Sample:
        del rows
        with bench.scratch() as folder:
            return _own("sidecar", str(settings(folder, url, readers=readers)))

    return load


def _jdbc(bench: Bench, jar: Path) -> Load:
    def load(url: str, rows: int) -> Sample:
        with bench.scratch() as folder:
            return _own("jdbc", json.dumps(jdbc_options(url, rows, PARTITIONS)), str(folder / "lake"), str(jar))

    return load


def _peer(bench: Bench, run: Callable[[str, Path], Sample]) -> Load:
    def load(url: str, rows: int) -> Sample:
        del rows
        with bench.scratch() as folder:
            return Sample(run(url, folder).parts["peak MB"])

    return load


def _own(*arguments: str) -> Sample:
    command = python("-m", "benchmarks.memory", *arguments)
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    peaks: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return Sample(peaks["Python"] + peaks["Java"], peaks)


def peak(process: int) -> float:
    """Return the greatest resident size that *process* has had so far, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None, "Linux says it of every process"
    return int(found[1]) * 1024 / 1e6


def main(who: str, *arguments: str) -> None:
    """Load once, in this process and with a Spark of its own, and print both peaks."""
    import sidecar
    from sidecar.lake.spark import close, session

    code = 0
    if who == "jdbc":
        options, lake, jar = arguments
        spark = session(config={"spark.driver.extraClassPath": jar})
        spark.read.format("jdbc").options(**json.loads(options)).load().write.parquet(lake)
    else:
        spark = session()
        with sidecar.open(arguments[0]) as sc:
            code = sc.run(spark, once=True)
    jvm: Any = spark._jvm
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    print(json.dumps({"Python": peak(os.getpid()), "Java": peak(java)}))
    close(spark)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
