"""Rows as the log holds them: which columns those are, and whether they still fit what the log has held."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.changelog import ChangeLog
from sidecar.errors import SchemaChanged, SettingsError
from sidecar.model import DELETE, INSERT, KEY, METADATA, VARIANT, Tracked
from sidecar.polls.evolution import Change
from sidecar.polls.rows import Rows
from sidecar.settings.words import sink_of_its_own

log_ = logging.getLogger("sidecar")


def existing(found: Rows) -> pa.Array:
    """Return the change types of rows that a backfill finds: each is there, or is flagged as deleted."""
    return pc.if_else(pa.array(found.gone.tolist(), pa.bool_()), DELETE, INSERT)


def to_changes(found: Rows, offset: int, committed: int, origin: str, types: pa.Array) -> pa.Table:
    """Return *found* as the log holds it: the metadata columns, then the source's.

    SettingsError if a connector's answer is of other types than it has described, and does not fit them.
    """
    count, data = len(found), _as_described(found)
    columns = [
        types,
        pa.repeat(pa.scalar(offset, pa.int64()), count),
        pa.repeat(pa.scalar(committed, pa.timestamp("us", "UTC")), count),
        pa.repeat(pa.scalar(origin), count),
    ]
    return pa.table([*columns, *data], schema=change_schema(found.tracked))


def _as_described(found: Rows) -> list[pa.ChunkedArray]:
    data, columns = found.delivered(), []
    for described, column in zip(found.tracked.columns, data.columns, strict=True):
        try:
            columns.append(column if column.type == described.arrow else pc.cast(column, described.arrow))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            raise SettingsError(
                f'table "{found.tracked.name}": column "{described.name}" comes as {column.type}, with values that are '
                f"no {described.arrow}, as which its connector describes it; let `read` give it as that"
            ) from None
    return columns


def change_schema(tracked: Tracked) -> pa.Schema:
    """Return the columns of *tracked*'s log: the same whether or not there is a row."""
    types = (pa.string(), pa.int64(), pa.timestamp("us", "UTC"), pa.string())
    prefix = tracked.metadata_prefix
    metadata = [pa.field(prefix + name, type_, nullable=False) for name, type_ in zip(METADATA, types, strict=True)]
    delivered = (
        pa.field(
            c.name, c.arrow, metadata=(VARIANT if c.variant else {}) | (KEY if c.name in tracked.key else {}) or None
        )
        for c in tracked.columns
    )
    return pa.schema([*metadata, *delivered])


def decision(tracked: Tracked, found: Sequence[Change]) -> str | None:
    """Return what somebody has to decide before *tracked* goes on with what has been *found* of its columns, if so."""
    told = ", ".join(map(str, found))
    if any(change.kind == "changed" for change in found):
        return (
            f'table "{tracked.name}": {told}. Older changes cannot be read as that. To go on with the new columns, '
            f"read apart from the old ones: sidecar schema {tracked.name} --accept. To have the whole table in the new "
            f"ones as well: sidecar watermark reset {tracked.name}. {_begin_anew(tracked)}Or leave the column out "
            "(columns = …)"
        )
    if found and tracked.schema_change == "fail":
        return (
            f'table "{tracked.name}": {told}; schema_change = "fail" asks to stop at that. To go on with the new '
            f"columns: sidecar schema {tracked.name} --accept"
        )
    return None


def _begin_anew(tracked: Tracked) -> str:
    if not tracked.sinks:
        return ""
    names = ", ".join(f'"{name}"' for name in tracked.sinks)
    return (
        f"After either, mirrors and sinks of files (here {names}) go on with all other tables, and this one needs "
        f"{sink_of_its_own(tracked.name)}; a mirror begins anew only after the reset. "
    )


def check_schema(tracked: Tracked, log: ChangeLog) -> None:
    """Say what has become of the table's columns since the log's newest segment.

    SchemaChanged if a column's type has changed otherwise than by growing, or, with `schema_change = "fail"`, at all.
    """
    found = log.changes(change_schema(tracked))
    if not found:
        return
    if (waits := decision(tracked, found)) is not None:
        raise SchemaChanged(waits)
    told = ", ".join(map(str, found))
    renamed = {change.kind for change in found} >= {"added", "dropped"}
    hint = " (a renamed column looks like one that is gone and one that is new)" if renamed else ""
    if any(change.kind == "added" for change in found) and not tracked.backfill_added:
        hint += f". To have what is in the new column of older rows: sidecar backfill {tracked.name}"
    log_.warning("table=%s schema_changed: %s%s", tracked.name, told, hint)
