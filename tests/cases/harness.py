"""Real-world cases, driven as a user drives Sidecar: a settings file, runs in turn, and what the log then says."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import sidecar
from sidecar.clock import Clock, SystemClock
from sidecar.running.results import PollResult
from tests import forks

Row: TypeAlias = dict[str, Any]

ROOT = Path(__file__).parents[2]
CLI = "from sidecar.cli import main; main()"


class Project:
    """A folder with a settings file and its state. Each run opens the project anew, as a new process would."""

    def __init__(self, folder: Path, url: str | None, tables: Mapping[str, Mapping[str, Any]], **sections: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.path = folder / "sidecar.toml"
        self.tables = tables
        self.results: dict[str, PollResult] = {}
        self.settings: dict[str, Any] = {
            "source": {} if url is None else {"url": url},
            "state": {"path": "state"},
            **sections,
        }
        self.write()

    def write(self, **sections: Any) -> None:
        """Write the settings file, with *sections* in place of what it held before."""
        self.settings |= sections
        parts = [f"[{name}]\n{_entries(section)}" for name, section in self.settings.items() if name != "sinks"]
        parts += [f"[tables.{json.dumps(n, ensure_ascii=False)}]\n{_entries(t)}" for n, t in self.tables.items()]
        parts += [f"[sinks.{name}]\n{_entries(sink)}" for name, sink in self.settings.get("sinks", {}).items()]
        self.path.write_text("\n".join(parts), encoding="utf-8")

    def poll(self, *, clock: Clock | None = None) -> dict[str, list[Row]]:
        """Run once; return what came into each log, by table, in log order."""
        with sidecar.open(self.path, clock=clock) as sc:
            before = {name: sc.log(name).last() for name in sc.tracked}
            self.results = sc.poll()
            return {name: list(sc.log(name).rows(since)) for name, since in before.items()}

    def rows(self, table: str) -> list[Row]:
        """Return the whole log of *table*; the source is not asked."""
        with sidecar.open(self.path, read_only=True) as sc:
            return list(sc.log(table).rows())

    def merged(self, table: str, *key: str) -> dict[Any, Row]:
        """Return *table*'s log folded by *key*, deleted rows left out."""
        return fold(self.rows(table), *key)

    def cli(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """Run the command line in a process of its own, to its end."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            code = forks.run([*arguments, "-c", str(self.path)], self.folder, self._environment(env), out, err)
            run = Run(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))
        assert code is not None, f"it is still under way after minutes, and says: {run.text}"
        return run

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start the command line from nothing, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-c", CLI, *arguments, "-c", str(self.path)],
            cwd=self.folder,
            env=self._environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


@dataclass(frozen=True)
class Run:
    """A command line that has ended, and what it has said."""

    code: int | None
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it has said."""
        return self.out + self.err


def _entries(section: Mapping[str, Any]) -> str:
    return "".join(f"{json.dumps(k)} = {_value(v)}\n" for k, v in section.items())


def _value(value: Any) -> str:
    # TOML's basic strings, numbers, booleans and lists are JSON's.
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def fold(rows: Sequence[Row], *key: str) -> dict[Any, Row]:
    """Fold changes by *key*, the newest offset last; what is deleted is left out."""
    found: dict[Any, Row] = {}
    for row in rows:
        at = row[key[0]] if len(key) == 1 else tuple(row[k] for k in key)
        if row["_change_type"] == "delete":
            found.pop(at, None)
        else:
            found[at] = row
    return found


def kinds(rows: Sequence[Row], *key: str) -> list[tuple[Any, ...]]:
    """Return changes as `(change type, *key)`, sorted."""
    return sorted((row["_change_type"], *(row[k] for k in key)) for row in rows)


def kept(rows: Sequence[Row], *, without: str = "_") -> list[Row]:
    """Return the source's columns of *rows*."""
    return [{k: v for k, v in row.items() if not k.startswith(without)} for row in rows]


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Wait until *condition* holds; return whether it came to that."""
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    while not (held := condition()) and clock.monotonic() < deadline:
        clock.sleep(0.05)
    return held


def sqlite_file(path: Path, setup: str) -> sqlite3.Connection:
    """Make a SQLite database by *setup*; return its autocommit writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(setup)
    return connection
