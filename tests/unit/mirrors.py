"""Mirrors under test: batches of changes, what the table holds of them, and projects that keep one."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sidecar.mirrors.mirror import MirrorSink
from sidecar.sinks import Batch
from tests.conftest import SQLiteFile

if TYPE_CHECKING:
    pass

VERSION = "_commit_version"
START = datetime(2024, 5, 1, 10, tzinfo=UTC)
MIRROR = '[sinks.lake]\nformat = "delta"\nmode = "mirror"\npath = "lake"\n'
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL)"


def changes(offset: int, columns: dict[str, Any], kind: str = "insert", origin: str = "poll") -> pa.Table:
    data = pa.table(columns)
    count = len(data)
    metadata = {
        "_change_type": pa.array([kind] * count, pa.string()),
        VERSION: pa.array([offset] * count, pa.int64()),
        "_commit_timestamp": pa.array([START] * count, pa.timestamp("us", "UTC")),
        "_origin": pa.array([origin] * count, pa.string()),
    }
    return pa.table({**metadata, **{name: data.column(name) for name in data.column_names}})


def batch(first: int, last: int | None = None, **more: Any) -> Batch:
    return Batch("t", first, last or first, **({"key": ("id",), "log": "a log"} | more))


def apply(sink: MirrorSink, offset: int, columns: dict[str, Any], **more: Any) -> None:
    sink.apply(changes(offset, columns, **more), batch(offset), VERSION)


def held(sink: MirrorSink) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(f"{sink.path}/t").to_pyarrow_table()).sort_by("id")


def files(sink: MirrorSink) -> dict[str, int]:
    """Return the table's files and how many rows they have."""
    from deltalake import DeltaTable

    return {path: pq.read_metadata(path).num_rows for path in DeltaTable(f"{sink.path}/t").file_uris()}


@pytest.fixture
def sink(tmp_path: Path) -> MirrorSink:
    return MirrorSink("lake", path=str(tmp_path / "lake"))


def project(db: SQLiteFile, more: str, table: str = TABLE) -> Path:
    db.connection.execute(table)
    path = db.path.parent.parent / "sidecar.toml"
    path.write_text(f'[source]\nurl = "{db.url}"\n[tables.t]\n{more}')
    return path


def insert(connection: sqlite3.Connection, key: int, value: str) -> None:
    connection.execute("INSERT INTO t VALUES (?, ?, '2024-05-01 10:00:00', '2024-05-01 10:00:00')", (key, value))
