"""A range of a log read by Spark's executors: which files make a task, and how each batch becomes what Spark expects.

Spark compares only a task's first batch with the columns that it was told; a later one of another layout fails
obscurely, or is taken for something else. So every batch is cast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, VariantType, VariantVal

from sidecar import feed
from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated, SettingsError
from sidecar.lake import stored_feed
from sidecar.log import segments
from sidecar.log.storage import AnyPath

LEAST, MOST = 4 << 20, 32 << 20
"""Bytes of the log that make a task: fewer do not pay for a task's start, more keep the other cores waiting."""

OPENING = 64 << 10
"""What opening a file costs, in bytes that could be read in that time."""


class LogReader(DataSourceReader):
    """Reads the changes with `since < offset <= until`, as *schema*."""

    def __init__(self, log: ChangeLog, since: int, until: int, schema: StructType) -> None:
        self._log, self._since, self._until, self._schema = log, since, until, schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; LogTruncated or SchemaChanged where the range cannot be read as one table."""
        found = feed.readable(self._log, self._since, self._until).segments
        return tasks([segment.file for segment in found])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one task's files."""
        return batches(partition, self._schema)


def tasks(paths: Sequence[AnyPath], cores: int | None = None) -> list[InputPartition]:
    """Return *paths* in groups that lie together, one a task; *cores*: this machine's, which is the driver."""
    sizes = [_size(path) for path in paths]
    share = sum(sizes) // (cores or os.cpu_count() or 1)
    full = min(MOST, max(LEAST, share))
    return [InputPartition(group) for group in stored_feed.grouped(zip(paths, sizes, strict=True), full)]


def batches(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the changes in *partition*'s files in Spark's own layout of *schema*, a bounded batch at a time."""
    target = to_arrow_schema(schema, timezone="UTC")
    variants = {field.name for field in schema if isinstance(field.dataType, VariantType)}
    # None: a range without a segment still has a task.
    for path in partition.value or ():
        _size(path)
        for batch in segments.batches(path):
            yield conformed(batch, target, variants)


def conformed(batch: pa.RecordBatch, target: pa.Schema, variants: set[str]) -> pa.RecordBatch:
    """Return *batch* with the columns of *target*, as `stored_feed.conformed` does; texts in *variants* are parsed."""
    for name in variants & set(batch.schema.names):
        at, field = batch.schema.get_field_index(name), target.field(name)
        batch = batch.set_column(at, field, _parsed(batch.column(at), field))
    return stored_feed.conformed(batch, target)


def _parsed(texts: pa.Array, field: pa.Field) -> pa.Array:
    """Return JSON *texts* as Spark's VARIANT; SettingsError for one that Spark itself would refuse to parse."""
    found = []
    for text in texts.to_pylist():
        try:
            if text is not None:
                # Spark's parser in Python takes what the one in Java refuses.
                json.loads(text, object_pairs_hook=_once, parse_constant=_never, parse_float=str, parse_int=str)
            found.append(None if text is None else VariantVal.parseJson(text))
        except ValueError as error:
            raise SettingsError(
                f'column "{field.name}" holds a text that is no VARIANT: {_reason(error)}. With json = "string" it is '
                "delivered as it is"
            ) from None
    parts = [pa.array([None if v is None else getattr(v, name) for v in found], pa.binary()) for name in _PARTS]
    # What is NULL as a whole has parts all the same: these may not be NULL.
    whole = [part.fill_null(b"") for part in parts]
    return pa.StructArray.from_arrays(whole, fields=list(field.type), mask=parts[0].is_null())


_PARTS = ("value", "metadata")


def _once(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands twice in one object")


def _never(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _reason(error: ValueError) -> str:
    # A JSONDecodeError's own text is about places; the value itself belongs in no message.
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _size(path: AnyPath) -> int:
    size = segments.size(path)
    if size is None:
        raise LogTruncated(
            f"{path}: is gone: retention has dropped it since the range was chosen. Load the range anew; a stream that "
            "gives its name by the option consumer keeps what it has not had"
        )
    return size + OPENING
