"""Is a poll that is far behind bounded, even where all that it has to read carries one timestamp?

A watermark stands below N rows with one stamp, so neither time nor the watermark divides them. The poll is killed half
way and run again, while another session gives rows newer stamps. What must come out: memory that does not grow with N,
progress that the kill does not undo, segments that are never touched again, each version of a row once.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa

import sidecar
from benchmarks import tied_rows
from benchmarks.bench import NAMES, Bench, python, settings
from benchmarks.measure import Answer, Contender, Sample, take_turns
from benchmarks.memory import peak
from sidecar.changelog import ChangeLog
from sidecar.clock import SystemClock
from sidecar.model import Page
from sidecar.poll import Step
from sidecar.runner import Runner

PAGE = 50_000
LOOKBACK = 5.0
"""Seconds."""

RESTING = 3
"""Polls once nothing changes any more, LOOKBACK and a little apart."""

TOUCHED = 10
"""One in so many rows at most is touched while the poll runs."""

_LATE = 2
"""Pages after which the process that is to be killed waits for it, should the watcher be late."""


@dataclass(frozen=True)
class Read:
    """One page that a process asked the source for; `rows` is the page's size where it was killed before the answer."""

    began: float
    ended: float
    first: bool
    rows: int


@dataclass(frozen=True)
class Process:
    """What one process did. `polls` are its reads, poll by poll; the first one may go on with an interrupted poll."""

    started: float
    ended: float
    peak: float
    polls: list[list[Read]]

    @property
    def opening(self) -> float:
        """Return how long it took from the process's start to its first question."""
        return self.polls[0][0].began - self.started


@dataclass(frozen=True)
class Run:
    """What came of the poll of `rows` tied rows; sizes in MB."""

    rows: int
    killed: Process
    resumed: Process
    rested: Process
    twice: int
    touched: int
    state: float
    log: float

    @property
    def seconds(self) -> float:
        """Return how long the tied rows took, from the first page asked for to the last one durable."""
        polls = self.resumed.polls
        ended = polls[1][0].began if len(polls) > 1 else self.resumed.ended
        return self.killed.ended - self.killed.polls[0][0].began + ended - polls[0][0].began


def ask(bench: Bench) -> list[Answer]:
    """Return two answers: peak memory, and time."""
    runs: dict[str, Run] = {}
    contenders = []
    for scheme in bench.sources:
        small = f"{NAMES[scheme]}: {bench.small:,} rows"
        for rows in (bench.small, bench.tie):
            name = f"{NAMES[scheme]}: {rows:,} rows"
            contenders.append(_measured(bench, scheme, rows, name, runs, against=None if name == small else small))
    peaks = take_turns(contenders, 1, warm=0, say=bench.say)
    costs = take_turns(
        [Contender(c.name, functools.partial(_cost, runs, c.name), c.against) for c in contenders], 1, warm=0
    )
    notes = [
        "A watermark below rows that all carry one stamp; killed half way, run again, and polled again once at rest.",
        "Checked, or there is no figure: no version of a row is missing or came twice, segments that stood at the kill "
        "are unchanged, and no more was read twice than the page being written and the one being read.",
    ]
    last = [
        "Next: the rows that the poll right after it reads, those touched meanwhile among them. At rest: the same of "
        f"the poll {LOOKBACK:g} s after the last change; at last: of the last one of {RESTING}.",
    ]
    return [
        Answer("tie", "Peak memory of a poll whose rows all carry one timestamp", "MB", peaks, notes),
        Answer("tie_time", "Its time", "µs a row", costs, last),
    ]


def _measured(
    bench: Bench, scheme: str, rows: int, name: str, runs: dict[str, Run], *, against: str | None
) -> Contender:
    def run() -> Sample:
        done = runs[name] = _run(bench, scheme, rows)
        parts = {"killed": done.killed.peak, "resumed": done.resumed.peak, "at rest": done.rested.peak}
        return Sample(max(parts.values()), parts)

    return Contender(name, run, against, aim=None if against is None else 1.2)


def _cost(runs: Mapping[str, Run], name: str) -> Sample:
    run = runs[name]
    following = run.resumed.polls[1] if len(run.resumed.polls) > 1 else []
    parts = {
        "s": run.seconds,
        "rows/s": run.rows / run.seconds,
        "rows touched": run.touched,
        "rows read twice by the kill": run.twice,
        "s to open after the kill": run.resumed.opening,
        "next: rows": _rows(following),
        "next: s": run.resumed.ended - following[0].began if following else 0,
        "at rest: rows": _rows(run.rested.polls[0]),
        "at rest: s to open": run.rested.opening,
        "at last: rows": _rows(run.rested.polls[-1]) if len(run.rested.polls) == RESTING else 0,
        "state MB": run.state,
        "log MB": run.log,
    }
    return Sample(run.seconds / run.rows * 1e6, parts)


