"""A reader's answer → the page as the contract wants it: final types, cursor, version; what no type holds is named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from connectors import postgres_literals as literals
from connectors import postgres_values as values_
from connectors.postgres_literals import Values
from connectors.postgres_query import ODD, Statements
from connectors.postgres_types import Wire, choice
from connectors.postgres_values import Misfit
from sidecar import codec
from sidecar.errors import SettingsError, SidecarError, counted
from sidecar.model import CURSOR, DELETED, VERSION, Tracked

log = logging.getLogger("sidecar")


def finish(statements: Statements, wires: Sequence[Wire], raw: pa.Table) -> pa.Table:
    """Return a reader's answer as the contract wants it: final types, cursor, version, flag; what is lost reported."""
    tracked, scan = statements.tracked, statements.page.scan
    columns: dict[str, Values] = {}
    nulled: dict[str, list[int]] = {}

    def refuse(name: str, what: str, row: int, advice: str) -> SidecarError:
        found = tracked.table.column(name)
        readable = {w.name: columns.get(w.name, v) for w, v in zip(wires, raw.columns, strict=True)}
        type_, key = found.type if found else "", _shown(tracked, readable, row)
        other = "leave the column out (columns = …)"
        if name in tracked.key:
            other = "choose another primary_key"
            advice = advice.replace(values_.advice(name), values_.advice(name, key=True))
        text = f'table "{tracked.name}": column "{name}" ({type_}) {what} (key: {key}).'
        return SettingsError(f"{text} {advice}, correct the value, or {other}.")

    for values, wire in zip(raw.columns, wires, strict=True):
        try:
            columns[wire.name], rows = values_.final(values, wire)
        except Misfit as misfit:
            raise refuse(wire.name, misfit.what, misfit.row, misfit.advice) from None
        if rows:
            nulled[wire.name] = rows
    odd = columns.pop(ODD, None)
    if odd is not None and odd.null_count < len(odd):
        nulled |= _far(list(columns), odd)
    for name, rows in nulled.items():
        _report(tracked, columns, name, rows, refuse)
    if scan.cursor is not None and CURSOR not in columns:
        values = columns[scan.cursor]
        if literals.is_time(values.type):
            columns[CURSOR] = literals.ordinals(values)
    if CURSOR in columns:
        far = pc.equal(columns[CURSOR], literals.TOO_FAR)
        if pc.any(far).as_py():
            what = "holds a time after the year 294246, which 64 bits cannot carry"
            row = pc.index(far, pa.scalar(True)).as_py()
            raise refuse(scan.cursor or tracked.updated_at, what, row, "Choose another cursor column")
    if VERSION in columns:
        columns[VERSION] = _versions(columns[VERSION], statements.xmax)
    names = [*(c.name for c in statements.columns()), *(n for n in (CURSOR, VERSION, DELETED) if n in columns)]
    return pa.table([columns[n] for n in names], names=names)


def _versions(ages: Values, xmax: int) -> Values:
    """Return distances to *xmax* as versions; those of rows frozen in an earlier round of ids are lost: 0."""
    versions = pc.subtract(pa.scalar(xmax, pa.int64()), ages)
    return pc.if_else(pc.and_(pc.greater(ages, 0), pc.greater(versions, 0)), versions, pa.scalar(0, pa.int64()))


def _far(names: Sequence[str], odd: Values) -> dict[str, list[int]]:
    """Return, by column, the rows whose times had to be NULL."""
    found: dict[str, list[int]] = {}
    for row, flags in enumerate(odd.to_pylist()):
        for place in (flags or "").rstrip(",").split(","):
            if place:
                found.setdefault(names[int(place)], []).append(row)
    return found


_ODD = ("NaN, infinite, or outside the years 1 to 9999", "infinite or outside the years 1 to 9999")


def _report(
    tracked: Tracked,
    columns: dict[str, Values],
    name: str,
    rows: Sequence[int],
    refuse: Callable[[str, str, int, str], SidecarError],
) -> None:
    """Name the values that were delivered as NULL; SettingsError if nobody asked for that, or one is part of a key.

    The stamps that polls go by are never an error: one bad one must not stop its table.
    """
    is_time = literals.is_time(columns[name].type)
    one, verb = "time" if is_time else "value", "is" if len(rows) == 1 else "are"
    what = f"holds {counted(len(rows), one)} on this page that {verb} {_ODD[is_time]}"
    text = f'table "{tracked.name}": column "{name}" {what}'
    if name in tracked.key:
        can = f"{values_.advice(name, key=True)}, correct the rows, or choose another primary_key"
        raise SettingsError(f"{text}; a key cannot be NULL in their place. {can}.")
    if name == tracked.deleted_at:
        _refuse_placeholder(tracked, columns, rows)
    if name not in tracked.cursors and choice(tracked.wishes, name).infinity != "null":
        type_ = columns[name].type
        raise refuse(name, f"{what}, which no {type_} can carry", rows[0], values_.advice(name))
    log.warning("%s; delivered as NULL (first key: %s)", text, _shown(tracked, columns, rows[0]))


def _refuse_placeholder(tracked: Tracked, columns: dict[str, Values], rows: Sequence[int]) -> None:
    """Raise SettingsError if one of *rows*, whose `deleted_at` is infinite or far away, counts as deleted by it."""
    if tracked.deleted_when and tracked.not_deleted:
        return  # it may be the condition that says so
    gone = next((row for row in rows if columns[DELETED][row].as_py()), None)
    if gone is not None:
        raise SettingsError(
            f'table "{tracked.name}": {tracked.name}.{tracked.deleted_at} holds a time that is infinite or outside the '
            f"years 1 to 9999, a placeholder rather than the time of a deletion (first key: "
            f"{_shown(tracked, columns, gone)}). If it means that the row is not deleted, say so: "
            f'[tables."{tracked.name}"] not_deleted = ["infinity"] (or as the value is). If such rows are deleted: '
            f'deleted_at = false and deleted_when = "{tracked.deleted_at} IS NOT NULL"'
        )


def _shown(tracked: Tracked, columns: dict[str, Values], row: int) -> str:
    return ", ".join(f"{n}={codec.plain(columns[n].slice(row, 1))[0]!r}" for n in tracked.key)
