"""NULLs in keys, and keys that stand twice: a declared key has none, but a view, or a key of somebody's choice, may."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from connectors import postgres_scope as scope
from connectors.postgres_query import Statements, column
from connectors.postgres_session import Session
from sidecar import codec
from sidecar.errors import SettingsError
from sidecar.model import Position


def refuse_nulls(session: Session, statements: Statements, rows: pa.Table) -> None:
    """Raise SettingsError, naming the row, if one of *rows* has a NULL in its key."""
    key = statements.tracked.key
    for name in key:
        nulls = rows.column(name).null_count
        if nulls:
            row = pc.index(pc.is_null(rows.column(name)), pa.scalar(True)).as_py()
            values = next(iter(codec.rows(rows.slice(row, 1), key)))
            _refuse(session, statements, name, [_equal(statements, n, v) for n, v in zip(key, values, strict=True)])


def refuse_twins(session: Session, statements: Statements, last: pa.Table, following: pa.Table) -> None:
    """Raise SettingsError if the row *following* a page has the key of the page's *last*, as the server compares them:
    the next page begins after that, and would leave it out.
    """
    tracked = statements.tracked
    columns = [column(tracked, name) for name in tracked.key]
    one, other = (codec.position(row, tracked.key) for row in (last, following))
    rows = (", ".join(scope.typed(c, v) for c, v in zip(columns, key, strict=True)) for key in (one, other))
    if None in other or not session.rows("SELECT ({}) = ({})".format(*rows), table=tracked.name)[0][0]:
        return
    key = ", ".join(f"{name}={value!r}" for name, value in zip(tracked.key, one, strict=True))
    raise SettingsError(
        f'table "{tracked.name}": a key stands more than once ({key}). Rows are told apart by a key that is unique: '
        "add the columns that make it so to primary_key."
    )


def refuse_hidden_nulls(session: Session, statements: Statements, *, first: bool) -> None:
    """Raise SettingsError if a row of the pass has a NULL in its key and would therefore not be read.

    Comparisons of row values hide such a row only if its key equals one of their ends up to the NULL: of the pass
    "all", these rows alone are looked for, in the key's index. *first*: nothing of this range has been read before.
    """
    page, key = statements.page, statements.tracked.key
    names = [n for n in key if column(statements.tracked, n).nullable]
    if not names:
        return
    if page.scan.name != "all":
        if page.after is None:
            for name in names:
                _refuse(session, statements, name, [f"{statements.name(name)} IS NULL"])
        return
    open_ended = dataclasses.replace(statements, page=dataclasses.replace(page, after=None, until=None))
    for name in names:
        place = key.index(name)
        ends: Sequence[Position] = [end for end in (page.after, page.until) if end is not None]
        for end in ends if place else ((),) if first else ():
            equal = [_equal(statements, n, v) for n, v in zip(key[:place], end, strict=False)]
            _refuse(session, open_ended, name, [*equal, f"{statements.name(name)} IS NULL"])


def _equal(statements: Statements, name: str, value: object) -> str:
    if value is None:
        return f"{statements.name(name)} IS NULL"
    return f"{statements.compared(name)} = {statements.dialect.bind(name, value, [])}"  # type: ignore[arg-type]


def _refuse(session: Session, statements: Statements, name: str, terms: Sequence[str]) -> None:
    tracked = statements.tracked
    others = [n for n in tracked.key if n != name]
    wanted = [f"{statements.name(n)}::text" for n in others]
    if statements.versioned:
        wanted += [f"{statements.name('tableoid')}::regclass::text", f"{statements.name('ctid')}::text"]
    found = session.rows(
        f"SELECT {', '.join(wanted)} FROM {statements.source}"
        f" WHERE {statements.condition()} AND {' AND '.join(terms)} LIMIT 1",
        table=tracked.name,
    )
    if not found:
        return
    values, place = found[0][: len(others)], found[0][len(others) :]
    shown = [f"{n}={'NULL' if v is None else repr(v)}" for n, v in zip(others, values, strict=True)]
    if place:
        shown.append("ctid {1} of {0}".format(*place))
    row = f" ({', '.join(shown)})" if shown else ""
    raise SettingsError(
        f'table "{tracked.name}": key column "{name}" holds a NULL{row}, so rows cannot be told apart by it. '
        "Choose a primary_key of columns that are never NULL."
    )
