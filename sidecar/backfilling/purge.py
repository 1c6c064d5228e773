"""After a backfill that was to purge: deletes for the keys that the log holds and the source does not any more.

A key that a finished backfill has seen stands in the log after the offset at which it began: because the backfill
wrote it, or because a poll had; or it was set aside. So a key whose newest change is older than that, and no delete, is
gone from the source. One that a poll has delivered since, and no chunk after it, may have gone before its chunk was
read: the source is asked for it by its key, in a view that is newer than all polls.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import pyarrow as pa

from sidecar import codec, faults
from sidecar.backfill import ORIGIN, TOGETHER, WHOLE, Refused, as_today, delivered, digests, parts
from sidecar.changelog import ChangeLog
from sidecar.connector import SourceConnector
from sidecar.errors import SettingsError
from sidecar.log import bases
from sidecar.model import ALL, DELETE, INSERT, METADATA, Among, Job, Page, Position, Scope, Tracked, Watermark
from sidecar.polls import behind, deliveries, quarantine, renumbered, rows
from sidecar.polls.changes import change_schema
from sidecar.polls.evolution import conformed, widens
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")

FEW = 1
"""So many rows may a table lose that has none left; one that has lost more of them at once may not be what it was."""

AT_ONCE = 1_000_000
"""So many keys are held in memory; more are gone through in shares, each of which reads the log anew."""


def unseen(
    connector: SourceConnector,
    tracked: Tracked,
    log: ChangeLog,
    store: WatermarkStore,
    mark: Watermark,
    *,
    scope: Scope,
    now: int,
    empty: bool = False,
) -> Watermark:
    """Append a delete for each key in *scope* that the backfill under way has not met; return the watermark after it.

    A delete carries the last row that the log holds of its key. Only a scope of whole keys, or all, can be purged; and
    only what nothing is hidden of (`refuse_hidden`). Refused, if the whole table has no rows, unless it may be *empty*.
    """
    assert mark.job is not None
    began, schema = mark.job.began, change_schema(tracked)
    asked = None if scope.among is None else _Asked.of(connector, tracked, scope.among)
    met = digests(tracked, tracked.key, list(quarantine.keys(log, tracked.key, began)))
    places, total = _places(log)
    shares, purged = max(1, -(-total // AT_ONCE)), 0
    for share in range(shares):

        def counts(key: bytes, share: int = share) -> bool:
            return share_of(key, shares) == share and key not in met

        unmet, polled = _newest(tracked, places, began, counts, asked)
        gone = [*unmet, *_gone(connector, tracked, mark, polled)]
        if not empty and scope == ALL and len(gone) > FEW and _is_empty(connector, tracked, mark.job):
            raise Refused(
                f'table "{tracked.name}": it has no rows, and a purge would delete the {len(gone):,} that the log has: '
                "so nothing is purged. Once it has rows again, ask anew; if it is to be empty: "
                f"sidecar backfill {tracked.name} --purge --empty"
            )
        for place, found in _by_place(gone).items():
            mark = dataclasses.replace(mark, offset=mark.offset + 1)
            data = _deletes(_rows(tracked, places[place], found), schema, mark.offset, now)
            # Should one come back as it was, it is delivered again.
            forgotten = deliveries.nothing(rows.keys_of(tracked, data))
            log.append(mark.offset, data, mark, forgotten, committed=now, origin=ORIGIN)
            store.save(tracked.name, mark, forgotten)
            faults.point("keys-purged")
            purged += len(data)
    if purged:
        log_.info("table=%s purged=%d: rows that the source does not have any more", tracked.name, purged)
    if asked is not None and (unknown := len(asked.wanted - asked.seen)):
        log_.warning(
            "table=%s backfill=done: %d of %d keys have never been in the log in that form; "
            "a purge without --keys finds all that are gone, in whatever form",
            *(tracked.name, unknown, len(asked.wanted)),
        )
    return mark


def _is_empty(connector: SourceConnector, tracked: Tracked, job: Job) -> bool:
    """Return whether the table has no rows now, or had none when *job* read it."""
    with connector.snapshot():
        return not job.read or not len(connector.read(Page(tracked, WHOLE, {}, None, 1)))


def refuse_hidden(connector: SourceConnector, tracked: Tracked) -> None:
    """Raise SettingsError if the source may hold rows that it does not show: a purge would take them for deleted."""
    if (why := connector.hides(tracked.table)) is not None:
        raise SettingsError(f'table "{tracked.name}": what is gone from it cannot be told, so nothing is purged: {why}')


def share_of(key: bytes, shares: int) -> int:
    """Return which share *key* falls into. Neighbouring numbers differ in few of their bytes, so all of them count."""
    return crc32(key) % shares


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """The keys that somebody asked for, in one notation; and those among them that the log has had."""

    fold: Callable[[pa.Table], list[bytes]]
    wanted: frozenset[bytes]
    seen: set[bytes] = dataclasses.field(default_factory=set)

    @classmethod
    def of(cls, connector: SourceConnector, tracked: Tracked, among: Among) -> _Asked:
        def fold(keys: pa.Table) -> list[bytes]:
            folded = connector.folded(tracked, keys.select(list(tracked.key)))
            return deliveries.as_bytes(rows.keys_of(tracked, folded))

        found = delivered(tracked, among.columns, among.values)
        return cls(fold, frozenset() if found is None else frozenset(fold(found)))

    def of_rows(self, data: pa.Table) -> list[bool]:
        """Return which rows of *data* are asked for."""
        folded = self.fold(data)
        self.seen.update(self.wanted.intersection(folded))
        return [key in self.wanted for key in folded]


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where rows stand: a segment, or a piece of the base in which those are that retention has dropped."""

    offset: int
    read: Callable[[], pa.Table | None]
    polled: bool = False


