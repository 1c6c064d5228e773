"""Where a sink that is new begins: with the log's first change; or, where that is gone or cannot be read together with
the rest, with the table as it was later on, by a base, and the changes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.lake import current
from sidecar.log import bases, segments
from sidecar.log.bases import Base
from sidecar.mirrors.newest import BACKFILL
from sidecar.model import INSERT, METADATA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = (pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.string())


@dataclass(frozen=True, slots=True)
class Start:
    """A sink is to be given the table as of `offset`, as changes of the columns `schema`: the rows of `base`, or none,
    where all rows come after it.
    """

    offset: int
    schema: pa.Schema
    base: Base | None = None


def of_changes(log: ChangeLog, prefix: str) -> Start | None:
    """Return where a sink that takes changes begins, so that it gets as many as there are; None: with the first, or
    with the first that is left, because there is no base.
    """
    floor = log.floor()
    offset = next((offset for offset in bases.offsets(log) if offset >= floor), None) if floor else None
    return None if offset is None else of_base(log, offset, prefix)


def of_the_table(log: ChangeLog, prefix: str, described: Callable[[], pa.Schema]) -> Start | None:
    """Return where a sink begins that is to be the table; None: with the first change. Errors as of `current.plan`."""
    offset, base = current.beginning(log, described)
    if base is not None:
        return of_base(log, offset, prefix)
    return Start(offset, segments.columns(log.file(offset))) if offset else None


def of_base(log: ChangeLog, offset: int, prefix: str) -> Start:
    """Return the start with the base at *offset*; *prefix* is that of the metadata columns."""
    base = bases.load(log, offset)
    named = [pa.field(prefix + name, type_) for name, type_ in zip(METADATA, _TYPES, strict=True)]
    return Start(offset, pa.schema([*named, *base.schema]), base)


def tables(start: Start) -> Iterator[pa.Table]:
    """Yield the rows of *start* in pieces that are small enough to be held in memory; the first one has none."""
    yield start.schema.empty_table()
    for read in bases.pieces(start.base) if start.base is not None else ():
        rows = read()
        said = (pa.repeat(pa.scalar(v, t), len(rows)) for v, t in zip(_said(start), _TYPES, strict=True))
        yield pa.table([*said, *rows.columns], names=start.schema.names)


def frames(spark: SparkSession, start: Start) -> Iterator[DataFrame]:
    """Yield the rows of *start* a file after the other; the first DataFrame has none."""
    yield frame(spark, start, ())
    for path in start.base.files if start.base is not None else ():
        yield frame(spark, start, (path,))


def frame(spark: SparkSession, start: Start, files: tuple[Path, ...]) -> DataFrame:
    """Return the rows in *files*, which are some of *start*'s, as a feed has them."""
    from pyspark.sql import functions as F  # noqa: N812  as all the world calls it

    source = pa.schema(list(start.schema)[len(METADATA) :])
    kind, version, at, origin = (F.lit(value) for value in _said(start))
    said = zip(start.schema.names, (kind, version.cast("bigint"), F.timestamp_micros(at), origin), strict=False)
    rows = feed.parsed(feed.texts(spark, files, source), source)
    # By place: Spark has rules for names.
    names = [f"c{number}" for number in range(len(source))]
    return rows.toDF(*names).select(*(value.alias(name) for name, value in said), *names).toDF(*start.schema.names)


def _said(start: Start) -> tuple[str, int, int, str]:
    committed = 0 if start.base is None else start.base.committed
    return INSERT, start.offset, committed, BACKFILL
