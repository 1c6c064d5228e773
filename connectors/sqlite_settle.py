"""In which types a table's columns are delivered: decided once, from the declarations and all that the table holds.

SQLite types values, not columns. Where the declaration says what a column is for (INTEGER, REAL, TEXT, BLOB), it
decides; elsewhere the values do, all of them, in one scan of the table before its first poll. The change log keeps the
decision: a type that it holds is never looked for again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from connectors import sqlite_times as times
from connectors import sqlite_types as types
from connectors.sqlite_query import column
from sidecar.model import Column, Tracked
from sidecar.sql import quoted

_INTEGER, _REAL, _TEXT, _BLOB, _FLAG = pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.bool_()
_TIMES = {str(t): t for t in (times.DATE, times.READING, times.INSTANT)}

# What an integer is to a double: a cast that does not come back. 2**63-1 alone seems to, for the cast back stops there.
_INEXACT = (
    "typeof({c}) = 'integer' AND abs({c} / 2) >= 4503599627370496 "
    "AND (CAST(CAST({c} AS REAL) AS INTEGER) <> {c} OR {c} = 9223372036854775807)"
)
_ASKED = (
    "typeof({c}) = 'integer'",
    "typeof({c}) = 'real'",
    "typeof({c}) = 'text'",
    "typeof({c}) = 'blob'",
    _INEXACT,
    "typeof({c}) = 'integer' AND {c} NOT IN (0, 1)",
)
_FORMS = "CASE typeof({c}) WHEN 'text' THEN CAST({c} AS BLOB) WHEN 'blob' THEN '' ELSE {c} END"


@dataclass(frozen=True, slots=True)
class _Holds:
    """What a column holds: whether any integer, real, text, blob; any integer that no double is, or but 0 and 1."""

    integers: bool
    reals: bool
    texts: bool
    blobs: bool
    inexact: bool
    counts: bool
    times: str | None


def settle(
    connect: Callable[[], sqlite3.Connection], tracked: Tracked, held: Callable[[], pa.Schema | None]
) -> Tracked:
    """Return *tracked* with the types in which its columns are delivered; *held* is what the log has of it."""
    # A key stays as it is stored: two texts of one time are two keys.
    is_key = {c.name for c in tracked.columns if c.name in tracked.key and types.is_time(c.type)}
    open_ = [c for c in tracked.columns if types.choices(c.type) and c.name not in is_key]
    if not open_:
        return tracked
    known = _known(open_, held())
    unknown = [c for c in open_ if c.name not in known]
    if unknown:
        connection = connect()
        plain = _plain(connection, tracked, [c for c in unknown if c.arrow == _REAL])
        known |= plain
        if rest := [c for c in unknown if c.name not in plain]:
            known |= _decided(_scan(connection, tracked, rest), is_empty=_is_empty(connection, tracked))
    columns = tuple(replace(c, arrow=known.get(c.name, c.arrow)) for c in tracked.columns)
    # Of bytes, no text stands for a key.
    blobs = {name for name, type_ in known.items() if type_ == _BLOB and name in tracked.key}
    own = tuple(replace(c, arrow=_BLOB) if c.name in blobs else c for c in tracked.table.columns)
    return replace(tracked, columns=columns, table=replace(tracked.table, columns=own))


def _known(columns: Sequence[Column], held: pa.Schema | None) -> dict[str, pa.DataType]:
    """Return the types in which the log holds *columns*; where such a column can take no such type, its usual one."""
    known = {}
    for column_ in columns:
        index = -1 if held is None else held.get_field_index(column_.name)
        if held is not None and index >= 0:
            type_ = held.field(index).type
            known[column_.name] = type_ if type_ in types.choices(column_.type) else column_.arrow
    return known


def _plain(connection: sqlite3.Connection, tracked: Tracked, columns: Sequence[Column]) -> dict[str, pa.DataType]:
    """Return those of the NUMERIC *columns* that hold what such columns mostly do: numbers of no more than 2**53.

    Numbers stand before texts and blobs, so the ends say it all; asking each value for its class takes ten times
    as long.
    """
    if not columns:
        return {}
    wanted = []
    for each in columns:
        name = column(tracked, each.name)
        wanted.append(
            f"max({name}) IS NULL OR (typeof(max({name})) IN ('integer', 'real') AND "
            f"max({name}) <= {types.EXACT} AND min({name}) >= -{types.EXACT})"
        )
    row = connection.execute(f"SELECT {', '.join(wanted)} FROM {quoted(tracked.name)}").fetchone()
    return {each.name: _REAL for each, is_plain in zip(columns, row, strict=True) if is_plain}


def _scan(connection: sqlite3.Connection, tracked: Tracked, columns: Sequence[Column]) -> dict[Column, _Holds]:
    connection.create_aggregate("sidecar_forms", 1, times.Forms)  # type: ignore[arg-type]
    wanted = []
    for each in columns:
        name = column(tracked, each.name)
        if types.is_time(each.type):
            wanted += ["NULL"] * len(_ASKED) + [f"sidecar_forms({_FORMS.replace('{c}', name)})"]
        else:
            wanted += [f"max({asked.replace('{c}', name)})" for asked in _ASKED] + ["NULL"]
    row = connection.execute(f"SELECT {', '.join(wanted)} FROM {quoted(tracked.name)}").fetchone()
    size = len(_ASKED) + 1
    found = {}
    for number, each in enumerate(columns):
        *flags, form = row[number * size : (number + 1) * size]
        integers, reals, texts, blobs, inexact, counts = map(bool, flags)
        found[each] = _Holds(integers, reals, texts, blobs, inexact, counts, form)
    return found


def _is_empty(connection: sqlite3.Connection, tracked: Tracked) -> bool:
    return not connection.execute(f"SELECT EXISTS (SELECT 1 FROM {quoted(tracked.name)})").fetchone()[0]


def _decided(found: Mapping[Column, _Holds], *, is_empty: bool) -> dict[str, pa.DataType]:
    decided = {column_.name: decide(column_, holds) for column_, holds in found.items()}
    if is_empty:
        # Nothing is kept of it: the first rows decide. But whoever asks for the columns before is told the likeliest.
        usual = {c.name: times.DATE if types.is_date(c.type) else times.READING for c in found if types.is_time(c.type)}
        return decided | usual
    # A time that no row has yet (deleted_at, most often) will be written as the table's other times of its kind are.
    for column_, holds in found.items():
        if types.is_time(column_.type) and holds.times is None:
            kin = [c for c, h in found.items() if c.type.upper() == column_.type.upper() and h.times is not None]
            if len({decided[c.name] for c in kin}) == 1:
                decided[column_.name] = decided[kin[0].name]
    return decided


def decide(column_: Column, holds: _Holds) -> pa.DataType:
    """Return the type in which a column arrives that is declared and filled like this."""
    if types.is_time(column_.type):
        type_ = _TIMES.get(holds.times or "", _TEXT)
        return times.READING if type_ == times.DATE and not types.is_date(column_.type) else type_
    fallback = column_.arrow
    if holds.texts or (holds.inexact and (holds.reals or fallback == _REAL)):
        return _TEXT
    if fallback == _REAL:
        return _REAL
    if holds.reals:
        return _TEXT if holds.blobs and fallback == _TEXT else _REAL
    if fallback == _INTEGER:
        return _FLAG if holds.integers and not holds.counts else _INTEGER
    if holds.integers:
        return _TEXT if holds.blobs else _INTEGER
    return _BLOB if holds.blobs else _TEXT
