"""The change log: a table's segments, in order, as plain Parquet. The truth that everything else can be rebuilt from.

`<root>/<table>/<offset, 20 digits>.parquet`. A segment is immutable. Readers in other processes ask for the next
offset; a missing one means "not yet".

Retention drops the oldest segments only, after `_floor.json` has taken over what a rebuild would have needed of them.
Names that begin with `_` or `.` are hidden from Spark, and so from `spark.read.parquet(<root>/<table>)`; all but
`_common_metadata`, from which it takes the columns: those of the newest segment, once they have changed.

A segment's `schema_version` counts the changes of the columns up to there. From `schema_since` on, all segments can be
read as the newest one's columns (`evolution.compatible`).
"""

from __future__ import annotations

import bisect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from sidecar import faults
from sidecar.codec import dump_watermark, load_watermark
from sidecar.errors import LogTruncated, StateDamaged, StateUnavailable
from sidecar.log import segments, storage
from sidecar.log.files import filename
from sidecar.log.segments import Metadata, Segment
from sidecar.log.storage import AnyPath
from sidecar.model import Watermark
from sidecar.polls import deliveries, evolution
from sidecar.polls.deliveries import Records


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The columns of the segments from offset `first` on, which began at the time `committed`, microseconds UTC.

    `since` is the first offset that can be read as these columns, too.
    """

    version: int
    first: int
    since: int
    committed: int
    schema: pa.Schema


Segments: TypeAlias = list[Segment]


@dataclass(slots=True)
class _Held:
    """What is in the log, as its writer knows without asking a store for it again."""

    segments: Segments
    floor: int
    version: int
    """Of `ChangeLog._version`: another thread may have changed the log while this was being listed."""


class ChangeLog:
    """The log of one table. Any number of readers, in any process; one writer.

    *root*: the folder of all tables' logs, on a disk or in a store. *state*: the folder of what stays on this disk;
    left out, that which the root is in. *may_write* raises, before a segment is written, what speaks against that.
    """

    def __init__(
        self, root: AnyPath, table: str, state: Path | None = None, may_write: Callable[[], None] | None = None
    ) -> None:
        self.table = table
        self.state = state or (root.parent if isinstance(root, Path) else Path())
        self.at = root / filename(table)
        """The table's folder, on a disk or in a store."""
        self.staging = self.at / "_staging"
        """Where Spark's executors put chunks of a backfill until they are merged; worth nothing to another process."""
        self.in_doubt = False
        """Whether a store gave no answer to the last `append`: what is in the log is then to be looked at anew."""
        self._newest: tuple[int, pa.Schema, int, int] | None = None
        self._is_writer = False
        self._may_write = may_write
        self._held: _Held | None = None
        self._version = 0
        self._asked: Metadata | None = None

    @property
    def folder(self) -> Path:
        """The table's folder, which must be on a disk."""
        return storage.local(self.at)

    def list(self, since: int = 0, until: int | None = None) -> Segments:
        """Return the segments with `since < offset <= until`, in order; LogTruncated if the first are gone."""
        found = self._segments()
        first = found[0].offset if found else self.floor() + 1
        if since + 1 < first and (until is None or since < until):
            raise LogTruncated(
                f'table "{self.table}": changes after offset {since} are gone by retention; the log begins at {first}. '
                f"Start from since={first - 1}, and take the state before it from a sink or a new backfill."
            )
        return [s for s in found if s.offset > since and (until is None or s.offset <= until)]

    def get(self, offset: int) -> pa.Table | None:
        """Return the changes of segment *offset*, or None while it does not exist yet."""
        path = self._existing(offset)
        if path is None:
            return None
        return segments.read(path)

    def metadata(self, offset: int) -> Metadata | None:
        """Return what segment *offset* says of itself, or None while it does not exist yet."""
        asked = self._asked  # another thread may ask as well
        if asked is not None and asked.offset == offset:
            return asked
        path = self._existing(offset)
        if path is None:
            return None
        found = segments.metadata(path)
        if not isinstance(path, Path):
            # What retention asks for at each turn, for as long as the oldest segment is not old enough.
            self._asked = found
        return found

    def rows(self, since: int = 0, until: int | None = None) -> Iterator[dict[str, object]]:
        """Yield the changes after offset *since*, in log order, as dictionaries by column name."""
        for segment in self.list(since, until):
            yield from segments.rows(segment.file)

    def last(self) -> int:
        """Return the offset of the last segment ever written; 0 for a log without any."""
        found = self._segments()
        return found[-1].offset if found else self.floor()

    def schema(self) -> pa.Schema | None:
        """Return the columns of the newest segment, metadata columns first; None while there is none."""
        newest = self._newest
        if newest is not None and self._is_last(newest[0]):
            return newest[1].remove_metadata()
        found = self._segments()
        return segments.columns(found[-1].file) if found else None

    def _is_last(self, offset: int) -> bool:
        """Return whether segment *offset* is there and is the last one; of a disk without a list of its folder."""
        if isinstance(self.at, Path):
            # At each poll, and Path takes longer than the look.
            return os.path.exists(self.path(offset)) and not os.path.exists(self.path(offset + 1))  # noqa: PTH110
        found = self._segments()
        return bool(found) and found[-1].offset == offset

    def changes(self, schema: pa.Schema) -> Sequence[evolution.Change]:
        """Return what has become of the newest segment's columns in *schema*.

        A column that was there before, in a segment that is still read together with the newest, comes back as what it
        was: so one that was dropped and is added as another type has changed.
        """
        held = self.schema()
        found = [] if held is None else evolution.changes(held, schema)
        added = {change.column: at for at, change in enumerate(found) if change.kind == "added"}
        since = None
        for version in self.schemas() if added else ():
            since = version.since if since is None else since
            if version.first < since:
                break
            for name in added.keys() & set(version.schema.names):
                before = version.schema.field(name).type
                if not evolution.widens(before, schema.field(name).type):
                    found[added[name]] = evolution.Change(name, before, schema.field(name).type)
        return found

    def schemas(self) -> Iterator[SchemaVersion]:
        """Yield what the columns have been, the newest version first, as far back as there are segments."""
        found = self._segments()
        while found:
            newest = segments.metadata(found[-1].file)
            begin = bisect.bisect_left(
                found, newest.schema_version, key=lambda s: segments.metadata(s.file).schema_version
            )
            first, schema = segments.metadata(found[begin].file), segments.columns(found[begin].file)
            yield SchemaVersion(first.schema_version, first.offset, first.schema_since, first.committed, schema)
            found = found[:begin]

    def columns(self, first: int) -> tuple[pa.Schema, int | None]:
        """Return the columns as which segment *first* and later ones can be read, and the last of those; None: all.

        LogTruncated if *first* is gone, LookupError for a log without segments.
        """
        found, last = self.list(first - 1), None
        while found:
            since = segments.metadata(found[-1].file).schema_since
            if first >= since:
                return segments.columns(found[-1].file), last
            last = since - 1
            found = [s for s in found if s.offset <= last]
        raise LookupError(f"{self.at}: no segment {first}")

    # -- the writer's side ---------------------------------------------------------------------------------------------

    def append(
        self,
        offset: int,
        changes: pa.Table,
        watermark: Watermark,
        remembered: Records,
        *,
        committed: int,
        origin: str,
        moved: bool = False,
    ) -> Segment:
        """Make *changes* segment *offset*: afterwards it exists whole, survives a power cut, and never changes."""
        if self._may_write is not None:
            self._may_write()
        storage.make_folder(self.at)
        path = self._free(offset)
        version, since = self._version_of(offset, changes.schema)
        metadata = Metadata(offset, changes.num_rows, committed, origin, version, since, watermark, moved)

        def write(aside: Path) -> None:
            segments.write(aside, changes, metadata, remembered)
            faults.point("segment-written")

        try:
            segment = Segment(offset, storage.write_durably(path, write))
        except StateUnavailable:
            self.in_doubt = True
            self._forget()
            raise
        faults.point("segment-renamed")
        self._newest = offset, changes.schema, version, since
        held = self._known()
        self._forget()
        if held is not None:
            held.segments.append(segment)
            self._held = _Held(held.segments, held.floor, self._version)
        return segment

    def _free(self, offset: int) -> AnyPath:
        """Return the path of segment *offset*, which is still to be written.

        In a store nothing keeps a segment from being written twice, and there is no lock: so it is asked each time.
        """
        path = self.file(offset)
        if isinstance(path, Path) or not path.exists():
            return path
        self._forget()
        if self.in_doubt or (self._newest is not None and self._newest[0] >= offset):
            self.in_doubt = True
            raise StateUnavailable(f"{path}: has been written, as is known only now. The next poll goes on from it")
        raise StateDamaged(
            f"{path}: is there, and was not written by this process: two of them write this log. Stop all of them but "
            "one, and start that one again"
        )

    def _version_of(self, offset: int, schema: pa.Schema) -> tuple[int, int]:
        """Return the `schema_version` and the `schema_since` of the segment *offset*, whose columns are *schema*."""
        before = self._newest
        if before is None or before[0] != offset - 1:
            last = Segment(offset - 1, self.file(offset - 1))
            if not last.file.exists():
                # A log that begins anew: what was said of an older one's columns is over.
                (self.at / "_common_metadata").unlink(missing_ok=True)
                return 1, offset
            found = segments.metadata(last.file)
            before = last.offset, segments.columns(last.file), found.schema_version, found.schema_since
        _, held, version, since = before
        if not evolution.changes(held, schema):
            return version, since
        # Before the segment: whoever looks in between reads the old ones as the new columns, which is right.
        storage.write_durably(self.at / "_common_metadata", lambda aside: segments.write_columns(aside, schema))
        faults.point("schema-written")
        alike = all(change.kind != "changed" for change in self.changes(schema))
        return version + 1, since if alike else offset

    def sweep_up(self) -> None:
        """Remove what a killed writer left half-written, and what a killed drop left standing. For the writer only."""
        for folder in (self.at, self.at / "_positions"):
            for aside in storage.half_written(folder):
                aside.unlink(missing_ok=True)
        storage.remove_all(self.staging)
        self._is_writer = True
        floor = self.floor()
        for segment in self.standing():
            if segment.offset <= floor:
                segment.file.unlink(missing_ok=True)

    def replay(self, after: int) -> Iterator[tuple[Watermark, Records, bool]]:
        """Yield, for each segment after *after*, its watermark and what it remembered: the way to roll state forward.

        Begins with the floor's where retention has dropped segments after *after*. The third value is true where the
        watermark was moved by hand: what had been remembered up to there counts no more.
        """
        floor, watermark, remembered = self._read_floor()
        if after < floor and watermark is not None:
            after = watermark.offset
            yield watermark, remembered, True
        for segment in self._segments():
            if segment.offset > after:
                metadata = segments.metadata(segment.file)
                yield metadata.watermark, self.remembered(segment.offset), metadata.moved

    def remembered(self, offset: int) -> Records:
        """Return what was to be remembered of segment *offset*, which must be there."""
        return segments.remembered(self.file(offset))

    def drop(self, through: int, watermark: Watermark, remembered: Records) -> int:
        """Drop the segments up to *through*, once *watermark* and *remembered* stand in for them; return how many."""
        doomed = [s for s in self.standing() if s.offset <= through]
        position = json.loads(dump_watermark(watermark))
        floor = {"offset": through, "watermark": position, "recent": segments.pack(remembered).decode()}
        try:
            storage.write_text(self.at / "_floor.json", json.dumps(floor))
            faults.point("floor-written")
            for segment in doomed:
                segment.file.unlink(missing_ok=True)
                faults.point("segment-dropped")
        finally:
            self._forget()
        return len(doomed)

    def floor(self) -> int:
        """Return the last offset dropped by retention; 0 if none."""
        held = self._known()
        return self._read_floor()[0] if held is None else held.floor

    def _read_floor(self) -> tuple[int, Watermark | None, Records]:
        path = self.at / "_floor.json"
        try:
            raw = json.loads(path.read_text())
            remembered = segments.unpack(raw["recent"].encode())
            return int(raw["offset"]), load_watermark(json.dumps(raw["watermark"])), remembered
        except FileNotFoundError:
            return 0, None, deliveries.NOTHING
        except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise StateDamaged(f"{path}: not readable: {error}. Restore it from a copy.") from error

    def _segments(self) -> Segments:
        """Return what may be read, in order and without a gap."""
        if (held := self._known()) is not None:
            return list(held.segments)
        version = self._version
        # A folder that changes while it is listed may show a file and not the one before it: so look twice.
        missing = 0
        for _ in range(2):
            # The floor is read after the files: it is written before any of them is dropped.
            found = self.standing()
            floor = self.floor()
            found = [s for s in found if s.offset > floor]
            missing = next((n for n, s in enumerate(found, floor + 1) if s.offset != n), 0)
            if not missing:
                if self._is_writer and not isinstance(self.at, Path):
                    # A disk's folder is asked each time: that costs nothing, and shows what has been taken away.
                    self._held = _Held(list(found), floor, version)
                return found
        raise StateDamaged(
            f"{self.file(missing)}: is missing, and later segments are there. Put it back; or give these changes up "
            f"and read the whole table again: sidecar watermark reset {self.table}"
        )

    def _known(self) -> _Held | None:
        held = self._held
        return held if held is not None and held.version == self._version else None

    def _forget(self) -> None:
        self._version += 1

    def standing(self) -> Segments:
        """Return the segment files that are there, gaps and dropped ones included."""
        parts = ((name.rpartition("."), path) for name, path in storage.names(self.at))
        found = [Segment(int(stem), path) for (stem, _, end), path in parts if end == "parquet" and stem.isdigit()]
        return sorted(found, key=lambda s: s.offset)

    def file(self, offset: int) -> AnyPath:
        """Return where segment *offset* is, or will be."""
        return self.at / f"{offset:020d}.parquet"

    def path(self, offset: int) -> Path:
        """Return where segment *offset* is, or will be, which must be on a disk."""
        return storage.local(self.file(offset))

    def _existing(self, offset: int) -> AnyPath | None:
        path, held = self.file(offset), self._known()
        if (held is not None and 0 < offset - held.floor <= len(held.segments)) or path.exists():
            return path
        if offset <= self.floor():
            self.list(offset - 1, offset)
        return None


def tables(root: AnyPath) -> list[str]:
    """Return the folder names of the logs under *root*."""
    return storage.folders(root)
