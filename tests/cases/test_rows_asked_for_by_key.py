"""Rows that are asked for by their keys: of any type, one or thousands, in one view, and purged if they are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sidecar.backfilling import requests
from sidecar.backfilling.jobs import Jobs
from sidecar.connector import SourceConnector
from sidecar.errors import SettingsError
from tests.cases.filled import OLD, filled, log, project
from tests.conftest import SQLiteFile


@pytest.mark.parametrize(
    ("declared", "one", "two"),
    [
        ("DATE", "2024-05-01", "2024-05-02"),
        ("DATETIME", "2024-05-01 10:00:00", "2024-05-02 10:00:00"),
        ("DECIMAL(10,2)", 1.5, 2.5),
        ("TEXT", "a", "b"),
        ("BLOB", b"a", b"b"),
        ("BOOLEAN", 0, 1),
    ],
)
def test_single_keys_of_any_type_can_be_purged(
    sqlite_db: SQLiteFile, tmp_path: Path, declared: str, one: Any, two: Any
) -> None:
    sqlite_db.connection.execute(f"CREATE TABLE k (k {declared} PRIMARY KEY NOT NULL, updated_at TEXT NOT NULL)")
    sqlite_db.connection.executemany("INSERT INTO k VALUES (?, ?)", [(one, OLD), (two, OLD)])
    with project(sqlite_db, tmp_path, "[tables.k]\n") as opened:
        opened.poll()
        held = [r["k"] for r in log(opened, "k")]
        sqlite_db.connection.execute("DELETE FROM k WHERE k = ?", (two,))
        opened.request_backfill("k", keys=[[key] for key in held], purge=True)
        opened.poll()
        found = [r["k"] for r in log(opened, "k") if r["_change_type"] == "delete"]
        assert found == [held[1]]


def test_a_key_of_bytes_is_asked_for_by_its_digits(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    sqlite_db.connection.execute("CREATE TABLE k (k BLOB PRIMARY KEY NOT NULL, updated_at TEXT NOT NULL)")
    sqlite_db.connection.executemany("INSERT INTO k VALUES (?, ?)", [(k, OLD) for k in (b"", b"\0\xff", b"abc")])
    with project(sqlite_db, tmp_path, "[tables.k]\n") as opened:
        opened.poll()
        opened.request_backfill("k", keys=["\\x00ff", "\\x", "abc"])
        opened.poll()
        assert [r["k"] for r in log(opened, "k")][3:] == [b"", b"\0\xff", b"abc"]
        with pytest.raises(SettingsError, match="no value of its key column"):
            opened.request_backfill("k", keys=["\\x0"])


def test_a_request_of_many_keys_is_read_once(
    sqlite_db: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(sqlite_db, 10)
    read: list[Path] = []
    load = requests._load

    def counted(path: Path) -> requests.Request:
        read.append(path)
        return load(path)

    monkeypatch.setattr(requests, "_load", counted)
    with project(sqlite_db, tmp_path) as opened:
        opened.poll()
        opened.request_backfill("t", keys=[[n] for n in range(5_000)])
        read.clear()
        opened.poll()
        assert [r["id"] for r in log(opened)] == [*range(1, 11), *range(1, 11)]
        assert len(read) == 1


def test_keys_that_are_asked_for_in_parts_are_read_in_one_view(
    sqlite_db: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(sqlite_db, 10)
    with project(sqlite_db, tmp_path) as opened:
        opened.poll()
        opened.request_backfill("t", keys=[[n] for n in range(5_000)], purge=True)
        views, connect = list[SourceConnector](), Jobs._connect

        def counted(jobs: Jobs) -> SourceConnector:
            views.append(connect(jobs))
            return views[-1]

        monkeypatch.setattr(Jobs, "_connect", counted)
        sqlite_db.connection.execute("DELETE FROM t WHERE id = 7")
        opened.poll()
        found = [(r["_change_type"], r["id"]) for r in log(opened)[10:]]
        assert found == [*(("insert", n) for n in range(1, 11) if n != 7), ("delete", 7)]
        assert len(views) == 1
