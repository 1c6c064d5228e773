"""Who copies the table while it is written to: Sidecar, a plain watermark, and dlt with and without a lag."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg

import sidecar
from benchmarks.peers import environment
from sidecar.clock import SystemClock

LOOKBACK = 5.0
"""Seconds: for Sidecar, and as dlt's lag."""

Delivery = tuple[int, int]
"""Key and version."""


@dataclass
class Copy:
    """What a poller has taken: in order, and how much it reads once nothing happens any more."""

    deliveries: list[Delivery] = field(default_factory=list)
    polls: int = 0
    idle_reads: int | None = None
    error: str | None = None


class Poller(Protocol):
    """Polls as fast as it can until told to stop, and once more after."""

    @property
    def name(self) -> str: ...

    def run(self, stop: threading.Event) -> Copy:
        """Return the copy."""


@dataclass
class Ours:
    """Sidecar, as it is."""

    folder: Path
    url: str
    extra: str = ""
    name: str = "Sidecar"

    def run(self, stop: threading.Event) -> Copy:
        path = self.folder / "sidecar.toml"
        path.write_text(
            f"[source]\nurl = {json.dumps(self.url)}\n[state]\npath = {json.dumps(str(self.folder / 'state'))}\n"
            f'[tables.items]\nlookback = "{LOOKBACK:g}s"\n{self.extra}\n',
            encoding="utf-8",
        )
        found = Copy()
        with sidecar.open(path) as sc:
            while not stop.is_set():
                sc.poll()
                found.polls += 1
            sc.poll()
            # What was seen last is closed once it has stood for lookback; text and whole seconds, for one more.
            for _ in range(3):
                SystemClock().sleep(LOOKBACK + 1.5)
                found.idle_reads = sc.poll()["items"].read
            found.deliveries = [(int(str(r["id"])), int(str(r["version"]))) for r in sc.log("items").rows()]
        return found


@dataclass
class Naive:
    """`WHERE (updated_at, id) > (the greatest seen)`: what most scripts, and most tools, do."""

    url: str
    name: str = "plain watermark"

    def run(self, stop: threading.Event) -> Copy:
        found, after = Copy(), None
        with contextlib.ExitStack() as stack:
            ask, sign = self._session(stack)
            while True:
                last = stop.is_set()
                where = "" if after is None else f"WHERE (updated_at, id) > ({sign}, {sign})"
                rows = ask(f"SELECT id, version, updated_at FROM items {where} ORDER BY updated_at, id", after or ())
                found.deliveries += [(key, version) for key, version, _ in rows]
                found.polls += 1
                after = (rows[-1][2], rows[-1][0]) if rows else after
                if last:
                    return found
                SystemClock().sleep(0.001)

    def _session(self, stack: contextlib.ExitStack) -> tuple[Callable[[str, Sequence[Any]], list[Any]], str]:
        if self.url.startswith("sqlite"):
            lite = sqlite3.connect(self.url.removeprefix("sqlite:///"), check_same_thread=False)
            stack.callback(lite.close)
            return lambda text, values: lite.execute(text, values).fetchall(), "?"
        connection = stack.enter_context(psycopg.connect(self.url, autocommit=True))
        return lambda text, values: connection.execute(text, values).fetchall(), "%s"


DLT = """
import json, sys, threading, dlt, duckdb
from dlt.sources.sql_database import sql_table
url, folder, lag = sys.argv[1], sys.argv[2], float(sys.argv[3])
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
polls = 0
while True:
    last = stop.is_set()
    pipeline = dlt.pipeline("loss", pipelines_dir=folder, destination=dlt.destinations.duckdb(folder + "/copy.duckdb"),
                            dataset_name="held")
    incremental = dlt.sources.incremental("updated_at", **({"lag": lag} if lag else {}))
    table = sql_table(url, table="items", incremental=incremental)
    table.apply_hints(primary_key="id", write_disposition="merge")
    try:
        pipeline.run(table)
    except Exception as error:
        print(type(error).__name__, error, file=sys.stderr)
        if last: raise
    polls += 1
    if last: break
with duckdb.connect(folder + "/copy.duckdb") as found:
    rows = found.execute("SELECT id, version FROM held.items").fetchall()
print(json.dumps({"polls": polls, "rows": rows}))
"""


@dataclass
class Dlt:
    """dlt, merging into DuckDB by the primary key, in an environment of its own."""

    python: Path
    folder: Path
    url: str
    lag: float

    @property
    def name(self) -> str:
        return f"dlt, lag {self.lag:g} s" if self.lag else "dlt"

    def run(self, stop: threading.Event) -> Copy:
        self.folder.mkdir()
        url = self.url.replace("postgresql://", "postgresql+psycopg://")
        command = [str(self.python), "-c", DLT, url, str(self.folder), str(self.lag)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=self.folder) as process:
            stop.wait()
            out, err = process.communicate("")
        if process.returncode:
            # Its own last word: it does not take every column, and that is an answer, too.
            return Copy(error=next((line for line in reversed(err.splitlines()) if line.strip()), "no reason given"))
        answer = json.loads(out.splitlines()[-1])
        return Copy([(key, version) for key, version in answer["rows"]], answer["polls"])


def dlt_python(folder: Path) -> Path | None:
    """Return a Python that has dlt, installed into *folder* if it is not there; None if it cannot be had."""
    return environment(folder, "dlt", ["dlt[duckdb]", "psycopg[binary]", "sqlalchemy"])
