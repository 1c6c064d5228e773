"""Where each table stands, as `sidecar status` says it: by the state, the log and the requests."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidecar.backfilling import backfills
from sidecar.backfilling.backfills import BackfillStatus
from sidecar.errors import SettingsError, SidecarError, StateDamaged
from sidecar.log import queries
from sidecar.model import CursorKind, Hold, PassMark, Unit, Watermark
from sidecar.polls import quarantine
from sidecar.running.level import noted

if TYPE_CHECKING:
    from sidecar.project import Sidecar
    from sidecar.state import WatermarkStore


@dataclass(frozen=True, slots=True)
class TableStatus:
    """Where one table stands. `greatest` and `polled` are microseconds, or the cursor's own numbers.

    `loading`: rows that were there before are still to come for the first time; nothing is `polled` before they have.
    """

    table: str
    offset: int
    greatest: int | None
    kind: CursorKind
    unit: Unit | None
    polled: int | None
    in_progress: bool
    positions: Mapping[str, int]
    error: str | None
    hold: Hold | None = None
    late: int = 0
    quarantined: int = 0
    backfill: BackfillStatus | None = None
    loading: bool = False
    queries: Mapping[str, int] = field(default_factory=dict)


def tables(sc: Sidecar) -> list[TableStatus]:
    """Return where each table of *sc* stands, by name; also of those that cannot be followed, why."""
    positions, notes, found = sc.store.positions(), sc.store.notes(), []
    level = noted(sc.settings.state.path)
    for name in sorted(sc.store.tables() | set(notes)):
        mark, log = sc.store.watermark(name) or Watermark(""), sc.log(name)
        backfill = _backfill(sc, name)
        loading = _is_loading(mark, backfill)
        first = mark.marks.get("updated") or (mark.progress and mark.progress.closing.get("updated")) or PassMark()
        found.append(
            TableStatus(
                name,
                mark.offset,
                first.greatest[-1][1] if first.greatest else None,
                mark.kind,
                mark.unit,
                None if loading else mark.polled and max(mark.polled, level.get(name, 0)),
                in_progress=mark.progress is not None,
                positions={sink: p.acknowledged for (table, sink), p in positions.items() if table == name},
                error=notes.get(name),
                hold=mark.hold,
                late=mark.late,
                quarantined=quarantine.count(log, mark.offset),
                backfill=backfill,
                loading=loading,
                queries=queries.positions(log),
            )
        )
    return found


def note(store: WatermarkStore, tracked: Collection[str], broken: Mapping[str, SettingsError]) -> None:
    """Have `status` say why the *broken* tables cannot be followed, and no more what was wrong with any that is neither
    that nor *tracked*.
    """
    known = store.notes()
    for name in known.keys() - {*tracked, *broken}:
        store.note(name, None)
    for name, reason in broken.items():
        if known.get(name) != str(reason):
            store.note(name, str(reason))


def note_away(sc: Sidecar, error: SidecarError) -> None:
    """Have `status` say of all tables that have been followed that the source cannot be asked for any: *error*."""
    with contextlib.suppress(SidecarError):  # whoever opens a state that is held or damaged says so
        for name in sc.store.tables():
            sc.store.note(name, str(error))


def stopped(sc: Sidecar, table: str, waits: str) -> str:
    """Return that *table* does not go on before what *waits* for a decision is decided, or that it will not."""
    # A poll minds what a table's columns have become once it meets a row of it.
    is_met = sc.store.notes().get(table) == waits
    return f"{'stopped' if is_met else 'stops once a poll meets a row'}: {waits}"


def _is_loading(mark: Watermark, running: BackfillStatus | None) -> bool:
    """Return whether the backfill under way of a table that stands at *mark* is its first."""
    if mark.job is None:
        return False
    is_automatic = running is not None and running.kind == "automatic"
    return mark.job.closed is not None or (mark.finished is None and is_automatic)


def _backfill(sc: Sidecar, table: str) -> BackfillStatus | None:
    # A request that cannot be read is the table's error; the others are to be seen all the same.
    with contextlib.suppress(StateDamaged):
        return next((b for b in backfills.statuses(sc, table) if b.state == "running"), None)
    return None
