"""Does a poll cost what has changed, or what is there? 10,000 changes of a small table, and of a large one."""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
from pathlib import Path

import psycopg

from benchmarks import workload
from benchmarks.bench import NAMES, Bench, project
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed
from sidecar.clock import SystemClock
from sidecar.project import Sidecar

CHANGES = 10_000
TURNS = 3
"""For each run asked for: a poll is short, and scatters more than a load."""

LOOKBACK = 2.0
"""Seconds."""

REST = 1.8
"""Times lookback, until what was seen is closed: a column of texts takes a second longer."""


def ask(bench: Bench) -> Answer:
    """Return the answer for each source."""
    contenders: list[Contender] = []
    changes = min(CHANGES, bench.small)
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            small, large = (f"{NAMES[scheme]}: of {rows:,} rows" for rows in (bench.small, bench.large))
            for name, rows in ((small, bench.small), (large, bench.large)):
                url = stack.enter_context(bench.copy(scheme, rows))
                folder, table = stack.enter_context(bench.scratch()), f'lookback = "{LOOKBACK:g}s"'
                sc = stack.enter_context(project(folder, url, table=table, sinks=False))
                contenders.append(_polled(name, sc, url, rows, changes, against=small if name == large else None))
        results = take_turns(contenders, bench.runs * TURNS, say=bench.say)
    notes = [
        "The poll alone: source → change log → watermark, all durable. The changes are spread evenly over the table.",
        f"Lookback is {LOOKBACK:g} s here, and has passed before each turn: nothing but the changes is read.",
    ]
    return Answer("poll_size", f"A poll that finds {changes:,} changed rows", "s", results, notes)


def _polled(name: str, sc: Sidecar, url: str, rows: int, changes: int, *, against: str | None) -> Contender:
    clock, turns = SystemClock(), itertools.count()
    # The watermark says that all there is has been delivered: a first load of the large table is another question.
    sc.set_watermark("orders", "2025-12-31T00:00:00Z")
    sc.poll()

    def run() -> Sample:
        change(url, workload.spread(rows, changes, next(turns)), clock.now())
        # Or the poll's own writes wait for those of the change, and for what is left of the copy's gigabytes.
        os.sync()
        sample = timed(lambda: found.append(sc.poll()["orders"].rows))
        clock.sleep(LOOKBACK * REST)
        sc.poll()
        if found[-1] != changes:
            raise RuntimeError(f"{name}: {found[-1]} of {changes} changes were found")
        return sample

    found: list[int] = []
    return Contender(name, run, against, aim=None if against is None else 1.2)


def change(url: str, keys: range, now: int) -> None:
    """Update the rows with *keys* in the database at *url*."""
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(Path(url.removeprefix("sqlite:///")), isolation_level=None)
        try:
            workload.change_sqlite(connection, keys, now)
        finally:
            connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as postgres:
            workload.change_postgres(postgres, keys)
            # Or the poll shares the machine with the server's own writing: twice as many pages of the large table.
            postgres.execute("CHECKPOINT")
