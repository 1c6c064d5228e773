"""The SELECTs of one pass: a page is a short list of them, each one search in an index, run until it is full.

Every column is written as `"table"."column"`: SQLite takes a bare `"no such column"` for a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from connectors import sqlite_scope as scope
from connectors.sqlite_ranges import Range, after
from sidecar.errors import SettingsError
from sidecar.model import Page, Position, Scalar, Tracked
from sidecar.sql import alone, quoted

_QUOTED = re.compile(r"('(?:[^']|'')*')" + r'|"((?:[^"]|"")*)"')


@dataclass(frozen=True)
class Statement:
    """A SELECT; of a page's rows, up to its LIMIT, which is the last parameter and still to be given."""

    sql: str
    parameters: tuple[Scalar, ...]


def names(tracked: Tracked) -> tuple[str, ...]:
    """Return the columns that a page reads: those delivered, then those that Sidecar needs."""
    needed = (*tracked.key, tracked.updated_at, tracked.created_at, tracked.deleted_at)
    return tuple(dict.fromkeys([*(c.name for c in tracked.columns), *(n for n in needed if n is not None)]))


def column(tracked: Tracked, name: str) -> str:
    """Return *name* as a column of *tracked*'s table, and of nothing else."""
    return f"{quoted(tracked.name)}.{quoted(name)}"


def page_statements(
    page: Page,
    ranges: Sequence[Range],
    position: Position | None,
    *,
    indexed: bool,
    until: Position | None = None,
    rowid: str | None = None,
    shown: Callable[[str, str], str] | None = None,
) -> Iterator[Statement]:
    """Yield the SELECTs that together give *page*'s rows after *position* and up to *until*, in its order.

    With an index each stretch is a search of its own, and so is each part of a tie: a row value over a tie costs the
    whole group a page. Without one, every statement would be a scan, so there is but one. *shown*: what is selected of
    a column, by its name and quoted, in place of the column itself.
    """
    tracked, scan = page.tracked, page.scan
    key = [column(tracked, name) for name in tracked.key]
    cursor = [column(tracked, scan.cursor)] if scan.cursor else []
    order = [*cursor, *key]
    select = _Select.of(page, order, rowid if indexed else None, shown)
    if not indexed:
        parameters: list[Scalar] = []
        terms = []
        if cursor:
            terms.append("(" + " OR ".join(f"({r.sql(cursor[0], parameters)})" for r in ranges) + ")")
        if position is not None:
            terms.append(f"({', '.join(order)}) > ({', '.join('?' * len(order))})")
            parameters.extend(position)
        if until is not None:
            # A NULL in a key is an error, and not to be passed over.
            nulls = "".join(f" OR {name} IS NULL" for name in key)
            terms.append(f"(({', '.join(key)}) <= ({', '.join('?' * len(key))}){nulls})")
            parameters.extend(until)
        yield select(terms, parameters)
        return
    if page.scope.among is not None:
        terms, parameters = scope.either_way(key, position, until)
        yield select(terms, parameters)
        return
    if until is not None:
        for terms, parameters in scope.between(key, position, until):
            yield select(terms, parameters)
        return
    if position is None:
        for each in ranges if cursor else [Range()]:
            parameters = []
            yield select([each.sql(cursor[0], parameters)] if cursor else [], parameters)
        return
    for length in range(len(order) - 1, len(cursor) - 1, -1):
        terms = [*(f"{name} = ?" for name in order[:length]), f"{order[length]} > ?"]
        yield select(terms, list(position[: length + 1]))
    if cursor:
        for each in after(ranges, position[0]):
            parameters = []
            yield select([each.sql(cursor[0], parameters)], parameters)


def presence(page: Page, ranges: Sequence[Range]) -> Statement:
    """Return a SELECT of one row, which says of each of *ranges*, in their order, whether there is any value in it."""
    assert page.scan.cursor is not None
    parameters: list[Scalar] = []
    name, table = column(page.tracked, page.scan.cursor), quoted(page.tracked.name)
    asked = [f"EXISTS (SELECT 1 FROM {table} WHERE {each.within(name, parameters)})" for each in ranges]
    return Statement(f"SELECT {', '.join(asked)}", tuple(parameters))


