"""G4 for RocksDB: whatever happens to its files, it is rebuilt or refused; nothing is delivered again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fault.damage import HURTS, POSITION, prepare, run, trials
from tests.fault.harness import clean, holds

SEEDS, KINDS = (25, [True, False]) if os.environ.get("SIDECAR_SOAK") else (3, [True])


@pytest.mark.parametrize("flushed", KINDS, ids=lambda flushed: "in table files" if flushed else "mostly in its log")
@pytest.mark.parametrize("how", HURTS)
def test_damage_is_repaired_from_the_log_or_refused(tmp_path: Path, how: str, flushed: bool) -> None:
    first = int(os.environ.get("SIDECAR_SEED", "1"))
    print(f"SIDECAR_SEED={first}")
    assert not trials(tmp_path, how, list(range(first, first + SEEDS)), flushed=flushed)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_lost_database_is_rebuilt_from_the_log_and_the_positions(tmp_path: Path, how: str) -> None:
    from sidecar.project import open_project

    source, project, writer = prepare(tmp_path, flushed=True)
    shutil.rmtree(project.database)
    if how == "emptied":
        project.database.mkdir()
    clean(run(project))
    holds(source, project)
    with open_project(project.settings) as sidecar:
        assert sidecar.store.position("t", "lake").acknowledged == POSITION
    writer.write(10)
    clean(run(project))
    holds(source, project)
    source.close()
