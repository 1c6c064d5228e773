"""How long does a first load take, source to Parquet, against the source's own dump and Spark's JDBC reader?"""

from __future__ import annotations

import sqlite3
import subprocess
import time
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks import server
from benchmarks.bench import NAMES, Bench, project
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed

DUMP = "COPY orders TO STDOUT (FORMAT binary)"


def ask(bench: Bench) -> Answer:
    """Return the answer for the small table."""
    contenders, notes = [], []
    if "postgresql" in bench.sources:
        url = bench.source("postgresql", bench.small)
        found, copy = _copy(bench, url)
        contenders += [found, _sidecar(bench, url, against=found.name, aim=2.5)]
        notes.append(f"{found.name}: {copy}.")
        if bench.jdbc_jar is None:
            notes.append(
                "Spark JDBC: not run, there is no driver. apt-get install libpostgresql-jdbc-java brings one, or "
                "PG_JDBC_JAR names its jar."
            )
        else:
            # Their aim, below, is that we are ahead of them.
            contenders += [_jdbc(bench, url, partitions, against=found.name) for partitions in (1, 2)]
    if "sqlite" in bench.sources:
        url = bench.source("sqlite", bench.small)
        fetch = Contender("SQLite: sqlite3, rows fetched and let go", lambda: timed(lambda: _fetch(url)))
        contenders += [fetch, _sidecar(bench, url, against=fetch.name)]
    notes += [
        "Sidecar: a new project each run; poll → change log → Spark → Parquet, all durable, in a warm session.",
        "The table has the two indexes that `sidecar check` asks for: (updated_at, id), and (deleted_at, id) WHERE "
        "deleted_at IS NOT NULL.",
    ]
    results = take_turns(contenders, bench.runs, say=bench.say)
    return Answer("first_load", f"First load of {bench.small:,} rows", "s", results, notes)


def _sidecar(bench: Bench, url: str, *, against: str, aim: float | None = None) -> Contender:
    def run() -> Sample:
        with bench.scratch() as folder:
            return load(bench, folder, url)

    return Contender(f"{NAMES[url.partition(':')[0]]}: Sidecar to Parquet", run, against, aim)


def load(bench: Bench, folder: Path, url: str) -> Sample:
    """Return how long a first load into *folder* takes, and its two halves: read and log, Spark."""
    spark, read = bench.spark, 0.0
    began = time.perf_counter()
    with project(folder, url) as sc:

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


def _jdbc(bench: Bench, url: str, partitions: int, *, against: str) -> Contender:
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
        bounds = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(bench.small + 1)}
        options |= bounds | {"numPartitions": str(partitions)}

    def run() -> Sample:
        spark = bench.spark
        with bench.scratch() as folder:
            read = spark.read.format("jdbc").options(**options)
            return timed(lambda: read.load().write.parquet(str(folder / "lake")))

    return Contender(f"PostgreSQL: Spark JDBC to Parquet, partitions: {partitions}", run, against)


def _fetch(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        cursor = connection.execute("SELECT * FROM orders")
        while cursor.fetchmany(10_000):
            pass
    finally:
        connection.close()
