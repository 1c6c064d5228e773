"""python -m benchmarks [QUESTION …]: ask them, show the answers, and keep them."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Sequence

import psycopg
from rich.console import Console

from benchmarks import (
    current,
    first_load,
    freshness,
    idle,
    latency,
    memory,
    mirror,
    poll_cost,
    poll_size,
    server,
    session,
    stream,
    tie,
)
from benchmarks.bench import HOME, NAMES, Bench
from benchmarks.measure import Answer, show
from benchmarks.server import NoServer
from sidecar.clock import SystemClock, iso

QUESTIONS: dict[str, Callable[[Bench], Answer | list[Answer]]] = {
    "first_load": first_load.ask,
    "poll_size": poll_size.ask,
    "poll_cost": poll_cost.ask,
    "idle": idle.ask,
    "memory": memory.ask,
    "latency": latency.ask,
    "session": session.ask,
    "stream": stream.ask,
    "current": current.ask,
    "mirror": mirror.ask,
    "freshness": freshness.ask,
    "tie": tie.ask,
}
LONG = {"tie"}
"""Asked only by name: half an hour, and more room on the disk than all others together."""


def main(arguments: Sequence[str]) -> int:
    """Ask the questions named, or all but the long ones; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Figures of Sidecar, as ratios of contenders that take turns.",
        epilog="From the environment: SIDECAR_BENCH_RUNS=5, SIDECAR_BENCH_ROWS=1000000/10000000 (small/large), "
        "SIDECAR_BENCH_TIE=50000000 (the large one of `tie`), SIDECAR_BENCH_DIR (for the data), SIDECAR_TEST_PG (a "
        "superuser's DSN), PG_JDBC_JAR.",
    )
    parser.add_argument("question", nargs="*", help=f"of {', '.join(QUESTIONS)}; all but the last, if none is given")
    parser.add_argument("--source", action="append", choices=list(NAMES), help="may be repeated; both, if not given")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.question) - set(QUESTIONS):
        parser.error(f"no such question: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    # Wide, where nobody's terminal says otherwise.
    console, answers = Console(width=None if sys.stdout.isatty() else 150), []
    with Bench.from_environment(tuple(asked.source or NAMES)) as bench:
        try:
            about = describe(bench)
            for name in asked.question or [q for q in QUESTIONS if q not in LONG]:
                found = QUESTIONS[name](bench)
                for answer in found if isinstance(found, list) else [found]:
                    answers.append(answer)
                    show(console, answer)
                    keep(about, answers)
        except NoServer as error:
            print(f"{error} --source sqlite does without it.", file=sys.stderr)
            return 3
    return 0


def describe(bench: Bench) -> dict[str, object]:
    """Return what the figures were taken on and with."""
    versions = {name: importlib.metadata.version(name) for name in ("pyspark", "pyarrow", "connectorx", "psycopg")}
    versions |= {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    if "postgresql" in bench.sources:
        with psycopg.connect(server.url(bench.server, "postgres")) as connection:
            versions["postgresql"] = connection.info.parameter_status("server_version") or "?"
    return {
        "when": iso(SystemClock().now()),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.system(),
            "architecture": platform.machine(),
            "load_before": os.getloadavg(),
        },
        "versions": versions,
        "runs": bench.runs,
        "rows": {"small": bench.small, "large": bench.large, "tie": bench.tie},
    }


def keep(about: dict[str, object], answers: Sequence[Answer]) -> None:
    """Write what is known so far: by date, and, at full size, among the latest, where other questions' answers stay."""
    folder = HOME / "results"
    folder.mkdir(exist_ok=True)
    own = {a.question: about | a.as_json() for a in answers}
    stamp = str(about["when"])[:19].replace(":", "")
    latest = folder / "latest.json"
    before = json.loads(latest.read_text(encoding="utf-8")) if latest.exists() else {}
    written = [(folder / f"{stamp}.json", own)]
    if about["rows"] == {"small": Bench.small, "large": Bench.large, "tie": Bench.tie}:
        written.append((latest, before | own))
    for path, content in written:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
