"""The poll: watermark → pages → segments → watermark. One page is read, written and made durable at a time.

A poll ends as if all of it had been seen when it began: the values it closes and the versions it may forget are those
of its first view, however long it runs, whatever views its later pages see, and whether or not it was killed and
resumed in between. So an interrupted poll needs no undo, only its last position.

Order of commits: the segment's rename, then the watermark. A crash between them is rolled forward from the segment's
footer (`recovery.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sidecar import faults, horizon, quarantine, renumbered, rows
from sidecar.ahead import Reader
from sidecar.changelog import ChangeLog
from sidecar.connector import SourceConnector
from sidecar.cursor import NONE, Flags, ceiling
from sidecar.errors import SchemaChanged, SettingsError
from sidecar.model import (
    METADATA,
    PASSES,
    VARIANT,
    Horizon,
    Page,
    PassMark,
    PassName,
    Position,
    Progress,
    Tracked,
    Watermark,
)
from sidecar.rows import Rows
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")


@dataclass(frozen=True, slots=True)
class Step:
    """One page done: rows read, rows new, the segment that holds them (None: nothing new), and whether all is read.

    `expected` is about how many rows a first poll will read, where the source knows. `late` of the new rows had been
    due before: others like them may have been missed.
    """

    table: str
    rows_read: int
    rows_written: int
    offset: int | None
    done: bool
    expected: int | None = None
    late: int = 0


def poll(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore
) -> Generator[Step, None, None]:
    """Bring *tracked*'s log up to the source, page by page; each step yielded is durable.

    Closing the iterator between two steps interrupts the poll; the next one goes on from there, and then polls anew.
    """
    mark = store.watermark(tracked.name) or fresh_watermark(tracked)
    check_settings(tracked, mark)
    with connector.snapshot(), Reader(connector) as reader:
        fits = functools.cache(lambda: check_schema(tracked, log))
        expected = connector.estimate(tracked) if mark.polled is None else None
        if tracked.backfill_added and _has_more_columns(tracked, log):
            mark = _read_again(connector, tracked, log, store, mark)
        # What an interrupted poll has seen is newer than what the one before it has.
        view = connector.horizon(tracked, mark.memory if mark.progress is None else mark.progress.horizon.memory)
        if renumbered.is_renumbered(mark, view):
            fits()
            mark = _begin_anew(tracked, log, store, mark, view)
        held = functools.cache(lambda until: renumbered.newest(tracked, log, until))
        resumed = mark.progress is not None
        while True:
            if mark.progress is None:
                mark = dataclasses.replace(mark, progress=begin(connector, tracked, mark, view))
            while mark.progress is not None:
                step, mark = _page(reader, tracked, log, store, mark, fits=fits, held=held)
                yield dataclasses.replace(step, done=step.done and not resumed, expected=expected)
            if not resumed:
                return
            # What had been interrupted is complete as of its own beginning; now for what has happened since.
            resumed, view = False, connector.horizon(tracked, mark.memory)


def settings(tracked: Tracked) -> str:
    """Return what a watermark depends on: under other keys or cursors it would mean something else."""
    kind = horizon.kind_of(tracked, tracked.passes[0])
    units = ", ".join(v for v in (kind, tracked.unit, tracked.timezone) if v)
    return f"{','.join(tracked.key)} by {tracked.updated_at} ({units}), {tracked.created_at}, {tracked.deleted_at}"


def fresh_watermark(tracked: Tracked) -> Watermark:
    """Return the watermark of a table that has never been polled."""
    return Watermark(settings(tracked), kind=horizon.kind_of(tracked, tracked.passes[0]), unit=tracked.unit)


def check_settings(tracked: Tracked, mark: Watermark) -> None:
    """Raise SettingsError if *mark* was made under another key or other cursor columns."""
    if mark.settings != settings(tracked):
        raise SettingsError(
            f'table "{tracked.name}": its position was made under the key and cursors ({mark.settings}), the settings '
            f"now say ({settings(tracked)}). Put them back, or begin again: sidecar watermark reset {tracked.name}"
        )


def check_schema(tracked: Tracked, log: ChangeLog) -> None:
    """Say what has become of the table's columns since the log's newest segment.

    SchemaChanged if a column's type has changed otherwise than by growing, or, with `schema_change = "fail"`, at all.
    """
    found = log.changes(change_schema(tracked))
    if not found:
        return
    told = ", ".join(map(str, found))
    if any(change.kind == "changed" for change in found):
        raise SchemaChanged(
            f'table "{tracked.name}": {told}. Older changes cannot be read as that. To go on with the new columns, '
            f"read apart from the old ones: sidecar schema {tracked.name} --accept. To have the whole table in the new "
            f"ones as well: sidecar watermark reset {tracked.name}. Or leave the column out (columns = …)"
        )
    if tracked.schema_change == "fail":
        raise SchemaChanged(
            f'table "{tracked.name}": {told}; schema_change = "fail" asks to stop at that. To go on with the new '
            f"columns: sidecar schema {tracked.name} --accept"
        )
    renamed = {change.kind for change in found} >= {"added", "dropped"}
    hint = " (a renamed column looks like one that is gone and one that is new)" if renamed else ""
    log_.warning("table=%s schema_changed: %s%s", tracked.name, told, hint)


def begin(connector: SourceConnector, tracked: Tracked, mark: Watermark, view: Horizon) -> Progress:
    """Return the poll that starts at *view*: what it will close is settled before its first row is read."""
    closing: dict[PassName, PassMark] = {}
    view = horizon.given_up(view, tracked)
    for scan in tracked.passes:
        before = mark.marks.get(scan.name, PassMark())
        # The greatest of all its rows, those included that an earlier pass of this poll reads in its stead: so that the
        # next poll need not look at them again.
        closed = {"updated": NONE, **{k: v for k, v in mark.closed().items() if v is not None}}
        page = Page(tracked, scan, closed, None, tracked.page_size)
        limit = ceiling(view.now, tracked, horizon.kind_of(tracked, scan))
        greatest = None if scan.cursor is None else connector.greatest(page, limit)
        closing[scan.name] = horizon.close(before, greatest, view, tracked, scan)
    first = mark.polled is None and all(closed is None for closed in mark.closed().values())
    passes = tracked.first if first and connector.loads_by_key else tracked.passes
    return Progress(view, closing, passes[0].name)


def _has_more_columns(tracked: Tracked, log: ChangeLog) -> bool:
    return any(change.kind == "added" for change in log.changes(change_schema(tracked)))


def _read_again(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark
) -> Watermark:
    """Return a watermark under which all rows are read, and delivered, again: for what stands in their new columns."""
    check_schema(tracked, log)
    mark = dataclasses.replace(fresh_watermark(tracked), offset=mark.offset + 1, late=mark.late)
    empty = change_schema(tracked).empty_table()
    log.append(mark.offset, empty, mark, {}, committed=connector.source.clock.now(), origin="poll", moved=True)
    store.save(tracked.name, mark, {}, forget_all=True)
    return mark


def _begin_anew(tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* without the versions of a source that numbers them anew, made durable as an empty segment."""
    log_.warning(
        'table "%s": the server was restored or failed over. What it may have written about that time is read again '
        "and compared with the log. Rows that it has lost stay in the log; to begin afresh: sidecar watermark reset %s",
        tracked.name, tracked.name,
    )  # fmt: skip
    mark = renumbered.forgotten(mark, view)
    empty = change_schema(tracked).empty_table()
    log.append(mark.offset, empty, mark, {}, committed=view.now, origin="poll", moved=True)
    store.save(tracked.name, mark, {}, forget_all=True)
    return mark


