"""A table, as it is or was, into one file: Parquet, CSV, or JSON Lines.

Spark writes it aside, in as many files as it likes; from these one is made, a batch of rows at a time. So there is one
way for all formats, and what is held in memory does not grow with the table.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from sidecar import feed
from sidecar.errors import SettingsError, SidecarError, SinkError, StateDamaged
from sidecar.lake import current, spark
from sidecar.log import files
from sidecar.terminal import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sidecar.lake.current import Plan
    from sidecar.project import Sidecar

ATTEMPTS = 3
"""How often a table is read that retention shortens meanwhile."""

BATCH = 10_000


def export(
    sidecar: Sidecar,
    table: str,
    as_of: int | str | None,
    output: Path,
    *,
    progress: Callable[[int, int], None],
    force: bool = False,
) -> int:
    """Write *table* as of *as_of* into *output*, whole or not at all; return how many rows it has.

    The format is by the file's name. *progress* is told how many rows of how many are written. SettingsError for
    another name, or a file that is there without *force*; as `current.dataframe` otherwise.
    """
    write = _writer(output)
    if not output.absolute().parent.is_dir():
        raise SettingsError(f"{output}: there is no folder {output.absolute().parent}")
    if output.exists() and not force:
        raise SettingsError(f"{output}: is there already; --force writes over it")
    if as_of is not None and not isinstance(as_of, int):
        current.moment(as_of)  # before Java starts
    described, log = partial(sidecar.described, table), sidecar.log(table)
    made = current.plan(log, as_of, described)
    aside = output.absolute().with_name(f".{output.name}.parts")
    settings = sidecar.settings.spark
    conf = dict(settings.conf) | ({"spark.master": settings.master} if settings.master else {})
    session = spark.session(config=conf, fast_start=settings.fast_start)
    try:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _aside(session, made, aside)
                break
            except Exception as error:
                if attempt == ATTEMPTS or all(path.exists() for path in made.paths):
                    raise _failure(output, error) from error
                # Retention, or a newer base, has taken away what was to be read.
                made = current.plan(log, made.offset, described)
        parts = sorted(aside.glob("part-*.parquet"))
        total = sum(int(_parquet().read_metadata(p).num_rows) for p in parts)
        types = _types(made.schema)
        try:
            whole = output.absolute()
            files.write_durably(whole, lambda path: write(path, types, _batches(parts, types, total, progress)))
        except StateDamaged as error:  # not the state, but the disk that the file is to be on
            raise SinkError(str(error)) from error
    finally:
        spark.close(session)
        shutil.rmtree(aside, ignore_errors=True)
    return total


def _aside(session: SparkSession, made: Plan, folder: Path) -> None:
    current.texts(session, made).write.mode("overwrite").parquet(str(folder))


def _failure(output: Path, error: Exception) -> SidecarError:
    return error if isinstance(error, SidecarError) else SinkError(f"{output}: {feed.reason(error)}")


def _types(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _batches(
    parts: Iterable[Path], types: pa.Schema, total: int, progress: Callable[[int, int], None]
) -> Iterator[pa.Table]:
    done = 0
    for part in parts:
        for batch in _parquet().ParquetFile(part).iter_batches(BATCH):
            yield pa.Table.from_batches([batch]).cast(types)
            done += len(batch)
            progress(done, total)


def _writer(output: Path) -> Callable[[Path, pa.Schema, Iterable[pa.Table]], None]:
    found = {".parquet": _write_parquet, ".csv": _write_csv, ".jsonl": _write_jsonl}.get(output.suffix.lower())
    if found is None:
        raise SettingsError(f"{output}: name it .parquet, .csv, or .jsonl: that says the format")
    return found


def _write_parquet(path: Path, types: pa.Schema, batches: Iterable[pa.Table]) -> None:
    with _parquet().ParquetWriter(path, types, compression="zstd", coerce_timestamps="us") as writer:
        for batch in batches:
            writer.write_table(batch)


def _write_jsonl(path: Path, types: pa.Schema, batches: Iterable[pa.Table]) -> None:
    del types
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            file.writelines(show.line(row) + "\n" for row in show.objects(batch))


def _write_csv(path: Path, types: pa.Schema, batches: Iterable[pa.Table]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        _csv_line(file, types.names)
        for batch in batches:
            for row in show.objects(batch):
                _csv_line(file, row.values())


def _csv_line(file: TextIO, values: Iterable[Any]) -> None:
    file.write(",".join(map(_csv, values)) + "\r\n")


def _csv(value: Any) -> str:
    """Return *value* between two commas. Python's own writer cannot tell NULL from an empty text before 3.12."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text and not any(c in text for c in ',"\r\n') and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'


def _parquet() -> Any:
    import pyarrow.parquet

    return pyarrow.parquet
