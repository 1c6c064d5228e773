"""A SQLite file among those who write to it: locks, WAL, rights, replacement, and not one byte changed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.sqlite import SQLiteConnector
from sidecar.connector import Source
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import Page, Tracked

NOBODY = 65534
SCHEMA = """
CREATE TABLE plays (id INTEGER PRIMARY KEY, song TEXT, updated_at TEXT NOT NULL);
INSERT INTO plays VALUES (1, 'a', '2024-05-01 10:00:00'), (2, 'b', '2024-05-01 10:01:00');
"""
ADD = "INSERT INTO plays VALUES (3, 'c', '2024-05-01 10:02:00')"


def make(path: Path, mode: str = "delete") -> Path:
    path.parent.mkdir(exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.executescript(SCHEMA)
    connection.close()
    return path


def opened(path: Path, lock_timeout: float = 5.0) -> SQLiteConnector:
    return SQLiteConnector(Source(f"sqlite:///{path}", lock_timeout=lock_timeout))


def ids(connector: SQLiteConnector) -> list[int]:
    table = connector.describe("plays")
    tracked = Tracked(table, ("id",), "updated_at", columns=table.columns)
    with connector.snapshot():
        rows = connector.read(Page(tracked, tracked.passes[0], {}, None, 100))
    found: list[int] = rows.column("id").to_pylist()
    return found


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach; pytest closes its own to others whenever a session starts."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def warned(connector: SQLiteConnector) -> list[str]:
    table = connector.describe("plays")
    return [f.message for f in connector.check(Tracked(table, ("id",), "updated_at", columns=table.columns))]


def as_nobody(path: Path, repository: Path) -> dict[str, object]:
    """Read *path* in a process of a user without rights; return its ids and the check's words, or its error."""
    # The rights are given up once everything is imported: that user may not be able to read the interpreter.
    program = """
        import json, os, sys
        import sqlite_utils
        from tests.integration.test_sqlite_file import NOBODY, ids, opened, warned
        from pathlib import Path
        from sidecar.errors import SidecarError
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            connector = opened(Path(sys.argv[1]))
            print(json.dumps({"ids": ids(connector), "warned": warned(connector)}))
        except SidecarError as error:
            print(json.dumps({"error": type(error).__name__, "message": str(error)}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        cwd=repository, env={**os.environ, "PYTHONPATH": str(repository)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become a user without rights"
)


class Writer:
    """Another process with the file open; it runs what it is told, a line at a time."""

    def __init__(self, path: Path) -> None:
        program = """
            import sqlite3, sys
            connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
            for line in sys.stdin:
                try:
                    print(connection.execute(line).fetchall(), flush=True)
                except sqlite3.Error as error:
                    print(error, flush=True)
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, sql: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(sql + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    found: list[Writer] = []
    yield found
    for writer in found:
        writer.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_reading_changes_no_byte_and_leaves_no_file(tmp_path: Path, mode: str) -> None:
    path = make(tmp_path / "shop.db", mode)
    before, names = sha(path), sorted(p.name for p in tmp_path.iterdir())
    connector = opened(path)
    assert ids(connector) == [1, 2]
    connector.pulse()
    connector.close()
    assert sha(path) == before
    left = sorted(p.name for p in tmp_path.iterdir())
    assert [n for n in left if not n.endswith(("-wal", "-shm"))] == names


def test_the_connection_cannot_write(tmp_path: Path) -> None:
    connector = opened(make(tmp_path / "shop.db"))
    with connector.file.reading() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM plays")
    with connector.file.reading() as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("CREATE TABLE made (x)")
    connector.close()


def test_names_with_odd_characters_are_opened_as_they_are(tmp_path: Path) -> None:
    path = make(tmp_path / "a b?c#d%e'f.db")
    connector = SQLiteConnector(Source(f"sqlite:///{tmp_path}/a%20b%3Fc%23d%25e'f.db"))
    assert connector.file.path == path
    assert ids(connector) == [1, 2]
    connector.close()


def test_a_relative_path_starts_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "shop.db")
    monkeypatch.chdir(tmp_path)
    connector = SQLiteConnector(Source("sqlite:///shop.db"))
    monkeypatch.chdir("/")
    assert ids(connector) == [1, 2]
    connector.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://shop.db", "sqlite:///relative"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///shop.db?immutable=1&cache=shared", '"immutable", "cache"'),
    ],
)
def test_urls_that_mean_nothing_are_refused(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        SQLiteConnector(Source(url))


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no file .*nowhere\.db"):
        opened(tmp_path / "nowhere.db").tables()
    assert not (tmp_path / "nowhere.db").exists()


def test_a_directory_and_a_file_that_is_no_database_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a directory"):
        opened(tmp_path).tables()
    text = tmp_path / "notes.txt"
    text.write_text("no database\n" * 1000)
    with pytest.raises(SettingsError, match=r"notes\.txt is not a SQLite database"):
        opened(text).tables()
    (tmp_path / "empty.db").touch()
    with pytest.raises(SettingsError, match=r"empty\.db is empty"):
        opened(tmp_path / "empty.db").tables()


def test_a_writer_that_locks_for_longer_than_the_wait_is_named(tmp_path: Path, writers: list[Writer]) -> None:
    path = make(tmp_path / "shop.db")
    connector = opened(path, lock_timeout=0.2)
    assert ids(connector) == [1, 2]
    writers.append(Writer(path))
    writers[0].run("BEGIN EXCLUSIVE")
    with pytest.raises(SourceUnavailable, match=r"shop\.db.*locked.*0\.2 s"):
        ids(connector)
    writers[0].run("COMMIT")
    assert ids(connector) == [1, 2]
    connector.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_idle_reader_is_in_nobodys_way(tmp_path: Path, writers: list[Writer], mode: str) -> None:
    path = make(tmp_path / "shop.db", mode)
    connector = opened(path)
    ids(connector)
    writers.append(Writer(path))
    assert writers[0].run(ADD) == "[]"
    assert ids(connector) == [1, 2, 3]
    connector.pulse()
    if mode == "wal":
        assert writers[0].run("PRAGMA wal_checkpoint(TRUNCATE)").startswith("[(0,")
        assert Path(f"{path}-wal").stat().st_size == 0
    else:
        assert writers[0].run("DELETE FROM plays") == "[]"
    connector.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_pulse_differs_only_when_something_changed(tmp_path: Path, writers: list[Writer], mode: str) -> None:
    path = make(tmp_path / "shop.db", mode)
    connector = opened(path)
    before = connector.pulse()
    ids(connector)
    assert connector.pulse() == before
    writers.append(Writer(path))
    writers[0].run(ADD)
    after = connector.pulse()
    assert after != before
    assert connector.pulse() == after
    connector.file.close()
    assert connector.pulse() != after, "a new connection counts for itself"
    connector.close()


def test_rows_that_are_still_in_the_wal_are_read(tmp_path: Path, writers: list[Writer]) -> None:
    path = make(tmp_path / "shop.db", "wal")
    writers.append(Writer(path))
    writers[0].run("PRAGMA wal_autocheckpoint = 0")
    before = sha(path)
    writers[0].run(ADD)
    connector = opened(path)
    assert ids(connector) == [1, 2, 3]
    assert sha(path) == before
    connector.close()
    assert sha(path) == before


def test_a_file_put_in_its_place_is_read_from_the_next_look_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path / "shop.db")
    connector = opened(path)
    assert ids(connector) == [1, 2]
    other = make(tmp_path / "other" / "shop.db")
    with sqlite3.connect(other) as connection:
        connection.execute(ADD)
    connection.close()
    other.rename(path)
    with caplog.at_level(logging.WARNING, "sidecar"):
        assert ids(connector) == [1, 2, 3]
        assert ids(connector) == [1, 2, 3]
    assert [r.getMessage() for r in caplog.records] == [
        f"source {path}: another file has taken its place; opening that one"
    ]
    connector.close()


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_older_copy_over_the_file_is_read_though_its_header_is_the_same_again(tmp_path: Path, mode: str) -> None:
    path = make(tmp_path / "shop.db", mode)
    before = path.read_bytes()

    def write(statement: str) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    write(ADD)
    connector = opened(path)
    assert ids(connector) == [1, 2, 3]
    path.write_bytes(before)
    # As many commits as there were since the copy was made: what tells SQLite that its pages in memory are old.
    write(ADD.replace("3", "4"))
    assert ids(connector) == [1, 2, 4]
    connector.close()