def _page(
    reader: Reader,
    tracked: Tracked,
    log: ChangeLog,
    store: WatermarkStore,
    mark: Watermark,
    *,
    fits: Callable[[], None],
    held: Callable[[int], Mapping[bytes, bytes]],
) -> tuple[Step, Watermark]:
    progress = mark.progress
    assert progress is not None
    scan = next((p for p in (*tracked.first, *tracked.passes) if p.name == progress.scan), None)
    if scan is None:
        # The table's columns have changed under an interrupted poll, and this pass is none any more.
        after = advance(tracked, mark, None, full=False, added=0)
        store.save(tracked.name, after, {})
        return Step(tracked.name, 0, 0, None, after.progress is None), after
    page = Page(tracked, scan, mark.closed(), progress.after, tracked.page_size, mark.since)
    data = reader.read(page)
    faults.point("page-read")
    if not progress.shape:
        # The columns at the poll's beginning: should they change before its end, some fingerprints are of these.
        progress = dataclasses.replace(progress, shape=rows.shape(data))
        mark = dataclasses.replace(mark, progress=progress)
    found, last = rows.from_page(page, data)
    full = len(data) >= page.limit
    if full:
        reader.expect(dataclasses.replace(page, after=last))
    own = rows.above(found, page)
    same = None if mark.doubt is None else renumbered.unchanged(own, held(mark.doubt))
    found_new = _fresh(own, store, mark, same)
    fresh, remembered, late = found_new.rows, found_new.remembered, found_new.late
    after = advance(tracked, mark, last, full=full, added=found_new.met)
    after = dataclasses.replace(after, late=after.late + late)
    if after.progress is None:
        after = dataclasses.replace(after, shape=progress.shape)
    good, aside = quarantine.sorted_out(fresh)
    offset = None
    # What is told by content is known under its new number from this page alone, so the log holds it, rows or not.
    if len(fresh) or (same is not None and remembered):
        fits()
        number = after.offset + 1
        after = dataclasses.replace(after, offset=number)
        origin = "soft_delete" if scan.name == "deleted" else "poll"
        changes = to_changes(good, number, progress.horizon.now, origin)
        if tracked.on_bad_value == "quarantine":
            quarantine.set_aside(log, number, aside, progress.horizon.now)
        log.append(number, changes, after, remembered, committed=progress.horizon.now, origin=origin)
        offset = number if len(good) else None
    if after != mark or remembered:
        store.save(tracked.name, after, remembered)
        faults.point("watermark-saved")
    if after.progress is None:
        after = _clean_up(tracked, store, mark, after)
        faults.point("poll-completed")
    step = Step(tracked.name, len(data), len(good), offset, after.progress is None, late=late)
    return step, after


