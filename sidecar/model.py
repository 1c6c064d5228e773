"""The values that flow through Sidecar: tables, passes, pages, horizons and watermarks. All are frozen."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Scalar: TypeAlias = bool | int | float | str | bytes | None
Position: TypeAlias = tuple[Scalar, ...]
"""Where a read ended: `(cursor, *primary key)`, as the connector's own rows gave it (timestamps as microseconds, dates
as days, decimals as strings), or only the key in a pass without cursor. Only the source orders positions."""

Memory: TypeAlias = Mapping[str, object] | None
"""What a connector wants to be handed back at the next poll; JSON values only."""

PassName: TypeAlias = Literal["updated", "deleted", "created", "unstamped", "all"]
CursorKind: TypeAlias = Literal["instant", "reading", "number", "real", "text"]
Unit: TypeAlias = Literal["s", "ms", "us", "ns"]
OnBadValue: TypeAlias = Literal["error", "null", "quarantine"]

PASSES: tuple[PassName, ...] = ("updated", "deleted", "created", "unstamped")
"""The passes in the order in which a poll makes them. "all" is none of them: it is a backfill's."""
INFINITY = 2**63 - 1
"""The cursor value of a row that is later than any clock: `infinity`, or what does not parse. It moves nothing."""

CURSOR, VERSION, DELETED, BAD = "sidecar:cursor", "sidecar:version", "sidecar:deleted", "sidecar:bad"
VALUE = "sidecar:value:"
"""Columns that a connector may add to a page (the last one before a column's name); see `SourceConnector.read`."""

METADATA = ("change_type", "commit_version", "commit_timestamp", "origin")
"""The metadata columns' names, behind the prefix."""

MARK, HISTORY = ("deleted_at",), ("valid_from", "valid_to", "is_current")
"""The names, behind the prefix, of what a mirror adds to the source's columns: where deletes mark, and with history."""

VARIANT = {b"sidecar": b"variant"}
"""What the log's schema says of a column of JSON texts that Spark is to see as a VARIANT."""

KEY = {b"sidecar.key": b"1"}
"""What the log's schema says of the columns that are the table's key."""

INSERT, UPDATE, DELETE = "insert", "update_postimage", "delete"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a source table: its exact name, the source's word for its type, and the type it arrives in: one that
    Parquet gives back as it is, times in microseconds.

    `detail` is what its connector wants to know of it when it reads it. `variant`: it holds JSON as text, which Spark
    is to see as a VARIANT. `born` is `database/table/column`, by what the source gives to no other one of the same
    name; '' where there is no telling.
    """

    name: str
    type: str
    arrow: pa.DataType
    nullable: bool = True
    detail: object = None
    variant: bool = False
    born: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A source table as the source describes it.

    `name` is its identity everywhere (state, log, sinks): unique in the source, never ambiguous through separators.
    `path` are the identifier's parts, unquoted. `primary_key` is empty where the source declares none; `key_holds`
    says whether the source sees to it for all rows that are read here. `has_parts`: its rows are in other tables too,
    which may come and go.
    """

    name: str
    path: tuple[str, ...]
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    kind: Literal["table", "view"] = "table"
    key_holds: bool = True
    has_parts: bool = False

    def column(self, name: str) -> Column | None:
        """Return the column called *name*, exactly."""
        for column in self.columns:
            if column.name == name:
                return column
        return None


@dataclass(frozen=True, slots=True)
class Wishes:
    """In which of several faithful forms values are to arrive: by setting, in `general` and for columns `named`.

    What is said in general holds where it can, what is said by name must. `cursors` and `key` are columns that polls
    go by: nothing that is said in general changes the former.
    """

    general: Mapping[str, str] = field(default_factory=dict)
    named: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cursors: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    def of(self, setting: str, column: str) -> str | None:
        """Return what *setting* is for *column*; None where nothing is said."""
        said = self.named.get(setting, {}).get(column)
        return said if said is not None or column in self.cursors else self.general.get(setting)


