"""Bases: the table as its log tells it up to an offset, as Parquet beside the log, so that older segments may go.

`<log>/<table>/_bases/<offset, 20 digits>/`: the rows in files that Spark writes, and `_common_metadata`, which says the
columns, which files there must be, and up to when. A base is written under a hidden name and renamed: **the rename is
the commit**. One that is dropped gets the hidden name back first, so what has a base's name is whole.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from sidecar import faults
from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError, StateDamaged
from sidecar.log.files import make_folder, sync
from sidecar.state import WatermarkStore

_SUMMARY, _KEY = "_common_metadata", b"sidecar"


@dataclass(frozen=True, slots=True)
class Base:
    """A table as of `offset`: `rows` rows in `files`, of the source's columns, `size` bytes.

    `committed` is the latest time at which a change in it was seen, microseconds UTC.
    """

    offset: int
    committed: int
    rows: int
    size: int
    schema: pa.Schema
    files: tuple[Path, ...]


def offsets(log: ChangeLog) -> list[int]:
    """Return the offsets at which *log* has a base, in order."""
    if not isinstance(log.at, Path):
        return []  # a store has no rename
    folder = _folder(log)
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def load(log: ChangeLog, offset: int) -> Base:
    """Return what the base at *offset* says of itself; StateDamaged if it is not whole."""
    folder = _path(log, offset)
    try:
        schema = _parquet().read_schema(folder / _SUMMARY)
        raw = json.loads(schema.metadata[_KEY])
        base = Base(
            raw["offset"],
            raw["committed"],
            raw["rows"],
            sum(raw["files"].values()),
            schema.remove_metadata(),
            tuple(folder / name for name in raw["files"]),
        )
        wrong = [p.name for p in base.files if p.stat().st_size != raw["files"][p.name]]
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise StateDamaged(f"{folder}: is not a whole base: {reason}. {_advice(log)}") from error
    if wrong:
        raise StateDamaged(f"{folder / wrong[0]}: has another size than was written. {_advice(log)}")
    return base


def pieces(base: Base) -> Iterator[Callable[[], pa.Table]]:
    """Yield, for each piece of *base*'s rows that is small enough to be held in memory, how it is read."""
    for path in base.files:
        for number in range(_parquet().read_metadata(path).num_row_groups):
            yield functools.partial(_piece, path, number, base.schema)


def _piece(path: Path, number: int, schema: pa.Schema) -> pa.Table:
    # A session may write times as INT96, which would be read as nanoseconds.
    file = _parquet().ParquetFile(path, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    return file.read_row_group(number).cast(pa.schema([pa.field(f.name, f.type) for f in schema]))


def aside(log: ChangeLog, offset: int) -> Path:
    """Return where the base at *offset* is to be written, until it is `settled`."""
    make_folder(_folder(log))
    return _folder(log) / f".{offset:020d}.tmp"


def settled(log: ChangeLog, offset: int, committed: int, schema: pa.Schema) -> Base:
    """Make what has been written aside the base at *offset*: afterwards it exists whole, and survives a power cut."""
    written, folder = aside(log, offset), _path(log, offset)
    try:
        files = {p.name: p.stat().st_size for p in sorted(written.iterdir()) if p.name[0] not in "._"}
        rows = sum(_parquet().read_metadata(written / name).num_rows for name in files)
        said = json.dumps({"offset": offset, "committed": committed, "rows": rows, "files": files})
        _parquet().write_metadata(schema.with_metadata({_KEY: said}), written / _SUMMARY)
        for path in written.iterdir():
            sync(path)
        sync(written)
        faults.point("base-written")
        written.rename(folder)
        sync(folder.parent)
    except OSError as error:
        reason = error.strerror or error
        raise StateDamaged(f"{folder}: cannot be written: {reason}. Is the disk full, or read-only?") from error
    faults.point("base-renamed")
    return load(log, offset)


def drop(log: ChangeLog, doomed: Sequence[int]) -> None:
    """Drop the bases at the offsets *doomed*."""
    for offset in doomed:
        hidden = aside(log, offset)
        shutil.rmtree(hidden, ignore_errors=True)
        _path(log, offset).rename(hidden)
        faults.point("base-hidden")
        shutil.rmtree(hidden, ignore_errors=True)


def recover(log: ChangeLog, store: WatermarkStore) -> None:
    """Remove what a killed writer left half-written, or half-removed."""
    del store  # what there is of bases stands beside the log
    for hidden in _folder(log).glob(".*.tmp") if isinstance(log.at, Path) else ():
        shutil.rmtree(hidden, ignore_errors=True)


def _advice(log: ChangeLog) -> str:
    return (
        "Restore it from a copy. Or remove the folder: what other bases and the log still tell is told, and for the "
        f"whole table anew: sidecar watermark reset {log.table}"
    )


def _folder(log: ChangeLog) -> Path:
    if not isinstance(log.at, Path):
        raise SettingsError(f"{log.at}: a base is made by a rename, which an object store does not have")
    return log.at / "_bases"


def _path(log: ChangeLog, offset: int) -> Path:
    return _folder(log) / f"{offset:020d}"


def _parquet() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet
