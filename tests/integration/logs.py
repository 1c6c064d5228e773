"""Logs made by hand, for readers of logs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from sidecar.changelog import ChangeLog
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING

METADATA = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.int64(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("_origin", pa.string(), nullable=False),
    ]
)


def append(log: ChangeLog, source: pa.Table, later: int = 0) -> int:
    """Make *source* the rows of the next segment, committed *later* seconds than usual; return its offset."""
    offset = log.last() + 1
    found = [
        pa.array(["insert"] * len(source)),
        pa.array([offset] * len(source), pa.int64()),
        pa.array([offset * 1_000_000] * len(source), pa.timestamp("us", "UTC")),
        pa.array(["poll"] * len(source)),
    ]
    table = pa.table([*found, *source.columns], schema=pa.schema([*METADATA, *source.schema]))
    mark = Watermark("id by u", offset=offset)
    log.append(offset, table, mark, NOTHING, committed=(offset + later) * 1_000_000, origin="poll")
    return offset


def ids(log: ChangeLog, count: int, rows: int = 3) -> ChangeLog:
    """Append *count* segments of rows that no other segment has."""
    for _ in range(count):
        begin = (log.last() + 1) * 1_000
        append(log, pa.table({"id": pa.array(range(begin, begin + rows), pa.int64())}))
    return log


def log_in(state: Path, table: str = "t") -> ChangeLog:
    """Return *table*'s log in the state's folder."""
    return ChangeLog(state / "log", table)
