"""The backfill: existing rows, by key, a chunk at a time, merged with what polls deliver meanwhile.

A chunk is read in a view of the source that may be old by the time its rows are written: polls go on in between. The
rule by which the two never contradict each other needs nothing but the log:

  before   `low`, the log's last offset, is noted before the chunk's view of the source is taken;
  after    a row is left out if a segment after `low` holds its key: that version is as new as the chunk's, or newer.

Chunks are written between two polls, never during one, so a poll that follows has a newer view than any chunk before
it: for no key does an older version come after a newer one. What a poll has deleted since `low` stays deleted.

A table's first backfill begins where its polls do: once they have begun, rows that they read are left to them, so that
each version of a row comes once. A backfill that was asked for delivers all rows. Of what is delivered and a poll will
read, that is remembered which a poll would have remembered. How far a backfill has come is part of the watermark, and
so of each segment's footer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec, faults
from sidecar.changelog import ChangeLog
from sidecar.clock import Clock
from sidecar.connector import SourceConnector
from sidecar.cursor import Flags
from sidecar.errors import SettingsError
from sidecar.model import Job, Page, Pass, Position, Scope, Span, Tracked, Watermark
from sidecar.poll import Step
from sidecar.polls import ahead, deliveries, quarantine, renumbered, rows
from sidecar.polls.changes import existing, to_changes
from sidecar.polls.deliveries import Records
from sidecar.polls.evolution import widens
from sidecar.polls.rows import Rows
from sidecar.state import WatermarkStore

ORIGIN = "backfill"
WHOLE = Pass("all", None)
TOGETHER = 1_000
"""So many values of a scope are asked for at once."""


class Refused(SettingsError):
    """A backfill that cannot be made as it was asked for: it ends by that, rather than be tried again and again."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one span as they were read, to be merged with what the log holds after the offset `low`.

    `era` is the numbering of versions by which the table stood then; nothing was written after `reached` in the source.
    `began`: when its span was begun with.
    """

    table: str
    job: str
    part: int
    span: int
    page: Page
    data: pa.Table
    low: int
    era: str | None = None
    reached: int | None = None
    began: int | None = None


def can_read(connector: SourceConnector, tracked: Tracked) -> bool:
    """Return whether a new table's rows come chunk by chunk; else its first poll reads them."""
    return connector.loads_by_key and tracked.reads_by_key


def is_new(mark: Watermark | None) -> bool:
    """Return whether no poll has begun with the table yet, or it is to be read as if none had."""
    if mark is None:
        return True
    begun = mark.polled is not None or mark.progress is not None or mark.job is not None or mark.finished is not None
    return not begun and all(closed is None for closed in mark.closed().values())


def has_begun(mark: Watermark) -> bool:
    """Return whether polls of the table have begun: rows that they read are then left to them by its first backfill."""
    return mark.polled is not None or mark.progress is not None


def parents_first(tables: Iterable[Tracked]) -> list[Tracked]:
    """Return *tables* such that each comes after its parents; in a circle, one has to come first."""
    named = {t.name: t for t in tables}
    found: dict[str, Tracked] = {}

    def add(child: Tracked, above: frozenset[str]) -> None:
        for refresh in child.refresh_on:
            if refresh.parent in named.keys() - above:
                add(named[refresh.parent], above | {refresh.parent})
        found.setdefault(child.name, child)

    for each in named.values():
        add(each, frozenset({each.name}))
    return list(found.values())


def pages(tracked: Tracked, job: Job, scope: Scope, limit: int) -> list[tuple[int, Page]]:
    """Return, for each span of *job* that is not done, the chunk to begin with."""
    part = _part(scope, job.part)
    return [
        (number, Page(tracked, WHOLE, {}, span.after, limit, until=span.until, scope=part))
        for number, span in enumerate(job.spans)
        if not span.done
    ]


def parts(scope: Scope) -> list[Scope]:
    """Return *scope* in parts that can each be asked for at once."""
    return [_part(scope, number) for number in range(_count(scope))]


