"""Tables and columns that were dropped and made again under the same name and type between two polls.

What the log says of them is said of something that is no more. A connector may know them apart (`Column.born`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sidecar.changelog import ChangeLog
from sidecar.errors import SchemaChanged
from sidecar.model import Tracked
from sidecar.polls.changes import change_schema, check_schema

log_ = logging.getLogger("sidecar")


def born(tracked: Tracked) -> dict[str, str]:
    """Return what the connector says of the columns that are delivered or polled by, to be remembered."""
    names = {c.name for c in tracked.columns} | {*tracked.key, *tracked.cursors}
    return {c.name: c.born for c in tracked.table.columns if c.born and c.name in names}


def remembered(known: Mapping[str, str], tracked: Tracked) -> dict[str, str]:
    """Return what is to be remembered after *known*: of a column that is not there now, too, or one that is added in
    its name later would be taken for it.
    """
    now = born(tracked)
    tables = {each.rpartition("/")[0] for each in now.values()}
    return {**{name: each for name, each in known.items() if each.rpartition("/")[0] in tables}, **now}


def changes(known: Mapping[str, str], tracked: Tracked) -> Sequence[str]:
    """Return, in words, what has been made again since *known* was `born`; nothing is said of another database's."""
    found = [name for name, now in born(tracked).items() if _is_another(known.get(name, now), now)]
    if not found:
        return ()
    if any(_table(known[name]) != _table(born(tracked)[name]) for name in found):
        return ("the table was dropped and created again, or another one has taken its name",)
    return [f'column "{name}" was dropped and added again' for name in found]


def wants_all(tracked: Tracked, log: ChangeLog, known: Mapping[str, str]) -> bool:
    """Return whether all rows are to come again: they had come with what was made again since, or, where
    `backfill_added` asks for it, without a column that is new. SchemaChanged where somebody has to decide.
    """
    found = changes(known, tracked)
    is_added = tracked.backfill_added and any(c.kind == "added" for c in log.changes(change_schema(tracked)))
    if found or is_added:
        check_schema(tracked, log)
    if found:
        _tell(tracked, found)
    return bool(found) or is_added


def _tell(tracked: Tracked, found: Sequence[str]) -> None:
    """Say what has been made again, and what comes of it; SchemaChanged where the settings ask to stop at that."""
    told = ", ".join(found)
    if tracked.schema_change == "fail":
        raise SchemaChanged(
            f'table "{tracked.name}": {told}; schema_change = "fail" asks to stop at that. To go on, with all its rows '
            f"once more: sidecar schema {tracked.name} --accept"
        )
    log_.warning(
        "table=%s schema_changed: %s: all rows are delivered again, once. Rows that were there before and are not now "
        "stay in the log until: sidecar backfill %s --purge",
        tracked.name, told, tracked.name,
    )  # fmt: skip


def _is_another(before: str, now: str) -> bool:
    return before != now and before.split("/", maxsplit=1)[0] == now.split("/", maxsplit=1)[0]


def _table(each: str) -> str:
    return each.split("/")[1]
