"""A log that was damaged by hand is named, and what the message advises works."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.damage import run
from tests.fault.harness import Project, SQLiteSource, Writer, clean, holds


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


@pytest.fixture
def project(source: SQLiteSource, tmp_path: Path) -> Project:
    made = Project(tmp_path / "project", source.url, page_size=3)
    Writer(source, seed=1).write(80)
    clean(run(made))
    return made


def test_a_whole_log_that_is_gone_is_named(source: SQLiteSource, project: Project) -> None:
    folder = project.log().folder
    folder.rename(folder.parent.parent / "away")
    source.execute("INSERT INTO t VALUES (500, 9999, datetime('now'), datetime('now'), NULL, '')")
    outcome = run(project)
    assert outcome.code == 5, outcome
    assert str(folder) in outcome.said


def test_what_a_log_that_ends_too_early_advises_works(source: SQLiteSource, project: Project) -> None:
    project.log().list()[-1].path.unlink()
    outcome = run(project)
    assert outcome.code == 5, outcome
    assert "sidecar watermark reset t" in outcome.said
    reset = project.run("watermark", "reset", "t")
    assert reset.code == 0, reset
    clean(run(project))


@pytest.mark.parametrize("how", ["truncated", "emptied", "flipped"])
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_damaged_segment_is_named(source: SQLiteSource, project: Project, how: str, which: int) -> None:
    path = project.log().list()[which].path
    data = bytearray(path.read_bytes())
    if how == "flipped":
        data[-20] ^= 255
    path.write_bytes({"truncated": bytes(data[: len(data) // 2]), "emptied": b"", "flipped": bytes(data)}[how])
    source.execute("INSERT INTO t VALUES (500, 9999, datetime('now'), datetime('now'), NULL, '')")
    outcome = run(project)
    print(outcome)
    assert outcome.code in (0, 5) if which == 0 else outcome.code == 5, outcome
    if outcome.code == 5:
        assert str(path) in outcome.said
    shutil.rmtree(project.database)
    outcome = run(project)
    print(outcome)
    assert outcome.code == 5, outcome
    assert str(path) in outcome.said


@pytest.mark.parametrize("content", ["", "{", "{}", "null"])
def test_a_damaged_floor_is_named(source: SQLiteSource, project: Project, content: str) -> None:
    project.retention = "1us"
    project.write_settings()
    clean(run(project))
    floor = project.log().folder / "_floor.json"
    assert floor.exists()
    floor.write_text(content)
    outcome = run(project)
    assert outcome.code == 5, outcome
    assert str(floor) in outcome.said


def test_a_drop_that_was_cut_short_is_finished_by_the_next(source: SQLiteSource, project: Project) -> None:
    project.retention = "1us"
    project.write_settings()
    assert project.run(crash="segment-dropped:1").code == -9
    Writer(source, seed=2).write(10)
    clean(run(project))
    floor = project.log().floor()
    left = [p.name for p in project.log().folder.glob("*.parquet") if int(p.stem) <= floor]
    assert not left


@pytest.mark.parametrize("content", ["", "{}", "[]", '"x"'])
def test_a_damaged_position_is_named(source: SQLiteSource, project: Project, content: str) -> None:
    folder = project.log().folder / "_positions"
    folder.mkdir()
    (folder / "lake.json").write_text(content)
    outcome = run(project)
    assert outcome.code == 5, outcome
    assert "lake.json" in outcome.said


def test_half_written_positions_are_swept_up(source: SQLiteSource, project: Project) -> None:
    folder = project.log().folder / "_positions"
    folder.mkdir()
    (folder / ".lake.json.tmp").write_text("{")
    clean(run(project))
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize("lost", [[3], [1], [2, 5]], ids=str)
@pytest.mark.parametrize("database", ["kept", "lost"])
def test_segments_taken_away_are_named(source: SQLiteSource, tmp_path: Path, lost: list[int], database: str) -> None:
    project = Project(tmp_path / "project", source.url, page_size=3)
    writer = Writer(source, seed=5, tables=["t"])
    writer.write(80)
    clean(project.run())
    segments = project.log().list()
    assert len(segments) > 5
    aside = tmp_path / "aside"
    aside.mkdir()
    taken = [segments[n - 1].path for n in lost]
    for path in taken:
        path.rename(aside / path.name)
    if database == "lost":
        shutil.rmtree(project.database)
    writer.write(5)
    outcome = project.run()
    assert outcome.code == 5, outcome
    assert str(project.log().folder) in outcome.said
    for path in taken:
        path_back = aside / path.name
        path_back.rename(path)
    clean(project.run())
    holds(source, project)