@dataclass(frozen=True, slots=True)
class Pass:
    """One ordered read over a part of a table's rows. The passes of a poll never share a row.

    `cursor` is None where the pass reads all of its rows by key: those that carry no stamp; and "all", the whole table,
    chunk by chunk, for a backfill.
    """

    name: PassName
    cursor: str | None
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refresh:
    """When a row of the table `parent` changes, deliver the rows again whose columns equal its: `(own, parent's)`."""

    parent: str
    on: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Tracked:
    """A table and how it is followed: the settings with every default resolved against the source.

    Durations are microseconds. `columns` are the ones delivered, in the source's order and in the types in which they
    are delivered; the table's own columns have those in which keys and cursors are read and compared. The key and the
    cursor columns are always among those *read*. `sinks` are the names of the sinks that the table goes to.
    """

    table: Table
    key: tuple[str, ...]
    updated_at: str
    created_at: str | None = None
    deleted_at: str | None = None
    deleted_when: str | None = None
    not_deleted: tuple[Scalar, ...] = ()
    columns: tuple[Column, ...] = ()
    timezone: str | None = None
    unit: Unit | None = None
    lookback: int = 60_000_000
    max_hold: int | None = None
    tolerance: int = 0
    page_size: int = 50_000
    key_is_unique: bool = True
    schema_change: Literal["evolve", "fail"] = "evolve"
    backfill_added: bool = False
    metadata_prefix: str = "_"
    on_bad_value: OnBadValue = "error"
    auto_backfill: bool = True
    backfill_version: str | None = None
    chunk_size: int | None = None
    consistent: bool = False
    refresh_on: tuple[Refresh, ...] = ()
    sinks: tuple[str, ...] = ()
    wishes: Wishes = field(default_factory=Wishes)

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def cursors(self) -> tuple[str, ...]:
        """The columns that polls go by."""
        return tuple(name for name in (self.updated_at, self.created_at, self.deleted_at) if name is not None)

    @property
    def cursor_type(self) -> pa.DataType:
        """The type in which `updated_at` arrives."""
        column = self.table.column(self.updated_at)
        assert column is not None, f"{self.name}: {self.updated_at} was resolved against the table"
        return column.arrow

    @functools.cached_property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of a poll, in order; what an earlier one reads is dropped from a later one."""
        found = [Pass("updated", self.updated_at)]
        if self.deleted_at:
            found.append(Pass("deleted", self.deleted_at))
        if self._nullable(self.updated_at):
            if self.created_at:
                found.append(Pass("created", self.created_at, (self.updated_at,)))
            if self.created_at is None or self._nullable(self.created_at):
                found.append(Pass("unstamped", None, tuple(c for c in (self.updated_at, self.created_at) if c)))
        return tuple(found)

    @property
    def reads_by_key(self) -> bool:
        """Whether an index is sure to serve the key: then a table is read by it about as it lies on disk."""
        return self.key == self.table.primary_key

    def _nullable(self, name: str) -> bool:
        column = self.table.column(name)
        return column is None or column.nullable


@dataclass(frozen=True, slots=True)
class Among:
    """The rows whose `columns` are, together, one of `values`: never an empty list, and none of them NULL."""

    columns: tuple[str, ...]
    values: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a table: the rows for which a condition in the source's own SQL holds, and that are among some values.

    Neither: all of it.
    """

    where: str | None = None
    among: Among | None = None


ALL = Scope()


@dataclass(frozen=True, slots=True)
class Page:
    """A request for rows: at most `limit` of one pass, strictly after a position, in `(cursor, *key)` order.

    `closed` holds, by pass, the cursor value up to which rows are never read again (None: read from the start). The
    connector selects the pass's rows with `cursor > closed[pass]`; it may send a few at or below it, and rows that an
    earlier pass of the same poll reads: both are dropped by exact comparison when they arrive.
    A value of -2**63 is below all. `since` is the connector's own version floor of the previous poll; rows with an
    older version are not to be sent. A backfill's chunk, of the pass "all", may end at the key `until`, that one
    included, and be of a part of the table.
    """

    tracked: Tracked
    scan: Pass
    closed: Mapping[PassName, int | None]
    after: Position | None
    limit: int
    since: int | None = None
    until: Position | None = None
    scope: Scope = ALL


@dataclass(frozen=True, slots=True)
class Hold:
    """What holds a horizon back: `by` in words, since when (microseconds UTC; None: unknown)."""

    since: int | None
    by: str


