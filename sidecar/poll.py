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
from sidecar.model import METADATA, PASSES, Horizon, Page, PassMark, PassName, Position, Progress, Tracked, Watermark
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
        view = connector.horizon(tracked, mark.memory)
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
    """Raise SchemaChanged if a column is no longer of the type in which the log holds it."""
    held = log.schema()
    if held is None:
        return
    for field in change_schema(tracked):
        index = held.get_field_index(field.name)
        if index >= 0 and held.field(index).type != field.type:
            raise SchemaChanged(
                f'table "{tracked.name}": column "{field.name}" is {field.type} now, the log holds it as '
                f"{held.field(index).type}. Leave it out (columns = …), or begin again under another [state] path."
            )


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
    found, last = rows.from_page(page, data)
    full = len(data) >= page.limit
    if full:
        reader.expect(dataclasses.replace(page, after=last))
    own = rows.above(found, page)
    same = None if mark.doubt is None else renumbered.unchanged(own, held(mark.doubt))
    fresh, remembered = _fresh(own, store, progress, same, any_remembered=mark.kept + mark.added > 0)
    late = int(rows.late(fresh, {name: m.due for name, m in mark.marks.items()}).sum())
    after = advance(tracked, mark, last, full=full, added=len(remembered))
    after = dataclasses.replace(after, late=after.late + late)
    good, aside = quarantine.sorted_out(fresh)
    offset = None
    if len(fresh):
        fits()
        offset = after.offset + 1
        after = dataclasses.replace(after, offset=offset)
        origin = "soft_delete" if scan.name == "deleted" else "poll"
        changes = to_changes(good, offset, progress.horizon.now, origin)
        if tracked.on_bad_value == "quarantine":
            quarantine.set_aside(log, offset, aside, progress.horizon.now)
        log.append(offset, changes, after, remembered, committed=progress.horizon.now, origin=origin)
    if after != mark or remembered:
        store.save(tracked.name, after, remembered)
        faults.point("watermark-saved")
    if after.progress is None:
        after = _clean_up(tracked, store, after)
        faults.point("poll-completed")
    step = Step(tracked.name, len(data), len(good), offset, after.progress is None, late=late)
    return step, after


def _fresh(
    found: Rows, store: WatermarkStore, progress: Progress, same: Flags | None, *, any_remembered: bool
) -> tuple[Rows, dict[bytes, bytes]]:
    """Return the rows not delivered yet, and what to remember of them; an empty value forgets.

    Fingerprints cost microseconds: they are made only of rows that are remembered, or may return. *same* says which
    rows have been delivered as they are by other evidence.
    """
    if not len(found):
        return found, {}
    new = np.ones(len(found), dtype=bool) if same is None else ~same
    closing = {name: mark.closed for name, mark in progress.closing.items()}
    stays = rows.may_return(found, closing, progress.horizon.floor)
    keys = found.keys() if any_remembered else []
    known = store.recall(found.tracked.name, keys) if any_remembered else [None] * len(found)
    asked = stays | np.fromiter((k is not None for k in known), bool, len(found)) if any_remembered else stays
    if not asked.any():
        return found.take(new), {}
    some = found.take(asked)
    remembered: dict[bytes, bytes] = {}
    for index, key, token in zip(np.flatnonzero(asked).tolist(), some.keys(), rows.tokens(some), strict=True):
        before = known[index]
        if before == token:
            new[index] = False
        elif stays[index]:
            remembered[key] = token
        elif before is not None:
            # What was delivered before must not be mistaken, later, for what is delivered now.
            remembered[key] = b""
    return found.take(new), remembered


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
    return pa.schema([*metadata, *(pa.field(c.name, c.arrow) for c in tracked.columns)])


def _clean_up(tracked: Tracked, store: WatermarkStore, mark: Watermark) -> Watermark:
    """Forget what cannot return, once as much has been added as was kept: constant work per delivered row."""
    if mark.added <= max(1_000, mark.kept):
        return mark
    kept = store.prune(tracked.name, rows.expired(mark.closed(), mark.since))
    mark = dataclasses.replace(mark, kept=kept, added=0)
    store.save(tracked.name, mark, {})
    return mark
