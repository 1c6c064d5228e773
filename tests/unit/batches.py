"""Logs of a few segments, and what a sink's folder holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sidecar.changelog import ChangeLog
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION = "_commit_version"


def changes(offset: int, *columns: tuple[str, Any], rows: int = 2) -> pa.Table:
    metadata: dict[str, Any] = {
        "_change_type": pa.array(["insert"] * rows),
        VERSION: pa.array([offset] * rows, pa.int64()),
        "_commit_timestamp": pa.array([1_714_557_600_000_001] * rows, pa.timestamp("us", "UTC")),
        "_origin": pa.array(["poll"] * rows),
    }
    return pa.table(metadata | (dict(columns) or {"id": pa.array(range(rows), pa.int64())}))


def logged(folder: Path, table: str, *segments: pa.Table) -> ChangeLog:
    log = ChangeLog(folder / "log", table)
    for offset, segment in enumerate(segments, 1):
        log.append(offset, segment, Watermark("id by u", offset=offset), NOTHING, committed=offset, origin="poll")
    return log


def files(folder: Path) -> dict[str, bytes]:
    found = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and not p.name.startswith((".", "_"))}
    assert all(not p.is_dir() for p in folder.iterdir()), "something is left aside"
    return found


def held(spark: SparkSession, folder: Path, format_: str = "parquet") -> list[int]:
    return sorted(row[VERSION] for row in spark.read.format(format_).load(str(folder)).collect())
