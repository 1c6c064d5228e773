"""How long does a commit in the source take until the mirror shows it, in a loop of `sidecar run --interval 1s`?"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench import NAMES, Bench
from benchmarks.latency import CLOCK, LIVE, MOST, RATE, SECONDS, SETTLED, Writer, p99, spread_keys, wait_for, writer_to
from benchmarks.measure import Answer, Contender, Sample, take_turns
from sidecar.changelog import ChangeLog

AIM = 2.5
"""Seconds, for the median of a small table."""

_LIVE_ROWS = 1_000


def ask(bench: Bench) -> Answer:
    """Return the answer for a small table and for the orders, of each source."""
    contenders = []
    seconds = float(os.environ.get("SIDECAR_BENCH_SECONDS", SECONDS))
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            url = stack.enter_context(bench.copy(scheme, bench.small))
            writer = stack.enter_context(writer_to(url))
            for table, rows in ((LIVE, _LIVE_ROWS), ("orders", bench.small)):
                name = f"{NAMES[scheme]}: a table of {rows:,} rows"
                contenders.append(_contender(bench, name, url, table, writer, rows, seconds))
        results = take_turns(contenders, min(bench.runs, MOST), warm=0, say=bench.say)
    notes = [
        f"Of each round the median: {RATE} commits a second for {seconds:g} s, each of one row, from the commit's "
        "return to the commit of the Delta table that holds it.",
        f"Aim: {AIM:g} s.",
    ]
    return Answer("freshness", "From commit to mirror, in a loop with --interval 1s", "s", results, notes)


def _contender(bench: Bench, name: str, url: str, table: str, write: Writer, rows: int, seconds: float) -> Contender:
    turn = 0

    def run() -> Sample:
        nonlocal turn
        turn += 1
        with bench.scratch() as folder:
            return _measured(folder, url, table, write, spread_keys(rows, int(seconds * RATE), turn))

    return Contender(name, run)


def _measured(folder: Path, url: str, table: str, write: Writer, keys: Sequence[int]) -> Sample:
    state, said, lake = folder / "state", folder / "stderr", folder / "lake" / table
    with said.open("wb") as stderr:
        program = str(Path(sys.executable).with_name("sidecar"))
        command = (program, "run", "--interval", "1s", "-c", str(_settings(folder, url, table)))
        process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL)
    try:
        log = ChangeLog(state / "log", table)
        wait_for(process, said, lambda: _is_level(state, log, lake))
        CLOCK.sleep(SETTLED)
        before, committed, due = log.last(), dict[int, float](), CLOCK.monotonic()
        for key in keys:
            CLOCK.sleep(max(0.0, due - CLOCK.monotonic()))
            due += 1 / RATE
            write(table, key)
            committed[key] = CLOCK.now() / 1_000_000
        wait_for(process, said, lambda: set(_offsets(log, before)) >= set(committed))
        offsets = _offsets(log, before)
        wait_for(process, said, lambda: max(_shown(lake)) >= max(offsets.values()))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    shown = _shown(lake)
    late = []
    for key, at in committed.items():
        late.append(min(time for offset, time in shown.items() if offset >= offsets[key]) - at)
    return Sample(statistics.median(late), {"p99": p99(late), "most": max(late)})


def _is_level(state: Path, log: ChangeLog, lake: Path) -> bool:
    """Return whether the first load is over, and the mirror has it."""
    busy = any((state / "backfills").glob("*/*.json"))
    return not busy and bool(log.last()) and max(_shown(lake), default=0) >= log.last()


def _offsets(log: ChangeLog, after: int) -> dict[int, int]:
    """Return in which segment after the one *after* each key came first."""
    found: dict[int, int] = {}
    for segment in log.list(after):
        changes = log.get(segment.offset)
        assert changes is not None
        for key in changes.column("id").to_pylist():
            found.setdefault(key, segment.offset)
    return found


def _shown(lake: Path) -> dict[int, float]:
    """Return by offset when the Delta table came to hold all up to it."""
    return dict(_commits(lake / "_delta_log"))


def _commits(folder: Path) -> Iterator[tuple[int, float]]:
    for path in sorted(folder.glob("*.json")):
        for line in path.read_text(encoding="utf-8").splitlines():
            txn = json.loads(line).get("txn")
            # Another one of these has the time of the offset.
            if txn is not None and not txn["appId"].endswith("/committed"):
                yield int(txn["version"]), path.stat().st_ctime


def _settings(folder: Path, url: str, table: str) -> Path:
    path = folder / "sidecar.toml"
    path.write_text(
        f"[source]\nurl = {json.dumps(url)}\n[state]\npath = {json.dumps(str(folder / 'state'))}\n[tables.{table}]\n"
        f'[sinks.lake]\nformat = "delta"\nmode = "mirror"\npath = {json.dumps(str(folder / "lake"))}\n',
        encoding="utf-8",
    )
    return path
