"""A log as a Spark stream. Its position is an offset, and when that was committed: by this the log is known again.

A query keeps the columns that it was loaded with: Spark fixes them. So a batch ends before the first segment that they
do not fit, and the query then stops and says so; loaded anew with the same checkpoint, it goes on from there.
"""

from __future__ import annotations

import itertools
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated, SchemaChanged, SettingsError, StateDamaged
from sidecar.lake.log_reader import batches, tasks
from sidecar.log import queries, segments
from sidecar.log.storage import AnyPath
from sidecar.polls import evolution

Position = dict[str, int]


@dataclass(frozen=True, slots=True)
class Columns:
    """What a query has: the newest columns as of the offset *newest*, when it was loaded."""

    schema: pa.Schema
    newest: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a query begins and ends, and how much one of its batches takes; `consumer` is its name, if it has one."""

    since: int | None = None
    until: int | None = None
    segments: int = 1_000
    bytes: int = 256 << 20
    consumer: str | None = None


class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads *log* on and on, as *schema*."""

    def __init__(self, log: ChangeLog, columns: Columns, bounds: Bounds, schema: StructType) -> None:
        self._log, self._columns, self._bounds, self._schema = log, columns, bounds, schema
        self._until = bounds.until
        self._recognised: deque[Position] = deque(maxlen=2)  # where the batch at hand begins, and where it ends
        self._run: str | None = None
        """What tells this run of the query from any other; found when it first says where it stands."""
        self._fitting: int | None = None
        """The `schema_version` that the last batch ended with: what has it as well need not be looked at."""

    # -- positions -----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a query without a checkpoint begins: behind `since`, else with the oldest change there is."""
        floor = self._log.floor()
        since = floor if self._bounds.since is None else self._bounds.since
        self._log.list(since, since + 1)  # or says that it is gone
        if since > (last := self._log.last()):
            raise SettingsError(f'table "{self._log.table}": since={since}, and its log ends at offset {last}')
        self._save(since)  # from here on retention keeps what comes after it
        return self._at(since)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the option's limit; bytes are limited besides."""
        return ReadMaxFiles(self._bounds.segments)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end with what is there now."""
        last = self._log.last()
        self._until = last if self._bounds.until is None else min(last, self._bounds.until)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Return the end of the batch after *start*: full, or all there is that fits the query's columns.

        LogTruncated if retention has dropped what follows; SchemaChanged if the columns do not fit what follows;
        StateDamaged if this is not the log that *start* is of.
        """
        self._recognise(start)
        after = start["offset"]
        if self._until is not None and after >= self._until:
            return start
        *_, last = after, *self._following(after, limit)
        if last == after:
            self._check_end(after)
            return start
        end = self._at(self._fits(after + 1, last))
        self._recognised.append(end)
        return end

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        """Return the tasks of the batch between two positions."""
        for position in (start, end):
            self._recognise(position)
        first, last = start["offset"] + 1, end["offset"]
        if first > last:
            return []
        if segments.size(self._log.file(first)) is None:
            self._gone(first - 1)
        fits = self._fits(first, last)
        if fits < last:
            self._misfit(fits + 1)
        return tasks([self._log.file(offset) for offset in range(first, last + 1)])

    def commit(self, end: Position) -> None:
        """Let retention drop what the query has had; SettingsError if another query has taken its name since."""
        self._save(end["offset"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one task's files."""
        return batches(partition, self._schema)

    def _save(self, offset: int) -> None:
        name = self._bounds.consumer
        if name is None:
            return
        if self._run is None:
            # A query that is started again takes its own name over.
            self._run = uuid.uuid4().hex
        elif queries.holder(self._log, name) not in (None, self._run):
            raise SettingsError(
                f'table "{self._log.table}": another query has taken the name consumer="{name}" while this one ran, or '
                "this one was started twice. Retention knows one position by a name, so give each query its own, and "
                "start both again"
            )
        queries.save(self._log, name, offset, self._run)

    # -- what is there -------------------------------------------------------------------------------------------------

    def _following(self, after: int, limit: ReadLimit) -> Iterator[int]:
        """Yield the offsets of one batch, by asking for one file after the other: a long folder is not listed."""
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        room = None if isinstance(limit, ReadAllAvailable) else self._bounds.bytes
        for offset in itertools.count(after + 1):
            if self._until is not None and offset > self._until:
                return
            size = segments.size(self._log.file(offset))
            if size is None or (most is not None and offset - after > most):
                return
            yield offset
            if room is not None:
                room -= size
                if room <= 0:
                    return

    def _at(self, offset: int) -> dict[str, int]:
        path = self._log.file(offset)
        if not offset or segments.size(path) is None:
            return {"offset": offset}
        return {"offset": offset, "committed": segments.metadata(path).committed}

    def _recognise(self, position: Position) -> None:
        """Make sure, once, that *position* is one of this log."""
        if position in self._recognised:
            return
        here = self._at(position["offset"])
        if position["offset"] and "committed" not in here:
            self._gone(position["offset"])
        if "committed" in position and here.get("committed", position["committed"]) != position["committed"]:
            raise StateDamaged(
                f"{self._log.at}: is not the log that this query has read up to offset {position['offset']}: that "
                "segment is another one. Give the query a new checkpointLocation; it then reads this log from its start"
            )
        self._recognised.append(position)

    def _check_end(self, after: int) -> None:
        """Make sure that *after* is where the log ends."""
        # The newest segment always stays, and none is there without the one before it: asked for three names, an idle
        # query need not list the folder.
        there = [segments.size(self._log.file(offset)) is not None for offset in (after, after + 1, after + 2)]
        if there == [True, False, False]:
            return
        if self._log.last() < after or self._log.floor() > after:
            self._gone(after)
        self._log.list(after)

    def _gone(self, after: int) -> None:
        floor, last = self._log.floor(), self._log.last()
        if after > last:
            raise StateDamaged(
                f"{self._log.at}: ends at offset {last}, and this query stands at {after}: the log has been "
                "replaced, or restored from an older copy. Give the query a new checkpointLocation, and a since up to "
                f"{last}"
            )
        if after < floor:
            raise LogTruncated(
                f'table "{self._log.table}": this query has had the changes up to offset {after}, and those up to '
                f"{floor} are gone by retention. Give it a new checkpointLocation and since={floor}, and take the "
                "state before that from a sink or a new backfill. So that it does not happen again, name the query by "
                "the option consumer, a name of its own for each query: retention then keeps what it has not had"
            )

    # -- columns -------------------------------------------------------------------------------------------------------

    def _fits(self, first: int, last: int) -> int:
        """Return the last offset of those from *first* to *last* up to which the query's columns fit.

        SchemaChanged if they do not fit the first.
        """
        end = self._version(last)
        if end == self._fitting:
            return last  # versions only grow
        # One look where all are of one version, which is nearly always.
        looked: dict[int, bool] = {}
        offsets = [first] if self._version(first) == end else range(first, last + 1)
        for offset in offsets:
            version = self._version(offset)
            if version not in looked:
                looked[version] = not self._against(offset)
            if not looked[version]:
                if offset == first:
                    self._misfit(first)
                return offset - 1
        self._fitting = end
        return last

    def _version(self, offset: int) -> int:
        return segments.metadata(self._path(offset)).schema_version

    def _path(self, offset: int) -> AnyPath:
        path = self._log.file(offset)
        if segments.size(path) is None:
            self._gone(offset - 1)
        return path

    def _against(self, offset: int) -> list[evolution.Change]:
        """Return what of the columns of segment *offset* does not fit the query's."""
        # What is older than the query and is there no longer was dropped before it was loaded.
        return [
            change
            for change in evolution.changes(self._columns.schema, segments.columns(self._path(offset)))
            if (change.kind == "added" and offset > self._columns.newest)
            or (change.before is not None and change.after is not None and _narrows(change.after, change.before))
        ]

    def _misfit(self, offset: int) -> None:
        told = ", ".join(map(str, self._against(offset)))
        if offset > self._columns.newest:
            raise SchemaChanged(
                f'table "{self._log.table}", from offset {offset} on: {told}. A query keeps the columns that it was '
                "loaded with, and has had all changes before that. Load the stream anew and start it with the same "
                "checkpoint: it goes on there, with the columns as they are now"
            )
        _, last = self._log.columns(offset)
        raise SchemaChanged(
            f'table "{self._log.table}": offsets up to {last} have columns that cannot be read as those after them '
            f"(sidecar schema {self._log.table}). Let the query read them first, with the option until={last} and the "
            f"trigger availableNow; then go on without, with the same checkpoint. A new query may begin behind them: "
            f"since={last}"
        )


def _narrows(before: Any, after: Any) -> bool:
    return not evolution.widens(before, after)
