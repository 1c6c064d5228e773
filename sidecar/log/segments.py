"""One file of the change log: how it is written, and what is read of it.

A segment is a plain Parquet file. Its footer carries, under `sidecar`, a JSON of offset, times, counts and the
watermark after it, and under `sidecar.recent` what must be remembered of its rows so that none is delivered again.
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sidecar.codec import dump_watermark, load_watermark
from sidecar.errors import StateDamaged
from sidecar.log import storage
from sidecar.log.storage import AnyPath
from sidecar.model import METADATA, Watermark
from sidecar.polls import deliveries
from sidecar.polls.deliveries import Records

_KEY, _RECENT = b"sidecar", b"sidecar.recent"

_BUFFER = 64 << 10


@dataclass(frozen=True, slots=True)
class Segment:
    """One immutable file of changes, and its number in the table's log."""

    offset: int
    file: AnyPath

    @property
    def path(self) -> Path:
        """The file, which must be on a disk."""
        return storage.local(self.file)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a segment's footer says: offset, rows, when the poll's snapshot was taken (microseconds UTC), origin.

    `schema_version` counts the changes of the columns up to there; from offset `schema_since` on, all segments can be
    read as this one's columns. `moved`: the watermark was moved by hand.
    """

    offset: int
    rows: int
    committed: int
    origin: str
    schema_version: int
    schema_since: int
    watermark: Watermark
    moved: bool = False


def write(path: Path, changes: pa.Table, metadata: Metadata, remembered: Records) -> None:
    """Write *changes* to *path*, and what is to be known of them."""
    footer = {
        "offset": metadata.offset,
        "rows": metadata.rows,
        "committed": metadata.committed,
        "origin": metadata.origin,
        "schema_version": metadata.schema_version,
        "schema_since": metadata.schema_since,
        "moved": metadata.moved,
    }
    said = f'{json.dumps(footer, separators=(",", ":"))[:-1]},"watermark":{dump_watermark(metadata.watermark)}}}'
    # Snappy: as quick as lz4, read faster than Spark can use it, and known to every reader of Parquet; Zstandard saves
    # a third of the size and costs a half of the speed.
    # Dictionaries only for the metadata columns: a source's values are mostly many, and a try costs a third.
    dictionaries = changes.column_names[: len(METADATA)]
    options = {"compression": "snappy", "coerce_timestamps": "us", "use_dictionary": dictionaries}
    with (
        # Arrow writes a small segment in some fifty pieces.
        pa.output_stream(str(path), compression=None, buffer_size=_BUFFER) as file,
        _parquet().ParquetWriter(file, changes.schema, write_page_checksum=True, **options) as writer,
    ):
        writer.write_table(changes)
        # Of the file, not of its schema: Arrow writes a schema's metadata twice, and what is remembered may be most of
        # the segment.
        writer.add_key_value_metadata({_KEY: said, _RECENT: pack(remembered)})


def write_columns(path: Path, schema: pa.Schema) -> None:
    """Write a file without rows, from which Spark takes a folder's columns."""
    _parquet().write_metadata(schema.remove_metadata(), path)


def read(path: AnyPath) -> pa.Table:
    """Return the changes in *path*."""
    with _readable(path):
        file = _parquet().ParquetFile(storage.whole(path), page_checksum_verification=True)
        return file.read().replace_schema_metadata(None)


def batches(path: AnyPath, rows: int = 16_384) -> Iterator[pa.RecordBatch]:
    """Yield the changes in *path*, at most *rows* at a time: so what is held of a segment does not grow with it.

    Of a file in an object store, its bytes are held as a whole.
    """
    with _readable(path):
        found = _parquet().ParquetFile(storage.whole(path), page_checksum_verification=True).iter_batches(rows)
    while True:
        with _readable(path):
            batch = next(found, None)
        if batch is None:
            break
        yield batch


def rows(path: AnyPath) -> Iterator[dict[str, object]]:
    """Yield the changes in *path* as dictionaries by column name."""
    for batch in batches(path):
        yield from batch.to_pylist()


def size(path: AnyPath) -> int | None:
    """Return how many bytes *path* has; None where there is no such file."""
    try:
        return storage.size(path)
    except FileNotFoundError:
        return None


def columns(path: AnyPath) -> pa.Schema:
    """Return the columns of *path*, metadata columns first."""
    with _readable(path), storage.parts(path) as file:
        schema: pa.Schema = _parquet().read_schema(file).remove_metadata()
        return schema


def metadata(path: AnyPath) -> Metadata:
    """Return what *path* says of itself."""
    footer = _footer(path)
    try:
        raw = json.loads(footer[_KEY])
        watermark = load_watermark(json.dumps(raw.pop("watermark")))
        return Metadata(watermark=watermark, **raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateDamaged(f"{path}: its footer is damaged: {error}. Restore it from a copy.") from error


def remembered(path: AnyPath) -> Records:
    """Return what was to be remembered of the rows of *path*."""
    try:
        return unpack(_footer(path).get(_RECENT, b""))
    except (ValueError, IndexError) as error:
        raise StateDamaged(f"{path}: its footer is damaged. Restore it from a copy.") from error


def pack(remembered: Records) -> bytes:
    """Return *remembered* as letters: other readers of Parquet take a footer's values for UTF-8."""
    return base64.b64encode(deliveries.pack(remembered))


def alike(found: list[Segment]) -> list[Segment]:
    """Return those of *found*, which follow each other, that have the columns of the first."""
    if not found:
        return found
    version = metadata(found[0].file).schema_version
    if metadata(found[-1].file).schema_version == version:
        return found
    # Versions only grow.
    return found[: bisect.bisect_right(found, version, key=lambda s: metadata(s.file).schema_version)]


def unpack(text: bytes) -> Records:
    """Return what `pack` has made *text* of; ValueError for another text."""
    return deliveries.unpack(base64.b64decode(text, validate=True))


def _footer(path: AnyPath) -> dict[bytes, bytes]:
    with _readable(path), storage.parts(path) as file:
        metadata: dict[bytes, bytes] | None = _parquet().read_metadata(file).metadata
    if not metadata or _KEY not in metadata:
        raise StateDamaged(f"{path}: has no Sidecar footer; something else has been put into the log.")
    return metadata


def _parquet() -> Any:
    # Imported when a segment is read or written: a run that finds nothing new does neither.
    import pyarrow.parquet

    return pyarrow.parquet


@contextlib.contextmanager
def _readable(path: AnyPath) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if (failure := storage.unreadable(path, error)) is not None:
            raise failure from error
        reason = str(error).splitlines()[0]
        raise StateDamaged(f"{path}: not a readable segment: {reason}. Restore it from a copy.") from error
