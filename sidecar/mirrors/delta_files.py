"""The Parquet files of a Delta table: how they are written, what the table's log says of them, and which hold a key."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.errors import SinkError
from sidecar.mirrors.keys import Keys
from sidecar.polls.evolution import conformed

FILE_BYTES = 64 << 20
"""About how large a file becomes: a change rewrites the file that its row is in, and more files take longer to list."""

SMALL_BYTES = FILE_BYTES // 2
"""Files below that are joined, up to that. A full batch makes one that is about as large: to join those would write a
whole first load a second time."""

GROUP_ROWS = 65_536
"""So many rows of a file are in memory at once."""

_LONGEST = 64
"""Texts longer than this are no bounds: what is said of a file should not be as large as the file."""


@dataclass(frozen=True, slots=True)
class Added:
    """A file that has been written: its path in the table's folder, its size, and what the log is to say of it."""

    path: str
    size: int
    stats: str


@dataclass
class _Bounds:
    """The least and the greatest value of each column, and how many are NULL, as far as a Delta log can tell them."""

    rows: int = 0
    least: dict[str, Any] = field(default_factory=dict)
    most: dict[str, Any] = field(default_factory=dict)
    nulls: dict[str, int] = field(default_factory=dict)
    unsaid: set[str] = field(default_factory=set)

    def add(self, data: pa.Table, key: Iterable[str]) -> None:
        self.rows += len(data)
        for name in data.column_names:
            column = data.column(name)
            if not pa.types.is_struct(column.type):  # of which Delta counts each field's
                self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if not (_is_bounded(column.type) or (pa.types.is_string(column.type) and name in key)):
                continue
            try:
                found = pc.min_max(column).as_py()
            except (OverflowError, ValueError):
                # A time of before the year 1, or after 9999, which Python has no word for.
                self.unsaid.add(name)
                continue
            for bounds, plain, better in ((self.least, found["min"], min), (self.most, found["max"], max)):
                if plain is not None:
                    bounds[name] = better(bounds[name], plain) if name in bounds else plain

    def json(self) -> str:
        bounds = [(name, value) for found in (self.least, self.most) for name, value in found.items()]
        vague = self.unsaid | {name for name, value in bounds if _is_vague(value)}
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {n: _said(v, 0) for n, v in self.least.items() if n not in vague},
                "maxValues": {n: _said(v, 999) for n, v in self.most.items() if n not in vague},
                "nullCount": self.nulls,
            }
        )


