"""How long until a Delta table is equal to the source: a first load, and changes all over it, against dlt's merge?

Each run is a process of its own, from its start to its end, as cron would start it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import workload
from benchmarks.bench import NAMES, Bench, settings
from benchmarks.measure import Answer, Contender, Sample, take_turns
from benchmarks.peers import dlt_mirror, run_measured
from benchmarks.poll_size import change
from sidecar.clock import SystemClock

CHANGES = (1_000, 100_000)
INTO = 3
"""Times the small table: what the changes are made in."""

AIM = 1.0
SINK = '[sinks.mirror]\nformat = "delta"\nmode = "mirror"\npath = "mirror"\n'


def ask(bench: Bench) -> list[Answer]:
    """Return the answers for first loads, of the large table one round only, and for each number of changes."""
    answers = [_load(bench, bench.small, "mirror_load", bench.runs)]
    if bench.large != bench.small:
        answers.append(_load(bench, bench.large, "mirror_load_large", 1))
    rows = bench.small * INTO
    return [*answers, *(_changes(bench, rows, min(count, rows // 4)) for count in CHANGES)]


def sidecar(url: str, folder: Path) -> Sample:
    """Bring a mirror in *folder* level with the orders of *url*."""
    path = settings(folder, url, sinks=False)
    path.write_text(path.read_text(encoding="utf-8") + SINK, encoding="utf-8")
    program = "from sidecar.cli import main; main()"
    return run_measured([sys.executable, "-c", program, "run", "--once", "-c", str(path)], folder)


def _load(bench: Bench, rows: int, question: str, runs: int) -> Answer:
    peer, contenders = dlt_mirror(bench.folder), []
    for scheme in bench.sources:
        url = bench.source(scheme, rows)

        def fresh(load: Callable[[str, Path], Sample], url: str = url) -> Sample:
            with bench.scratch() as folder:
                return load(url, folder)

        name = f"{NAMES[scheme]}: dlt, merge into Delta"
        if peer is not None:
            contenders.append(Contender(name, lambda f=fresh, load=peer: f(load)))  # type: ignore[misc]
        ours = f"{NAMES[scheme]}: Sidecar, mirror"
        against = (name, AIM) if peer is not None else (None, None)
        contenders.append(Contender(ours, lambda f=fresh: f(sidecar), *against))  # type: ignore[misc]
    results = take_turns(contenders, runs, warm=0, say=bench.say)
    return Answer(question, f"First load of {rows:,} rows into a mirror", "s", results, _notes(peer is not None))


def _changes(bench: Bench, rows: int, count: int) -> Answer:
    peer, contenders = dlt_mirror(bench.folder), []
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            url = stack.enter_context(bench.copy(scheme, rows))
            turns = itertools.count()

            def turn(
                load: Callable[[str, Path], Sample], folder: Path, url: str = url, turns: itertools.count[int] = turns
            ) -> Callable[[], Sample]:
                bench.say(f"a mirror of {rows:,} rows")
                load(url, folder)
                # The first run after a load finds rows that its polls have not closed, and is no measure.
                load(url, folder)

                def run() -> Sample:
                    change(url, workload.spread(rows, count, next(turns)), SystemClock().now())
                    os.sync()
                    return load(url, folder)

                return run

            name, against = f"{NAMES[scheme]}: dlt, merge into Delta", None
            if peer is not None:
                contenders.append(Contender(name, turn(peer, stack.enter_context(bench.scratch()))))
                against = name
            ours = turn(sidecar, stack.enter_context(bench.scratch()))
            aim = AIM if against else None
            contenders.append(Contender(f"{NAMES[scheme]}: Sidecar, mirror", ours, against, aim))
        results = take_turns(contenders, bench.runs, warm=0, say=bench.say)
    title = f"{count:,} changes, all over a mirror of {rows:,} rows"
    return Answer(f"mirror_{count}", title, "s", results, _notes(peer is not None))


def _notes(has_peer: bool) -> list[str]:
    notes = [
        "From the start of the process to its end; the parts are its peak of memory. Sidecar needs no Spark for it.",
        "Each finds the changes that were made for the other as well, so a run has up to twice as many.",
    ]
    if not has_peer:
        notes.append("dlt: not run, it cannot be installed here.")
    return notes
