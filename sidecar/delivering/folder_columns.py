"""Which columns the files of a sink's folder have: so that all of them can be read as one table, whatever has changed.

Spark takes a folder's columns from one of its files, and which one is chance. So once they have changed, a Parquet
folder gets a `_common_metadata`, which Spark and others ask first: every column there ever was, each in its widest
type. What no reader of the folder could bear, such as CSV files of other columns and without headers, is refused before
a file is moved in.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sidecar import faults
from sidecar.delivering.folder import Folder
from sidecar.errors import SinkError
from sidecar.polls import evolution
from sidecar.settings.mirrored import quoted
from sidecar.settings.words import sink_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log_ = logging.getLogger("sidecar")

RECORD, SUMMARY = "_sidecar_columns.json", "_common_metadata"

_BY_NAME = frozenset({"parquet", "orc", "json", "avro"})
"""Formats whose files say which column a value belongs to."""
_WIDENING = frozenset({"parquet", "json", "csv"})
"""Formats of which Spark reads older files as wider types."""


def arranged(frame: DataFrame, target: str, format_: str) -> DataFrame:
    """Return *frame* with its columns where those of the CSV files in *target* are: NULL where it has none, and behind
    them what is new. In other formats a column's place says nothing, and *frame* stays as it is.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import StructType

    found = Folder(frame.sparkSession, target).record(RECORD) if format_ == "csv" else None
    if found is None:
        return frame
    named, held = _naming(frame.sparkSession), StructType.fromJson(found)
    own = {named(name): name for name in frame.columns}
    placed = [
        functions.col(quoted(own[named(field.name)])).alias(field.name)
        if named(field.name) in own
        else functions.lit(None).cast(field.dataType).alias(field.name)
        for field in held
    ]
    known = {named(field.name) for field in held}
    return frame.select(*placed, *(functions.col(quoted(n)) for n in frame.columns if named(n) not in known))


def settle(frame: DataFrame, target: str, format_: str, where: str, options: Mapping[str, str]) -> None:
    """Make the folder *target* ready for a file of *frame*'s columns, written with *options*; SinkError, which begins
    with *where*, if it cannot be read as a whole with that.
    """
    from pyspark.sql.types import StructType

    files = Folder(frame.sparkSession, target)
    found = files.record(RECORD)
    if found is None:
        files.write(RECORD, json.dumps(frame.schema.jsonValue()))
        return
    held = StructType.fromJson(found)
    named = _naming(frame.sparkSession)
    merged = _merged(held, frame.schema, format_, f"{where}: {target}", named, has_names=_has_names(format_, options))
    if merged == held:
        return
    if format_ == "csv" and (added := merged.names[len(held.names) :]):
        log_.warning(
            "%s: its CSV files have %s from now on, behind the others. Their headers say so; who takes a folder's "
            "columns from one of its files, as Spark does without a schema, may miss what is new",
            where, ", ".join(f'"{name}"' for name in added),
        )  # fmt: skip
    if format_ == "parquet":
        _summarize(frame.sparkSession, files, merged)
        faults.point("columns-summarized")
    files.write(RECORD, json.dumps(merged.jsonValue()))


def _naming(spark: SparkSession) -> Callable[[str], str]:
    """Return what makes of two names one if they are one to Spark: unless told otherwise, those that differ in case."""
    return str if spark.conf.get("spark.sql.caseSensitive") == "true" else str.casefold


def _has_names(format_: str, options: Mapping[str, str]) -> bool:
    has_header = any(name.casefold() == "header" and value.casefold() == "true" for name, value in options.items())
    return format_ in _BY_NAME or (format_ == "csv" and has_header)


def _merged(
    held: StructType, new: StructType, format_: str, where: str, named: Callable[[str], str], *, has_names: bool
) -> StructType:
    from pyspark.sql.types import StructField, StructType

    fields = {named(field.name): field for field in held}
    if not has_names and held.names != new.names:
        header = ' with options = { header = "true" }, which takes new columns' if format_ == "csv" else ""
        raise SinkError(
            f"{where}: its {format_} files have the columns {', '.join(held.names)}, and now there are "
            f"{', '.join(new.names)}; they could not be told apart. The sink goes on with its other tables; give this "
            f"one {sink_of_its_own()}{header}. Or keep the columns by a transform"
        )
    for field in new:
        before = fields.get(named(field.name))
        if before is None or _widens(before.dataType, field.dataType):
            if before is not None and before.dataType != field.dataType and format_ not in _WIDENING:
                raise _other(where, format_, field.name, before.dataType, field.dataType)
            name = field.name if before is None else before.name
            fields[named(name)] = StructField(name, field.dataType, True, field.metadata)
        elif not _widens(field.dataType, before.dataType) or format_ not in _WIDENING:
            raise _other(where, format_, field.name, before.dataType, field.dataType)
    return StructType(list(fields.values()))


def _other(where: str, format_: str, name: str, before: DataType, after: DataType) -> SinkError:
    return SinkError(
        f'{where}: its {format_} files hold column "{name}" as {before.simpleString()}, and now it is '
        f"{after.simpleString()}; they could not be read as one. The sink goes on with its other tables; give this one "
        f"{sink_of_its_own()}. Or cast the column by a transform"
    )


def _widens(before: DataType, after: DataType) -> bool:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    if before == after:
        return True
    try:
        return evolution.widens(to_arrow_type(before), to_arrow_type(after))
    except (PySparkException, TypeError):
        return False


def _summarize(spark: SparkSession, folder: Folder, columns: StructType) -> None:
    """Make SUMMARY say *columns*: the footer of a file without rows does."""
    aside = f"{folder.path}/_columns-staging"
    spark.createDataFrame([], columns).coalesce(1).write.mode("overwrite").parquet(aside)
    (part,) = (s.getPath() for s in folder.files.listStatus(folder.at("_columns-staging")) if _is_part(s))
    folder.replace(part, SUMMARY)
    folder.files.delete(folder.at("_columns-staging"), True)


def _is_part(status: Any) -> bool:
    name = str(status.getPath().getName())
    return bool(status.isFile()) and not name.startswith(("_", "."))