class Writer:
    """Writes rows of *schema* to files of about FILE_BYTES each, in the order in which they come."""

    def __init__(self, files: Any, schema: pa.Schema, key: tuple[str, ...]) -> None:
        self._files, self._schema, self._key = files, schema, key
        self._waiting: list[pa.Table] = []
        self._count = 0
        self._open: tuple[str, Any, Any, _Bounds] | None = None
        self.added: list[Added] = []

    def write(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._count += len(rows)
        while self._count >= GROUP_ROWS:
            self._flush(GROUP_ROWS)

    def close(self) -> list[Added]:
        """Return the files that were written."""
        self._flush(self._count)
        self._end()
        return self.added

    def _flush(self, count: int) -> None:
        if not count:
            return
        waiting = pa.concat_tables(self._waiting)
        group, rest = waiting.slice(0, count), waiting.slice(count)
        self._waiting, self._count = [rest], len(rest)
        if self._open is None:
            self._open = self._begin()
        _, stream, writer, bounds = self._open
        writer.write_table(group, row_group_size=GROUP_ROWS)
        bounds.add(group, self._key)
        if stream.tell() >= FILE_BYTES:
            self._end()

    def _begin(self) -> tuple[str, Any, Any, _Bounds]:
        import pyarrow.parquet as pq

        path = f"part-{uuid.uuid4()}.snappy.parquet"
        stream = self._files.open_output_stream(path)
        # As the log is written: a try for a dictionary costs a third. Snappy, as delta-rs has it when it joins files:
        # Zstandard makes them 40 % smaller, and each batch that rewrites them a third slower.
        options = {"compression": "snappy", "coerce_timestamps": "us", "use_dictionary": False}
        return path, stream, pq.ParquetWriter(stream, self._schema, **options), _Bounds()

    def _end(self) -> None:
        if self._open is None:
            return
        path, stream, writer, bounds = self._open
        writer.close()
        stream.close()
        self._open = None
        self.added.append(Added(path, self._files.get_file_info(path).size, bounds.json()))


def file_system(place: str, options: Mapping[str, str]) -> Any:
    """Return what the files of the table at *place* are reached by, under their paths in it."""
    from pyarrow import fs

    if "://" not in place:
        Path(place).mkdir(parents=True, exist_ok=True)
        return fs.SubTreeFileSystem(place, fs.LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return fs.PyFileSystem(DeltaStorageHandler(place, dict(options) or None))


def must_be_empty(place: str, where: str) -> None:
    """Raise SinkError, which begins with *where*, if something lies at *place*, where there is no Delta table yet."""
    folder = Path(place)
    if "://" not in place and folder.is_dir() and any(p.name != "_delta_log" for p in folder.iterdir()):
        raise SinkError(
            f"{where}: {place} is no Delta table, and not empty either. Give the sink another path, or move away what "
            "is there"
        )


def groups(files: Any, path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the file *path* as *schema*, a bounded number at a time, NULL in columns that it has not."""
    import pyarrow.parquet as pq

    with files.open_input_file(path) as source:
        found = pq.ParquetFile(source)
        names = [name for name in found.schema_arrow.names if name in schema.names]
        for batch in found.iter_batches(batch_size=GROUP_ROWS, columns=names):
            yield conformed(pa.Table.from_batches([batch]), schema)


class Sought:
    """The keys that are looked for, in an order in which a file's bounds tell how many of them it may hold."""

    def __init__(self, keys: Keys, rows: pa.Table) -> None:
        self._names = [n for n in keys.columns if _can_bound(rows.schema.field(n).type)]
        columns = [_comparable(rows.column(n)) for n in self._names]
        order = np.argsort(columns[0], kind="stable") if columns else np.array([], dtype=np.int64)
        self._columns = [column[order] for column in columns]

    def may_be_in(self, bounds: list[dict[str, Any]]) -> list[bool]:
        """Return for each file, whose bounds are as `bounds` gives them, whether one of the keys may be in it."""
        return [self._may_be_in(b) for b in bounds]

    def _may_be_in(self, bounds: dict[str, Any]) -> bool:
        among: Any = None
        begin, end = 0, len(self._columns[0]) if self._columns else 0
        for at, name in enumerate(self._names):
            if name not in bounds:
                continue
            least, most = bounds[name]
            column = self._columns[at]
            if at == 0:
                begin, end = np.searchsorted(column, least, "left"), np.searchsorted(column, most, "right")
                if begin >= end:
                    return False
                continue
            inside = (column[begin:end] >= least) & (column[begin:end] <= most)
            among = inside if among is None else among & inside
        return True if among is None else bool(among.any())


def bounds(actions: pa.Table, key: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the bounds of each of a table's files (`get_add_actions(flatten=True)`), by key column, where known."""
    found: list[dict[str, Any]] = [{} for _ in range(len(actions))]
    for name in key:
        # Twice: of the field of a struct, too, that is called like this with a dot in between.
        if actions.column_names.count(f"min.{name}") != 1 or not _can_bound(actions.schema.field(f"min.{name}").type):
            continue
        least, most = actions.column(f"min.{name}"), actions.column(f"max.{name}")
        known = pc.and_(least.is_valid(), most.is_valid()).to_pylist()
        for at, (low, high) in enumerate(zip(_comparable(least), _comparable(most), strict=True)):
            if known[at]:
                found[at][name] = low, high
    return found


def _comparable(column: pa.ChunkedArray) -> Any:
    if pa.types.is_string(column.type):
        return column.to_numpy()
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return pc.fill_null(column.cast(pa.int64()), 0).to_numpy()


def _can_bound(type_: pa.DataType) -> bool:
    # Of times a log tells whole milliseconds only.
    return bool(pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_date32(type_))


def _is_bounded(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_))


def _is_vague(value: Any) -> bool:
    # Rounded up, the last moment of the calendar would be outside of it.
    return len(value) > _LONGEST if isinstance(value, str) else isinstance(value, datetime.date) and value.year == 9999


def _said(value: Any, up: int) -> Any:
    """Return a bound as a Delta log says it: times to the millisecond, rounded outwards."""
    if isinstance(value, datetime.datetime):
        zone = "Z" if value.tzinfo else ""
        if up and value.microsecond % 1000:
            value += datetime.timedelta(milliseconds=1)
        return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
    if isinstance(value, datetime.date):
        return value.isoformat()
    return value
