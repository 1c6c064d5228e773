"""Rows that are set aside are set aside once, wherever the process dies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.harness import KILLED, Project, SQLiteSource, clean, now


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


@pytest.fixture
def project(source: SQLiteSource, tmp_path: Path) -> Project:
    # Within the lookback: each poll meets every row again.
    found = Project(tmp_path / "project", source.url, page_size=3, lookback="1h")
    text = found.settings.read_text().replace("page_size", 'on_bad_value = "quarantine"\npage_size')
    found.settings.write_text(text)
    return found


def write(source: SQLiteSource, keys: range) -> None:
    """Write rows of which every third has a version that is no number."""
    for key in keys:
        version = f"'bad {key}'" if key % 3 == 0 else str(key + 1)
        source.execute(f"INSERT INTO t VALUES ({key}, {version}, '{now()}', '{now()}', NULL, '')")


def aside(project: Project) -> list[dict[str, Any]]:
    """Return what has been set aside, and assert that each file is of a segment that exists."""
    files = sorted((project.path / "quarantine" / "t").glob("*"))
    assert [f for f in files if f.suffix != ".jsonl"] == []
    assert {int(f.stem) for f in files} <= {s.offset for s in project.log().list()}
    return [json.loads(line) for f in files for line in f.read_text().splitlines()]


def whole(project: Project, count: int) -> None:
    """Assert that the rows below *count* are delivered or set aside, each once."""
    found = aside(project)
    assert sorted(line["row"]["id"] for line in found) == [k for k in range(count) if k % 3 == 0]
    assert all(line["row"]["v"] == f"bad {line['row']['id']}" and list(line["bad"]) == ["v"] for line in found)
    assert sorted(row["id"] for row in project.changes()) == [k for k in range(count) if k % 3]


@pytest.mark.parametrize(
    "point", ["page-read", "rows-set-aside", "segment-written", "segment-renamed", "watermark-saved", "poll-completed"]
)
def test_kills_lose_and_repeat_no_row_that_is_set_aside(source: SQLiteSource, project: Project, point: str) -> None:
    write(source, range(10))
    assert project.run(crash=f"{point}:1").code == KILLED, "the point was not reached"
    write(source, range(10, 20))
    assert project.run(crash=f"{point}:1").code == KILLED, "the point was not reached"
    clean(project.run())
    whole(project, 20)
    clean(project.run())
    whole(project, 20)
    write(source, range(20, 31))
    assert project.run(crash=f"{point}:1").code == KILLED, "the point was not reached"
    shutil.rmtree(project.database)
    clean(project.run())
    whole(project, 31)


def test_a_row_mended_before_its_segment_was_written_is_not_counted_as_set_aside(
    source: SQLiteSource, project: Project
) -> None:
    write(source, range(1))
    assert project.run(crash="rows-set-aside:1").code == KILLED
    source.execute(f"UPDATE t SET v = 7, updated_at = '{now()}'")
    clean(project.run())
    assert aside(project) == []
    assert [row["v"] for row in project.changes()] == [7]


def test_a_row_is_set_aside_again_when_it_changes_and_delivered_when_it_is_mended(
    source: SQLiteSource, project: Project
) -> None:
    write(source, range(2))
    clean(project.run())
    source.execute("UPDATE t SET v = 'worse' WHERE id = 0")
    clean(project.run())
    assert [line["row"]["v"] for line in aside(project)] == ["bad 0", "worse"]
    clean(project.run())
    source.execute("UPDATE t SET v = 3 WHERE id = 0")
    clean(project.run())
    assert [(row["id"], row["v"]) for row in project.changes()] == [(1, 2), (0, 3)]
    assert len(aside(project)) == 2
