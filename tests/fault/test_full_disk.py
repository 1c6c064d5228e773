"""A full disk is said to be one, at the end of a run, too."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.harness import Project, SQLiteSource, Writer, clean, holds, seed


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.getuid() != 0:
        pytest.skip("a tiny disk: only root may mount one")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"a tiny disk: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_said_and_costs_nothing(source: SQLiteSource, tiny: Path, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url, page_size=15, state=tiny / "state"), Writer(source, 1)
    writer.fill(3000, filling=40)
    outcome = project.run()
    assert outcome.code == 5, outcome
    assert "Traceback" not in outcome.said
    assert "disk" in outcome.said or "space" in outcome.said
    full = project.run()
    assert full.code == 5, full
    assert "Traceback" not in full.said
    subprocess.run(["mount", "-o", "remount,size=64m", tiny], check=True)
    writer.write(20)
    clean(project.run())
    holds(source, project)


def test_a_disk_that_is_full_at_any_byte_costs_nothing(source: SQLiteSource, tiny: Path, tmp_path: Path) -> None:
    chosen = seed()
    chance = random.Random(chosen)
    project = Project(tmp_path / "project", source.url, page_size=5, state=tiny / "state")
    writer = Writer(source, chosen)
    writer.write(50)
    clean(project.run())
    ballast = tiny / "ballast"
    for _ in range(8):
        writer.write(20)
        free = os.statvfs(tiny).f_bavail * os.statvfs(tiny).f_frsize
        ballast.write_bytes(bytes(max(0, free - 4096 * chance.randint(0, 40))))
        outcome = project.run()
        assert outcome.code in (0, 5), outcome
        assert "Traceback" not in outcome.said
        ballast.unlink()
        subprocess.run(["mount", "-o", f"remount,size={chance.randint(8, 64)}m", tiny], check=True)
        clean(project.run())
        holds(source, project)
        subprocess.run(["mount", "-o", "remount,size=16m", tiny], check=True)