def _count(scope: Scope) -> int:
    return 1 if scope.among is None else -(-len(scope.among.values) // TOGETHER)


def _part(scope: Scope, number: int) -> Scope:
    among = scope.among
    if among is None or len(among.values) <= TOGETHER:
        return scope
    some = among.values[number * TOGETHER : (number + 1) * TOGETHER]
    return dataclasses.replace(scope, among=dataclasses.replace(among, values=some))


def keys_asked_for(tracked: Tracked, scope: Scope) -> int | None:
    """Return how many rows *scope* has, if the source has them all; None where it is not of keys."""
    among = scope.among
    return len(among.values) if among is not None and set(among.columns) == set(tracked.key) else None


def refuse_columns_gone(tracked: Tracked, scope: Scope) -> None:
    """Raise Refused if *scope* is of a column that *tracked* does not have any more."""
    for name in () if scope.among is None else scope.among.columns:
        if tracked.table.column(name) is None:
            raise Refused(
                f'table "{tracked.name}": rows were to be delivered again by its column "{name}", which it does not '
                f"have any more, so they are not. To have all rows again: sidecar backfill {tracked.name}"
            )


def spans(keys: Sequence[Position]) -> tuple[Span, ...]:
    """Return the spans into which *keys*, in the source's order, divide a table."""
    return tuple(Span(after, until) for after, until in zip([None, *keys], [*keys, None], strict=True))


def write(
    chunk: Chunk,
    log: ChangeLog,
    store: WatermarkStore,
    *,
    scope: Scope,
    clock: Clock,
    fits: Callable[[], None],
    passed: Callable[[int, int], Set[bytes]],
    held: Callable[[int], Mapping[bytes, bytes]],
) -> Step | None:
    """Merge *chunk* into the log, and note how far its backfill has come; None if that is not under way any more, or
    if the source numbers its versions anew since: what the chunk's say would be taken for what they are today.

    *passed* gives the keys that the log holds after an offset, up to another, otherwise than by the backfill itself;
    *held*, what the newest row of each key is up to an offset (`renumbered.newest`).
    """
    tracked, mark = chunk.page.tracked, store.watermark(chunk.table)
    if mark is None or mark.job is None or (mark.job.id, mark.job.part) != (chunk.job, chunk.part):
        return None
    if chunk.era != mark.era:
        return None
    found, last = rows.from_page(chunk.page, chunk.data)
    rows.refuse_placeholders(found)
    own = merged(found, mark, chunk.low, passed)
    if mark.job.closed is not None and mark.job.since is None and own.version is not None:
        # Numbers tell no more which of these polls have read since the backfill began.
        own = own.take(~renumbered.unchanged(own, held(chunk.low)))
    remembered = _remembered(own, store, mark)
    good, aside = quarantine.sorted_out(own)
    full = len(chunk.data) >= chunk.page.limit
    spans_ = list(mark.job.spans)
    spans_[chunk.span] = dataclasses.replace(spans_[chunk.span], after=last or spans_[chunk.span].after, done=not full)
    read, written = mark.job.read + len(chunk.data), mark.job.written + len(good)
    job = dataclasses.replace(mark.job, spans=tuple(spans_), read=read, written=written)
    if not mark.job.read and chunk.began is not None:
        # Until now it has waited for other tables, or could not be read.
        job = dataclasses.replace(job, at=chunk.began)
    if all(span.done for span in spans_) and job.part + 1 < _count(scope):
        job = dataclasses.replace(job, spans=(Span(),), part=job.part + 1)
    reached = max((at for at in (mark.reached, chunk.reached) if at is not None), default=None)
    width = ahead.width(chunk.data) if len(chunk.data) else mark.width
    after = dataclasses.replace(mark, job=job, reached=reached, width=width)
    offset = None
    if len(own):
        fits()
        after = dataclasses.replace(after, offset=after.offset + 1)
        now = clock.now()
        if tracked.on_bad_value == "quarantine":
            quarantine.set_aside(log, after.offset, aside, now)
        changes = to_changes(good, after.offset, now, ORIGIN, existing(good))
        log.append(after.offset, changes, after, remembered, committed=now, origin=ORIGIN)
        offset = after.offset if len(good) else None
        faults.point("chunk-written")
    store.save(tracked.name, after, remembered, lazy=True)
    faults.point("chunk-saved")
    done, before = is_done(job, scope), read - len(chunk.data)
    return Step(
        tracked.name, len(chunk.data), len(good), offset, done, expected=job.expected, job=job.id, before=before
    )


def _remembered(own: Rows, store: WatermarkStore, mark: Watermark) -> Records:
    """Return what is to be remembered of *own* from now on: of those that a poll may meet, what they are, unless it is
    known that they are; of others nothing any more.

    What was delivered of them before must not be mistaken, later, for what is delivered now.
    """
    is_met = rows.met(own, mark.closed(), mark.since)
    some, others = own.take(is_met), own.take(~is_met)
    found = rows.records(some, some.keys())
    if not store.remembers(own.tracked.name):
        return found
    if len(some) and has_begun(mark):
        found = found[:, ~deliveries.same(found, store.recall(own.tracked.name, found[: deliveries.CONTENT]))]
    if not len(others):
        return found
    keys = others.keys()
    is_known = ~deliveries.says_nothing(store.recall(own.tracked.name, keys))
    return deliveries.joined([found, deliveries.nothing(keys[:, is_known])])


def merged(found: Rows, mark: Watermark, low: int, passed: Callable[[int, int], Set[bytes]]) -> Rows:
    """Return the rows of *found* that the backfill delivers: not those that polls deliver, or have delivered.

    What is delivered before polls of the table have begun is remembered, and they leave it out.
    """
    job, keep = mark.job, np.ones(len(found), dtype=bool)
    assert job is not None
    keys = functools.cache(lambda: deliveries.as_bytes(rows.keys_of(found.tracked, found.delivered())))

    def are_in(some: Set[bytes]) -> Flags:
        return np.fromiter((key in some for key in keys()), bool, len(found)) if some else np.zeros(len(found), bool)

    if has_begun(mark) and job.closed is not None:
        theirs, is_next = rows.met(found, job.closed, job.since), rows.met(found, mark.closed(), mark.since)
        if (theirs & ~is_next).any():
            # One that was written anew and kept its stamp, by an ALTER TABLE or an UPDATE of all rows, may have been
            # closed before: no poll has met it, and none will.
            theirs &= is_next | are_in(passed(job.began, mark.offset))
        keep &= ~theirs
    return found.take(keep & ~are_in(passed(low, mark.offset)))


def is_done(job: Job, scope: Scope) -> bool:
    """Return whether all of *scope* has been read."""
    return job.part + 1 >= _count(scope) and all(span.done for span in job.spans)


def ended(mark: Watermark) -> Watermark:
    """Return *mark* once the backfill under way is over."""
    assert mark.job is not None
    return dataclasses.replace(mark, job=None, finished=mark.job.id, version=mark.job.version)


class Passed:
    """The keys that polls have delivered since, by offset: what a chunk must leave to them."""

    def __init__(self, tracked: Tracked, log: ChangeLog) -> None:
        self._tracked, self._log = tracked, log
        self._keys: dict[int, tuple[set[bytes], int]] = {}
        self.held = functools.cache(functools.partial(renumbered.newest, tracked, log))

    def __call__(self, low: int, last: int) -> Set[bytes]:
        """Return the keys in segments after *low*, up to *last*, that no backfill wrote; *last* only grows."""
        found, until = self._keys.get(low, (set(), low))
        for offset in range(until + 1, last + 1):
            found.update(self._of(offset))
        self._keys[low] = found, max(until, last)
        return found

    def _of(self, offset: int) -> Iterable[bytes]:
        metadata = self._log.metadata(offset)
        if metadata is None or metadata.origin == ORIGIN:
            return ()
        data = self._log.get(offset) if metadata.rows else None
        held = None if data is None else as_today(self._tracked, data)
        found = [] if held is None else deliveries.as_bytes(rows.keys_of(self._tracked, held))
        # What was set aside has been seen as well.
        key = self._tracked.key
        return {*found, *digests(self._tracked, key, list(quarantine.keys(self._log, key, offset - 1, offset)))}


def as_today(tracked: Tracked, data: pa.Table) -> pa.Table | None:
    """Return the keys in *data*, of the log, in the types in which they are delivered now: equal ones are compared by
    their digests, which depend on these. None if they were of another type, and cannot be compared.
    """
    theirs = {c.name: c.arrow for c in tracked.columns}
    if not all(n in data.column_names and widens(data.schema.field(n).type, theirs[n]) for n in tracked.key):
        return None
    return pa.table([pc.cast(data.column(n), theirs[n]) for n in tracked.key], names=list(tracked.key))


def digests(tracked: Tracked, columns: Sequence[str], values: Sequence[Position]) -> frozenset[bytes]:
    """Return the keys among *values*, of *columns*, as they are compared: in the types in which they are delivered."""
    found = delivered(tracked, columns, values)
    return frozenset() if found is None else frozenset(deliveries.as_bytes(rows.keys_of(tracked, found)))


def delivered(tracked: Tracked, columns: Sequence[str], values: Sequence[Position]) -> pa.Table | None:
    """Return the keys among *values*, of *columns*, in the types in which they are delivered; None without keys."""
    if set(columns) != set(tracked.key) or not values:
        return None
    theirs = {c.name: c.arrow for c in tracked.columns}
    types = [(column.arrow, theirs[n]) for n in columns if (column := tracked.table.column(n)) is not None]
    arrays = [codec.array([v[at] for v in values], own).cast(out) for at, (own, out) in enumerate(types)]
    return pa.table(arrays, names=list(columns))