def test_a_file_that_goes_away_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    connector = opened(path)
    ids(connector)
    path.rename(tmp_path / "away.db")
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match=r"shop\.db: the file is gone"):
            ids(connector)
    (tmp_path / "away.db").rename(path)
    assert ids(connector) == [1, 2]
    connector.close()


def test_a_file_cut_off_or_emptied_is_an_error_and_no_empty_source(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    whole = path.read_bytes()
    connector = opened(path)
    ids(connector)
    for size in (len(whole) - 4096, 0):
        os.truncate(path, size)
        with pytest.raises(SourceUnavailable, match=r"shop\.db"):
            connector.tables()
        with pytest.raises(SourceUnavailable, match=r"shop\.db"), connector.snapshot():
            pass
        with pytest.raises(SourceUnavailable, match=r"shop\.db"):
            connector.pulse()
    path.write_bytes(whole)
    assert ids(connector) == [1, 2]
    connector.close()


def test_a_database_without_its_tables_is_an_error_and_no_empty_source(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    connector = opened(path)
    ids(connector)
    empty = tmp_path / "empty.db"
    with sqlite3.connect(empty) as connection:
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    empty.rename(path)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="holds no tables any more"):
            connector.tables()
    connector.close()


def test_a_vacuum_is_no_reason_for_alarm(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE filler AS SELECT randomblob(200000) AS x")
    connection.close()
    connector = opened(path)
    assert ids(connector) == [1, 2]
    writing = sqlite3.connect(path, isolation_level=None)
    writing.execute("DROP TABLE filler")
    writing.execute("VACUUM")
    writing.close()
    assert ids(connector) == [1, 2]
    connector.close()


def test_a_hot_journal_is_named(tmp_path: Path) -> None:
    path = make(tmp_path / "shop.db")
    program = """
        import os, sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.executescript("PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        connection.execute(f"CREATE TABLE filler AS {numbers} SELECT i, randomblob(500) AS x FROM n")
        os._exit(9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], check=False)
    assert Path(f"{path}-journal").exists()
    before = sha(path)
    with pytest.raises(SourceUnavailable, match=r"shop\.db.*shop\.db-journal"):
        ids(opened(path))
    assert sha(path) == before


@needs_root
def test_without_the_right_to_write_rollback_mode_is_read(open_folder: Path, pytestconfig: pytest.Config) -> None:
    path = make(open_folder / "data" / "shop.db")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    assert as_nobody(path, pytestconfig.rootpath)["ids"] == [1, 2]


@needs_root
def test_without_the_right_to_write_a_live_wal_is_read(
    open_folder: Path, pytestconfig: pytest.Config, writers: list[Writer]
) -> None:
    path = make(open_folder / "data" / "shop.db", "wal")
    writers.append(Writer(path))
    writers[0].run(ADD)
    path.parent.chmod(0o555)
    before = sha(path)
    found = as_nobody(path, pytestconfig.rootpath)
    assert found["ids"] == [1, 2, 3]
    assert "belongs to another user" not in str(found["warned"])
    assert sha(path) == before


@needs_root
def test_without_the_right_to_write_a_wal_database_nobody_holds_open_says_what_to_do(
    open_folder: Path, pytestconfig: pytest.Config
) -> None:
    path = make(open_folder / "data" / "shop.db", "wal")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    before = sha(path)
    found = as_nobody(path, pytestconfig.rootpath)
    assert found["error"] == "SourceUnavailable"
    message = str(found["message"])
    for word in (str(path), "WAL", "shop.db-wal", "shop.db-shm", "not writable", "journal_mode = DELETE"):
        assert word in message
    assert sha(path) == before


@needs_root
def test_check_warns_where_reading_could_lock_the_owner_out(
    open_folder: Path, pytestconfig: pytest.Config, writers: list[Writer]
) -> None:
    path = make(open_folder / "data" / "shop.db", "wal")
    path.parent.chmod(0o777)
    writers.append(Writer(path))
    writers[0].run(ADD)
    found = as_nobody(path, pytestconfig.rootpath)
    assert "belongs to another user (uid 0)" in str(found["warned"])
    assert not any("belongs" in message for message in warned(opened(path)))


@needs_root
def test_a_file_that_this_user_may_not_read_is_named(open_folder: Path, pytestconfig: pytest.Config) -> None:
    path = make(open_folder / "data" / "shop.db")
    path.chmod(0o600)
    found = as_nobody(path, pytestconfig.rootpath)
    assert found["error"] == "SettingsError"
    assert "may not read" in str(found["message"])
