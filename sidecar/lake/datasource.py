"""`format("sidecar")`: a table's change log as a source of Spark's, to read once or as a stream.

Spark makes this object in a Python process of the driver's; what `schema` finds there travels with it to the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructField, StructType, VariantType

from sidecar import feed
from sidecar.changelog import ChangeLog, tables
from sidecar.errors import SettingsError
from sidecar.lake.log_reader import LogReader
from sidecar.lake.log_stream import Bounds, Columns, LogStream
from sidecar.lake.plainly import plainly
from sidecar.log.files import unescaped
from sidecar.log.owner import OWNER
from sidecar.log.storage import AnyPath, locate
from sidecar.settings.words import did_you_mean, listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = ("path", "table", "since", "until", "maxSegmentsPerTrigger", "maxBytesPerTrigger", "consumer")
_STREAMS_ONLY = OPTIONS[4:]


def register(spark: SparkSession) -> None:
    """Make `format("sidecar")` known to *spark*, a session of Spark Connect included.

    Spark finds it by itself where Sidecar is installed with pip for the Python that drives it; elsewhere, call this.
    """
    spark.dataSource.register(SidecarDataSource)


class SidecarDataSource(DataSource):
    """The changes of one table's log, with the columns that `Sidecar.dataframe` gives them.

    Options: `path`, the state's folder as `[state] path` names it, or what `[state] log` says; `table`; `since` and
    `until`: only changes with `since < offset <= until`; without `since`, from the oldest that the log holds. Of a
    stream: `since` counts where there is no checkpoint yet;
    `maxSegmentsPerTrigger` and `maxBytesPerTrigger` bound a batch; `consumer` names the query, and retention keeps what
    it has not had.
    """

    @classmethod
    def name(cls) -> str:
        """Return what `format` is given."""
        return "sidecar"

    @plainly()
    def schema(self) -> StructType:
        """Return the newest columns as which the range can be read; SettingsError for options that make no sense."""
        asked = _Asked(self.options)
        log, _ = asked.log, asked.bounds
        last = log.last()
        newest = last if asked.until is None else min(last, asked.until)
        empty = newest <= max(asked.since or 0, log.floor())
        columns = Columns((empty and log.schema()) or log.columns(newest)[0], newest)
        self.loaded = log, columns
        variants = feed.variants(columns.schema)
        return StructType(
            [
                StructField(f.name, VariantType() if f.name in variants else f.dataType, True, f.metadata)
                for f in feed.spark_schema(columns.schema)
            ]
        )

    @plainly()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the range once, as it was when it was loaded."""
        asked = _Asked(self.options)
        if given := [name for name in _STREAMS_ONLY if name in self.options]:
            raise SettingsError(f'format("sidecar"): {given[0]} is an option of readStream, not of read')
        log, columns = self._loaded()
        since = log.floor() if asked.since is None else asked.since
        return LogReader(log, since, max(since, columns.newest), schema)

    @plainly()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return what reads on and on."""
        log, columns = self._loaded()
        return LogStream(log, columns, _Asked(self.options).bounds, schema)

    def _loaded(self) -> tuple[ChangeLog, Columns]:
        found: tuple[ChangeLog, Columns] | None = getattr(self, "loaded", None)
        if found is None:
            raise SettingsError(
                'format("sidecar") takes the columns from the log: leave .schema(…) out, and select those that you want'
            )
        return found


class _Asked:
    """The options, checked. Spark takes their names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        known = {name.casefold(): name for name in OPTIONS}
        self._given = {}
        for name, value in options.items():
            if name.casefold() not in known:
                raise SettingsError(f'format("sidecar"): unknown option "{name}"{did_you_mean(name, OPTIONS)}')
            self._given[known[name.casefold()]] = value
        self.since, self.until = self._number("since"), self._number("until")

    @property
    def log(self) -> ChangeLog:
        """The table's log; SettingsError if there is none."""
        path = self._given.get("path") or _missing("path", "the state's folder, as [state] path names it: .sidecar")
        folder = _logs(path)
        names = [name for found in tables(folder) if (name := unescaped(found)) is not None]
        there = f"with a log there are: {listed(names)}" if names else "no table has a log there yet (sidecar run)"
        table = self._given.get("table") or _missing("table", there)
        if table not in names:
            near = did_you_mean(table, names) if names else ""
            raise SettingsError(f'format("sidecar"): table "{table}" has no log in {folder}{near or "; " + there}')
        log = ChangeLog(folder, table)
        if not log.last():
            raise SettingsError(
                f'format("sidecar"): the log of table "{table}" is empty: its columns are not known yet'
            )
        return log

    @property
    def bounds(self) -> Bounds:
        """What a stream is asked for."""
        usual = Bounds()
        return Bounds(
            self.since,
            self.until,
            self._number("maxSegmentsPerTrigger", 1) or usual.segments,
            self._number("maxBytesPerTrigger", 1) or usual.bytes,
            self._given.get("consumer") or None,
        )

    def _number(self, name: str, least: int = 0) -> int | None:
        text = self._given.get(name)
        if text is None:
            return None
        if not text.strip().isdecimal() or int(text) < least:
            raise SettingsError(f'format("sidecar"): {name}="{text}": a whole number from {least} on is wanted')
        return int(text)


def _logs(path: str) -> AnyPath:
    """Return the folder of the logs that *path* names: the state's folder, or what [state] log says instead."""
    try:
        at = locate(path)
    except SettingsError as error:
        raise SettingsError(f'format("sidecar"): the option path {error}') from None
    if not isinstance(at, Path):
        return at
    # Executors have working folders of their own.
    at = at.absolute()
    if (at / OWNER).is_file():
        return at
    if not (at / "log").is_dir():
        raise SettingsError(
            f'format("sidecar"): {at} holds no change logs. The option path is the folder that [state] path names in '
            "sidecar.toml, or log where that is given, and sidecar run fills it"
        )
    return at / "log"


def _missing(name: str, what: str) -> NoReturn:
    raise SettingsError(f'format("sidecar"): .option("{name}", …) is missing: {what}')
