"""How long does a first load take, source to Parquet, against the source's own dump, Spark's JDBC reader, and peers?

Those that are a process of their own are asked for its peak of memory as well.
"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks import server
from benchmarks.bench import NAMES, Bench, project, python, settings
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed
from benchmarks.peers import INGESTR, dlt, ingestr, run_measured

DUMP = "COPY orders TO STDOUT (FORMAT binary)"


AIM = 2.0
"""Times a COPY to nowhere, with as many readers as there are by default."""

READERS = (1, 2)
"""SQLite is read by one, whatever is asked for."""

ALONE = "sidecar run --once"

PARTITIONS = 4
"""Spark's own, where Sidecar has to be ahead of it."""


def ask(bench: Bench) -> list[Answer]:
    """Return the answers for the small and the large table: of the large one, one round, without a warm one."""
    small = _answer(bench, bench.small, "first_load", bench.runs, warm=1)
    if bench.large == bench.small:
        return [small]
    return [small, _answer(bench, bench.large, "first_load_large", 1, warm=0)]


def _answer(bench: Bench, rows: int, question: str, runs: int, *, warm: int) -> Answer:
    contenders, notes = [], []
    peers = {"dlt, connectorx": dlt(bench.folder), f"ingestr {INGESTR}": ingestr(bench.folder)}
    notes += [f"{name}: not run, it cannot be installed here." for name, load in peers.items() if load is None]
    if "postgresql" in bench.sources:
        url = bench.source("postgresql", rows)
        found, copy = _copy(bench, url)
        contenders += [found]
        contenders += [_sidecar(bench, url, n, against=found.name, aim=AIM if n > 1 else None) for n in READERS]
        notes.append(f"{found.name}: {copy}.")
        if bench.jdbc_jar is None:
            notes.append(
                "Spark JDBC: not run, there is no driver. apt-get install libpostgresql-jdbc-java brings one, or "
                "PG_JDBC_JAR names its jar."
            )
        else:
            # Their aim is that we are ahead of the last of them.
            some = (1, 2, PARTITIONS) if warm else (PARTITIONS,)
            contenders += [_jdbc(bench, url, rows, partitions, against=found.name) for partitions in some]
        contenders += _processes(bench, url, READERS[-1], peers, against=found.name)
    if "sqlite" in bench.sources:
        url = bench.source("sqlite", rows)
        fetch = Contender("SQLite: sqlite3, rows fetched and let go", lambda: timed(lambda: _fetch(url)))
        contenders += [fetch, _sidecar(bench, url, 1, against=fetch.name)]
        contenders += _processes(bench, url, 1, peers, against=fetch.name)
    notes += [
        "Sidecar: a new project each run; backfill → change log → Parquet, all durable, in a warm session of Spark.",
        f"{ALONE}, dlt, ingestr: from the start of their process to its end; dlt and ingestr write one Parquet file.",
        "The table has the two indexes that `sidecar check` asks for: (updated_at, id), and (deleted_at, id) WHERE "
        "deleted_at IS NOT NULL.",
    ]
    results = take_turns(contenders, runs, warm=warm, say=bench.say)
    return Answer(question, f"First load of {rows:,} rows", "s", results, notes)


def _sidecar(bench: Bench, url: str, readers: int, *, against: str, aim: float | None = None) -> Contender:
    def run() -> Sample:
        with bench.scratch() as folder:
            return load(bench, folder, url, readers=readers)

    name = NAMES[url.partition(":")[0]]
    return Contender(f"{name}: Sidecar to Parquet, readers: {readers}", run, against, aim)


Load: TypeAlias = Callable[[str, Path], Sample]


def _processes(
    bench: Bench, url: str, readers: int, peers: Mapping[str, Load | None], *, against: str
) -> list[Contender]:
    """Return those that load from the start of a process to its end: Sidecar, and whoever of *peers* there is."""
    loads = {ALONE: alone(readers)} | {name: load for name, load in peers.items() if load is not None}
    return [_process(bench, name, load, url, against) for name, load in loads.items()]


def _process(bench: Bench, name: str, load: Load, url: str, against: str) -> Contender:
    def run() -> Sample:
        with bench.scratch() as folder:
            return load(url, folder)

    return Contender(f"{NAMES[url.partition(':')[0]]}: {name} to Parquet", run, against)


def alone(readers: int) -> Load:
    """Return what loads the orders of a URL into a folder by `sidecar run --once`, which starts a Spark for it."""

    def load(url: str, into: Path) -> Sample:
        path = settings(into, url, readers=readers)
        program = "from sidecar.cli import main; main()"
        return run_measured(python("-c", program, "run", "--once", "-c", str(path)), into)

    return load


def load(bench: Bench, folder: Path, url: str, *, readers: int) -> Sample:
    """Return how long a first load into *folder* takes, and its two halves: read and log, Spark."""
    spark, read = bench.spark, 0.0
    began = time.perf_counter()
    with project(folder, url, readers=readers) as sc:

        def note(_: object) -> None:
            nonlocal read
            read = time.perf_counter() - began

        code = sc.run(spark, once=True, on_step=note)
    seconds = time.perf_counter() - began
    if code:
        raise RuntimeError(f"the load ended with exit code {code}")
    return Sample(seconds, {"read and log": read, "Spark": seconds - read})


def _copy(bench: Bench, url: str) -> tuple[Contender, str]:
    name = "PostgreSQL: COPY binary to /dev/null"
    psql = server.psql(bench.server)
    if psql is None:
        return Contender(name, lambda: timed(lambda: _copy_by_psycopg(url))), "psycopg, there is no psql here"

    def run() -> None:
        subprocess.run([psql, "-X", "-q", "-c", DUMP, url], check=True, stdout=subprocess.DEVNULL)

    return Contender(name, lambda: timed(run)), "psql"


def _copy_by_psycopg(url: str) -> None:
    with psycopg.connect(url) as connection, connection.cursor().copy(DUMP) as copy:
        for _ in copy:
            pass


def _jdbc(bench: Bench, url: str, rows: int, partitions: int, *, against: str) -> Contender:
    options = jdbc_options(url, rows, partitions)

    def run() -> Sample:
        spark = bench.spark
        with bench.scratch() as folder:
            read = spark.read.format("jdbc").options(**options)
            return timed(lambda: read.load().write.parquet(str(folder / "lake")))

    return Contender(f"PostgreSQL: Spark JDBC to Parquet, partitions: {partitions}", run, against)


def jdbc_options(url: str, rows: int, partitions: int) -> dict[str, str]:
    """Return the options by which Spark's JDBC reader reads the orders of *url* in *partitions* parts."""
    parts = conninfo_to_dict(url)
    options = {
        "url": f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}",
        "user": str(parts["user"]),
        "password": str(parts["password"]),
        "driver": "org.postgresql.Driver",
        "dbtable": "orders",
        # Without it, the driver holds the whole result in the heap.
        "fetchsize": "10000",
    }
    if partitions > 1:
        bounds = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(rows + 1)}
        options |= bounds | {"numPartitions": str(partitions)}
    return options


def _fetch(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        cursor = connection.execute("SELECT * FROM orders")
        while cursor.fetchmany(10_000):
            pass
    finally:
        connection.close()
