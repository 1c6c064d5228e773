"""Other tools that copy a table into Parquet, each in an environment of its own; not all can be had everywhere."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.measure import Sample, timed

QUIET = {"RUNTIME__DLTHUB_TELEMETRY": "false", "DISABLE_TELEMETRY": "true", "INGESTR_DISABLE_TELEMETRY": "true"}

DLT = """
import sys, dlt
from dlt.sources.sql_database import sql_table
url, folder = sys.argv[1:]
lake = dlt.destinations.filesystem("file://" + folder + "/lake")
pipeline = dlt.pipeline("load", pipelines_dir=folder + "/pipelines", destination=lake, dataset_name="orders")
# As its documentation has it for large tables: without a stream, all of the table is in memory at once.
stream = {"return_type": "arrow_stream", "batch_size": 100_000}
pipeline.run(
    sql_table(url, table="orders", backend="connectorx", backend_kwargs=stream), loader_file_format="parquet"
)
"""
DLT_MIRROR = """
import sys, dlt
from dlt.sources.sql_database import sql_table
url, folder = sys.argv[1:]
lake = dlt.destinations.filesystem("file://" + folder + "/lake")
pipeline = dlt.pipeline("mirror", pipelines_dir=folder + "/pipelines", destination=lake, dataset_name="mirror")
orders = sql_table(
    url, table="orders", backend="pyarrow", chunk_size=100_000, incremental=dlt.sources.incremental("updated_at")
)
orders.apply_hints(primary_key="id", write_disposition={"disposition": "merge", "strategy": "upsert"})
pipeline.run(orders, table_format="delta")
"""
INGESTR = "0.15.9"
"""The last one in whose package the program itself is; later ones fetch it from elsewhere at their first start."""


def environment(folder: Path, name: str, wanted: Sequence[str]) -> Path | None:
    """Return a Python that has *wanted*, installed into *folder* if it is not there; None if it cannot be had."""
    python = folder / name / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    ready = folder / name / "ready"
    if not ready.exists():
        venv.create(folder / name, with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=False, capture_output=True)
        if done.returncode:
            return None
        ready.touch()
    return python


def dlt(folder: Path) -> Callable[[str, Path], Sample] | None:
    """Return what loads the orders of a URL into a folder by dlt, with its backend that reads by connectorx."""
    wanted = ["dlt[filesystem,parquet,sql-database]", "connectorx", "psycopg[binary]"]
    python = environment(folder, "dlt-parquet", wanted)
    if python is None:
        return None

    def load(url: str, into: Path) -> Sample:
        url = url.replace("postgresql://", "postgresql+psycopg://")
        return run_measured([str(python), "-c", DLT, url, str(into)], into)

    return load


def dlt_mirror(folder: Path) -> Callable[[str, Path], Sample] | None:
    """Return what merges the orders of a URL that have changed into a Delta table in a folder, by dlt."""
    wanted = ["dlt[deltalake,filesystem,parquet,sql-database]", "psycopg[binary]", "numpy"]
    python = environment(folder, "dlt-delta", wanted)
    if python is None:
        return None

    def load(url: str, into: Path) -> Sample:
        url = url.replace("postgresql://", "postgresql+psycopg://")
        return run_measured([str(python), "-c", DLT_MIRROR, url, str(into)], into)

    return load


def ingestr(folder: Path) -> Callable[[str, Path], Sample] | None:
    """Return what loads the orders of a URL into a folder by ingestr."""
    python = environment(folder, "ingestr", [f"ingestr=={INGESTR}"])
    if python is None:
        return None
    program = str(python.with_name("ingestr"))
    if subprocess.run([program, "--version"], check=False, capture_output=True).returncode:
        return None

    def load(url: str, into: Path) -> Sample:
        lite = url.startswith("sqlite")
        source = ["--source-uri", url, "--source-table", "main.orders" if lite else "public.orders"]
        target = ["--dest-uri", f"parquet://{into / 'orders.parquet'}", "--dest-table", "main.orders"]
        return run_measured([program, "ingest", *source, *target, "--yes", "--progress", "log"], into)

    return load


def run_measured(command: Sequence[str], folder: Path) -> Sample:
    """Run *command*, and return how long it took; the peak of its memory, in MB, is a part of that.

    Its own and that of all that it has started, Java too, at one time; it is looked at five times a second.
    """
    peak = 0.0

    def run() -> None:
        nonlocal peak
        with (folder / "said").open("w+", encoding="utf-8") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, env={**os.environ, **QUIET})
            while process.poll() is None:
                peak = max(peak, sum(map(_resident, _family(process.pid))))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            said.seek(0)
            if process.returncode:
                text = said.read()[-400:]
                raise RuntimeError(f"{Path(command[0]).name} ended with exit code {process.returncode}: {text}")

    return Sample(timed(run).value, {"peak MB": peak})


def _family(process: int) -> set[int]:
    """Return *process* and all that runs below it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, in which anything may stand: the state, and the parent.
            parents[int(path.parent.name)] = int(path.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    found, more = set(), {process}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more}
    return found


def _resident(process: int) -> float:
    """Return the memory that *process* takes now, in MB; 0 if it has ended."""
    with contextlib.suppress(OSError):
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0
