"""The one SELECT: which rows a page asks for, as text and parameters. Each dialect says how it quotes and binds.

The predicate is a row value, `(cursor, key…) > (?, ?…)`, preceded by `cursor >= ?`: an index on `(cursor, key…)` then
answers any page in constant time, where a chain of ORs reads everything before it. And nothing else is said of the
cursor: with `cursor > closed` beside it PostgreSQL 18 begins at the first row that carries the cursor's value, and so
reads all earlier pages again where many rows carry the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sidecar.model import Among, Page, Position, Scalar


@dataclass
class Dialect:
    """How a database writes identifiers and takes values.

    bind(column, value, parameters) returns the SQL text for a position's *value* compared with *column*, and may append
    to *parameters*; bound(column, value) is the same for a comparable integer (a closed value). among(some, parameters)
    returns the condition that a row is among some values; without it, it is a list of row values.
    """

    quote: Callable[[str], str]
    bind: Callable[[str, Scalar, list[Scalar]], str]
    bound: Callable[[str, int, list[Scalar]], str]
    gone: Callable[[list[Scalar]], str]
    among: Callable[[Among, list[Scalar]], str] | None = None


@dataclass
class Where:
    """A conjunction under construction, with its parameters in order of appearance."""

    terms: list[str] = field(default_factory=list)
    parameters: list[Scalar] = field(default_factory=list)

    def text(self) -> str:
        return " AND ".join(f"({t})" for t in self.terms) or "1 = 1"


def quoted(name: str) -> str:
    """Return *name* as a standard SQL identifier, whatever stands in it."""
    return '"' + name.replace('"', '""') + '"'


def where(page: Page, dialect: Dialect, *, after: bool = True) -> Where:
    """Return *page*'s condition: its pass and scope, above closed, not read by an earlier pass, after the position, and
    not beyond its end.
    """
    found = Where()
    following = after and page.after is not None
    # What follows a row of the pass is above closed, as that row was.
    _membership(page, dialect, found, bounded=not (following and page.scan.cursor))
    if following:
        _after(page, dialect, found)
    if page.until is not None:
        found.terms.append(_compared(page, dialect, "<=", page.until, found))
    _scope(page, dialect, found)
    return found


def alone(condition: str) -> str:
    """Return a condition that somebody wrote, between parentheses, on lines of its own: it may end in a comment."""
    return f"(\n{condition}\n)"


def order_columns(page: Page) -> tuple[str, ...]:
    """Return what *page* is ordered by: cursor, then the key in its declared order."""
    return ((page.scan.cursor,) if page.scan.cursor else ()) + page.tracked.key


def _membership(page: Page, dialect: Dialect, found: Where, *, bounded: bool) -> None:
    scan, closed = page.scan, page.closed
    for name in scan.nulls:
        found.terms.append(f"{dialect.quote(name)} IS NULL")
    if scan.cursor is not None and bounded:
        value = closed.get(scan.name)
        quoted_ = dialect.quote(scan.cursor)
        found.terms.append(
            f"{quoted_} IS NOT NULL"
            if value is None
            else f"{quoted_} > {dialect.bound(scan.cursor, value, found.parameters)}"
        )
    if scan.name == "deleted":
        found.terms.append(dialect.gone(found.parameters))
        if closed.get("updated") is None:
            # The first poll's updated pass reads every stamped row, the deleted ones among them.
            found.terms.append(f"{dialect.quote(page.tracked.updated_at)} IS NULL")


def _after(page: Page, dialect: Dialect, found: Where) -> None:
    assert page.after is not None
    columns: Sequence[str] = order_columns(page)
    if page.scan.cursor is not None:
        first = dialect.bind(columns[0], page.after[0], found.parameters)
        found.terms.append(f"{dialect.quote(columns[0])} >= {first}")
    found.terms.append(_compared(page, dialect, ">", page.after, found))


def _compared(page: Page, dialect: Dialect, operator: str, position: Position, found: Where) -> str:
    columns = order_columns(page)
    values = ", ".join(dialect.bind(c, v, found.parameters) for c, v in zip(columns, position, strict=True))
    return f"({', '.join(map(dialect.quote, columns))}) {operator} ({values})"


def _scope(page: Page, dialect: Dialect, found: Where) -> None:
    if page.scope.where is not None:
        found.terms.append(alone(page.scope.where))
    among = page.scope.among
    if among is not None:
        found.terms.append((dialect.among or _listed(dialect))(among, found.parameters))


def _listed(dialect: Dialect) -> Callable[[Among, list[Scalar]], str]:
    def among(some: Among, parameters: list[Scalar]) -> str:
        bound = (
            ", ".join(dialect.bind(c, v, parameters) for c, v in zip(some.columns, value, strict=True))
            for value in some.values
        )
        rows = ", ".join(f"({row})" for row in bound)
        return f"({', '.join(map(dialect.quote, some.columns))}) IN ({rows})"

    return among
