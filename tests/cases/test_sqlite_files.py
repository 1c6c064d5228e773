# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""SQLite files in the hands of others: read-only folders, files swapped, cut off and locked, WALs that must not grow."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sidecar
from sidecar.clock import SystemClock
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable
from tests.cases.harness import ROOT, Project, kinds, sqlite_file, wait_for

NOBODY = 65534


PLAYS = """\
PRAGMA journal_mode=WAL;
CREATE TABLE plays (id INTEGER PRIMARY KEY, song TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO plays VALUES (1,'a','2024-05-01 10:00:00','2024-05-01 10:00:00'),(2,'b','2024-05-01 10:01:00','2024-05-01 10:01:00');
"""

KV = """\
CREATE TABLE kv (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO kv VALUES (1,'old','2024-05-01 10:00:00','2024-05-01 10:00:00');
"""

LOGS = """\
PRAGMA journal_mode=WAL;
CREATE TABLE logs (id INTEGER PRIMARY KEY, line TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO logs VALUES (1,'x','2024-05-01 10:00:00','2024-05-01 10:00:00');
"""

MANY = """\
INSERT INTO logs SELECT NULL, hex(randomblob(500)), '2024-05-01 11:00:00', '2024-05-01 11:00:00' FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 5000) SELECT n FROM c);
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Where the database is to be."""
    return tmp_path / "source" / "app.db"


@pytest.fixture
def project(tmp_path: Path, source: Path) -> Project:
    return Project(tmp_path / "project", f"sqlite:///{source}", {"kv": {}})


