"""A mirror as a Delta table, by delta-rs: nothing but pip is needed, and no JVM.

A batch is one commit: it removes the files in which a row has changed, adds what they have become, adds the rows that
are new, and carries the offset that the table is level with, all of it or nothing. Files that hold none of a batch's
keys are not touched: the bounds of the key in the table's log tell most of them apart, the key columns of the others
the rest. So a first load, which comes in the order of the key, is appended without a look at what is there, and what
changed lately is found in few files; and it is not a rule about how batches come to be that says so, but the table.

(delta-rs' own MERGE joins the batch with the whole table and writes all of it anew, in another order.)
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import faults
from sidecar.clock import SystemClock
from sidecar.errors import SinkError
from sidecar.log.files import sync
from sidecar.mirrors import delta_files
from sidecar.mirrors.delta_columns import COLUMNS, Known, emptied
from sidecar.mirrors.delta_files import Added, Sought, Writer
from sidecar.mirrors.delta_history import MARK, Watch
from sidecar.mirrors.delta_types import evolved, plain, storable
from sidecar.mirrors.folding import NEVER, TIME, After, Changes, Held
from sidecar.mirrors.mirror_table import Owner, Reached, refuse_another
from sidecar.mirrors.newest import Integers, taken
from sidecar.polls.evolution import conformed

HOUR = 3_600_000_000
_AT_ONCE = min(4, os.cpu_count() or 1)
"""So many files are read and written at a time."""

_PROPERTIES = {
    # Whoever opens the table reads what came after the last of these.
    "delta.checkpointInterval": "20",
    # Older versions cannot be read anyway, once their files are gone.
    "delta.logRetentionDuration": "interval 1 days",
}


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class _Found:
    """Held rows, and where each stands: the file, by its place in `files`, and its place in that file."""

    held: Held
    files: tuple[_File, ...]
    file_of: Integers
    row_of: Integers


class DeltaMirror:
    """One Delta table that one sink keeps. Made, or opened, by `opened`; used by one thread."""

    def __init__(self, place: str, options: Mapping[str, str], owner: Owner, where: str) -> None:
        place = place.removeprefix("file://") if place.startswith("file:///") else place.removeprefix("file:")
        # delta-rs' word for what Hadoop has three of.
        self.place = re.sub(r"^s3[an]://", "s3://", place)
        self.owner, self.where = owner, where
        self._options = dict(options)
        self._files = delta_files.file_system(self.place, self._options)
        self._watch = Watch(self._files, self._app, self.what, where)
        self._table: Any = None
        self._settled = -1

    # -- whose it is, and how far it has come --------------------------------------------------------------------------

    def open(self, schema: pa.Schema, begins: int) -> None:
        """Open the table, or make it, of the columns *schema*, for the changes after offset *begins*.

        SinkError if there is something there that this sink has not written for this log.
        """
        from deltalake import DeltaTable

        if self._table is not None:
            self._table.update_incremental()
            if self._watch.check(self._table.version()):
                return
        if not DeltaTable.is_deltatable(self.place, self._options or None):
            delta_files.must_be_empty(self.place, self.where)
            self._create(schema, begins)
            faults.point("mirror-created")
        table = DeltaTable(self.place, storage_options=self._options or None)
        refuse_another(table.metadata().configuration, self.owner, self.what, self.where, "path")
        self._watch.check(table.version())
        self._table, self._settled = table, table.version() - 1

    @property
    def what(self) -> str:
        return f"Delta table at {self.place}"

    @property
    def _app(self) -> str:
        """The name under which the table's log holds the last offset that it has."""
        return f"sidecar/{self.owner.log}/{self.owner.sink}/{self.owner.table}"

    @property
    def _stamp(self) -> str:
        """The name for when that offset was committed to the log, in microseconds UTC."""
        return f"{self._app}/committed"

    def exists(self) -> bool:
        """Return whether there is a Delta table."""
        from deltalake import DeltaTable

        return self._table is not None or bool(DeltaTable.is_deltatable(self.place, self._options or None))

    def applied(self, acknowledged: int) -> int:
        """Return the last offset that the table has, which it knows by itself."""
        del acknowledged
        found = self._table.transaction_version(self._app)
        return int(self._table.metadata().configuration["sidecar.begins"]) if found is None else int(found)

    def newest(self, acknowledged: int, version: str) -> int:  # noqa: ARG002  a batch is there as a whole
        return self.applied(acknowledged)

    def committed(self) -> int | None:
        """Return when that offset was committed to the log, in microseconds; None if the table does not know."""
        found = self._table.transaction_version(self._stamp)
        return None if found is None else int(found)

    def schema(self) -> pa.Schema:
        """Return the table's columns."""
        return pa.schema([pa.field(f.name, plain(f.type)) for f in pa.schema(self._table.schema().to_arrow())])

    def _create(self, schema: pa.Schema, begins: int) -> None:
        from deltalake import DeltaTable

        properties = _PROPERTIES | self.owner.properties | {"sidecar.begins": str(begins)}
        DeltaTable.create(
            self.place,
            storable(schema, self.where),
            description=f"Mirror of {self.owner.table}, kept by Sidecar",
            configuration=properties,
            storage_options=self._options or None,
            raise_if_key_not_exists=False,
        )

    # -- a batch -------------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, rule: Callable[[Changes, Held], After], through: Reached, *, whole: bool) -> None:
        """Make of the rows that *changes* touch what *rule* says; afterwards the table has offset *through*.

        *whole*: the rule asks for the rows themselves, not only for whether they are there.
        """
        found = self._find(changes, whole=whole)
        after = rule(changes, found.held)
        self._commit(found, after, through)

    def load(self, pieces: Iterable[Changes], rule: Callable[[Changes, Held], After], through: Reached) -> None:
        """Do the same, with a piece after the other and in one commit, where the table holds no row yet and no key
        stands in two pieces.
        """
        schema, none = self.schema(), np.array([], dtype=np.int64)
        added: list[Added] = []
        for changes in pieces:
            held = Held(none, schema.empty_table(), np.full(changes.keys.count, NEVER, dtype=np.int64))
            added += self._fresh(conformed(rule(changes, held).rows, schema), schema)
        faults.point("mirror-written")
        self._write(list(self._actions(added)), "append", through, schema)
        faults.point("mirror-committed")

    def _find(self, changes: Changes, *, whole: bool) -> _Found:
        """Return the rows that the table holds of the changes' keys; of a history, the current ones."""
        keys, files = changes.keys, self._candidates(changes)
        schema = self.schema()
        to = changes.named.valid_to if changes.named.valid_to in schema.names and self.owner.kind == "history" else None
        looked = pa.schema([schema.field(n) for n in (*keys.columns, *([to] if to else []))])

        def look(file: _File) -> tuple[Integers, Integers, pa.Table | None, Integers, Integers]:
            places, codes, rows, over, ends, start = [], [], [], [], [], 0
            for group in delta_files.groups(self._files, file.path, looked):
                found = keys.find(group)
                match = found >= 0
                if to is not None:
                    end = group.column(to)
                    is_over = match & end.is_valid().to_numpy()
                    over.append(found[is_over])
                    ends.append(pc.fill_null(end.cast(TIME).cast(pa.int64()), NEVER).to_numpy()[is_over])
                    match &= ~is_over
                at = np.flatnonzero(match)
                places.append(at + start)
                codes.append(found[at])
                start += len(group)
            place = _joined(places)
            if whole and len(place):
                rows = [self._rows(file.path, place, schema)]
            return place, _joined(codes), rows[0] if rows else None, _joined(over), _joined(ends)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            looks = list(pool.map(look, files))
        ended = np.full(keys.count, NEVER, dtype=np.int64)
        for _, _, _, over, ends in looks:
            np.maximum.at(ended, over, ends)
        rows = [found for _, _, found, _, _ in looks if found is not None]
        held = Held(
            _joined([codes for _, codes, _, _, _ in looks]),
            (pa.concat_tables(rows) if rows else schema.empty_table()) if whole else None,
            ended,
        )
        file_of = _joined([np.full(len(at), n, dtype=np.int64) for n, (at, *_) in enumerate(looks)])
        return _Found(held, tuple(files), file_of, _joined([at for at, *_ in looks]))

    def _candidates(self, changes: Changes) -> list[_File]:
        """Return the files whose bounds do not tell that they hold none of the changes' keys."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        sought = Sought(changes.keys, changes.rows)
        may = sought.may_be_in(delta_files.bounds(actions, changes.keys.columns))
        paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
        return [_File(path, size) for path, size, is_one in zip(paths, sizes, may, strict=True) if is_one]

    def _rows(self, path: str, places: Integers, schema: pa.Schema) -> pa.Table:
        found, start = [], 0
        for group in delta_files.groups(self._files, path, schema):
            begin, end = np.searchsorted(places, (start, start + len(group)))
            if begin < end:
                found.append(group.take(pa.array(places[begin:end] - start)))
            start += len(group)
        return pa.concat_tables(found)

    def _commit(self, found: _Found, after: After, through: Reached) -> None:
        from deltalake.transaction import RemoveAction

        schema = self.schema()
        rows = conformed(after.rows, schema)
        # A row goes back to the file that its key was in, whose bounds so stay as close as they are.
        home = np.full(len(found.held.ended), -1, dtype=np.int64)
        home[found.held.codes[after.gone]] = found.file_of[after.gone]
        homes = home[after.codes]
        touched = np.unique(found.file_of[after.gone])

        def rewrite(number: int) -> list[Added]:
            gone = found.row_of[after.gone & (found.file_of == number)]
            own = rows.filter(pa.array(homes == number))
            return self._rewritten(found.files[number].path, schema, gone, own)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            added = [file for files in pool.map(rewrite, touched.tolist()) for file in files]
        added += self._fresh(taken(rows, np.flatnonzero(homes < 0)), schema)
        removed = [
            RemoveAction(file.path, True, self._now(), file.size, {})
            for file in (found.files[number] for number in touched.tolist())
        ]
        faults.point("mirror-written")
        self._write([*self._actions(added), *removed], "append", through, schema)
        faults.point("mirror-committed")

    def _rewritten(self, path: str, schema: pa.Schema, gone: Integers, own: pa.Table) -> list[Added]:
        """Write the rows of *path*, as *schema*, without those at the places *gone*, and then *own*."""
        writer, start = Writer(self._files, schema, self.owner.key), 0
        for group in delta_files.groups(self._files, path, schema):
            begin, end = np.searchsorted(gone, (start, start + len(group)))
            start += len(group)
            if begin < end:
                keep = np.ones(len(group), bool)
                keep[gone[begin:end] - (start - len(group))] = False
                group = group.filter(pa.array(keep))  # noqa: PLW2901
            writer.write(group)
        writer.write(own)
        return writer.close()

    def _fresh(self, rows: pa.Table, schema: pa.Schema) -> list[Added]:
        """Write *rows* to files of their own, in the order of the key where it has one."""
        writer = Writer(self._files, schema, self.owner.key)
        with contextlib.suppress(pa.ArrowNotImplementedError, pa.ArrowTypeError):
            order = pc.sort_indices(rows.select(self.owner.key), [(name, "ascending") for name in self.owner.key])
            rows = taken(rows, order.to_numpy())
        writer.write(rows)
        return writer.close()

    def _actions(self, added: Sequence[Added]) -> Iterator[Any]:
        from deltalake.transaction import AddAction

        for file in added:
            if "://" not in self.place:
                sync(Path(self.place, file.path))
            yield AddAction(file.path, file.size, {}, self._now(), True, file.stats)

    def _now(self) -> int:
        # delta-rs compares it with the machine's clock when old files are to go.
        return SystemClock().now() // 1000

    def _write(self, actions: Sequence[Any], mode: str, through: Reached | None, schema: pa.Schema) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        said = () if through is None else ((self._app, through.offset), (self._stamp, through.committed))
        marks = [Transaction(name, value) for name, value in said if value is not None]
        # Not tried again behind our back: what somebody has committed in between is to be looked at first.
        commit = CommitProperties({MARK: self._app}, max_commit_retries=0, app_transactions=marks)
        try:
            self._table.create_write_transaction(list(actions), mode, schema, commit_properties=commit)
        except CommitFailedError as error:
            at = f"{self.where}: somebody else has committed to the {self.what} in the same moment"
            raise SinkError(f"{at}; it is tried again at the next run") from error
        self._settle()

    def _settle(self) -> None:
        """Let what has been committed since the last time survive a power cut: delta-rs leaves that to others."""
        self._table.update_incremental()
        if "://" in self.place:
            return
        log, last = Path(self.place, "_delta_log"), self._table.version()
        for version in range(self._settled + 1, last + 1):
            with contextlib.suppress(FileNotFoundError):  # somebody else's, in a checkpoint by now
                sync(log / f"{version:020d}.json")
        sync(log)
        sync(Path(self.place))
        self._settled = last

    def _paths(self) -> list[str]:
        found: list[str] = pa.table(self._table.get_add_actions(flatten=True)).column("path").to_pylist()
        return found

    # -- columns -------------------------------------------------------------------------------------------------------

    def evolve(self, schema: pa.Schema, own: Sequence[str]) -> None:
        """Make the table able to hold rows of *schema*; *own* of its columns are Sidecar's. SinkError if it cannot be.

        What is there is NULL in columns that come, and stays in those that have gone. For a wider type all files are
        written anew, in one commit.
        """
        from deltalake import Schema

        before = self.schema()
        after = evolved(before, storable(schema, self.where), own, self.where)
        if after.is_wider:
            self._rewrite(before, after.schema, lambda rows: rows)
        elif after.added:
            self._table.alter.add_columns(Schema.from_arrow(pa.schema(after.added)).fields)
            self._settle()
        else:
            return
        faults.point("mirror-evolved")

    def renew(self, columns: Iterable[str], over: str | None) -> None:
        """Take notice that the log has *columns* by now; one that had gone and is back becomes NULL in the rows held,
        but for those with a value in the column *over*.
        """
        before = Known.load(self._table.metadata().configuration.get(COLUMNS))
        after, again = before.after(columns)
        if after == before:
            return
        held = self.schema()
        if again & set(held.names):
            self._rewrite(held, held, lambda rows: emptied(rows, again, over))
        # The rows came first: without this notice they are emptied once more, and nothing has come in between.
        self._table.alter.set_table_properties({COLUMNS: after.dump()}, raise_if_not_exists=False)
        self._settle()
        faults.point("mirror-evolved")

    def _rewrite(self, held: pa.Schema, schema: pa.Schema, change: Callable[[pa.Table], pa.Table]) -> None:
        """Write all files anew, in one commit: what *change* makes of their rows, as *schema*."""
        added: list[Added] = []
        for path in self._paths():
            writer = Writer(self._files, schema, self.owner.key)
            for group in delta_files.groups(self._files, path, held):
                writer.write(conformed(change(group), schema))
            added += writer.close()
        faults.point("mirror-written")
        self._write(list(self._actions(added)), "overwrite", None, schema)

    # -- upkeep --------------------------------------------------------------------------------------------------------

    def maintain(self, keep: int) -> tuple[int, int]:
        """Join small files, and remove those that are of no version since *keep* microseconds; return how many each."""
        self._table.update_incremental()
        before = set(self._paths())
        found = self._table.optimize.compact(target_size=delta_files.SMALL_BYTES, max_concurrent_tasks=_AT_ONCE)
        self._settle()
        # Before those go that they stand in for.
        for path in set(self._paths()) - before if "://" not in self.place else ():
            sync(Path(self.place, path))
        faults.point("mirror-compacted")
        # Full: what a killed process has left behind is in no version.
        gone = self._table.vacuum(-(-keep // HOUR), dry_run=False, enforce_retention_duration=False, full=True)
        self._settle()
        return int(found["numFilesRemoved"]), len(gone)


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.array([], dtype=np.int64)
