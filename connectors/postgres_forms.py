"""The forms of one key: a key that somebody wrote, as rows carry it, and texts of equal values made one.

How a uuid, a time, an enum or a composite is written is for the server to say, which is asked. Which texts of a
numeric, a character(n) or a jsonb differ in notation alone, the texts tell.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from connectors import postgres_catalog as catalog
from connectors import postgres_scope as scope
from connectors import postgres_values as values_
from connectors.postgres_query import Statements, column
from connectors.postgres_read import Reader, Unparsed
from connectors.postgres_session import Session
from connectors.postgres_types import Kind, choice, kind_of, wire
from sidecar import codec
from sidecar.errors import SettingsError
from sidecar.model import Column, Page, Pass, Position, Scalar, Tracked

_AT_ONCE = 1_000
_TEXT_OR_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+\.\d+')


def spelled(session: Session, reader: Reader, tracked: Tracked, keys: Sequence[Position]) -> list[Position]:
    """Return *keys* in the form in which rows carry theirs; SettingsError if one is none of the key's types."""
    found: list[Position] = []
    for at in range(0, len(keys), _AT_ONCE):
        some = keys[at : at + _AT_ONCE]
        with session.snapshot(tracked.name) as view:
            statements = Statements(Page(tracked, Pass("all", None), {}, None, len(some)), view.xmax)
            found += _read_back(reader, statements, some)
    return found


def _read_back(reader: Reader, statements: Statements, keys: Sequence[Position]) -> list[Position]:
    tracked = statements.tracked
    columns = [column(tracked, name) for name in tracked.key]
    given = ", ".join(
        f"({place}, {', '.join(scope.typed(c, value) for c, value in zip(columns, key, strict=True))})"
        for place, key in enumerate(keys)
    )
    wires = [
        wire(c, f"given.k{n}", choice(tracked.wishes, c.name).infinity, careful=False) for n, c in enumerate(columns)
    ]
    shown = ", ".join(f"{w.csv_expression or w.expression} AS c{n}" for n, w in enumerate(wires))
    names = ", ".join(f"k{n}" for n in range(len(columns)))
    select = f"SELECT {shown} FROM (VALUES {given}) AS given(place, {names}) ORDER BY given.place"
    try:
        raw = reader.copied(statements, select, wires)
        arrays = [values_.final(c, w)[0] for c, w in zip(raw.columns, wires, strict=True)]
    except (Unparsed, values_.Misfit) as error:
        raise SettingsError(f'table "{tracked.name}": no row can have one of the keys: {error}') from None
    return list(codec.rows(pa.table(arrays, names=list(tracked.key)), tracked.key))


def are_one(session: Session, tracked: Tracked, one: Position, other: Position) -> bool:
    """Return whether the server takes the keys *one* and *other* for equal."""
    columns, loose = [column(tracked, name) for name in tracked.key], catalog.loosely_collated(session, tracked.table)

    def typed(of: Column, value: Scalar) -> str:
        found = scope.typed(of, value)
        return f"{found} COLLATE {loose[of.name]}" if of.name in loose else found

    both = (", ".join(typed(c, v) for c, v in zip(columns, key, strict=True)) for key in (one, other))
    return bool(session.rows("SELECT ({}) = ({})".format(*both), table=tracked.name)[0][0])


def folded(tracked: Tracked, keys: pa.Table) -> pa.Table:
    """Return *keys* with one text for all that differ in notation alone."""
    columns = [_one_notation(kind_of(column(tracked, name)), keys.column(name)) for name in keys.column_names]
    return pa.table(columns, names=keys.column_names)


def _one_notation(kind: Kind, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_string(texts.type) or not kind.builtin or kind.shape != "scalar":
        return texts
    if kind.is_numeric:
        return pc.if_else(pc.match_substring(texts, "."), _rtrimmed(_rtrimmed(texts, "0"), "."), texts)
    if kind.name == "bpchar":
        return _rtrimmed(texts, " ")
    if kind.name == "jsonb":
        return pa.chunked_array([pa.array([_json(text) for text in texts.to_pylist()], pa.string())])
    return texts


def _rtrimmed(texts: pa.ChunkedArray, characters: str) -> pa.ChunkedArray:
    return pc.utf8_rtrim(texts, characters=characters)


def _json(text: str | None) -> str | None:
    """Return *text* with no zeros at the end of a number's fraction; strings stay what they are."""

    def shortened(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else found[0].rstrip("0").rstrip(".")

    return None if text is None else _TEXT_OR_NUMBER.sub(shortened, text)
