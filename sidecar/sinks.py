"""Sinks: a batch of the log as a DataFrame, into tables or a user's function, exactly once by `(table, offset)`.

A batch is a range of offsets, fixed before it is first written. A sink must make a batch durable before it returns, and
must bear to be given the same batch again: it then overwrites what it wrote.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sidecar import faults, feed
from sidecar.backfilling import executors
from sidecar.delivering import folder_columns, given, row_groups
from sidecar.delivering.folder import Folder
from sidecar.delivering.raised_at import raised_at
from sidecar.errors import SettingsError, SidecarError, SinkError, counted
from sidecar.log.files import filename
from sidecar.log.storage import AnyPath

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from sidecar.changelog import ChangeLog

FILE_FORMATS = frozenset({"parquet", "orc", "json", "csv", "avro", "xml", "text"})
"""Formats whose table is a folder of files, so that a batch can be moved in as files of its own name."""

_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""By its own choice Spark writes times as text to the millisecond."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A range of one table's log: offsets `first` to `last`. `replay`: it may have been written before, in part.

    `key`: the columns that tell the table's rows apart. `log`: what tells its log from any other; `floor`: the last
    offset that retention has dropped from it. `committed`: when `last` was committed to the log, in microseconds, which
    no other log has there; None for a base. For a mirror, `columns`: the source's, as the log has them at `last`.
    """

    table: str
    first: int
    last: int
    replay: bool = False
    key: tuple[str, ...] = ()
    log: str = ""
    floor: int = 0
    columns: tuple[str, ...] | None = None
    committed: int | None = None


class Sink(Protocol):
    """Where batches go."""

    @property
    def name(self) -> str: ...

    def write(self, frame: DataFrame, batch: Batch, version: str) -> None:
        """Make *frame* durable as *batch*; *version* names the column that holds the offset."""


@dataclass(frozen=True)
class Common:
    """What sinks have in common: a name, a user's transform and the folder to look for it in, options of the format."""

    name: str
    transform: str | None = None
    search: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def shaped(self, frame: DataFrame) -> DataFrame:
        """Return *frame* through the user's transform."""
        if self.transform is None:
            return frame
        shaped: DataFrame = load_function(self.transform, f"sinks.{self.name}.transform", self.search)(frame)
        if shaped is None:
            raise SettingsError(f'sink "{self.name}": transform {self.transform} returned None instead of a DataFrame')
        return shaped


@dataclass(frozen=True)
class FileSink(Common):
    """Append to `path/<table>`, a folder of files: written aside by Spark, then moved in under names of the batch."""

    format: str = "parquet"
    path: str = ""

    def reached(self, spark: SparkSession, batch: Batch, log: ChangeLog) -> int:
        """Return up to which offset the folder of *batch*, the next one, has *log* already; SinkError where it knows
        that the log is not the one whose changes it has, or an older copy, or that it is one itself.
        """
        folder, acknowledged = Folder(spark, self._target(batch)), batch.first - 1
        found = given.read(folder, self.name)
        if found is None:
            return acknowledged
        try:
            had = given.truly_had(log, self.name, acknowledged)
            return max(acknowledged, given.reached(found, batch.log, log, had))
        except SinkError as error:
            raise SinkError(f'sink "{self.name}", table "{batch.table}": {folder.path}: {error}') from None

    def write(self, frame: DataFrame, batch: Batch, version: str) -> None:
        del version
        shaped = folder_columns.arranged(self.shaped(frame), self._target(batch), self.format)
        counted, filled = executors.counted(shaped)
        staging = self._staging(batch)
        exact = _EXACT if self.format in ("json", "csv", "xml") else {}
        counted.write.format(self.format).options(**{**exact, **self.options}).mode("overwrite").save(staging)
        self._move_in(shaped, batch, filled)

    def takes(self, spark: SparkSession, files: Sequence[AnyPath], columns: pa.Schema) -> bool:
        """Return whether `take` is the way for *files* of the log, read as *columns*: the sink is to hold the same, in
        the same form.
        """
        is_as_it_is = self.format == "parquet" and self.transform is None and not self.options
        return is_as_it_is and row_groups.can_join(spark, files, columns)

    def take(self, frame: DataFrame, files: Sequence[AnyPath], batch: Batch) -> bool:
        """Make *files*, whose rows are those of *frame*, durable as *batch*; False, and nothing is done, if they cannot
        be taken as they are.
        """
        staging = self._staging(batch)
        path, found = _hadoop(frame, staging)
        found.delete(path(staging), True)
        if not row_groups.join(frame, files, f"{staging}/part-00000.parquet"):
            return False
        self._move_in(frame, batch, lambda: 0)
        return True

    def _target(self, batch: Batch) -> str:
        return f"{self.path.rstrip('/')}/{filename(batch.table)}"

    def _staging(self, batch: Batch) -> str:
        return f"{self._target(batch)}/_staging-{filename(self.name)}"

    def _move_in(self, shaped: DataFrame, batch: Batch, filled: Callable[[], int]) -> None:
        """Give what stands aside the names of *batch*, in place of what has them now."""
        target, staging = self._target(batch), self._staging(batch)
        name = f"part-{filename(self.name)}-{batch.first:020d}-{batch.last:020d}"
        faults.point("batch-staged")
        where = f'sink "{self.name}", table "{batch.table}"'
        folder_columns.settle(shaped, target, self.format, where, self.options)
        hadoop, files = _hadoop(shaped, target)
        for status in files.listStatus(hadoop(target)):
            if status.getPath().getName().startswith(name):
                files.delete(status.getPath(), False)
        parts = sorted(
            (status.getPath() for status in files.listStatus(hadoop(staging)) if status.isFile()),
            key=lambda path: str(path.getName()),
        )
        data = [path for path in parts if not str(path.getName()).startswith(("_", "."))]
        if len(data) < filled():
            raise SinkError(
                f'sink "{self.name}": Spark\'s executors have written {counted(filled(), "file")}, and {len(data):,} '
                f"can be seen here: {self.path} must be on storage that all of them, and this machine, see as the same"
            )
        for index, part in enumerate(data):
            suffix = str(part.getName()).partition(".")[2]
            moved = f"{target}/{name}-{index:05d}.{suffix or self.format}"
            if not files.rename(part, hadoop(moved)):
                raise SinkError(f'sink "{self.name}": {part} could not be moved to {moved}')
            faults.point("batch-moved")
        files.delete(hadoop(staging), True)
        said = given.Given(batch.log, batch.last, batch.committed)
        given.write(Folder(shaped.sparkSession, target), self.name, said)


