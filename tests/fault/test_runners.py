"""One runner a state, and runners that are asked to stop."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.project import open_project
from tests.fault.harness import PATIENCE, Project, SQLiteSource, Writer, clean, clock, holds, wait_for


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def test_a_second_runner_is_refused_and_disturbs_nothing(source: SQLiteSource, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=1)
    writer.write(20)
    first = project.start("run", "--interval", "50ms")
    try:
        wait_for(lambda: project.log("u").last() > 0)
        began = clock.monotonic()
        second = project.run()
        assert clock.monotonic() - began < 20
        assert second.code == 4
        assert f"process {first.pid} " in second.said
        assert str(project.path) in second.said
        assert len(second.said.splitlines()) == 1
        writer.write(20)
        before = project.log().last()
        wait_for(lambda: project.log().last() > before)
        assert first.poll() is None
        first.kill()
        first.wait(PATIENCE)
        clean(project.run())
        holds(source, project)
    finally:
        first.kill()
        first.communicate()


def test_looking_disturbs_no_runner(source: SQLiteSource, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=1)
    with writer.busy(), project.running("run", "--interval", "10ms") as running:
        wait_for(lambda: project.log("u").last() > 0)
        for command in (["status"], ["changes", "t", "--format", "jsonl"], ["watermark", "show", "t"]) * 2:
            looked = project.run(*command)
            assert looked.code == 0, looked
        assert running.process.exitcode is None
    clean(project.run())
    holds(source, project)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("arguments", [("--once",), ("--interval", "1h")], ids=["once", "in a loop"])
def test_asked_to_stop_it_ends_after_the_page_and_the_next_run_goes_on(
    source: SQLiteSource, tmp_path: Path, how: signal.Signals, arguments: tuple[str, ...]
) -> None:
    project, writer = Project(tmp_path / "project", source.url, page_size=2), Writer(source, seed=1)
    writer.fill(600)
    process = project.start("run", *arguments)
    wait_for(lambda: project.log().last() > 5)
    os.kill(process.pid, how)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "error" not in said
    stopped = project.log().last()
    assert stopped < 300, "it should have been stopped in the middle"
    with open_project(project.settings) as sidecar:
        mark = sidecar.watermark("t")
        assert mark is not None
        assert mark.job is not None
        read = sidecar.poll(["t"])["t"].read
    # The backfill that was cut short ends with the rows not read yet; a poll of what is within the lookback follows.
    assert read <= 600 - 2 * stopped + 600
    holds(source, project, ["t"])


def test_a_resting_runner_stops_at_once(source: SQLiteSource, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url), Writer(source, seed=1)
    writer.write(20)
    process = project.start("run", "--interval", "1h")
    wait_for(lambda: project.log("u").last() > 0)
    clock.sleep(0.5)
    began = clock.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert clock.monotonic() - began < 10
    assert re.search(r"error|Traceback", said) is None


def test_stopping_twice_does_not_lose_or_repeat(source: SQLiteSource, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url, page_size=2), Writer(source, seed=1)
    writer.fill(600)
    process = project.start("run", "--once")
    wait_for(lambda: project.log().last() > 5)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 130), said
    assert "Traceback" not in said
    project.page_size = 500
    project.write_settings()
    clean(project.run())
    holds(source, project, ["t"])
