"""What all questions share: how many rows and runs, the sources, a warm Spark, and projects to run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

import sidecar
from benchmarks import server, workload
from sidecar.project import Sidecar
from tests.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JDBC_JAR = Path("/usr/share/java/postgresql.jar")
HOME = Path(__file__).parent
NAMES = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}


@dataclass
class Bench:
    """One run of the benchmarks. `small`, `large` and `tie` are numbers of rows; `sources` are URL schemes."""

    runs: int = 5
    small: int = 1_000_000
    large: int = 10_000_000
    tie: int = 50_000_000
    sources: tuple[str, ...] = ("postgresql", "sqlite")
    folder: Path = HOME / ".bench"
    console: Console = field(default_factory=lambda: Console(stderr=True))
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def from_environment(cls, sources: tuple[str, ...]) -> Bench:
        """Return what SIDECAR_BENCH_RUNS, _ROWS (small/large), _TIE and _DIR ask for."""
        small, _, large = os.environ.get("SIDECAR_BENCH_ROWS", "1000000/10000000").replace("_", "").partition("/")
        runs = int(os.environ.get("SIDECAR_BENCH_RUNS", "5"))
        tie = int(os.environ.get("SIDECAR_BENCH_TIE", str(cls.tie)))
        folder = Path(os.environ.get("SIDECAR_BENCH_DIR", HOME / ".bench")).absolute()
        return cls(runs, int(small), int(large or small), tie, sources, folder)

    def __enter__(self) -> Bench:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    # -- where data comes from -----------------------------------------------------------------------------------------

    @cached_property
    def server(self) -> Server:
        """The PostgreSQL; NoServer if there is none."""
        self.say("starting PostgreSQL")
        return self._open.enter_context(server.kept_server(self.folder))

    def source(self, scheme: str, rows: int) -> str:
        """Return the URL of a database with the orders table of *rows* rows, which must not be changed."""
        self.say(f"{NAMES[scheme]} with {rows:,} rows (made at the first run only)")
        if scheme == "sqlite":
            return f"sqlite:///{workload.sqlite_file(self.folder, rows)}"
        return server.url(self.server, server.orders(self.server, rows))

    @contextlib.contextmanager
    def copy(self, scheme: str, rows: int) -> Iterator[str]:
        """Give the URL of a copy of such a database, which may be changed."""
        self.source(scheme, rows)
        self.say(f"{NAMES[scheme]} with {rows:,} rows: a copy to change")
        if scheme == "sqlite":
            with self.scratch() as folder:
                yield f"sqlite:///{shutil.copy(workload.sqlite_file(self.folder, rows), folder / 'orders.db')}"
        else:
            with server.copy_of(self.server, server.orders(self.server, rows)) as name:
                yield server.url(self.server, name)

    # -- what is run ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Give a new folder beside the data, and remove it."""
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @cached_property
    def jdbc_jar(self) -> Path | None:
        """PostgreSQL's JDBC driver: PG_JDBC_JAR's, or Debian's."""
        jar = Path(os.environ.get("PG_JDBC_JAR", JDBC_JAR))
        return jar if jar.exists() else None

    @cached_property
    def spark(self) -> SparkSession:
        """One Spark for the whole run, as Sidecar starts it, the JDBC driver aside."""
        from sidecar.lake.spark import close, session

        self.say("starting Spark")
        config = {} if self.jdbc_jar is None else {"spark.driver.extraClassPath": str(self.jdbc_jar)}
        running = session("sidecar-benchmarks", config=config)
        self._open.callback(close, running)
        return running

    def say(self, text: str) -> None:
        """Tell whoever waits what is going on."""
        self.console.print(f"· {text}", style="dim", highlight=False, markup=False)


def settings(
    folder: Path, url: str, *, name: str = "orders", table: str = "", sinks: bool = True, readers: int | None = None
) -> Path:
    """Write the settings of a project in *folder* that follows table *name* of *url*; return the file."""
    lines = [
        "[source]",
        f"url = {json.dumps(url)}",
        "[state]",
        f"path = {json.dumps(str(folder / 'state'))}",
        f"[tables.{name}]",
        table,
    ]
    if sinks:
        lines += ["[sinks.lake]", 'format = "parquet"', f"path = {json.dumps(str(folder / 'lake'))}"]
    if readers is not None:
        lines += ["[backfill]", f"parallelism = {readers}"]
    path = folder / "sidecar.toml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@contextlib.contextmanager
def project(
    folder: Path, url: str, *, table: str = "", sinks: bool = True, readers: int | None = None
) -> Iterator[Sidecar]:
    """Give an open project in *folder* that follows the orders of *url*."""
    with sidecar.open(settings(folder, url, table=table, sinks=sinks, readers=readers)) as sc:
        yield sc


def acknowledge(sc: Sidecar) -> None:
    """Let the sink stand at the end of the log, as if it had taken all of it."""
    from sidecar.log import consumers

    for name in sc.tracked:
        mark = sc.watermark(name)
        assert mark is not None, f"{name} has been polled"
        consumers.acknowledge(sc.log(name), sc.store, "lake", mark.offset)


def python(*arguments: str) -> list[str]:
    """Return a command line for this Python."""
    return [sys.executable, *arguments]
