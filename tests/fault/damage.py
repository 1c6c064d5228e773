"""Trials of a state that was damaged by hand, many in one process, so that a crash or a hang is seen from outside."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from sidecar.cli import execute
from sidecar.log import consumers
from sidecar.project import Sidecar, open_project
from tests import forks
from tests.fault.harness import Outcome, Project, SQLiteSource, Writer, holds

POSITION = 3
HURTS: dict[str, Callable[[Path, random.Random], None]] = {}


def hurt(function: Callable[[Path, random.Random], None]) -> Callable[[Path, random.Random], None]:
    HURTS[function.__name__] = function
    return function


def files(database: Path) -> list[Path]:
    """Return the database's files that hold something, in an order of their own."""
    return sorted(p for p in database.iterdir() if p.is_file() and p.stat().st_size)


@hurt
def truncated(database: Path, chance: random.Random) -> None:
    path = chance.choice(files(database))
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))])
    print(f"truncated {path.name} from {len(data)} to {path.stat().st_size}")


@hurt
def flipped(database: Path, chance: random.Random) -> None:
    # The logs that people read are left out: a byte there means nothing.
    path = chance.choice([p for p in files(database) if not p.name.startswith("LOG")])
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    print(f"flipped {path.name} at {at} of {len(data)}")


@hurt
def removed(database: Path, chance: random.Random) -> None:
    path = chance.choice(files(database))
    path.unlink()
    print(f"removed {path.name}")


@hurt
def zeroed(database: Path, chance: random.Random) -> None:
    path = chance.choice([p for p in files(database) if not p.name.startswith("LOG")])
    data = bytearray(path.read_bytes())
    at, size = chance.randrange(len(data)), chance.choice([1, 16, 512, 4096])
    data[at : at + size] = bytes(len(data[at : at + size]))
    path.write_bytes(data)
    print(f"zeroed {size} bytes of {path.name} at {at} of {len(data)}")


@hurt
def older(database: Path, chance: random.Random) -> None:
    """The log at the database's end is cut at the last byte, as after a power cut without a sync."""
    path = max(database.glob("*.log"), key=lambda p: p.stat().st_size)
    data = path.read_bytes()
    path.write_bytes(data[: -chance.randint(1, max(1, min(200, len(data) - 1)))])
    print(f"cut the end of {path.name}")


def prepare(folder: Path, *, flushed: bool) -> tuple[SQLiteSource, Project, Writer]:
    """Return a project with a few dozen segments, whose database is a write-ahead log only, or has table files, too."""
    source = SQLiteSource(folder / "source" / "source.db")
    # Within the lookback everything is met again: only the state knows what was delivered.
    project, writer = Project(folder / "project", source.url, lookback="1h"), Writer(source, seed=7)
    writer.write(100)
    for _ in range(4 if flushed else 1):
        with open_project(project.settings) as sidecar:
            writer.write(20)
            sidecar.poll()
            acknowledge(sidecar)
    writer.write(20)
    return source, project, writer


def acknowledge(sidecar: Sidecar) -> None:
    log = sidecar.log("t")
    consumers.intend(log, sidecar.store, "lake", POSITION)
    consumers.acknowledge(log, sidecar.store, "lake", POSITION)


def run(project: Project) -> Outcome:
    """Run in this process."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = execute(["run", "--once", "-c", str(project.settings)])
    return Outcome(code, said.getvalue())


def trial(source: SQLiteSource, project: Project, writer: Writer, how: str, seed: int) -> str:
    """Damage the database, run; where it is refused, follow the advice. Return what came of it; raise if wrong."""
    before = project.path.with_name("before")
    if not before.exists():
        shutil.copytree(project.path, before)
    shutil.rmtree(project.path)
    shutil.copytree(before, project.path)
    HURTS[how](project.database, random.Random(seed))
    segments = project.log().last()
    outcome = run(project)
    verdict = "went on"
    if outcome.code == 5:
        verdict = "refused"
        advised(outcome, project)
        assert project.log().last() == segments, "refused, and yet something was appended"
        project.database.rename(project.path / f"db-{seed}")
        outcome = run(project)
    assert outcome.code == 0, outcome
    assert "Traceback" not in outcome.said
    assert "error" not in outcome.said
    holds(source, project)
    with open_project(project.settings) as sidecar:
        assert sidecar.store.position("t", "lake").acknowledged == POSITION
    outcome = run(project)
    if outcome.code == 5 and verdict == "went on":
        verdict = "refused later"
        advised(outcome, project)
        project.database.rename(project.path / f"db-{seed}")
        outcome = run(project)
    assert outcome.code == 0, outcome
    holds(source, project)
    return verdict


def advised(outcome: Outcome, project: Project) -> None:
    assert "Traceback" not in outcome.said, outcome.said
    assert "ove this folder away" in outcome.said or "ove the folder away" in outcome.said, outcome.said
    assert str(project.database) in outcome.said, outcome.said


def trials(folder: Path, how: str, seeds: list[int], *, flushed: bool) -> list[str]:
    """Run trials in a process of their own; return what went wrong, a text a trial."""
    report = folder / "report"
    report.write_text("")
    process = forks.server.Process(target=_trials, args=(folder, how, seeds, flushed, report))
    process.start()
    process.join(20 + 6 * len(seeds))
    lines = report.read_text().splitlines()
    if process.exitcode != 0:
        process.kill()
        lines.append(f"WRONG the process hung or died: {process.exitcode}; its last trial: {lines[-1:]}")
    print("\n".join(lines))
    return [line for line in lines if line.startswith("WRONG")]


def _trials(folder: Path, how: str, seeds: list[int], flushed: bool, report: Path) -> None:
    source, project, writer = prepare(folder, flushed=flushed)
    for seed in seeds:
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                verdict = trial(source, project, writer, how, seed)
        except BaseException:
            verdict = "WRONG " + traceback.format_exc().replace("\n", " | ")
        with report.open("a") as file:
            file.write(f"{verdict}: seed={seed} {how} {said.getvalue().strip()}\n")
