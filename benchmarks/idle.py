"""What does a run cost that finds nothing: from a process's start, and in a process that runs already?"""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.bench import NAMES, Bench, acknowledge, project, python
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed
from sidecar.runner import Runner

LIMITS = {"sqlite": 0.7}
POLLS = 100


def ask(bench: Bench) -> list[Answer]:
    """Return two answers: cold and warm."""
    cold: list[Contender] = [Contender("python -c pass", lambda: _started(*python("-c", "pass")))]
    warm: list[Contender] = []
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            url, folder = bench.source(scheme, bench.small), stack.enter_context(bench.scratch())
            bench.say(f"{NAMES[scheme]}: a first load")
            with project(folder, url) as sc:
                sc.poll()
                acknowledge(sc)
            cold.append(_cold(scheme, folder))
            warm.append(_warm(scheme, folder, url))
        started = take_turns(cold, bench.runs, say=bench.say)
        polled = take_turns(warm, bench.runs, say=bench.say)
    rows = f"{bench.small:,} rows"
    return [
        Answer(
            "idle_cold",
            f"`sidecar run --once`, from its start to its end, when nothing has changed among {rows}",
            "s",
            started,
            ["A Parquet sink is configured, and level with the log: no JVM is started."],
        ),
        Answer(
            "idle_warm",
            f"A poll of an open project, when nothing has changed among {rows}",
            "ms",
            polled,
            [f"Each run is the median of {POLLS} polls."],
        ),
    ]


def _cold(scheme: str, folder: Path) -> Contender:
    program = str(Path(sys.executable).with_name("sidecar"))
    command = (program, "run", "--once", "-c", str(folder / "sidecar.toml"))
    return Contender(
        f"{NAMES[scheme]}: sidecar run --once",
        lambda: _started(*command),
        "python -c pass",
        limit=LIMITS.get(scheme),
    )


def _warm(scheme: str, folder: Path, url: str) -> Contender:
    def run() -> Sample:
        with project(folder, url) as sc:
            runner, times = Runner(sc), []
            for _ in range(POLLS + 1):
                began = time.perf_counter()
                runner.poll()
                times.append(time.perf_counter() - began)
        # The first one opens everything.
        return Sample(statistics.median(times[1:]) * 1000)

    return Contender(f"{NAMES[scheme]}: poll", run)


def _started(*command: str) -> Sample:
    """Return how long *command* takes, and its processor time, to which a busy machine adds less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    sample = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Sample(sample.value, {"processor": used})
