"""G4 at any moment: a process that polls a busy source is killed again and again."""

from __future__ import annotations

import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fault.harness import (
    PostgresSource,
    Project,
    Source,
    SQLiteSource,
    Writer,
    clean,
    clock,
    holds,
    seed,
    wait_for,
)
from tests.servers import Database


def works(project: Project, process: int) -> bool:
    lock = project.path / "lock"
    return lock.exists() and f"process {process} " in lock.read_text()


def kill_again_and_again(source: Source, folder: Path, kills: int, lose_every: int) -> None:
    chosen = seed()
    chance = random.Random(chosen)
    project, writer = Project(folder, source.url, page_size=3, lookback="3s"), Writer(source, chosen)
    offsets = [0]
    with writer.busy():
        for number in range(kills):
            with project.running("run", "--interval", "10ms") as running:
                if number % 5:
                    wait_for(lambda: works(project, running.process.pid) or running.process.exitcode is not None)
                clock.sleep(chance.uniform(0, 1))
                assert running.process.exitcode is None, running.said.read_text()
                running.kill()
                said = running.said.read_text()
            offsets.append(project.log("t").last() + project.log("u").last())
            assert "Traceback" not in said
            assert "error" not in said
            if number % lose_every == lose_every - 1:
                shutil.rmtree(project.database, ignore_errors=True)
    at_work = sum(a < b for a, b in pairwise(offsets))
    assert at_work > kills / 8, "the kills were too early to say anything"
    clean(project.run())
    holds(source, project)


def test_kills_at_random_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kill_again_and_again(SQLiteSource(tmp_path / "source" / "source.db"), tmp_path / "project", 12, lose_every=7)


def test_kills_at_random_while_postgresql_is_read_lose_and_repeat_nothing(pg: Database, tmp_path: Path) -> None:
    kill_again_and_again(PostgresSource(pg.connect(), pg.reader_url), tmp_path / "project", 6, lose_every=4)


@pytest.mark.soak
def test_a_hundred_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kill_again_and_again(SQLiteSource(tmp_path / "source" / "source.db"), tmp_path / "project", 100, lose_every=10)


@pytest.mark.soak
def test_a_hundred_kills_while_postgresql_is_read_lose_and_repeat_nothing(pg: Database, tmp_path: Path) -> None:
    kill_again_and_again(PostgresSource(pg.connect(), pg.reader_url), tmp_path / "project", 100, lose_every=10)
