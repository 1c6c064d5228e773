"""Keys that tell no rows apart: NULLs, which SQLite lets stand by an old mistake that it keeps, and numbers beside
texts that are read as the same. Each is named with its row.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence

from connectors import sqlite_types as types
from connectors.sqlite_query import column, names, scoped
from sidecar.errors import SettingsError
from sidecar.model import Page, Position, Scalar, Tracked
from sidecar.sql import quoted


def refuse_nulls(connection: sqlite3.Connection, tracked: Tracked, rows: Sequence[Sequence[object]]) -> None:
    """Raise SettingsError, naming the row, if one of *rows* has a NULL in its key."""
    wanted = names(tracked)
    places = [wanted.index(name) for name in tracked.key if _nullable(tracked, name)]
    for row in rows if places else ():
        for place in places:
            if row[place] is None:
                raise _refusal(connection, tracked, wanted[place], [row[wanted.index(n)] for n in tracked.key])


def refuse_twins(connection: sqlite3.Connection, tracked: Tracked, rows: Sequence[Sequence[object]]) -> None:
    """Raise SettingsError if the key of one of *rows* is a text, and that of another row of the table its number.

    SQLite tells 1 from '1' in a column that is not declared for either; read as text, both are "1".
    """
    wanted = names(tracked)
    places = [wanted.index(name) for name in tracked.key]
    open_ = [n for n, p in enumerate(places) if types.keeps_numbers(_declared(tracked, wanted[p]))]
    same = " AND ".join(f"{column(tracked, n)} = ?" for n in tracked.key)
    statement = f"SELECT 1 FROM {quoted(tracked.name)} WHERE {same} LIMIT 1"
    for row in rows if open_ else ():
        for part in open_:
            text = row[places[part]]
            if not isinstance(text, str) or (number := types.number(text)) is text:
                continue
            key = [row[place] for place in places]
            key[part] = number
            if connection.execute(statement, key).fetchone() is not None:
                raise SettingsError(
                    f'table "{tracked.name}": key column "{tracked.key[part]}" holds both the number {text} and the '
                    f"text '{text}', which are one key wherever a column has one type. Write one form, or choose "
                    "another primary_key."
                )


def are_one(connection: sqlite3.Connection, tracked: Tracked, one: Position, other: Position) -> bool:
    """Return whether a row with the key *one* has the key *other* as well, by the key's collations."""
    parameters: list[Scalar] = []
    for name, *values in zip(tracked.key, one, other, strict=True):
        counts = types.keeps_numbers(_declared(tracked, name))
        both = [types.number(v) if counts and isinstance(v, str) else v for v in values]
        # To ask may take a scan of the table, and most keys that stand side by side are not alike.
        if len({*map(_alike, both)}) > 1:
            return False
        parameters += both
    same = " AND ".join(f"{column(tracked, name)} = ? AND {column(tracked, name)} = ?" for name in tracked.key)
    sql = f"SELECT 1 FROM {quoted(tracked.name)} WHERE {same} LIMIT 1"
    return connection.execute(sql, parameters).fetchone() is not None


def _alike(value: Scalar) -> Scalar:
    """Return what is equal for all that SQLite may take for one, by whichever collation of its own."""
    return value.rstrip(" ").lower() if isinstance(value, str) else value


def refuse_hidden_nulls(connection: sqlite3.Connection, page: Page, until: Position | None) -> None:
    """Raise SettingsError if a row has a NULL in its key and would therefore not be met.

    NULLs stand first, so only an end of a chunk hides them: those in the first part from the first chunk, and those in
    another from the chunk that ends in what they share.
    """
    tracked = page.tracked
    for place, name in enumerate(tracked.key) if until is not None else ():
        if not _nullable(tracked, name) or (place == 0 and page.after is not None):
            continue
        assert until is not None
        parameters: list[Scalar] = list(until[:place])
        terms = [*(f"{column(tracked, n)} = ?" for n in tracked.key[:place]), f"{column(tracked, name)} IS NULL"]
        terms += scoped(page, parameters)
        key = ", ".join(column(tracked, n) for n in tracked.key)
        found = connection.execute(
            f"SELECT {key} FROM {quoted(tracked.name)} WHERE {' AND '.join(terms)} LIMIT 1", parameters
        ).fetchone()
        if found is not None:
            raise _refusal(connection, tracked, name, found)


def _nullable(tracked: Tracked, name: str) -> bool:
    described = tracked.table.column(name)
    return described is None or described.nullable


def _declared(tracked: Tracked, name: str) -> str:
    described = tracked.table.column(name)
    return "" if described is None else described.type


def _refusal(connection: sqlite3.Connection, tracked: Tracked, name: str, values: Sequence[object]) -> SettingsError:
    shown = [f"{n}={'NULL' if v is None else repr(v)}" for n, v in zip(tracked.key, values, strict=True) if n != name]
    same = " AND ".join(f"{column(tracked, n)} IS ?" for n in tracked.key)
    with contextlib.suppress(sqlite3.Error):  # a view, or WITHOUT ROWID
        found = connection.execute(
            f"SELECT rowid FROM {quoted(tracked.name)} WHERE {same} LIMIT 1",
            list(values),
        ).fetchone()
        shown += [f"rowid {found[0]}"] if found and found[0] is not None else []
    row = f" ({', '.join(shown)})" if shown else ""
    return SettingsError(
        f'table "{tracked.name}": key column "{name}" holds a NULL{row}, so rows cannot be told apart by it. '
        "Choose a primary_key of columns that are never NULL."
    )