def _run(bench: Bench, scheme: str, rows: int) -> Run:
    """Poll *rows* tied rows, killed once, and check what came of it; RuntimeError if it is not what was promised."""
    bench.say(f"{NAMES[scheme]} with {rows:,} tied rows (made at the first run only)")
    url = tied_rows.source(bench, scheme, rows)
    unit = '\nupdated_at_unit = "us"' if scheme == "sqlite" else ""
    table = f'lookback = "{LOOKBACK:g}s"\npage_size = {PAGE}{unit}'
    try:
        with bench.scratch() as folder:
            path = settings(folder, url, name="ties", table=table, sinks=False)
            with sidecar.open(path) as sc:
                first = sc.set_watermark("ties", tied_rows.BEFORE[scheme]).offset + 1
                log = sc.log("ties")
            half = rows // PAGE // 2
            # Only once the poll is under way: a newer stamp that it sees from the start lets it close over the tie, and
            # then there is nothing that it would have to remember.
            with tied_rows.touching(url, rows, rows // TOUCHED, after=log.path(first)) as touched:
                bench.say("a poll that is killed half way")
                killed = _kill(path, log.path(first + half - 1), hold=half + _LATE)
                before = _fingerprints(log)
                durable = sum(m.rows for s in log.list(first - 1) if (m := log.metadata(s.offset)) is not None)
                bench.say(f"killed with {durable:,} rows durable; run again")
                resumed = _finish(path, "resumed")
            bench.say("polled again once nothing changes")
            SystemClock().sleep(LOOKBACK * 1.2)
            rested = _finish(path, "rested", polls=RESTING)
            bench.say("checking the log")
            after = _fingerprints(log)
            if changed := [name for name, known in before.items() if after.get(name) != known]:
                raise RuntimeError(f"{len(changed)} segments have changed since the kill, {changed[0]} first")
            tied_rows.check(log, rows, touched)
            twice = _rows([read for poll in killed.polls for read in poll]) - durable
            if not 0 <= twice <= 2 * PAGE:
                raise RuntimeError(f"{twice:,} rows were read twice because of the kill")
            sizes = [_size(folder / "state" / part) for part in ("db", "log")]
    finally:
        tied_rows.put_back(url)
    return Run(rows, killed, resumed, rested, twice, len(touched), *sizes)


def _kill(path: Path, segment: Path, *, hold: int) -> Process:
    """Run the project at *path* until *segment* stands, and kill it there, whatever it does at that moment."""
    started = time.monotonic()
    with subprocess.Popen(_command(path, "killed", hold=hold), cwd=Path(__file__).parents[1]) as process:
        try:
            while not segment.exists():
                if process.poll() is not None:
                    raise RuntimeError("the poll was over before it could be killed")
                SystemClock().sleep(0.001)
            most = peak(process.pid)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    return Process(started, time.monotonic(), most, _reads(path, "killed"))


def _finish(path: Path, name: str, *, polls: int = 1) -> Process:
    """Run the project at *path* to the end of *polls* polls."""
    started = time.monotonic()
    command = _command(path, name, polls=polls)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    most = float(json.loads(done.stdout.splitlines()[-1]))
    return Process(started, time.monotonic(), most, _reads(path, name))


def _command(path: Path, name: str, *, hold: int = 0, polls: int = 1) -> list[str]:
    pause = LOOKBACK * 1.2
    return python("-m", "benchmarks.tie", str(path), str(_reads_file(path, name)), str(hold), str(polls), str(pause))


def _reads_file(path: Path, name: str) -> Path:
    return path.with_name(f"reads-{name}")


def _reads(path: Path, name: str) -> list[list[Read]]:
    """Return what a process wrote down, poll by poll. It never asks for two pages at once."""
    polls: list[list[Read]] = []
    for line in _reads_file(path, name).read_text(encoding="ascii").splitlines():
        kind, at, first, rows = line.split()
        if kind == "asked":
            if first == "1" or not polls:
                polls.append([])
            polls[-1].append(Read(float(at), float(at), first == "1", int(rows)))
        else:
            asked = polls[-1].pop()
            polls[-1].append(Read(asked.began, float(at), asked.first, int(rows)))
    return polls


def _rows(reads: list[Read]) -> int:
    return sum(r.rows for r in reads)


def _fingerprints(log: ChangeLog) -> dict[str, tuple[object, ...]]:
    """Return, by name, which file each segment is, when it was written, and what is in it."""
    found: dict[str, tuple[object, ...]] = {}
    for segment in log.list():
        stat = segment.path.stat()
        with segment.path.open("rb") as file:
            content = hashlib.file_digest(file, "blake2b").digest()
        found[segment.path.name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, content)
    return found


def _size(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def main(path: str, reads: str, hold: str, polls: str, pause: str) -> None:
    """Poll the project at *path*, write down in *reads* what is asked of the source, and print the peak memory.

    After *hold* pages, wait to be killed; 0: never.
    """
    clock, steps = SystemClock(), itertools.count(1)

    def on_step(step: Step) -> None:
        del step
        if next(steps) == int(hold):
            clock.sleep(600)

    with sidecar.open(path) as sc, Path(reads).open("ab", buffering=0) as file:
        read = sc.connector.read

        def counted(page: Page) -> pa.Table:
            first = int(page.after is None)
            file.write(f"asked {clock.monotonic()} {first} {page.limit}\n".encode())
            data = read(page)
            file.write(f"read {clock.monotonic()} {first} {len(data)}\n".encode())
            return data

        with mock.patch.object(sc.connector, "read", counted):
            for number in range(int(polls)):
                if number:
                    clock.sleep(float(pause))
                # A new one each time: it remembers that nothing has changed, and would not ask.
                Runner(sc, on_step=on_step).poll()
    print(json.dumps(peak(os.getpid())))


if __name__ == "__main__":
    main(*sys.argv[1:])