def _places(log: ChangeLog) -> tuple[Sequence[_Place], int]:
    """Return where what is known of *log*'s table stands, oldest first, and how many rows that are."""
    floor, found, total = log.floor(), [], 0
    if floor and floor in bases.offsets(log):
        base = bases.load(log, floor)
        total += base.rows
        found += [_Place(floor, read) for read in bases.pieces(base)]
    for segment in log.list(floor):
        metadata = log.metadata(segment.offset)
        total += 0 if metadata is None else metadata.rows
        polled = metadata is not None and metadata.origin != ORIGIN
        found.append(_Place(segment.offset, functools.partial(log.get, segment.offset), polled))
    return found, total


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A row that is there by the log: in which place, at which row of it; and its key, if the source is to be asked."""

    place: int
    row: int
    key: Position = ()


def _newest(
    tracked: Tracked,
    places: Sequence[_Place],
    began: int,
    counts: Callable[[bytes], bool],
    asked: _Asked | None,
) -> tuple[Iterable[_Row], Mapping[bytes, _Row]]:
    """Return the newest rows of the keys that have not been met since *began*; and of those that polls have met."""
    unmet: dict[bytes, _Row] = {}
    polled: dict[bytes, _Row] = {}
    change_type = tracked.metadata_prefix + METADATA[0]
    for number, place in enumerate(places):
        data = place.read()
        if data is None or not len(data) or (held := as_today(tracked, data)) is None:
            continue
        all_there = change_type not in data.column_names  # a base's
        types = itertools.repeat(INSERT, len(data)) if all_there else data.column(change_type).to_pylist()
        since = place.offset > began
        digests_ = deliveries.as_bytes(rows.keys_of(tracked, held))
        keys = codec.rows(held, tracked.key) if since and place.polled else itertools.repeat((), len(data))
        is_asked = itertools.repeat(True, len(data)) if asked is None else asked.of_rows(held)
        for row, (digest, kind, key, is_wanted) in enumerate(zip(digests_, types, keys, is_asked, strict=True)):
            if not is_wanted or not counts(digest):
                continue
            unmet.pop(digest, None)
            polled.pop(digest, None)
            if kind == DELETE:
                continue
            if not since:
                unmet[digest] = _Row(number, row)
            elif place.polled:
                polled[digest] = _Row(number, row, key)
    return unmet.values(), polled


def _gone(
    connector: SourceConnector, tracked: Tracked, mark: Watermark, polled: Mapping[bytes, _Row]
) -> Iterator[_Row]:
    """Yield those of *polled* that the source does not have any more, by asking for them.

    None where that is not sure: a key is to be asked for by the very value that is delivered, and in a view newer than
    the polls that have met it, which another server behind the same name need not have. The next purge finds them.
    """
    if not polled or not connector.takes_scopes or not all(_is_exact(tracked, name) for name in tracked.key):
        return
    with connector.snapshot():
        view = connector.horizon(tracked, mark.memory)
        seen = [mark.polled, mark.progress.horizon.now if mark.progress is not None else None]
        if behind.is_behind(mark.reached, view) or renumbered.is_renumbered(mark, view):
            return
        if any(at is not None and view.now < at for at in seen):
            return
        asked = tuple(row.key for row in polled.values())
        there: set[bytes] = set()
        for part in parts(Scope(among=Among(tracked.key, asked))):
            data = connector.read(Page(tracked, WHOLE, {}, None, 2 * TOGETHER, scope=part))
            there.update(deliveries.as_bytes(rows.keys_of(tracked, data)))
    yield from (row for digest, row in polled.items() if digest not in there)


def _is_exact(tracked: Tracked, name: str) -> bool:
    own = tracked.table.column(name)
    delivered = next((c.arrow for c in tracked.columns if c.name == name), None)
    if own is None or own.arrow != delivered:
        return False
    return bool(pa.types.is_signed_integer(delivered) or pa.types.is_string(delivered))


def _by_place(found: Iterable[_Row]) -> Mapping[int, Sequence[int]]:
    places: dict[int, list[int]] = {}
    for row in sorted(found, key=lambda row: (row.place, row.row)):
        places.setdefault(row.place, []).append(row.row)
    return places


def _rows(tracked: Tracked, place: _Place, found: Sequence[int]) -> pa.Table:
    """Return the rows *found* at *place* in today's columns; of columns that were of another type, nothing is known."""
    data, schema = place.read(), change_schema(tracked)
    assert data is not None
    same = [
        n for n in data.column_names if n in schema.names and widens(data.schema.field(n).type, schema.field(n).type)
    ]
    return conformed(data.select(same), schema).take(pa.array(found))


def _deletes(found: pa.Table, schema: pa.Schema, offset: int, now: int) -> pa.Table:
    for at, value in enumerate((DELETE, offset, now, ORIGIN)):
        field = schema.field(at)
        found = found.set_column(at, field, pa.repeat(pa.scalar(value, field.type), len(found)))
    return found.cast(schema)