class Loop:
    """A runner in a thread, as `sidecar run` loops."""

    def __init__(self, project: Project, interval: float) -> None:
        self.project, self.interval = project, interval
        self.stop = threading.Event()
        self.code: int | None = None
        self.rounds = 0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with sidecar.open(self.project.path) as sc:
            self.code = sc.run(interval=self.interval, stop=self.stop)

    def __enter__(self) -> Loop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def has(self, table: str, rows: int) -> bool:
        log = sidecar.open(self.project.path).log(table)
        return sum(found.rows for s in log.list() if (found := log.metadata(s.offset))) >= rows


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="sidecar-cases-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_wal_database_in_a_folder_that_may_not_be_written_is_read_or_refused_by_name(open_folder: Path) -> None:
    """RC-41"""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    path = open_folder / "media" / "plays.db"
    sqlite_file(path, PLAYS).close()
    assert sorted(p.name for p in path.parent.iterdir()) == ["plays.db"]
    path.chmod(0o444)
    path.parent.chmod(0o555)
    project = Project(open_folder / "project", f"sqlite:///{path}", {"plays": {}})
    project.folder.chmod(0o777)
    before = sha(path)

    def poll() -> tuple[int, str]:
        code = (
            f"import os; os.setgid({NOBODY}); os.setuid({NOBODY}); import sys; sys.argv[1:] = ['run', '--once', '-c',"
            f" {str(project.path)!r}]; from sidecar.cli import main; main()"
        )
        # Imported as root: the interpreter's own folders may be closed to others.
        load = "import sidecar.cli, sidecar.project, sidecar.runner, connectors.sqlite, connectors.sqlite_types;"
        load += "import sqlite_utils, rocksdict, tenacity, sidecar.terminal.console, pyarrow.parquet, rich.console; "
        done = subprocess.run(
            [sys.executable, "-c", load + code], cwd=open_folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, said = poll()
    if code:
        assert str(path) in said
        assert "WAL" in said
        assert "not writable" in said
        assert code == 3
    else:
        assert sorted(project.merged("plays", "id")) == [1, 2]
    assert sha(path) == before
    path.parent.chmod(0o777)
    path.chmod(0o666)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("INSERT INTO plays VALUES (3,'c','2024-05-01 10:02:00','2024-05-01 10:02:00')")
    before = sha(path)
    code, said = poll()
    assert code == 0, said
    assert sorted(project.merged("plays", "id")) == [1, 2, 3]
    assert sha(path) == before
    assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    writer.close()


def test_a_loop_reads_the_file_that_stands_at_the_path_now(
    project: Project, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-43"""
    sqlite_file(source, KV).close()
    with caplog.at_level(logging.INFO, "sidecar"), Loop(project, 0.3) as loop:
        assert wait_for(lambda: loop.has("kv", 1))
        copy = source.with_name("src2.db")
        writer = sqlite_file(copy, KV)
        writer.execute("INSERT INTO kv VALUES (2,'new','2024-05-01 11:00:00','2024-05-01 11:00:00')")
        writer.close()
        copy.replace(source)
        assert wait_for(lambda: loop.has("kv", 2), 10)
    assert "another file has taken its place" in caplog.text
    assert kinds(project.rows("kv"), "id") == [("insert", 1), ("insert", 2)]
    assert project.poll()["kv"] == []


def test_a_loop_survives_a_file_that_is_gone_cut_off_empty_or_garbage(project: Project, source: Path) -> None:
    sqlite_file(source, KV).close()
    whole = source.read_bytes()
    with Loop(project, 0.1) as loop:
        assert wait_for(lambda: loop.has("kv", 1))
        for content in (None, b"", whole[: len(whole) // 2], b"not a database at all" * 400, whole[:100]):
            source.unlink(missing_ok=True)
            if content is not None:
                source.write_bytes(content)
            SystemClock().sleep(0.4)
        aside = source.with_name("aside.db")
        aside.write_bytes(whole)
        writer = sqlite3.connect(aside, isolation_level=None)
        writer.execute("INSERT INTO kv VALUES (2,'new','2024-05-01 11:00:00','2024-05-01 11:00:00')")
        writer.close()
        aside.replace(source)
        assert wait_for(lambda: loop.has("kv", 2), 30)
    assert kinds(project.rows("kv"), "id") == [("insert", 1), ("insert", 2)]


def test_a_loop_follows_a_copy_over_the_file_in_place_and_a_moved_link(project: Project, source: Path) -> None:
    real = source.with_name("v1.db")
    sqlite_file(real, KV).close()
    source.symlink_to(real.name)
    with Loop(project, 0.1) as loop:
        assert wait_for(lambda: loop.has("kv", 1))
        second = source.with_name("v2.db")
        writer = sqlite_file(second, KV)
        writer.execute("INSERT INTO kv VALUES (2,'new','2024-05-01 11:00:00','2024-05-01 11:00:00')")
        link = source.with_name("link")
        link.symlink_to(second.name)
        link.replace(source)
        assert wait_for(lambda: loop.has("kv", 2), 10)
        writer.execute("INSERT INTO kv VALUES (3,'newer','2024-05-01 12:00:00','2024-05-01 12:00:00')")
        writer.close()
        shutil.copyfile(second, real)
        assert wait_for(lambda: loop.has("kv", 3), 10)
        writer = sqlite3.connect(real, isolation_level=None)
        writer.execute("INSERT INTO kv VALUES (4,'newest','2024-05-01 13:00:00','2024-05-01 13:00:00')")
        writer.close()
        shutil.copyfile(real, second)
        assert wait_for(lambda: loop.has("kv", 4), 10)
    assert sorted(project.merged("kv", "id")) == [1, 2, 3, 4]


def test_an_idle_loop_lets_the_wal_be_truncated(tmp_path: Path, source: Path) -> None:
    """RC-44"""
    project = Project(tmp_path / "project", f"sqlite:///{source}", {"logs": {"page_size": 500}})
    s1 = sqlite_file(source, LOGS)
    wal = source.with_name("app.db-wal")
    with Loop(project, 1.0) as loop:
        s1.execute(MANY)
        assert wait_for(lambda: loop.has("logs", 5001))
        busy = []
        for pause in (0.15, 0.4, 0.7, 0.35, 0.9):
            SystemClock().sleep(pause)
            s1.execute("UPDATE logs SET line = 'y' WHERE id = 1")
            busy.append(s1.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            assert busy[-1] or wal.stat().st_size == 0
    assert sum(busy) <= 1, busy
    s1.close()
    project.poll()
    assert sorted(project.merged("logs", "id")) == list(range(1, 5002))


def test_a_slow_sink_pins_no_wal(tmp_path: Path, source: Path) -> None:
    """A step's end stands for the sink: what is between two pages holds nothing of the source."""
    project = Project(tmp_path / "project", f"sqlite:///{source}", {"logs": {"page_size": 500}})
    s1 = sqlite_file(source, LOGS)
    s1.execute(MANY)
    busy = []
    with sidecar.open(project.path) as sc:
        sc.run(once=True, on_step=lambda _: busy.append(s1.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]))
    assert len(busy) > 10
    assert not any(busy)
    s1.close()


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist", "wal"])
def test_a_writer_that_locks_the_file_delays_a_run_or_is_named(
    tmp_path: Path, source: Path, project: Project, mode: str
) -> None:
    s1 = sqlite_file(source, f"PRAGMA journal_mode = {mode};" + KV)
    project.write(source={"url": f"sqlite:///{source}", "lock_timeout": "100ms"})
    project.poll()
    if mode != "wal":
        s1.execute("PRAGMA locking_mode = EXCLUSIVE")
    s1.execute("BEGIN EXCLUSIVE")
    s1.execute("INSERT INTO kv VALUES (2, 'new', '2024-05-01 11:00:00', '2024-05-01 11:00:00')")
    if mode == "wal":
        assert project.poll()["kv"] == []
    else:
        with pytest.raises(SourceUnavailable) as raised:
            project.poll()
        assert str(source) in str(raised.value)
        assert "lock" in str(raised.value)
    s1.execute("COMMIT")
    s1.execute("PRAGMA locking_mode = NORMAL")
    s1.execute("SELECT count(*) FROM kv").fetchone()
    assert kinds(project.poll()["kv"], "id") == [("insert", 2)]
    s1.close()


def test_an_exclusive_wal_writer_is_named(source: Path, project: Project) -> None:
    source.parent.mkdir(parents=True)
    s1 = sqlite3.connect(source, isolation_level=None)
    s1.execute("PRAGMA locking_mode = EXCLUSIVE")
    s1.executescript("PRAGMA journal_mode = WAL;" + KV)
    project.write(source={"url": f"sqlite:///{source}", "lock_timeout": "100ms"})
    with pytest.raises(SourceUnavailable) as raised:
        project.poll()
    assert str(source) in str(raised.value)
    s1.close()
    assert len(project.poll()["kv"]) == 1


@pytest.mark.parametrize("what", ["missing", "empty", "folder", "garbage", "no tables"])
def test_what_is_no_database_is_named(source: Path, project: Project, what: str) -> None:
    source.parent.mkdir()
    if what == "empty":
        source.touch()
    elif what == "folder":
        source.mkdir()
    elif what == "garbage":
        source.write_bytes(b"x" * 5000)
    elif what == "no tables":
        sqlite_file(source, "PRAGMA user_version = 1").close()
    with pytest.raises(SidecarError) as raised:
        project.poll()
    assert str(source) in str(raised.value)
    assert isinstance(raised.value, SettingsError)
    assert what != "missing" or not source.exists()