def members(page: Page, parameters: list[Scalar]) -> list[str]:
    """Return the conditions that make a row one of *page*'s pass, its cursor value apart."""
    tracked, scan = page.tracked, page.scan
    terms = [f"{column(tracked, name)} IS NULL" for name in scan.nulls]
    if scan.name == "deleted":
        if tracked.not_deleted:
            assert tracked.deleted_at is not None
            terms.append(f"{column(tracked, tracked.deleted_at)} NOT IN ({', '.join('?' * len(tracked.not_deleted))})")
            parameters.extend(tracked.not_deleted)
        if page.closed.get("updated") is None:
            # The first poll's updated pass reads every stamped row, the deleted ones among them.
            terms.append(f"{column(tracked, tracked.updated_at)} IS NULL")
    return terms


def scoped(page: Page, parameters: list[Scalar], rowid: str | None = None) -> list[str]:
    """Return the conditions that make a row one of *page*'s scope."""
    terms = [] if page.scope.where is None else [alone(page.scope.where)]
    if page.scope.among is not None:
        tracked = page.tracked
        terms.append(scope.among(tracked, page.scope.among, lambda name: column(tracked, name), parameters, rowid))
    return terms


def deleted(tracked: Tracked, parameters: list[Scalar]) -> str | None:
    """Return an expression that is 1 for a soft-deleted row and 0 for any other; None where there are none."""
    parts = []
    if tracked.deleted_at:
        name = column(tracked, tracked.deleted_at)
        part = f"{name} IS NOT NULL"
        if tracked.not_deleted:
            part += f" AND {name} NOT IN ({', '.join('?' * len(tracked.not_deleted))})"
            parameters.extend(tracked.not_deleted)
        parts.append(part)
    if tracked.deleted_when:
        parts.append(alone(tracked.deleted_when))
    return f"CASE WHEN {' OR '.join(f'({p})' for p in parts)} THEN 1 ELSE 0 END" if parts else None


def check_condition(tracked: Tracked) -> None:
    """Raise SettingsError if `deleted_when` puts something in double quotes that is no column: a text, to SQLite."""
    condition = tracked.deleted_when or ""
    check_quotes(tracked, condition, f"deleted_when = {condition!r}")


def check_quotes(tracked: Tracked, condition: str, shown: str) -> None:
    """Raise SettingsError if *condition* puts something in double quotes that is no column: a text, to SQLite."""
    if re.search(r"\bselect\b", condition, re.IGNORECASE):
        return  # of another table, perhaps
    known = {name.lower() for name in (tracked.name, *(c.name for c in tracked.table.columns))}
    for text, name in _QUOTED.findall(condition):
        if not text and name.replace('""', '"').lower() not in known:
            raise SettingsError(
                f'table "{tracked.name}": {shown}: there is no column "{name}"; '
                f"a text stands in single quotes, '{name}'"
            )


@dataclass(frozen=True, slots=True)
class _Select:
    """What the SELECTs of one page have in common."""

    head: str
    before: tuple[Scalar, ...]
    terms: tuple[str, ...]
    behind: tuple[Scalar, ...]
    tail: str

    @classmethod
    def of(
        cls, page: Page, order: Sequence[str], rowid: str | None, shown: Callable[[str, str], str] | None
    ) -> _Select:
        tracked = page.tracked
        before: list[Scalar] = []
        behind: list[Scalar] = []
        wanted = [column(tracked, name) for name in names(tracked)]
        if shown is not None:
            wanted = [shown(name, quoted_) for name, quoted_ in zip(names(tracked), wanted, strict=True)]
        gone = deleted(tracked, before)
        if gone:
            wanted.append(gone)
        terms = (*members(page, behind), *scoped(page, behind, rowid))
        head = f"SELECT {', '.join(wanted)} FROM {quoted(tracked.name)} WHERE "
        return cls(head, tuple(before), terms, tuple(behind), f" ORDER BY {', '.join(order)} LIMIT ?")

    def __call__(self, terms: Sequence[str], values: Sequence[Scalar]) -> Statement:
        """Return the SELECT of the rows for which *terms*, over *values*, hold as well."""
        where = " AND ".join((*terms, *self.terms)) or "1"
        return Statement(f"{self.head}{where}{self.tail}", (*self.before, *values, *self.behind))
