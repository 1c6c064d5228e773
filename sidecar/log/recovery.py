"""From the log back to the state: after a crash between a rename and a save, and after RocksDB is gone.

Each segment's footer carries the watermark after it and what had to be remembered of its rows, so the state is a fold
over the log. What polls without changes had learned since is lost with RocksDB and learned again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping

from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.model import PassMark, PassName, Watermark
from sidecar.polls import quarantine
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")


def recover(log: ChangeLog, store: WatermarkStore) -> int:
    """Bring *store* up to *log*, and clear away half-written files; return how many segments were applied.

    StateDamaged if the log ends before the state does: segments have been taken away.
    """
    log.sweep_up()
    mark = store.watermark(log.table)
    known, last = (mark.offset if mark else 0), log.last()
    if last < known:
        raise StateDamaged(
            f"{log.at}: ends at offset {last}, but {known} had been written: segments are missing. Put them back; "
            f"or give these changes up and read the whole table again: sidecar watermark reset {log.table}"
        )
    quarantine.sweep_up(log, last)
    return _roll_forward(log, store, mark, last)


def settle(log: ChangeLog, store: WatermarkStore) -> None:
    """Bring *store* up to *log* after a write that a store gave no answer to: it may have reached it, or not."""
    if log.in_doubt:
        mark = store.watermark(log.table)
        _roll_forward(log, store, mark, log.last())
        log.in_doubt = False


def _roll_forward(log: ChangeLog, store: WatermarkStore, mark: Watermark | None, last: int) -> int:
    known = mark.offset if mark else 0
    applied = 0
    if last > known:
        for watermark, remembered, moved in log.replay(known):
            mark = None if moved else mark
            store.save(log.table, _not_below(watermark, mark), remembered, forget_all=moved, lazy=True)
            applied += 1
        log_.info("table=%s rolled_forward=%d from=%d to=%d", log.table, applied, known, last)
    return applied


def _not_below(watermark: Watermark, known: Watermark | None) -> Watermark:
    """Return *watermark* closed no less than *known* is: what lay below that has been forgotten, and stays closed.

    It matters where an older database comes back to a log that has been rebuilt from in the meantime.
    """
    if known is None:
        return watermark
    progress = watermark.progress
    if progress is not None:
        progress = dataclasses.replace(progress, closing=_raised(progress.closing, known.marks))
    since = watermark.since if known.since is None or watermark.since is None else max(watermark.since, known.since)
    marks = _raised(watermark.marks, known.marks)
    return dataclasses.replace(watermark, marks=marks, since=since, progress=progress)


def _raised(marks: Mapping[PassName, PassMark], known: Mapping[PassName, PassMark]) -> dict[PassName, PassMark]:
    raised = {}
    for name, mark in marks.items():
        closed = [m.closed for m in (mark, known.get(name, mark)) if m.closed is not None]
        raised[name] = dataclasses.replace(mark, closed=max(closed, default=None))
    return raised
