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

from sidecar import faults, horizon
from sidecar.changelog import ChangeLog
from sidecar.connector import SourceConnector
from sidecar.cursor import NONE, ceiling
from sidecar.errors import SettingsError
from sidecar.model import (
    ALL,
    PASSES,
    Horizon,
    Page,
    PassMark,
    PassName,
    Position,
    Progress,
    Tracked,
    Watermark,
)
from sidecar.polls import ahead, behind, deliveries, news, quarantine, recreated, renumbered, rows, set_back, units
from sidecar.polls.ahead import Reader
from sidecar.polls.changes import change_schema, check_schema, existing, to_changes
from sidecar.polls.deliveries import NOTHING
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")


@dataclass(frozen=True, slots=True)
class Step:
    """One page done: rows read, rows new, the segment that holds them (None: nothing new), and whether all is read.

    `expected` is about how many rows a first poll will read, where the source knows. `late` of the new rows had been
    due before: others like them may have been missed. Of a backfill's chunk, `job` is whose, and `before` the rows that
    had been read before it.
    """

    table: str
    rows_read: int
    rows_written: int
    offset: int | None
    done: bool
    expected: int | None = None
    late: int = 0
    job: str | None = None
    before: int = 0


def poll(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore
) -> Generator[Step, None, None]:
    """Bring *tracked*'s log up to the source, page by page; each step yielded is durable.

    Closing the iterator between two steps interrupts the poll; the next one goes on from there, and then polls anew.
    """
    known = store.watermark(tracked.name)
    mark = known or fresh_watermark(tracked)
    check_settings(tracked, mark)
    known_width = mark.width if mark.progress is None else None
    with connector.snapshot(), Reader(connector, known_width) as reader:
        fits = functools.cache(lambda: check_schema(tracked, log))
        expected = connector.estimate(tracked) if mark.polled is None else None
        mark = with_added(connector, tracked, log, store, mark)
        mark, view = looked(connector, tracked, log, store, mark)
        if known is None and not tracked.auto_backfill:
            mark = _begin_from_now(connector, tracked, log, store, view)
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
            resumed, (mark, view) = False, looked(connector, tracked, log, store, mark)


def settings(tracked: Tracked) -> str:
    """Return what a watermark depends on: under other keys or cursors it would mean something else."""
    kind = horizon.kind_of(tracked, tracked.passes[0])
    units = ", ".join(v for v in (kind, tracked.unit, tracked.timezone) if v)
    return f"{','.join(tracked.key)} by {tracked.updated_at} ({units}), {tracked.created_at}, {tracked.deleted_at}"


def fresh_watermark(tracked: Tracked) -> Watermark:
    """Return the watermark of a table that has never been polled."""
    kind = horizon.kind_of(tracked, tracked.passes[0])
    # All rows are still to come, so they come under the version of today.
    born = recreated.born(tracked)
    return Watermark(settings(tracked), kind=kind, unit=tracked.unit, version=tracked.backfill_version, born=born)


