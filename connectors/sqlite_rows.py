"""A page's rows as Arrow: each value as it is, and beside the rows what does not fit its column."""

from __future__ import annotations

import base64
import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from connectors import sqlite_types as types
from connectors.sqlite_query import names
from connectors.sqlite_times import Values
from sidecar import codec
from sidecar.errors import SettingsError
from sidecar.model import BAD, DELETED, VALUE, Tracked


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be looked for inside: rows are tuples of plain values, so there are no cycles to be found among
    them, and to look through a large page's again and again takes a sixth of all that a first load takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def arrow(tracked: Tracked, rows: list[tuple[object, ...]]) -> pa.Table:
    """Return *rows* as `SourceConnector.read` promises; SettingsError for a key or a cursor that cannot be one."""
    wanted = names(tracked)
    columns: list[Sequence[object]] = list(zip(*rows, strict=True)) if rows else [()] * (len(wanted) + 1)
    ordered = {*tracked.key, tracked.updated_at, tracked.created_at, tracked.deleted_at}
    delivered = {c.name: c.arrow for c in tracked.columns}
    found: dict[str, pa.Array | pa.ChunkedArray] = {}
    beside: dict[str, pa.Array | pa.ChunkedArray] = {}
    misfits: dict[int, dict[str, str]] = {}
    for name, values in zip(wanted, columns, strict=False):
        described = tracked.table.column(name)
        assert described is not None
        type_ = delivered.get(name, described.arrow)
        wrong: Mapping[int, str] = {}
        if name not in ordered:
            found[name], wrong = types.fitted(values, type_)
        else:
            found[name], never = types.fitted(values, described.arrow)
            if type_ != described.arrow:
                beside[VALUE + name], wrong = types.fitted(values, type_)
            never = {**never, **(wrong if name in tracked.key else {})}
            if never:
                raise _unusable(tracked, name, wanted, rows[min(never)], never[min(never)])
        for row, reason in wrong.items():
            misfits.setdefault(row, {})[name] = reason
    if tracked.deleted_at or tracked.deleted_when:
        beside[DELETED] = pc.cast(types.made(columns[len(wanted)], pa.int8()), pa.bool_())
    if misfits:
        marks: list[str | None] = [None] * len(rows)
        for row, reasons in misfits.items():
            marks[row] = codec.bad(reasons, {n: _shown(v) for n, v in zip(wanted, rows[row], strict=False)})
        beside[BAD] = pa.array(marks, pa.string())
    return pa.table({**found, **beside})


def from_columns(tracked: Tracked, columns: Sequence[pa.ChunkedArray]) -> pa.Table | None:
    """Return a page's *columns*, each of one storage class, as `arrow` does; None if one needs a closer look."""
    wanted = names(tracked)
    ordered = {*tracked.key, tracked.updated_at, tracked.created_at, tracked.deleted_at}
    delivered = {c.name: c.arrow for c in tracked.columns}
    found: dict[str, Values | None] = {}
    beside: dict[str, Values | None] = {}
    for name, values in zip(wanted, columns, strict=False):
        described = tracked.table.column(name)
        assert described is not None
        type_ = delivered.get(name, described.arrow)
        if name not in ordered:
            found[name] = types.converted(values, type_)
            continue
        found[name] = types.converted(values, described.arrow)
        if type_ != described.arrow:
            beside[VALUE + name] = types.converted(values, type_)
        if name in tracked.key and values.null_count:
            return None
    if tracked.deleted_at:
        beside[DELETED] = columns[len(wanted)].cast(pa.bool_())
    page = {**found, **beside}
    return None if any(values is None for values in page.values()) else pa.table(page)


def _unusable(tracked: Tracked, name: str, wanted: Sequence[str], row: Sequence[object], reason: str) -> SettingsError:
    described = tracked.table.column(name)
    declared = f"declared {described.type}" if described is not None and described.type else "declared without a type"
    what = "key" if name in tracked.key else "cursor"
    values = [v.raw.decode(errors="backslashreplace") if isinstance(v, types.Broken) else v for v in row]
    key = ", ".join(f"{n}={values[wanted.index(n)]!r}" for n in tracked.key)
    return SettingsError(
        f'table "{tracked.name}": {what} column "{name}" ({declared}) {reason} (first key: {key}). Rows are told apart '
        f"and ordered by it, so nothing can stand in its place: correct the value, or choose another {what} column"
    )


def _shown(value: object) -> object:
    return {"text": base64.b64encode(value.raw).decode()} if isinstance(value, types.Broken) else value
