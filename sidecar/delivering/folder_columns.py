"""Which columns the files of a sink's folder have: so that all of them can be read as one table, whatever has changed.

Spark takes a folder's columns from one of its files, and which one is chance. So once they have changed, a Parquet
folder gets a `_common_metadata`, which Spark and others ask first: every column there ever was, each in its widest
type. What no reader of the folder could bear, such as CSV files of other columns side by side, is refused before a file
is moved in.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar import faults
from sidecar.delivering.folder import Folder
from sidecar.errors import SinkError
from sidecar.polls import evolution
from sidecar.settings.words import sink_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

RECORD, SUMMARY = "_sidecar_columns.json", "_common_metadata"

_BY_NAME = frozenset({"parquet", "orc", "json", "avro"})
"""Formats whose files say which column a value belongs to."""
_WIDENING = frozenset({"parquet", "json"})
"""Formats of which Spark reads older files as wider types."""


def settle(frame: DataFrame, target: str, format_: str, where: str) -> None:
    """Make the folder *target* ready for a file of *frame*'s columns; SinkError, which begins with *where*, if it
    cannot be read as a whole with that.
    """
    from pyspark.sql.types import StructType

    files = Folder(frame.sparkSession, target)
    found = files.record(RECORD)
    if found is None:
        files.write(RECORD, json.dumps(frame.schema.jsonValue()))
        return
    held = StructType.fromJson(found)
    is_exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    merged = _merged(held, frame.schema, format_, f"{where}: {target}", is_exact=is_exact)
    if merged == held:
        return
    if format_ == "parquet":
        _summarize(frame.sparkSession, files, merged)
        faults.point("columns-summarized")
    files.write(RECORD, json.dumps(merged.jsonValue()))


def _merged(held: StructType, new: StructType, format_: str, where: str, *, is_exact: bool) -> StructType:
    from pyspark.sql.types import StructField, StructType

    def named(name: str) -> str:
        # Unless told otherwise, two names that differ in case are one to Spark.
        return name if is_exact else name.casefold()

    fields = {named(field.name): field for field in held}
    if format_ not in _BY_NAME and held.names != new.names:
        raise SinkError(
            f"{where}: its {format_} files have the columns {', '.join(held.names)}, and now there are "
            f"{', '.join(new.names)}; they could not be told apart. The sink goes on with its other tables; give this "
            f"one {sink_of_its_own()}. Or keep the columns by a transform"
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