def check_settings(tracked: Tracked, mark: Watermark) -> None:
    """Raise SettingsError if *mark* was made under another key or other cursor columns."""
    if mark.settings != settings(tracked):
        raise SettingsError(
            f'table "{tracked.name}": its position was made under the key and cursors ({mark.settings}), the settings '
            f"now say ({settings(tracked)}). Put them back, or begin again: sidecar watermark reset {tracked.name}"
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
        units.refuse_another(connector, page, before, mark.polled, view.now)
        limit = ceiling(view.now, tracked, horizon.kind_of(tracked, scan))
        greatest = None if scan.cursor is None else connector.greatest(page, limit)
        closing[scan.name] = horizon.close(before, greatest, view, tracked, scan)
    return Progress(view, closing, tracked.passes[0].name)


def positioned(connector: SourceConnector, tracked: Tracked, mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* as if a poll had just been completed at *view*, without having read a row.

    What the next poll finds above it, with the rows that it does not read, is the whole table: the rows at or below
    what is closed, and those with an older version.
    """
    closing = begin(connector, tracked, mark, view).closing
    # Nothing has been due to a poll yet.
    marks = {name: dataclasses.replace(found, due=None) for name, found in closing.items()}
    mark = dataclasses.replace(mark, marks=marks, since=view.floor, memory=view.memory, era=view.era)
    return behind.reaching(mark, view)


def rest(connector: SourceConnector, tracked: Tracked, store: WatermarkStore, pulse: object) -> None:
    """Close what has stood for long enough, where nothing has changed since *tracked*'s last complete poll began.

    *pulse* is the source's from before that poll. Another poll would meet nothing but what that one delivered: so it is
    complete without reading it. And the poll that finds the next change need not read all this again.
    """
    mark = store.watermark(tracked.name)
    if mark is None or mark.polled is None or mark.progress is not None or mark.settings != settings(tracked):
        return
    with connector.snapshot():
        view = connector.horizon(tracked, mark.memory)
        if renumbered.is_renumbered(mark, view) or behind.is_behind(mark.reached, view):
            return
        after = behind.reaching(_completed(mark, begin(connector, tracked, mark, view)), view)
    # Asked last: what is written meanwhile may have been seen by some of these questions.
    if after.closed() != mark.closed() and connector.pulse() == pulse:
        store.save(tracked.name, after, NOTHING, lazy=True)


def with_added(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark
) -> Watermark:
    """Return *mark*; where columns are new, or are others by the same name, one under which all rows come again."""
    if not recreated.wants_all(tracked, log, mark.born):
        return dataclasses.replace(mark, born=recreated.remembered(mark.born, tracked))
    behind.refuse(connector, tracked.name, mark.reached, connector.horizon(tracked, mark.memory))
    mark = dataclasses.replace(
        fresh_watermark(tracked),
        offset=mark.offset + 1,
        late=mark.late,
        # A backfill under way is over by that; one that has more to do at its end begins anew.
        finished=mark.finished if mark.job is None or mark.job.settles else mark.job.id,
        version=mark.version if mark.job is None else mark.job.version,
    )
    empty = change_schema(tracked).empty_table()
    log.append(mark.offset, empty, mark, NOTHING, committed=connector.source.clock.now(), origin="poll", moved=True)
    store.save(tracked.name, mark, NOTHING, forget_all=True)
    quarantine.clear(log, tracked.key, ALL, mark.offset)
    return mark


def _begin_from_now(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore, view: Horizon
) -> Watermark:
    """Return the watermark of a table of which only what changes from now on is wanted, made durable as a segment.

    Its rows that a later poll may meet again are looked at once, in silence, to be told from changes.
    """
    mark = positioned(connector, tracked, fresh_watermark(tracked), view)
    mark = dataclasses.replace(mark, offset=log.last() + 1, since=None, version=tracked.backfill_version)
    mark = dataclasses.replace(mark, progress=dataclasses.replace(begin(connector, tracked, mark, view), silent=True))
    empty = change_schema(tracked).empty_table()
    log.append(mark.offset, empty, mark, NOTHING, committed=view.now, origin="poll")
    store.save(tracked.name, mark, NOTHING)
    return mark


def looked(
    connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark
) -> tuple[Watermark, Horizon]:
    """Return *mark* as it stands under the numbering of today's view, and that."""
    # What an interrupted poll has seen is newer than what the one before it has.
    view = connector.horizon(tracked, mark.memory if mark.progress is None else mark.progress.horizon.memory)
    behind.refuse(connector, tracked.name, mark.reached, view)
    mark = behind.reaching(mark, view)
    anew, back = renumbered.is_renumbered(mark, view), set_back.is_set_back(tracked, mark, view)
    if anew or back:
        check_schema(tracked, log)
        told = renumbered.said(tracked, view) if anew else set_back.said(mark, view)
        log_.warning('table "%s": %s', tracked.name, told)
        # A server that takes over has a clock of its own.
        mark = set_back.reopened(tracked, mark, view) if back else mark
        mark = _begin_anew(tracked, log, store, mark, view)
    return mark, view


def _begin_anew(tracked: Tracked, log: ChangeLog, store: WatermarkStore, mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* without the versions of a source that numbers them anew, made durable as an empty segment."""
    mark = renumbered.forgotten(mark, view)
    empty = change_schema(tracked).empty_table()
    log.append(mark.offset, empty, mark, NOTHING, committed=view.now, origin="poll", moved=True)
    store.save(tracked.name, mark, NOTHING, forget_all=True)
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
    page = _asked(reader, tracked, mark)
    if page is None:
        # The table's columns have changed under an interrupted poll, and this pass is none any more.
        return _nothing(reader, tracked, store, mark)
    data = reader.read(page)
    faults.point("page-read")
    if not progress.shape:
        # The columns at the poll's beginning: should they change before its end, some fingerprints are of these.
        progress = dataclasses.replace(progress, shape=rows.shape(data))
        mark = dataclasses.replace(mark, progress=progress)
    if not len(data):
        return _nothing(reader, tracked, store, mark)
    found, last = rows.from_page(page, data)
    rows.refuse_placeholders(found)
    full = len(data) >= page.limit
    if full:
        reader.expect(dataclasses.replace(page, after=last, limit=reader.limit(tracked.page_size)))
    own = rows.above(found, page)
    same = None if mark.doubt is None else renumbered.unchanged(own, held(mark.doubt))
    fresh, remembered, late = news.fresh(own, store, mark, same)
    if progress.silent:
        fresh, late = fresh.take(news.came_since(fresh, progress)), 0
    good, aside = quarantine.sorted_out(fresh)
    aside = quarantine.still_out(log, aside, mark)
    after = advance(tracked, mark, last, full=full)
    after = dataclasses.replace(after if full else _beyond_empty(reader, tracked, after), late=after.late + late)
    offset = None
    # What is known under another number, or by other columns, is known so from this page alone: the log holds it, rows
    # or not. Later segments speak of the new numbers and columns, and it must not be told by what was before.
    if len(fresh) or deliveries.count(remembered):
        fits()
        number = after.offset + 1
        # Of the segment: whatever its rows are said to be, a backfill's chunks give way to them.
        origin = "soft_delete" if page.scan.name == "deleted" else "poll"
        after = dataclasses.replace(after, offset=number, width=ahead.width(data))
        if mark.polled is None and mark.job is not None and mark.job.closed is not None:
            # They were there when the table was first looked at, as what its backfill reads.
            found_by, types = "backfill", existing(good)
        else:
            found_by, types = origin, good.change_types()
        changes = to_changes(good, number, progress.horizon.now, found_by, types)
        if tracked.on_bad_value == "quarantine":
            quarantine.set_aside(log, number, aside, progress.horizon.now)
        log.append(number, changes, after, remembered, committed=progress.horizon.now, origin=origin)
        offset = number if len(good) else None
    if after != mark or deliveries.count(remembered):
        # The log has it, or the next poll finds it out again.
        store.save(tracked.name, after, remembered, lazy=True)
        faults.point("watermark-saved")
    if after.progress is None:
        faults.point("poll-completed")
    step = Step(tracked.name, len(data), len(good), offset, after.progress is None, late=late)
    return step, after


def _asked(reader: Reader, tracked: Tracked, mark: Watermark) -> Page | None:
    """Return the page that *mark* stands before; None at the poll's end, and where its pass is none any more."""
    progress = mark.progress
    scan = next((p for p in tracked.passes if progress is not None and p.name == progress.scan), None)
    if progress is None or scan is None:
        return None
    return Page(tracked, scan, mark.closed(), progress.after, reader.limit(tracked.page_size), mark.since)


def _beyond_empty(reader: Reader, tracked: Tracked, mark: Watermark) -> Watermark:
    """Return *mark*, which stands at a pass that has just begun, beyond those without rows: one write does for all."""
    while (page := _asked(reader, tracked, mark)) is not None and reader.is_empty(page):
        faults.point("page-read")
        mark = advance(tracked, mark, None, full=False)
    return mark


def _nothing(reader: Reader, tracked: Tracked, store: WatermarkStore, mark: Watermark) -> tuple[Step, Watermark]:
    """Go on from a pass that has no rows, or no more of them."""
    after = _beyond_empty(reader, tracked, advance(tracked, mark, None, full=False))
    store.save(tracked.name, after, NOTHING, lazy=True)
    faults.point("watermark-saved")
    if after.progress is None:
        faults.point("poll-completed")
    return Step(tracked.name, 0, 0, None, after.progress is None), after


def advance(tracked: Tracked, mark: Watermark, last: Position | None, *, full: bool) -> Watermark:
    """Return the watermark after a page that ended at *last*: the next page, the next pass, or the poll's end."""
    progress = mark.progress
    assert progress is not None
    if full:
        return dataclasses.replace(mark, progress=dataclasses.replace(progress, after=last))
    following = [p.name for p in tracked.passes if PASSES.index(p.name) > PASSES.index(progress.scan)]
    if following:
        ahead = dataclasses.replace(progress, scan=following[0], after=None)
        return dataclasses.replace(mark, progress=ahead)
    return _completed(mark, progress)


def _completed(mark: Watermark, progress: Progress) -> Watermark:
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
        # One that has read nothing has met no other columns.
        shape=progress.shape or mark.shape,
    )
