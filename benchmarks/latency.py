"""How long does a commit take into the log of `sidecar run --interval 1s`, while the large table is backfilled?"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.bench import NAMES, Bench
from benchmarks.measure import Answer, Contender, Sample, take_turns
from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock, iso

SECONDS, RATE = 20.0, 5
"""For so long, so many rows a second are committed, each by itself."""

SETTLED = 3.0
"""Seconds from the first segments until the writer begins: by then, polls have."""

PATIENCE = 600.0
MOST = 3
"""Rounds: each gives a hundred latencies."""

CLOCK = SystemClock()
LIVE = "live"
_ROWS = 1_000
_POLLED = re.compile(r"table=(\S+) rows=\d+ offset=\S+ lag_s=\S+ ms=(\d+)")

Writer = Callable[[str, int], None]
"""Commits a new stamp for the row of a table that has this key."""


@dataclass(frozen=True)
class Case:
    """One way to run: which table is written to, which others are followed, and whether a sink is fed."""

    name: str
    written: str
    followed: Sequence[str]
    sink: bool = False


CASES = (
    Case("no backfill", LIVE, (LIVE,)),
    Case("backfill of another table", LIVE, (LIVE, "orders")),
    Case("backfill of the same table", "orders", ("orders",)),
    Case("backfill of another table, to Parquet", LIVE, (LIVE, "orders"), sink=True),
)


def ask(bench: Bench) -> Answer:
    """Return the answer for each source."""
    contenders = []
    seconds = float(os.environ.get("SIDECAR_BENCH_SECONDS", SECONDS))
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            url = stack.enter_context(bench.copy(scheme, bench.large))
            writer, rows = stack.enter_context(writer_to(url)), {LIVE: _ROWS, "orders": bench.large}
            for case in CASES:
                contenders.append(_contender(bench, scheme, url, case, writer, rows[case.written], seconds))
        results = take_turns(contenders, min(bench.runs, MOST), warm=0, say=bench.say)
    notes = [
        f"Of each round the 99th percentile: {RATE} commits a second for {seconds:g} s, each of one row, from the "
        "commit's return to the rename of the segment that holds it.",
        "poll: of those polls of that table that found something. running: of a round's end, whether the backfill "
        "was still under way.",
    ]
    title = f"From commit to log, in a loop with --interval 1s that backfills {bench.large:,} rows"
    return Answer("latency", title, "s", results, notes)


def _contender(bench: Bench, scheme: str, url: str, case: Case, write: Writer, rows: int, seconds: float) -> Contender:
    turn = 0

    def run() -> Sample:
        nonlocal turn
        turn += 1
        with bench.scratch() as folder:
            return _measured(folder, url, case, write, spread_keys(rows, int(seconds * RATE), turn))

    quiet = f"{NAMES[scheme]}: {CASES[0].name}"
    name = f"{NAMES[scheme]}: {case.name}"
    return Contender(name, run, None if name == quiet else quiet)


def spread_keys(rows: int, count: int, turn: int) -> Sequence[int]:
    """Return keys spread over the table: of these, each is written once."""
    step = max(1, rows // count)
    return [1 + (n * step + turn) % rows for n in range(min(rows, count))]


def _measured(folder: Path, url: str, case: Case, write: Writer, keys: Sequence[int]) -> Sample:
    state, said = folder / "state", folder / "stderr"
    with said.open("wb") as stderr:
        program = str(Path(sys.executable).with_name("sidecar"))
        command = (program, "run", "--interval", "1s", "-c", str(_settings(folder, url, case)))
        process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL)
    try:
        first = [state / "log" / table for table in case.followed]
        # Spark starts once in a loop's life; what counts is how it goes on.
        first += [folder / "lake" / table for table in case.followed if case.sink]
        wait_for(process, said, lambda: all(any(where.glob("*.parquet")) for where in first))
        CLOCK.sleep(SETTLED)
        committed: dict[int, float] = {}
        due = CLOCK.monotonic()
        for key in keys:
            CLOCK.sleep(max(0.0, due - CLOCK.monotonic()))
            due += 1 / RATE
            write(case.written, key)
            committed[key] = CLOCK.now() / 1_000_000
        running = any((state / "backfills").glob("*/*.running.json"))
        log = ChangeLog(state / "log", case.written)
        arrived: dict[int, float] = {}
        seen = [0]

        def all_there() -> bool:
            arrived.update(_arrivals(log, seen, committed))
            return len(arrived) == len(committed)

        wait_for(process, said, all_there)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    late = [arrived[key] - committed[key] for key in committed]
    polls = [int(m[2]) / 1000 for m in _POLLED.finditer(said.read_text(errors="replace")) if m[1] == case.written]
    parts = {"p50": statistics.median(late), "running": float(running)}
    parts |= {"poll p50": statistics.median(polls), "poll p99": p99(polls)} if polls else {}
    return Sample(p99(late), parts)


def _arrivals(log: ChangeLog, seen: list[int], committed: dict[int, float]) -> Iterator[tuple[int, float]]:
    """Yield the keys of polls' segments after the last one *seen*, and when each came to be."""
    for segment in log.list(seen[0]):
        seen[0], found = segment.offset, log.metadata(segment.offset)
        written = segment.path.stat().st_ctime
        if found is not None and found.origin == "poll":
            changes = log.get(segment.offset)
            assert changes is not None
            for key in changes.column("id").to_pylist():
                # A segment of before is of a stamp of before: the tables are those of the last round.
                if key in committed and written >= committed[key] - 0.05:
                    yield key, written


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


