# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Rows that are flagged as deleted, by whatever means, and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sidecar.errors import SettingsError
from tests.cases.harness import Project, kinds
from tests.conftest import SQLiteFile
from tests.servers import Database

POSTS = """\
CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleted_at TEXT);
INSERT INTO posts VALUES (1,'one','2024-05-01 10:00:00','2024-05-01 10:00:00',NULL),(2,'two','2024-05-01 10:01:00','2024-05-01 10:01:00',NULL),
                         (3,'three','2024-05-01 10:02:00','2024-05-01 10:30:00',NULL);
"""

USERS = """\
CREATE TABLE users_old (id INTEGER PRIMARY KEY, email TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  deleted_at TEXT NOT NULL DEFAULT '0000-00-00 00:00:00', UNIQUE (email, deleted_at));
INSERT INTO users_old(id,email,created_at,updated_at) VALUES (1,'a@example.test','2024-05-01 10:00:00','2024-05-01 10:00:00'),
  (2,'b@example.test','2024-05-01 10:01:00','2024-05-01 10:01:00'),(3,'c@example.test','2024-05-01 10:02:00','2024-05-01 10:02:00');
UPDATE users_old SET deleted_at = '2024-05-01 10:05:00', updated_at = '2024-05-01 10:05:00' WHERE id = 3;
"""


