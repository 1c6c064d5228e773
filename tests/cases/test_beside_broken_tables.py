"""A table that cannot be followed for a while takes nothing from those beside it, nor from itself once it is back."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

import sidecar
from sidecar.clock import FakeClock, instant
from sidecar.runner import Runner
from tests.cases.harness import Project, sqlite_file, wait_for
from tests.servers import Database

SLOW = """\
CREATE TABLE slow (id int PRIMARY KEY, updated_at timestamptz);
INSERT INTO slow SELECT id, '2024-05-01 10:00+00' FROM generate_series(1, 200) AS id;
CREATE INDEX ON slow (updated_at);
ALTER TABLE slow ENABLE ROW LEVEL SECURITY;
CREATE POLICY slowly ON slow FOR SELECT USING (pg_sleep(0.005) IS NOT NULL);
CREATE TABLE keyless (id int, updated_at timestamptz);
"""


def test_a_backfill_whose_chunks_take_longer_than_a_round_comes_to_its_end(tmp_path: Path, pg: Database) -> None:
    pg.connect().execute(SLOW)
    project = Project(tmp_path, pg.reader_url, {"slow": {}, "keyless": {}})
    stop = threading.Event()
    with sidecar.open(project.path) as sc:
        loop = threading.Thread(target=lambda: sc.run(interval=0.1, stop=stop))
        loop.start()
        try:
            assert wait_for(lambda: sc.log("slow").last() > 0, 10)
        finally:
            stop.set()
            loop.join()


def test_what_is_asked_of_a_table_is_done_and_a_check_names_the_others(tmp_path: Path) -> None:
    sqlite_file(
        tmp_path / "app.db",
        "CREATE TABLE fine (id INTEGER PRIMARY KEY, updated_at TEXT);"
        "CREATE TABLE keyless (id INTEGER, updated_at TEXT);"
        "INSERT INTO fine VALUES (1, '2024-05-01 10:00:00');",
    ).close()
    project = Project(tmp_path, f"sqlite:///{tmp_path}/app.db", {"fine": {}, "keyless": {}})
    assert project.cli("run", "--once").code == 2
    for words in (("backfill", "fine"), ("watermark", "set", "fine", "2024-05-01"), ("watermark", "reset", "fine")):
        assert project.cli(*words).code == 0
    assert 'table "keyless": it has no primary key' in project.cli("watermark", "reset", "keyless").text
    check = project.cli("check")
    assert check.code == 1
    assert 'error: table "keyless": it has no primary key' in check.text
    assert "1 table, 1 error" in check.text


def test_what_a_child_that_cannot_be_followed_has_not_seen_of_its_parent_is_kept(tmp_path: Path) -> None:
    writer = sqlite_file(
        tmp_path / "app.db",
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT, updated_at TEXT);"
        "CREATE TABLE child (id INTEGER PRIMARY KEY, parent_id INTEGER, updated_at TEXT);"
        "INSERT INTO parent VALUES (1, 'a', '2024-05-01 10:00:00'), (2, 'a', '2024-05-01 10:00:00');"
        "INSERT INTO child VALUES (10, 1, '2024-05-01 10:00:00');",
    )
    project = Project(tmp_path, f"sqlite:///{tmp_path}/app.db", {"parent": {}})
    project.write(state={"path": "state", "retention": "1s", "bases": False})
    with project.path.open("a", encoding="utf-8") as file:
        file.write("[[tables.child.refresh_on]]\ntable = 'parent'\non = { parent_id = 'id' }\n")
    clock = FakeClock()

    def run() -> int:
        clock.advance(3600)
        with sidecar.open(project.path, clock=clock) as sc:
            return sc.run(once=True)

    assert run() == 0
    writer.execute("ALTER TABLE child RENAME COLUMN updated_at TO changed")
    for number, row in enumerate((1, 2, 2)):
        stamp = f"{instant(clock.now()):%Y-%m-%d %H:%M:%S}"
        writer.execute("UPDATE parent SET name = ?, updated_at = ? WHERE id = ?", (number, stamp, row))
        writer.commit()
        assert run() == 2
    writer.execute("ALTER TABLE child RENAME COLUMN changed TO updated_at")
    writer.commit()
    assert run() == 0
    with sidecar.open(project.path) as sc:
        assert [row["id"] for row in sc.log("child").rows(1)] == [10]


def test_a_table_that_can_be_followed_again_is_said_to_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = sqlite_file(
        tmp_path / "app.db",
        "CREATE TABLE fine (id INTEGER PRIMARY KEY, updated_at TEXT);"
        "CREATE TABLE away (id INTEGER PRIMARY KEY, updated_at TEXT);",
    )
    project, clock = Project(tmp_path, f"sqlite:///{tmp_path}/app.db", {"fine": {}, "back": {}}), FakeClock()
    with caplog.at_level(logging.INFO, "sidecar"), sidecar.open(project.path, clock=clock) as sc:
        runner = Runner(sc)
        for _ in range(2):
            assert runner.run(once=True, interval=1) == 2
            clock.advance(5)
        writer.execute("ALTER TABLE away RENAME TO back")
        assert runner.run(once=True, interval=1) == 0
    assert [r.getMessage() for r in caplog.records if "goes on" in r.getMessage()] == ["table=back goes on after 10 s"]