def _hadoop(frame: DataFrame, path: str) -> tuple[Any, Any]:
    """Return Hadoop's class of paths, and the file system that *path* is on."""
    jvm: Any = frame.sparkSession._jvm
    hadoop = jvm.org.apache.hadoop.fs.Path
    return hadoop, hadoop(path).getFileSystem(frame.sparkSession._jsc.hadoopConfiguration())


@dataclass(frozen=True)
class FormatSink(Common):
    """Append through any other Spark format, once: one whose writes are atomic (Delta, Iceberg, a table of your own).

    A batch that may have been written before is first looked for, by its offsets, in what the format holds. A format
    that cannot be read back (console, noop) gets the batch again.
    """

    format: str = "delta"
    path: str | None = None

    def recognise(self, spark: SparkSession, batch: Batch, version: str) -> None:
        """Raise SinkError if what was written holds changes beyond *batch*, the next one: log and positions are of an
        older copy. A table that holds no offsets, is not told by a path, or cannot be read, says nothing of it.
        """
        from py4j.protocol import Py4JJavaError

        beyond = f"`{version}` > {batch.last}" if batch.replay else f"`{version}` >= {batch.first}"
        has_more = False
        # Some formats have errors of their own for a table that is yet to be made.
        with contextlib.suppress(Py4JJavaError):
            has_more = self.path is not None and self._has(spark, self._target(batch), beyond, version)
        if has_more:
            raise SinkError(
                f'sink "{self.name}", table "{batch.table}": {self._target(batch)} holds changes after offset '
                f"{batch.last if batch.replay else batch.first - 1}, and by the log's positions it has not been given "
                "them: the state was restored from an older copy, or deleted. Give the sink another name and path: "
                "that one begins anew"
            )

    def write(self, frame: DataFrame, batch: Batch, version: str) -> None:
        target = self._target(batch)
        among = f"`{version}` BETWEEN {batch.first} AND {batch.last}"
        if batch.replay and self._has(frame.sparkSession, target, among, version):
            return
        writer = self.shaped(frame).write.format(self.format).options(**self.options)
        # Delta's own guard against a repeated write; other formats ignore options that they do not know.
        writer = writer.option("txnAppId", f"sidecar/{self.name}/{batch.table}").option("txnVersion", str(batch.last))
        writer.mode("append").save(target)

    def _target(self, batch: Batch) -> str | None:
        return None if self.path is None else f"{self.path.rstrip('/')}/{filename(batch.table)}"

    def _has(self, spark: SparkSession, target: str | None, condition: str, version: str) -> bool:
        from pyspark.errors import AnalysisException, UnsupportedOperationException

        try:
            held = spark.read.format(self.format).options(**self.options).load(target)
            if version not in held.columns:
                return False
            return not held.where(condition).isEmpty()
        except (AnalysisException, UnsupportedOperationException):
            # Nothing there yet, or a format that only writes. Anything else is a target that cannot be read now: the
            # batch waits, rather than being written twice.
            return False


@dataclass(frozen=True)
class FunctionSink(Common):
    """Hand each batch to a user's function `f(frame, batch)`; it has been taken once the function returns."""

    function: str = ""

    def write(self, frame: DataFrame, batch: Batch, version: str) -> None:
        del version
        load_function(self.function, f"sinks.{self.name}.foreach", self.search)(self.shaped(frame), batch)


def load_function(spec: str, where: str, search: Path | None) -> Callable[..., Any]:
    """Return the function that `module:name` says, looked for beside the settings file too; else SettingsError."""
    module, _, name = spec.partition(":")
    if not module or not name:
        raise SettingsError(f'{where} = "{spec}": write it as "module:function"')
    with _importable(search):
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SettingsError(f'{where} = "{spec}": {error}') from error
    if not callable(function):
        raise SettingsError(f'{where} = "{spec}": {name} is not a function')
    return function


@contextlib.contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    yield


@contextlib.contextmanager
def failing_as(sink: Sink, batch: Batch) -> Iterator[None]:
    """Turn whatever goes wrong in a sink into a SinkError that says where, and in one line why."""
    try:
        yield
    except SidecarError:
        raise
    except Exception as error:
        own = _raised_at(sink, error)
        why = feed.reason(error) if own is None else f"{own}: {feed.reason(error)}"
        raise SinkError(
            f'sink "{sink.name}", table "{batch.table}", offsets {batch.first} to {batch.last}: {why}. '
            "The batch is tried again at the next run."
        ) from error


def _raised_at(sink: object, error: Exception) -> str | None:
    """Return where in the code that the user gave *sink* an error was raised, if it was."""
    if not isinstance(sink, Common):
        return None
    given = (sink.transform, sink.function if isinstance(sink, FunctionSink) else None)
    return raised_at(error, sink.search, [spec.partition(":")[0] for spec in given if spec is not None])
