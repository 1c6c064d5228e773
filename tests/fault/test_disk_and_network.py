"""G4 where the world fails: a full disk, a connection that is cut, segments that somebody took away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.harness import PATIENCE, PostgresSource, Project, SQLiteSource, Writer, clean, holds, wait_for
from tests.servers import Database


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def test_a_file_that_may_not_grow_is_said_and_costs_nothing(source: SQLiteSource, tmp_path: Path) -> None:
    project, writer = Project(tmp_path / "project", source.url, page_size=200), Writer(source, seed=2)
    writer.fill(1000, filling=300)
    limited = project.run(limit=20_000)
    assert limited.code == 5, limited
    assert "Traceback" not in limited.said
    clean(project.run())
    holds(source, project)


def cut(source: PostgresSource, reader: str) -> int:
    """End all of *reader*'s sessions; return how many there were."""
    sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s"
    found = source.writer.execute(sql, (reader,)).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.parametrize("page_size", [100, 5000], ids=["by COPY", "by connectorx"])
def test_a_connection_that_is_cut_in_a_poll_is_opened_again(pg: Database, tmp_path: Path, page_size: int) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    project, writer = Project(tmp_path / "project", source.url, page_size=page_size), Writer(source, seed=3)
    writer.fill(page_size * 60 if page_size < 1000 else page_size * 12)
    with project.running("run", "--once") as running:
        for offset in (2, 4):
            wait_for(lambda: project.log().last() >= offset or running.process.exitcode is not None)  # noqa: B023
            assert running.process.exitcode is None, running.said.read_text()
            # Between two connections, while it rests before it tries again, there is none to cut.
            wait_for(lambda: cut(source, pg.reader) > 0)
        outcome = running.ended()
    assert outcome.code == 0, outcome
    assert "Trying again" in outcome.said
    assert "Traceback" not in outcome.said
    holds(source, project)


def test_a_source_that_cuts_all_connections_is_given_up_and_taken_up_later(pg: Database, tmp_path: Path) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    project, writer = Project(tmp_path / "project", source.url, page_size=50), Writer(source, seed=4)
    writer.fill(3000)
    stop = threading.Event()
    with project.running("run", "--once") as running:
        wait_for(lambda: project.log().last() >= 2)
        while not stop.wait(0.005) and running.process.exitcode is None:
            cut(source, pg.reader)
        outcome = running.ended(PATIENCE)
    assert outcome.code == 3, outcome
    assert "Traceback" not in outcome.said
    clean(project.run())
    holds(source, project)


@pytest.mark.parametrize("lost", [1, 2])
def test_segments_taken_from_the_logs_end_are_named(source: SQLiteSource, tmp_path: Path, lost: int) -> None:
    project, writer = Project(tmp_path / "project", source.url, page_size=3), Writer(source, seed=5)
    writer.write(80)
    clean(project.run())
    aside = tmp_path / "aside"
    aside.mkdir()
    taken = [s.path for s in project.log().list()[-lost:]]
    for path in taken:
        path.rename(aside / path.name)
    writer.write(5)
    outcome = project.run()
    assert outcome.code == 5, outcome
    assert str(project.log().folder) in outcome.said
    for path in taken:
        (aside / path.name).rename(path)
    clean(project.run())
    holds(source, project)
