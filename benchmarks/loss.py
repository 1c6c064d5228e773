"""python -m benchmarks.loss: which rows does a copy lose while others write? Sidecar, a plain watermark, and dlt."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import loss_writers as writers
from benchmarks.bench import HOME, Bench
from benchmarks.loss_pollers import LOOKBACK, Copy, Dlt, Naive, Ours, Poller, dlt_python
from tests import servers
from tests.standby import standby_of


@dataclass(frozen=True)
class Score:
    """How far a copy is from the truth."""

    workload: str
    poller: str
    rows: int
    lost: int
    stale: int
    repeated: int | None
    polls: int
    idle_reads: int | None
    error: str | None = None


def score(workload: str, poller: str, truth: dict[int, int], copy: Copy, *, in_order: bool) -> Score:
    """Compare *copy*, folded by key, with *truth*: version by key."""
    held = dict(copy.deliveries)
    lost = sum(key not in held for key in truth)
    stale = sum(held[key] != version for key, version in truth.items() if key in held)
    repeated = len(copy.deliveries) - len(set(copy.deliveries)) if in_order else None
    return Score(workload, poller, len(truth), lost, stale, repeated, copy.polls, copy.idle_reads, copy.error)


def measure(
    workload: str,
    writing: contextlib.AbstractContextManager[None],
    truth: Callable[[], dict[int, int]],
    pollers: list[Poller],
    seconds: float,
) -> list[Score]:
    """Let all *pollers* copy the table at once while it is written to for *seconds*."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(pollers)) as pool:
        try:
            with writing:
                copies = [pool.submit(poller.run, stop) for poller in pollers]
                stop.wait(seconds)
        finally:
            stop.set()
        return [
            score(workload, p.name, truth(), c.result(), in_order=not isinstance(p, Dlt))
            for p, c in zip(pollers, copies, strict=True)
        ]


def ask(bench: Bench, seconds: float, python: Path | None) -> Iterator[list[Score]]:
    """Yield the scores of each workload, once."""
    with servers.any_server() as server, servers.fresh_database(server) as pg, bench.scratch() as folder:

        def in_postgres() -> dict[int, int]:
            with pg.connect() as connection:
                return dict(connection.execute("SELECT id, version FROM items").fetchall())

        writers.make(pg.connect)
        with standby_of(pg) as standby:
            # A superuser sees the other sessions, and so has another horizon.
            places = (("PostgreSQL", pg.reader_url, pg.url), ("PostgreSQL standby", standby, None))
            for name, url, monitor in places:
                bench.say(f"{name}: {writers.WRITERS} writers, late commits, {seconds:g} s")
                home = folder / name.replace(" ", "-")
                home.mkdir()
                pollers = _pollers(home, url, python)
                if monitor is not None:
                    (home / "monitor").mkdir()
                    pollers.append(Ours(home / "monitor", monitor, name="Sidecar, which sees sessions"))
                writing = writers.postgres(pg.connect, seconds, standby if url == standby else None)
                yield measure(name, writing, in_postgres, pollers, seconds)
    for epochs in (False, True):
        form = "epoch seconds" if epochs else "text"
        with bench.scratch() as folder:
            path = folder / "items.db"

            def in_sqlite(path: Path = path) -> dict[int, int]:
                import sqlite3

                with contextlib.closing(sqlite3.connect(path)) as connection:
                    return dict(connection.execute("SELECT id, version FROM items").fetchall())

            bench.say(f"SQLite: whole seconds as {form}, {seconds:g} s")
            unit = 'updated_at_unit = "s"' if epochs else ""
            pollers = _pollers(folder, f"sqlite:///{path}", python, unit)
            yield measure(f"SQLite, {form}", writers.sqlite(path, epochs=epochs), in_sqlite, pollers, seconds)


def _pollers(folder: Path, url: str, python: Path | None, extra: str = "") -> list[Poller]:
    found: list[Poller] = [Ours(folder, url, extra), Naive(url)]
    if python is not None:
        found += [Dlt(python, folder / f"dlt-{lag:g}", url, lag) for lag in (0, LOOKBACK)]
    return found


def main() -> int:
    """Run every workload SIDECAR_BENCH_RUNS times; 1 if Sidecar lost or repeated anything."""
    seconds, runs = float(os.environ.get("SIDECAR_BENCH_SECONDS", "60")), int(os.environ.get("SIDECAR_BENCH_RUNS", "1"))
    scores: list[Score] = []
    with Bench.from_environment(("postgresql", "sqlite")) as bench:
        bench.say("installing dlt (at the first run only)")
        python = dlt_python(bench.folder)
        for _ in range(runs):
            for found in ask(bench, seconds, python):
                scores += found
    show(Console(width=None if sys.stdout.isatty() else 130), scores)
    if python is None:
        print("dlt could not be installed, and was left out.")
    (HOME / "results").mkdir(exist_ok=True)
    (HOME / "results" / "loss.json").write_text(json.dumps([asdict(s) for s in scores], indent=1) + "\n")
    ours = [s for s in scores if s.poller.startswith("Sidecar")]
    return int(any(s.lost or s.stale or s.repeated or s.idle_reads for s in ours))


def show(console: Console, scores: list[Score]) -> None:
    """Print one line a workload and poller, all runs added up."""
    table = Table("workload", "poller", "runs", "rows", "lost", "stale", "repeated", "polls", "read when idle")
    for name in dict.fromkeys((s.workload, s.poller) for s in scores):
        some = [s for s in scores if (s.workload, s.poller) == name]
        repeated = "-" if some[0].repeated is None else str(sum(s.repeated or 0 for s in some))
        idle = "-" if some[0].idle_reads is None else str(sum(s.idle_reads or 0 for s in some))
        if failed := next((s.error for s in some if s.error), None):
            table.add_row(*name, str(len(some)), str(sum(s.rows for s in some)), "fails")
            console.print(f"{', '.join(name)}: {failed[:300]}", style="dim", markup=False, highlight=False)
            continue
        sums = (sum(getattr(s, what) for s in some) for what in ("rows", "lost", "stale"))
        table.add_row(*name, str(len(some)), *map(str, sums), repeated, str(sum(s.polls for s in some)), idle)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