@dataclass(frozen=True, slots=True)
class Horizon:
    """What a source knows, at one instant, of rows that are still to appear.

    now      the source's clock, microseconds UTC
    settled  start of the oldest transaction that may still commit; `now` where none runs; None where unknown
    floor    versions at or above it may be met again by a later poll; None where the source has no versions
    memory   handed back by the next poll
    era      which numbering of versions this is: another one after a restore or a failover; None: no versions
    hold     the oldest transaction that keeps `settled` from being `now`, if any
    joined   in words, what versions say nothing of, where the era is another one for that alone
    covers   all that was written before this position is in the view; None: the view is sure to be newer than others
    reaches  nothing that was written after this position is in it; positions of one era grow. None: unknown
    """

    now: int
    settled: int | None
    floor: int | None = None
    memory: Memory = None
    era: str | None = None
    hold: Hold | None = None
    joined: str = ""
    covers: int | None = None
    reaches: int | None = None


@dataclass(frozen=True, slots=True)
class Strain:
    """How hard a source is at work, in seconds, as far as it tells: how far its standbys lag behind it, or it behind
    its primary; how long the session has waited that waits longest for a lock, and for one that reading a copy holds.
    """

    replication_lag: float | None = None
    lock_wait: float | None = None
    held_up: float | None = None


@dataclass(frozen=True, slots=True)
class PassMark:
    """How far one pass has come. Cursor values are comparable integers (see `cursor.py`).

    `greatest` is the history `((when, greatest value seen), …)`, oldest first, of what is needed of it. `due` is the
    value up to which, by the clock and by what runs, every row should have appeared; `closed` may lie below it.
    """

    closed: int | None = None
    greatest: tuple[tuple[int, int], ...] = ()
    due: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """A poll under way, or interrupted. It ends as if all of it had been seen when it began.

    `silent`: what it finds was there before the table was followed, and is remembered, not delivered.
    """

    horizon: Horizon
    closing: Mapping[PassName, PassMark]
    scan: PassName
    after: Position | None = None
    shape: tuple[str, ...] = ()
    silent: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A range of keys that a backfill reads: it has come up to `after`, and ends with `until` (None: the last key)."""

    after: Position | None = None
    until: Position | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A backfill under way: of the request `id`, begun after the log's offset `began`; read (or waiting) since `at`.

    closed    by pass, what polls began above (None: all rows are the backfill's); with `since`, the version from which
              they read. Rows that polls deliver are left to them.
    spans     how far it has come; `part` counts the parts of its scope that are behind it
    read      rows read, and `written`, those of them that went to the log; `expected`, about how many there are
    version   the `backfill_version` that it brings about
    settles   whether its end does what reading all rows otherwise would not: a purge, or clearing what was set aside
    """

    id: str
    began: int
    at: int
    spans: tuple[Span, ...] = (Span(),)
    part: int = 0
    closed: Mapping[PassName, int | None] | None = None
    since: int | None = None
    read: int = 0
    written: int = 0
    expected: int | None = None
    version: str | None = None
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Watermark:
    """The position in a table: per pass, what the source must remember, and the poll under way, if any.

    `settings` names the key and cursor columns under which it was made, `kind` and `unit` what the cursor holds;
    `offset` is the last segment written. `era` is the numbering that `since` belongs to; `doubt`, after it has changed
    and until a poll is complete, the offset up to which the log tells by content what has been delivered. `hold` is
    what held the last complete poll's horizon back. `late` counts the rows that appeared after they were due, and were
    seen all the same. `shape` are the columns of which the fingerprints that are remembered were made. `job` is the
    backfill under way, if any; `finished`, the request whose backfill ended last; `version`, the `backfill_version`
    under which the table's rows have come. `born` is what the connector says of columns (`Column.born`), by name.
    All that has been read was written before `reached` in the source (`Horizon.reaches`). `width`: the bytes of a row.
    """

    settings: str
    offset: int = 0
    marks: Mapping[PassName, PassMark] = field(default_factory=dict)
    since: int | None = None
    memory: Memory = None
    progress: Progress | None = None
    polled: int | None = None
    kind: CursorKind = "instant"
    unit: Unit | None = None
    era: str | None = None
    doubt: int | None = None
    hold: Hold | None = None
    late: int = 0
    shape: tuple[str, ...] = ()
    job: Job | None = None
    finished: str | None = None
    version: str | None = None
    born: Mapping[str, str] = field(default_factory=dict)
    reached: int | None = None
    width: int | None = None

    def closed(self) -> dict[PassName, int | None]:
        """Return, by pass, the value up to which rows are never read again."""
        return {name: mark.closed for name, mark in self.marks.items()}