@dataclass(frozen=True, slots=True)
class _Fresh:
    """What is new of a page: its rows, and what to remember of it; an empty value forgets.

    `met` counts the rows of which something was remembered, or is from now on; `late`, the new ones that came too late.
    """

    rows: Rows
    remembered: dict[bytes, bytes]
    met: int
    late: int


def _fresh(found: Rows, store: WatermarkStore, mark: Watermark, same: Flags | None) -> _Fresh:
    """Return what is new of *found*.

    Fingerprints cost microseconds: they are made only of rows that are remembered, or may return. *same* says which
    rows have been delivered as they are by other evidence.
    """
    progress = mark.progress
    assert progress is not None
    if not len(found):
        return _Fresh(found, {}, 0, 0)
    new = np.ones(len(found), dtype=bool) if same is None else ~same
    closing = {name: mark.closed for name, mark in progress.closing.items()}
    stays = rows.may_return(found, closing, progress.horizon.floor)
    any_remembered = mark.kept + mark.added > 0
    known = store.recall(found.tracked.name, found.keys()) if any_remembered else [None] * len(found)
    is_known = np.zeros(len(found), dtype=bool)
    if any_remembered:
        is_known = np.fromiter((k is not None for k in known), bool, len(found))
    asked = stays | is_known
    remembered: dict[bytes, bytes] = {}
    if asked.any():
        some = found.take(asked)
        tokens = rows.tokens(some)
        # Before a column was added, the same row had another fingerprint: NULL there, it is no other row for that.
        now, older = rows.shape(some.data), tokens
        if mark.shape not in ((), now) and set(mark.shape) <= set(now):
            bare = rows.are_null(some, set(now) - set(mark.shape))
            older = [o if b else t for o, t, b in zip(rows.tokens(some, mark.shape), tokens, bare, strict=True)]
        for index, key, token, old in zip(np.flatnonzero(asked).tolist(), some.keys(), tokens, older, strict=True):
            before = known[index]
            if before in (token, old):
                new[index] = False
            if before != token and stays[index]:
                remembered[key] = token
            elif before not in (None, token):
                # What was delivered before must not be mistaken, later, for what is delivered now.
                remembered[key] = b""
    # A row that is known has come in time: what is new of it is not when.
    late = rows.late(found, {name: m.due for name, m in mark.marks.items()}) & new & ~is_known
    return _Fresh(found.take(new), remembered, int(asked.sum()), int(late.sum()))


