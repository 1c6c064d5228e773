"""`sidecar demo`: a sample shop, changed while you watch, followed into Parquet, and read back by Spark."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sidecar.clock import Clock, SystemClock
from sidecar.errors import SettingsError, SidecarError
from sidecar.lake import spark
from sidecar.log.files import filename
from sidecar.log.storage import literal
from sidecar.model import DELETE, INSERT
from sidecar.project import Sidecar, open_project
from sidecar.terminal import demo_shop, wizard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS = 10.0
REST = 0.3
MARK = "# Made by `sidecar demo`, which makes its database, settings, log and tables anew when it runs again.\n*\n"
_MADE = ("shop.db", "shop.db-wal", "shop.db-shm", "sidecar.toml", ".sidecar", "lake")
LITTLE = {
    # A few thousand rows are a task's work, not eight tasks'.
    "spark.sql.shuffle.partitions": "1",
    # A JVM of half a minute gains nothing from its second compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
COLOURS = {INSERT: "green", DELETE: "red"}


def run(folder: Path, *, seconds: float = SECONDS, console: Console | None = None) -> int:
    """Show the demo in *folder*, which is left as a project to try things on; return the exit code."""
    console, clock = console or Console(highlight=False), SystemClock()
    # Said now, not after half a minute.
    spark.find_java()
    _make_project(folder, clock)
    console.print(
        f"A sample shop in [bold]{folder}/shop.db[/bold]: customers, products and orders. Its settings, as "
        f"[bold]sidecar init[/bold] guesses them, are in [bold]{folder}/sidecar.toml[/bold].\n"
    )
    # One line a poll is for those who do not watch.
    logging.getLogger("sidecar").setLevel(logging.WARNING)
    with (
        ThreadPoolExecutor(1) as aside,
        open_project(folder / "sidecar.toml", clock=clock) as sc,
        _session(aside) as session,
    ):
        seen = _first_load(sc, console)
        with _somebody_changing(folder / "shop.db"):
            _watch(sc, console, seen, seconds)
        with console.status("Spark is starting"):
            running = session.result()
        with console.status("The changes go to Parquet, and are read back"):
            code = sc.run(running, once=True)
            equal = code == 0 and _read_back(sc, console, running, folder)
    _what_next(console, folder)
    return code if code or equal else 1


def _make_project(folder: Path, clock: Clock) -> None:
    mark = folder / ".gitignore"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        if not mark.is_file() or mark.read_text() != MARK:
            raise SettingsError(f"{folder} exists, and is none of the demo's; name another folder: sidecar demo FOLDER")
        # What somebody has added to it stays; what the demo makes is made anew.
        for made in _MADE:
            path = folder / made
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        print(f"{folder} is there from an earlier demo: its database, settings, log and tables begin anew.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(MARK)
    except OSError as error:
        raise SettingsError(
            f"{folder}: cannot be written: {error.strerror}; name another folder: sidecar demo FOLDER"
        ) from None
    demo_shop.make(folder / "shop.db", clock)
    wizard.init(str(folder / "shop.db"), folder / "sidecar.toml", clock)


@contextlib.contextmanager
def _session(aside: ThreadPoolExecutor) -> Iterator[Future[SparkSession]]:
    """Start Spark meanwhile: a JVM takes its seconds, and polling needs none."""
    starting = aside.submit(spark.session, "sidecar-demo", config=LITTLE)
    try:
        yield starting
    finally:
        with contextlib.suppress(SidecarError):
            spark.close(starting.result())


@contextlib.contextmanager
def _somebody_changing(shop: Path) -> Iterator[None]:
    writer = subprocess.Popen([sys.executable, "-m", "sidecar.terminal.demo_shop", str(shop)])
    try:
        yield
    finally:
        writer.terminate()
        writer.wait()


def _first_load(sc: Sidecar, console: Console) -> dict[str, int]:
    console.print("[bold]The first poll reads everything.[/bold]")
    results = sc.poll()
    for name, result in results.items():
        console.print(f"  {name:<10} {result.rows:>5,} rows in {result.seconds:.2f} s")
    return {name: sc.log(name).last() for name in results}


def _watch(sc: Sidecar, console: Console, seen: dict[str, int], seconds: float) -> None:
    console.print(
        f"\n[bold]Now somebody changes it, for {seconds:.0f} seconds.[/bold] offset, table, change, and the row:"
    )
    until = sc.clock.monotonic() + seconds
    while sc.clock.monotonic() < until:
        for name in sc.poll():
            for change in sc.log(name).rows(since=seen[name]):
                console.print(_line(name, change), no_wrap=True, overflow="ellipsis")
            seen[name] = sc.log(name).last()
        sc.clock.sleep(REST)


def _line(table: str, change: dict[str, object]) -> Text:
    kind = str(change["_change_type"])
    row = {k: v for k, v in change.items() if not k.startswith("_") and not k.endswith("_at")}
    line = Text(f"  {change['_commit_version']:>4} {table:<10}")
    line.append(f"{kind:<17}", style=COLOURS.get(kind, "yellow"))
    line.append(" ".join(f"{k}={v}" for k, v in row.items()), style="dim")
    return line


def _read_back(sc: Sidecar, console: Console, session: SparkSession, folder: Path) -> bool:
    """Show what Spark finds in the lake, and whether it is what the source holds."""
    shown = Table(
        "table", "inserts", "updates", "deletes", "newest state", "source", title=f"Spark reads {folder}/lake"
    )
    equal = True
    for name in sc.tracked:
        frame = session.read.parquet(literal(str(folder.absolute() / "lake" / filename(name))))
        counts = {row["_change_type"]: row["count"] for row in frame.groupBy("_change_type").count().collect()}
        columns = [c for c in frame.columns if not c.startswith("_")]
        copy = sorted(tuple(row) for row in _newest(frame).select(*columns).collect())
        source = _source(folder / "shop.db", name, columns)
        equal = equal and copy == source
        kinds = [f"{counts.get(kind, 0):,}" for kind in (INSERT, "update_postimage", DELETE)]
        verdict = f"{len(source):,} rows, {'equal' if copy == source else 'DIFFERENT'}"
        shown.add_row(name, *kinds, f"{len(copy):,} rows", verdict)
    console.print()
    console.print(shown)
    return equal


def _newest(changes: DataFrame) -> DataFrame:
    """Return the rows that are there after all *changes*: per key the last one, unless it is a delete."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    last = Window.partitionBy("id").orderBy(f.desc("_commit_version"))
    ranked = changes.withColumn("_rank", f.row_number().over(last))
    return ranked.where((f.col("_rank") == 1) & (f.col("_change_type") != DELETE)).drop("_rank")


def _source(shop: Path, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"{shop.absolute().as_uri()}?mode=ro", uri=True)
    try:
        names = ", ".join(columns)
        return sorted(connection.execute(f"SELECT {names} FROM {table} WHERE deleted_at IS NULL").fetchall())
    finally:
        connection.close()


def _what_next(console: Console, folder: Path) -> None:
    on_path = shutil.which("sidecar") is not None
    tool = "" if on_path else f"{Path(sys.executable).parent}/"
    console.print(
        f"\n[bold]Try it yourself.[/bold] All of it is left in {folder}:\n"
        f"  cd {folder}\n"
        f"  {tool}sidecar status\n"
        f"  {tool}sidecar changes orders --limit 5 --format jsonl\n"
        f"""  {tool}sqlite-utils shop.db "UPDATE orders SET status = 'lost', updated_at = """
        """strftime('%Y-%m-%dT%H:%M:%fZ') WHERE id = 1"\n"""
        f"  {tool}sidecar run --once\n"
        f"Then your own database: {tool}sidecar init postgresql://user@host/database",
        soft_wrap=True,
    )
