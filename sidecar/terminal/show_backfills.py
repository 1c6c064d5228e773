"""What the command line prints of backfills, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sidecar.clock import iso

if TYPE_CHECKING:
    from rich.table import Table

    from sidecar.backfilling.backfills import BackfillStatus


def as_json(found: Iterable[BackfillStatus]) -> str:
    """Return a JSON array, an object a backfill; times in ISO 8601, the ETA in seconds."""
    return json.dumps([_object(each) for each in found], indent=2, ensure_ascii=False)


def as_table(found: Iterable[BackfillStatus]) -> Table:
    """Return a table for people."""
    from rich.table import Table
    from rich.text import Text

    table = Table("table", "backfill", "of", "state", "rows", "eta", box=None, pad_edge=False)
    for each in found:
        row = (each.table, each.id, each.scope, each.state, progress(each), _eta(each.eta))
        table.add_row(*(Text(text) for text in row))
    return table


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


def _eta(seconds: float | None) -> str:
    return "-" if seconds is None else ago(seconds)


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
