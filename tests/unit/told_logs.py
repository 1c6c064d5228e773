"""Logs of one table as tests write them, and the table that they tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sidecar.changelog import ChangeLog
from sidecar.lake import current
from sidecar.model import KEY, Job, PassMark, Watermark
from sidecar.polls.deliveries import NOTHING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def schema(*fields: pa.Field) -> pa.Schema:
    return pa.schema(
        [
            pa.field("_change_type", pa.string(), nullable=False),
            pa.field("_commit_version", pa.int64(), nullable=False),
            pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("_origin", pa.string(), nullable=False),
            *fields,
        ]
    )


def key(name: str, type_: pa.DataType | None = None) -> pa.Field:
    return pa.field(name, type_ or pa.int64(), metadata=KEY)


PLAIN = schema(key("id"), pa.field("v", pa.int64()))


def append(
    log: ChangeLog,
    *rows: tuple[Any, ...],
    columns: pa.Schema = PLAIN,
    committed: int | None = None,
    job: Job | None = None,
    reset: bool = False,
) -> int:
    """Append *rows*, each its change type and values; return the offset."""
    offset = log.last() + 1
    at, origin = offset * 10 if committed is None else committed, "backfill" if job else "poll"
    written = [[kind, offset, at, origin, *values] for kind, *values in rows]
    arrays = [list(v) for v in zip(*written, strict=True)] or [[] for _ in columns]
    data = pa.table([pa.array(v, f.type) for v, f in zip(arrays, columns, strict=True)], schema=columns)
    mark = Watermark("id by u", offset, {} if reset else {"updated": PassMark(offset)}, job=job)
    log.append(offset, data, mark, NOTHING, committed=at, origin=origin, moved=reset)
    return offset


def no_source() -> pa.Schema:
    raise AssertionError("the source was asked")


def read(spark: SparkSession, log: ChangeLog, as_of: Any = None) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, current.dataframe(spark, log, as_of, no_source).collect()), key=repr)


def truncated(log: ChangeLog, through: int) -> None:
    """Let retention drop what is before, as of a time when there were no bases."""
    log.drop(through, Watermark("id by u", through), NOTHING)