def test_a_soft_delete_that_leaves_updated_at_alone_is_seen_and_undone(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-18"""
    s1 = sqlite_db.connection
    s1.executescript(POSTS)
    project = Project(tmp_path, sqlite_db.url, {"posts": {}})
    assert len(project.poll()["posts"]) == 3
    s1.execute("UPDATE posts SET deleted_at = '2024-05-01 11:00:00' WHERE id = 2")
    assert kinds(project.poll()["posts"], "id") == [("delete", 2)]
    assert project.poll()["posts"] == []
    s1.execute("UPDATE posts SET deleted_at = NULL, updated_at = '2024-05-01 12:00:00' WHERE id = 2")
    (back,) = project.poll()["posts"]
    assert (back["id"], back["title"], back["_change_type"] != "delete") == (2, "two", True)
    assert sorted(project.merged("posts", "id")) == [1, 2, 3]


@pytest.mark.parametrize("page_size", [1, 1000])
def test_soft_deletes_that_leave_updated_at_alone_are_seen_in_postgres(
    tmp_path: Path, pg: Database, page_size: int
) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE posts (id int PRIMARY KEY, title text, created_at timestamptz NOT NULL,"
        " updated_at timestamptz NOT NULL, deleted_at timestamptz);"
        "INSERT INTO posts SELECT g, 'p' || g, '2024-05-01 10:00+00', timestamptz '2024-05-01 10:00+00' + g * interval"
        " '1 min', NULL FROM generate_series(1, 40) g"
    )
    project = Project(tmp_path, pg.reader_url, {"posts": {"page_size": page_size}})
    assert len(project.poll()["posts"]) == 40
    s1.execute("UPDATE posts SET deleted_at = '2024-05-01 11:00+00' WHERE id IN (1, 2, 3)")
    assert kinds(project.poll()["posts"], "id") == [("delete", 1), ("delete", 2), ("delete", 3)]
    s1.execute("UPDATE posts SET deleted_at = '2024-05-01 11:00+00' WHERE id = 4")
    s1.execute("UPDATE posts SET deleted_at = NULL, updated_at = '2024-05-01 12:00+00' WHERE id = 1")
    s1.execute("UPDATE posts SET deleted_at = '2024-05-01 11:30+00' WHERE id = 39")
    assert kinds(project.poll()["posts"], "id") == [("delete", 4), ("delete", 39), ("update_postimage", 1)]
    assert project.poll()["posts"] == []
    assert sorted(project.merged("posts", "id")) == [1, *range(5, 39), 40]


def test_a_zero_date_that_means_not_deleted_deletes_nothing(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-20"""
    s1 = sqlite_db.connection
    s1.executescript(USERS)
    project = Project(tmp_path, sqlite_db.url, {"users_old": {"not_deleted": ["0000-00-00 00:00:00"]}})
    assert kinds(project.poll()["users_old"], "id") == [("delete", 3), ("insert", 1), ("insert", 2)]
    assert sorted(project.merged("users_old", "id")) == [1, 2]


@pytest.mark.parametrize("sentinel", ["0000-00-00 00:00:00", "", "0", "never"])
def test_a_sentinel_that_nobody_named_is_refused(tmp_path: Path, sqlite_db: SQLiteFile, sentinel: str) -> None:
    s1 = sqlite_db.connection
    s1.executescript(USERS)
    s1.execute("UPDATE users_old SET deleted_at = ? WHERE id < 3", (sentinel,))
    project = Project(tmp_path, sqlite_db.url, {"users_old": {}})
    with pytest.raises(SettingsError) as raised:
        project.poll()
    assert "users_old.deleted_at" in str(raised.value)
    assert sentinel in str(raised.value)
    assert "not_deleted" in str(raised.value)
    project.tables = {"users_old": {"not_deleted": [sentinel]}}
    project.write()
    project.poll()
    assert sorted(project.merged("users_old", "id")) == [1, 2]


@pytest.mark.parametrize(
    ("declared", "sentinel", "gone"),
    [
        ("TEXT", "9999-12-31 23:59:59", "2024-05-01 11:00:00"),
        ("DATETIME", "1970-01-01 00:00:00", "2024-05-01T11:00:00Z"),
        ("INTEGER", 0, 1714557600),
        ("INTEGER", -1, 1714557600),
        ("REAL", 0.0, 1714557600.5),
        ("TEXT", "", "2024-05-01"),
    ],
)
def test_any_value_can_mean_not_deleted(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, sentinel: Any, gone: Any
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE u (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL, deleted_at {declared} NOT NULL)")
    for number, value in ((1, sentinel), (2, sentinel), (3, gone)):
        s1.execute("INSERT INTO u VALUES (?, '2024-05-01 10:00:00', ?)", (number, value))
    project = Project(tmp_path, sqlite_db.url, {"u": {"not_deleted": [sentinel]}})
    assert [r["id"] for r in project.poll()["u"] if r["_change_type"] == "delete"] == [3]
    s1.execute("UPDATE u SET deleted_at = ? WHERE id = 1", (gone,))
    assert kinds(project.poll()["u"], "id") == [("delete", 1)]
    s1.execute("UPDATE u SET deleted_at = ?, updated_at = '2024-05-01 12:00:00' WHERE id = 1", (sentinel,))
    assert kinds(project.poll()["u"], "id") == [("update_postimage", 1)]
    assert sorted(project.merged("u", "id")) == [1, 2]


def test_a_flag_deletes_where_a_number_means_not_deleted_in_sqlite(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, gone INTEGER, updated_at TEXT, deleted_at DATETIME NOT NULL)")
    s1.execute("INSERT INTO u VALUES (1, 0, '2024-05-01 10:00:00', 0), (2, 1, '2024-05-01 10:00:00', 0)")
    project = Project(tmp_path, sqlite_db.url, {"u": {"deleted_when": "gone", "not_deleted": [0]}})
    project.poll()
    assert sorted(project.merged("u", "id")) == [1]


@pytest.mark.parametrize("sentinel", ["infinity", "9999-12-31 00:00:00+00", "-infinity", "1970-01-01 00:00:00+00"])
def test_any_time_can_mean_not_deleted_in_postgres(tmp_path: Path, pg: Database, sentinel: str) -> None:
    s1 = pg.connect()
    s1.execute("CREATE TABLE u (id int PRIMARY KEY, updated_at timestamptz NOT NULL, deleted_at timestamptz NOT NULL)")
    for number, value in ((1, sentinel), (2, sentinel), (3, "2024-05-01 11:00+00")):
        s1.execute("INSERT INTO u VALUES (%s, '2024-05-01 10:00+00', %s)", (number, value))
    project = Project(tmp_path, pg.reader_url, {"u": {"not_deleted": [sentinel]}})
    assert [r["id"] for r in project.poll()["u"] if r["_change_type"] == "delete"] == [3]
    s1.execute("UPDATE u SET deleted_at = '2024-05-01 11:00+00' WHERE id = 1")
    assert kinds(project.poll()["u"], "id") == [("delete", 1)]
    assert project.poll()["u"] == []
    assert sorted(project.merged("u", "id")) == [2]


def test_a_flag_says_which_rows_are_deleted(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE u (id int PRIMARY KEY, status text, updated_at timestamptz NOT NULL DEFAULT now());"
        "INSERT INTO u VALUES (1, 'live'), (2, 'gone'), (3, NULL)"
    )
    project = Project(tmp_path, pg.reader_url, {"u": {"deleted_when": "status = 'gone' -- by hand"}})
    project.poll()
    assert sorted(project.merged("u", "id")) == [1, 3]
    s1.execute("UPDATE u SET status = 'gone', updated_at = now() WHERE id = 1")
    s1.execute("UPDATE u SET status = 'live', updated_at = now() WHERE id = 2")
    assert kinds(project.poll()["u"], "id") == [("delete", 1), ("update_postimage", 2)]


@pytest.mark.parametrize(
    ("declared", "sentinel"),
    [
        ("timestamptz", "9999-12-31 00:00:00"),
        ("timestamp", "9999-12-31"),
        ("date", "9999-12-31 00:00"),
        ("timestamptz", "infinity"),
    ],
)
def test_a_flag_deletes_where_another_value_means_not_deleted(
    tmp_path: Path, pg: Database, declared: str, sentinel: str
) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE u (id int PRIMARY KEY, status text, updated_at timestamptz NOT NULL DEFAULT now(),"
        f" deleted_at {declared} NOT NULL DEFAULT '{sentinel}');"
        "INSERT INTO u VALUES (1, 'live'), (2, 'gone')"
    )
    project = Project(tmp_path, pg.reader_url, {"u": {"deleted_when": "status = 'gone'", "not_deleted": [sentinel]}})
    project.poll()
    assert sorted(project.merged("u", "id")) == [1]
    s1.execute("UPDATE u SET status = 'gone', updated_at = now() WHERE id = 1")
    s1.execute("UPDATE u SET status = 'live', updated_at = now() WHERE id = 2")
    assert kinds(project.poll()["u"], "id") == [("delete", 1), ("update_postimage", 2)]
    assert project.poll()["u"] == []
    s1.execute("UPDATE u SET deleted_at = '1970-01-01', status = 'gone', updated_at = now() WHERE id = 2")
    with pytest.raises(SettingsError, match="a placeholder rather than the time of a deletion"):
        project.poll()


@pytest.mark.parametrize(
    ("declared", "sentinel"),
    [
        ("timestamptz", "infinity"),
        ("timestamp", "-infinity"),
        ("timestamptz", "9999-12-31 23:59:59+00"),
        ("date", "1970-01-01"),
        ("bigint", 0),
    ],
)
def test_a_placeholder_that_nobody_named_is_refused_in_postgres(
    tmp_path: Path, pg: Database, declared: str, sentinel: str | int
) -> None:
    s1 = pg.connect()
    s1.execute(f"CREATE TABLE u (id int PRIMARY KEY, updated_at timestamptz NOT NULL, deleted_at {declared} NOT NULL)")
    s1.execute("INSERT INTO u VALUES (7, '2024-05-01 10:00+00', %s)", (sentinel,))
    project = Project(tmp_path, pg.reader_url, {"u": {}})
    with pytest.raises(SettingsError, match=r"u\.deleted_at holds .*placeholder.*key: id=.*7.*not_deleted"):
        project.poll()
    assert project.rows("u") == []
    project.tables = {"u": {"not_deleted": [sentinel]}}
    project.write()
    assert kinds(project.poll()["u"], "id") == [("insert", 7)]


@pytest.mark.parametrize(
    ("declared", "sentinel"), [("TEXT", "9999-12-31 23:59:59"), ("DATETIME", "1970-01-01T00:00:00Z"), ("INTEGER", -1)]
)
def test_a_placeholder_that_nobody_named_is_refused_in_sqlite(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, sentinel: str | int
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE u (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL, deleted_at {declared} NOT NULL)")
    s1.execute("INSERT INTO u VALUES (7, '2024-05-01 10:00:00', ?)", (sentinel,))
    project = Project(tmp_path, sqlite_db.url, {"u": {}})
    with pytest.raises(SettingsError) as raised:
        project.poll()
    assert f"not_deleted = [{json.dumps(sentinel)}]" in str(raised.value)
    project.tables = {"u": {"not_deleted": [sentinel]}}
    project.write()
    assert kinds(project.poll()["u"], "id") == [("insert", 7)]