def advance(tracked: Tracked, mark: Watermark, last: Position | None, *, full: bool, added: int) -> Watermark:
    """Return the watermark after a page that ended at *last*: the next page, the next pass, or the poll's end."""
    progress = mark.progress
    assert progress is not None
    mark = dataclasses.replace(mark, added=mark.added + added)
    if full:
        return dataclasses.replace(mark, progress=dataclasses.replace(progress, after=last))
    following = [p.name for p in tracked.passes if PASSES.index(p.name) > PASSES.index(progress.scan)]
    if following:
        ahead = dataclasses.replace(progress, scan=following[0], after=None)
        return dataclasses.replace(mark, progress=ahead)
    view = progress.horizon
    return dataclasses.replace(
        mark,
        marks=progress.closing,
        since=view.floor,
        memory=view.memory,
        polled=view.now,
        progress=None,
        era=view.era,
        doubt=None,
        hold=view.hold,
    )


def to_changes(found: Rows, offset: int, committed: int, origin: str) -> pa.Table:
    """Return *found* as the log holds it: the metadata columns, then the source's."""
    count, data = len(found), found.delivered()
    columns = [
        found.change_types(),
        pa.repeat(pa.scalar(offset, pa.int64()), count),
        pa.repeat(pa.scalar(committed, pa.timestamp("us", "UTC")), count),
        pa.repeat(pa.scalar(origin), count),
    ]
    return pa.table([*columns, *data.columns], schema=change_schema(found.tracked))


def change_schema(tracked: Tracked) -> pa.Schema:
    """Return the columns of *tracked*'s log: the same whether or not there is a row."""
    types = (pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.string())
    prefix = tracked.metadata_prefix
    metadata = [pa.field(prefix + name, type_, nullable=False) for name, type_ in zip(METADATA, types, strict=True)]
    delivered = (pa.field(c.name, c.arrow, metadata=VARIANT if c.variant else None) for c in tracked.columns)
    return pa.schema([*metadata, *delivered])


def _clean_up(tracked: Tracked, store: WatermarkStore, before: Watermark, mark: Watermark) -> Watermark:
    """Forget what cannot return, once as many rows have been remembered or met again as were kept: constant work a row.

    Those met again count, for what a poll closes it has met: many rows that are closed at once, by a poll that finds
    nothing new, would stay for ever.
    """
    moved = (mark.closed(), mark.since) != (before.closed(), before.since)
    if not moved or mark.added <= 1_000 or mark.added < mark.kept:
        return mark
    kept = store.prune(tracked.name, rows.expired(mark.closed(), mark.since))
    mark = dataclasses.replace(mark, kept=kept, added=0)
    store.save(tracked.name, mark, {})
    return mark
