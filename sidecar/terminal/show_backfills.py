"""What the command line prints of backfills, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sidecar.clock import SECOND, iso
from sidecar.terminal.tables import Table

if TYPE_CHECKING:
    from sidecar.backfilling.backfills import BackfillStatus


def as_json(found: Iterable[BackfillStatus]) -> str:
    """Return a JSON array, an object a backfill; times in ISO 8601, the ETA in seconds."""
    return json.dumps([_object(each) for each in found], indent=2, ensure_ascii=False)


def as_table(found: Iterable[BackfillStatus]) -> Table:
    """Return a table for people."""
    names = ("table", "of", "state", "rows", "eta", "asked", "began", "ended", "backfill")
    return Table(names, [(e.table, e.scope, e.state, progress(e), *_times(e), e.id) for e in found])


def _times(each: BackfillStatus) -> tuple[str, ...]:
    eta = "-" if each.eta is None else ago(each.eta)
    return eta, *("-" if at is None else iso(at // SECOND * SECOND) for at in (each.asked, each.began, each.ended))


def progress(each: BackfillStatus) -> str:
    """Return how far *each* has come, in rows and, where it is known of how many, in percent."""
    if each.state == "waiting":
        return "-"
    if each.state != "running" or not each.expected:
        return f"{each.read:,}"
    return f"{each.read:,} of about {each.expected:,} ({min(99, 100 * each.read // each.expected)} %)"


def ago(seconds: float) -> str:
    """Return a length of time, roughly."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def _object(each: BackfillStatus) -> dict[str, Any]:
    times = {"asked": each.asked, "began": each.began, "ended": each.ended}
    return {
        "table": each.table,
        "id": each.id,
        "kind": each.kind,
        "scope": each.scope,
        "state": each.state,
        **{name: None if at is None else iso(at) for name, at in times.items()},
        "rows_read": each.read,
        "rows_written": each.written,
        "rows_expected": each.expected,
        "eta_s": None if each.eta is None else round(each.eta, 1),
    }
