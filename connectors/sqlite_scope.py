"""A part of a table's rows, as SQLite finds it by an index: between two keys, and among some values."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence

from connectors import sqlite_types as types
from sidecar.model import Among, Page, Position, Scalar, Tracked
from sidecar.sql import quoted


def between(key: Sequence[str], low: Position | None, high: Position) -> Iterator[tuple[list[str], list[Scalar]]]:
    """Yield, in the order of *key* (quoted), conditions with their values that together hold after *low*, to *high*.

    Each is one search in an index: equal parts first, then one stretch. Row values would make none of their further
    parts, so that each end costs all rows that share its first part. They stand beside, so that nothing is read where
    *low* is above *high*.
    """
    size = len(key)
    row, marks = f"({', '.join(key)})", f"({', '.join('?' * size)})"
    above = [] if low is None else [f"{row} > {marks}"]
    below = f"{row} <= {marks}"
    shared = 0 if low is None else _shared(low, high)
    if shared is None:
        assert low is not None
        yield [*above, below], [*low, *high]
        return
    if shared == size:
        return
    for length in range(size - 1, shared, -1) if low is not None else ():
        assert low is not None
        yield [*_equal(key, length), f"{key[length]} > ?", below], [*low[: length + 1], *high]
    terms, values = _equal(key, shared), [*high[:shared]]
    if low is not None:
        terms.append(f"{key[shared]} > ?")
        values.append(low[shared])
    last = size - 1
    yield [*terms, f"{key[shared]} {'<=' if shared == last else '<'} ?"], [*values, high[shared]]
    for length in range(shared + 1, size):
        stretch = f"{key[length]} {'<=' if length == last else '<'} ?"
        yield [*_equal(key, length), stretch, *above], [*high[: length + 1], *(low or ())]


def _equal(key: Sequence[str], length: int) -> list[str]:
    return [f"{name} = ?" for name in key[:length]]


def _shared(low: Position, high: Position) -> int | None:
    """Return how many parts at the beginning of both are equal; None if that depends on the columns."""
    for place, (one, other) in enumerate(zip(low, high, strict=True)):
        if _class(one) != _class(other):
            return None
        if one == other:
            continue
        # NOCASE and RTRIM are the collations that there are.
        if isinstance(one, str) and isinstance(other, str) and _folded(one) == _folded(other):
            return None
        return place
    return len(low)


def _class(value: Scalar) -> type:
    return float if isinstance(value, int | float) else type(value)


def _folded(text: str) -> str:
    return text.rstrip(" ").lower()


def either_way(key: Sequence[str], low: Position | None, high: Position | None) -> tuple[list[str], list[Scalar]]:
    """Return a condition with its values that holds after *low*, to *high*, and is not to be searched by.

    To the planner every bound leaves few rows; where others are asked for by their values, it is told otherwise.
    """
    row, marks = f"({', '.join(key)})", f"({', '.join('?' * len(key))})"
    ends = [(end, operator) for end, operator in ((low, ">"), (high, "<=")) if end is not None]
    terms = [f"likelihood({row} {operator} {marks}, 0.99)" for _, operator in ends]
    return terms, [value for end, _ in ends for value in end]


def among(
    tracked: Tracked, some: Among, column: Callable[[str], str], parameters: list[Scalar], rowid: str | None = None
) -> str:
    """Return the condition that a row is among *some*, by the columns' own affinity and collation.

    A column that arrives as text and may hold numbers holds what is asked for as the one or as the other. Several
    columns are searched by the first one alone; where an index has them all, rows are found in it by their *rowid*.
    """
    declared = [described.type if (described := tracked.table.column(name)) else "" for name in some.columns]
    rows = []
    for value in some.values:
        forms = [
            tuple(dict.fromkeys((part, types.number(part)))) if types.keeps_numbers(d) else (part,)
            for part, d in zip(value, declared, strict=True)
        ]
        rows += list(itertools.product(*forms))
    parameters.extend(itertools.chain.from_iterable(rows))
    names = [column(name) for name in some.columns]
    if len(names) == 1:
        return f"{names[0]} IN ({', '.join('?' * len(rows))})"
    marks = f"({', '.join('?' * len(names))})"
    table = f"(VALUES {', '.join([marks] * len(rows))}) AS wanted"
    values = [f"wanted.column{n + 1}" for n in range(len(names))]
    if rowid is None:
        return f"({', '.join(names)}) IN (SELECT {', '.join(values)} FROM {table})"
    same = " AND ".join(f"found.{quoted(name)} = {v}" for name, v in zip(some.columns, values, strict=True))
    here = quoted(tracked.name)
    return f"{here}.{rowid} IN (SELECT found.{rowid} FROM {table} CROSS JOIN {here} AS found ON {same})"


def rowid_of(connection: sqlite3.Connection, page: Page) -> str | None:
    """Return the word by which rows are found in an index of all columns that the page's values are of; None if there
    is no such index, or no such word.
    """
    some, table = page.scope.among, page.tracked.table
    if some is None or len(some.columns) == 1 or table.kind == "view":
        return None
    taken = {c.name.lower() for c in table.columns}
    word = next((w for w in ("rowid", "_rowid_", "oid") if w not in taken), None)
    wanted = {name.lower() for name in some.columns}
    for (index,) in connection.execute("SELECT name FROM pragma_index_list(?) WHERE partial = 0", (table.name,)):
        found = connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (index,)).fetchall()
        if {str(name).lower() for (name,) in found[: len(wanted)]} == wanted and word is not None:
            try:
                connection.execute(f"SELECT {word} FROM {quoted(table.name)} LIMIT 0")
            except sqlite3.OperationalError:
                return None  # WITHOUT ROWID
            return word
    return None
