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
from sidecar.errors import SinkError
from sidecar.polls import evolution

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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

    files = _Folder(frame, target)
    found = files.record()
    if found is None:
        files.write(RECORD, json.dumps(frame.schema.jsonValue()))
        return
    held = StructType.fromJson(found)
    is_exact = frame.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
    merged = _merged(held, frame.schema, format_, f"{where}: {target}", is_exact=is_exact)
    if merged == held:
        return
    if format_ == "parquet":
        files.summarize(merged)
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
            f"{', '.join(new.names)}; they could not be told apart. Give the sink another path, or keep them by a "
            "transform"
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
        f"{after.simpleString()}; they could not be read as one. Cast the column by a transform, in a sink of another "
        "name and path"
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


class _Folder:
    """A folder on whatever file system Spark finds it on."""

    def __init__(self, frame: DataFrame, path: str) -> None:
        self._spark, self._path = frame.sparkSession, path
        self._jvm: Any = frame.sparkSession._jvm
        configuration: Any = frame.sparkSession._jsc.hadoopConfiguration()
        self._files = self._at("").getFileSystem(configuration)

    def record(self) -> Any:
        """Return what RECORD says, in JSON; None where there is none."""
        text = self.read(RECORD)
        if text is not None:
            return json.loads(text)
        # A kill may have come between taking the old one away and putting the new one in its place; or while the first
        # one of all was written, when there were no files yet that it could have told of.
        aside = f"_{RECORD}.new"
        try:
            found = json.loads(self.read(aside) or "")
        except ValueError:
            return None
        # What would be written next is written over it.
        self._replace(self._at(aside), RECORD)
        return found

    def read(self, name: str) -> str | None:
        path = self._at(name)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        aside = self._at(f"_{name}.new")
        stream = self._files.create(aside, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self._replace(aside, name)

    def summarize(self, columns: StructType) -> None:
        """Make SUMMARY say *columns*: the footer of a file without rows does."""
        aside = f"{self._path}/_columns-staging"
        self._spark.createDataFrame([], columns).coalesce(1).write.mode("overwrite").parquet(aside)
        (part,) = (s.getPath() for s in self._files.listStatus(self._at("_columns-staging")) if _is_part(s))
        self._replace(part, SUMMARY)
        self._files.delete(self._at("_columns-staging"), True)

    def _replace(self, aside: Any, name: str) -> None:
        self._files.delete(self._at(name), False)
        if not self._files.rename(aside, self._at(name)):
            raise SinkError(f"{self._path}: {aside} could not be moved to {name}")

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._path}/{name}" if name else self._path)


def _is_part(status: Any) -> bool:
    name = str(status.getPath().getName())
    return bool(status.isFile()) and not name.startswith(("_", "."))