def wait_for(process: subprocess.Popen[bytes], said: Path, done: Callable[[], bool]) -> None:
    until = CLOCK.monotonic() + PATIENCE
    while not done():
        if process.poll() is not None or CLOCK.monotonic() > until:
            raise RuntimeError(f"sidecar run: {said.read_text(errors='replace')[-400:] or 'nothing is said'}")
        CLOCK.sleep(0.1)


def _settings(folder: Path, url: str, case: Case) -> Path:
    lines = ["[source]", f"url = {json.dumps(url)}", "[state]", f"path = {json.dumps(str(folder / 'state'))}"]
    lines += [f"[tables.{name}]" for name in case.followed]
    if case.sink:
        lines += ["[sinks.lake]", 'format = "parquet"', f"path = {json.dumps(str(folder / 'lake'))}"]
    path = folder / "sidecar.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextlib.contextmanager
def writer_to(url: str) -> Iterator[Writer]:
    """Make the small table beside the large one, and give what writes to both."""
    if url.startswith("sqlite"):
        lite = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
        with contextlib.closing(lite):
            lite.execute("PRAGMA journal_mode = WAL")
            lite.execute(f"CREATE TABLE {LIVE} (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
            lite.execute(f"CREATE INDEX {LIVE}_updated ON {LIVE} (updated_at, id)")
            old = [(n, "2024-01-01T00:00:00.000000Z") for n in range(1, _ROWS + 1)]
            lite.executemany(f"INSERT INTO {LIVE} VALUES (?, ?)", old)

            def touch(table: str, key: int) -> None:
                lite.execute(f"UPDATE {table} SET updated_at = ? WHERE id = ?", (iso(CLOCK.now()), key))

            yield touch
        return
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {LIVE} (id bigint PRIMARY KEY, updated_at timestamptz NOT NULL)")
        connection.execute(f"CREATE INDEX {LIVE}_updated ON {LIVE} (updated_at, id)")
        connection.execute(f"INSERT INTO {LIVE} SELECT n, '2024-01-01' FROM generate_series(1, {_ROWS}) AS n")

        def update(table: str, key: int) -> None:
            connection.execute(f"UPDATE {table} SET updated_at = clock_timestamp() WHERE id = %s".encode(), [key])

        yield update
