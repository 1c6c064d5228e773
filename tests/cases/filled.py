"""A table of rows that were there before, a project that follows it, and what its log has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sidecar
from sidecar import Sidecar
from sidecar.clock import SystemClock, iso
from tests.conftest import SQLiteFile

Row = dict[str, Any]

TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL)"
OLD, LATER = "2024-05-01T10:00:00.000000Z", "2024-06-01T10:00:00.000000Z"


def now() -> str:
    return iso(SystemClock().now())


def project(db: SQLiteFile, folder: Path, more: str = "[tables.t]\n") -> Sidecar:
    (folder / "sidecar.toml").write_text(f'[source]\nurl = "{db.url}"\n[state]\npath = "state"\n{more}')
    return sidecar.open(folder / "sidecar.toml")


def filled(db: SQLiteFile, count: int, table: str = "t", at: str = OLD) -> None:
    """Make a table of *count* rows, the last of them younger by far: polls begin above all others."""
    db.connection.execute(TABLE.replace("TABLE t ", f"TABLE {table} "))
    db.connection.executemany(
        f"INSERT INTO {table} VALUES (?, 'first', ?, ?)", [(n, at, at) for n in range(1, count + 1)]
    )
    later = max(at, LATER)
    db.connection.execute(f"UPDATE {table} SET created_at = ?, updated_at = ? WHERE id = ?", (later, later, count))


def log(opened: Sidecar, table: str = "t") -> list[Row]:
    return list(opened.log(table).rows())


def versions(opened: Sidecar, key: int, table: str = "t") -> list[Any]:
    return [r["v"] for r in log(opened, table) if r["id"] == key]
