"""G5 at every named crash point of a mirror: the process dies there, and both kinds of mirror are exact afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.fault.harness import KILLED, PATIENCE, Project, SQLiteSource, Writer, holds
from tests.fault.sink_points import MIRROR_POINTS

# Upkeep is due each time, and leaves no file that could be missed.
SINKS = """
[sinks.now]
format = "delta"
mode = "mirror"
path = "{folder}/now"
compact_every = "1us"
vacuum_after = "0s"
[sinks.past]
format = "delta"
mode = "mirror"
history = true
path = "{folder}/past"
compact_every = "1us"
vacuum_after = "0s"
"""

# Each run begins with changes in both tables, and goes first to the batch that the kill before has left behind.
POINTS = [
    *("mirror-created:1", "mirror-written:1", "mirror-created:2", "mirror-committed:2", "mirror-written:4"),
    *("sink-committed:1", "mirror-evolved:1", "mirror-compacted:1", "mirror-compacted:2", "mirror-committed:1"),
    "",
]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


@pytest.mark.timeout(900)
def test_a_kill_at_any_point_of_a_mirror_leaves_both_kinds_exact(source: SQLiteSource, tmp_path: Path) -> None:
    assert {p.partition(":")[0] for p in POINTS} >= set(MIRROR_POINTS)
    folder = tmp_path / "project"
    project = Project(folder, source.url, page_size=20, sinks=SINKS.format(folder=folder))
    Writer(source, seed=1).write(150)
    module = "tests.fault.sink_points"
    command = [sys.executable, "-m", module, "--without-spark", str(project.settings), str(source.path), *POINTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert codes == [KILLED] * (len(POINTS) - 1) + [0], (list(zip(POINTS, codes, strict=True)), done.stderr)
    assert "Traceback" not in done.stderr
    holds(source, project)
    for table in ("t", "u"):
        changes = project.changes(table)
        assert held(folder / "now" / table, "id", "v") == sorted(
            ((key, version) for key, (version, is_deleted) in source.content(table).items() if not is_deleted), key=repr
        )
        assert held(folder / "past" / table, "id", "v", "_valid_from", "_valid_to", "_is_current") == history(changes)


def held(place: Path, *names: str) -> list[tuple[Any, ...]]:
    from deltalake import DeltaTable

    rows = pa.table(DeltaTable(str(place)).to_pyarrow_table()).to_pylist()
    return sorted((tuple(row[name] for name in names) for row in rows), key=repr)


def history(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Fold *changes*, in log order, by time."""
    done, running = [], dict[int, tuple[int, datetime]]()
    for change in changes:
        key, now = change["id"], change["_commit_timestamp"]
        if key in running:
            version, since = running.pop(key)
            done.append((key, version, since, max(since, now), False))
        if change["_change_type"] != "delete":
            running[key] = change["v"], now
    return sorted(done + [(key, v, since, None, True) for key, (v, since) in running.items()], key=repr)
