"""The SELECT of one page, and the conditions that it shares with other questions about the same pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from connectors import postgres_literals as literals
from connectors import postgres_scope as scope
from connectors.postgres_types import Wire, choice, kind_of, named, wire
from sidecar import sql
from sidecar.errors import SettingsError
from sidecar.model import CURSOR, DELETED, VERSION, Among, Column, Page, Scalar, Tracked
from sidecar.sql import quoted

ODD = "sidecar:odd"
"""Which of a row's times had to be NULL, as their places in the SELECT list."""

# Versions are compared by age, which is exact up to 2^31 transactions; the margin is for those that begin meanwhile.
FAR = 2**31 - 2**20


def column(tracked: Tracked, name: str) -> Column:
    """Return the described column *name*; SettingsError if the role may not read it, or it is gone."""
    found = tracked.table.column(name)
    if found is None:
        raise SettingsError(f'table "{tracked.name}": no column "{name}" that the role may read')
    return found


def cursor_column(tracked: Tracked, name: str) -> Column:
    """Return the cursor column *name*; SettingsError if its type has no order in time that is kept exactly."""
    found = column(tracked, name)
    if not literals.is_time(found.arrow) and not pa.types.is_signed_integer(found.arrow):
        raise SettingsError(
            f'table "{tracked.name}": column "{name}" is {found.type}, which cannot be a cursor; '
            "choose a timestamp, a date or an integer"
        )
    return found


@dataclass(frozen=True)
class Statements:
    """The SQL of one table's pages. Columns stand as `"table"."column"`: ORDER BY takes a bare one for its output."""

    page: Page
    xmax: int = 3
    """The snapshot's: versions are counted from there. The default is for questions that ask for none."""

    @property
    def tracked(self) -> Tracked:
        return self.page.tracked

    @property
    def source(self) -> str:
        return source(self.tracked)

    def name(self, column_: str) -> str:
        return f"{quoted(self.tracked.table.path[1])}.{quoted(column_)}"

    def compared(self, column_: str) -> str:
        """Return the column as it stands beside an operator. A cast to what a domain is made of leaves it its index."""
        found = self.tracked.table.column(column_)
        cast = f"::{found.type}" if found is not None and kind_of(found).hidden else ""
        return self.name(column_) + cast

    @property
    def dialect(self) -> sql.Dialect:
        def bind(name: str, value: Scalar, _: list[Scalar]) -> str:
            found = column(self.tracked, name)
            return literals.literal(found.arrow, value) + named(found)

        def bound(name: str, value: int, _: list[Scalar]) -> str:
            type_ = cursor_column(self.tracked, name).arrow
            return literals.literal(type_, literals.last_day_over(value) if pa.types.is_date(type_) else value)

        def among(some: Among, _: list[Scalar]) -> str:
            return scope.among(some, [column(self.tracked, n) for n in some.columns], self.compared)

        return sql.Dialect(self.compared, bind, bound, lambda _: self.gone() or "true", among)

    def gone(self) -> str | None:
        """Return the condition that `deleted_at` says a row is deleted; None where nothing is to be said."""
        name = self.tracked.deleted_at
        if name is None:
            return None
        told = f"{self.name(name)} IS NOT NULL"
        if values := list(_not_deleted(self.tracked)):
            told += f" AND {self.name(name)} NOT IN ({', '.join(values)})"
        return told

    def deleted(self) -> str | None:
        parts = [p for p in (self.gone(), self.tracked.deleted_when) if p]
        return "(" + " OR ".join(map(sql.alone, parts)) + ") IS TRUE" if parts else None

    def condition(self, *, after: bool = True) -> str:
        """Return the page's WHERE, its versions reduced to those that may be new since `page.since`."""
        found = sql.where(self.page, self.dialect, after=after)
        since = self.page.since
        if since is not None and self.versioned and 0 <= self.xmax - since < FAR:
            # Rows frozen long ago have an xmin of an earlier round, whose age is negative.
            oldest = f"pg_catalog.age('{since % 2**32}'::xid)"
            found.terms.append(f"pg_catalog.age({self.name('xmin')}) BETWEEN 0 AND {oldest}")
        return found.text()

    @property
    def versioned(self) -> bool:
        return self.tracked.table.kind == "table"

    def columns(self) -> list[Column]:
        """Return the table's columns that a page carries: those delivered, then those that Sidecar needs."""
        tracked = self.tracked
        needed = (*tracked.key, tracked.updated_at, tracked.created_at, tracked.deleted_at)
        names = dict.fromkeys([*(c.name for c in tracked.columns), *(n for n in needed if n is not None)])
        known = {c.name: c for c in tracked.table.columns}
        return [known.get(n) or column(tracked, n) for n in names]

    def wires(self, *, careful: bool) -> list[Wire]:
        """Return what the SELECT lists. *careful* costs the server time, for times that only SQL can tell about."""
        columns = self.columns()
        wishes = self.tracked.wishes
        found = [wire(c, self.name(c.name), choice(wishes, c.name).infinity, careful=careful) for c in columns]
        cursor = self.page.scan.cursor or self.tracked.updated_at
        if careful and literals.is_time(cursor_column(self.tracked, cursor).arrow):
            expression = literals.comparable(column(self.tracked, cursor).arrow, self.name(cursor))
            found.append(Wire(CURSOR, expression, pa.int64(), pa.int64()))
        if self.versioned:
            # The distance to the snapshot's xmax: small, and free of the 32 bits' wraparound.
            age = f"pg_catalog.age({self.name('xmin')})::int8 - pg_catalog.age('{self.xmax % 2**32}'::xid)"
            found.append(Wire(VERSION, age, pa.int64(), pa.int64()))
        if gone := self.deleted():
            found.append(Wire(DELETED, gone, pa.bool_(), pa.bool_()))
        times = [(n, c) for n, c in enumerate(columns) if literals.is_time(c.arrow)]
        if careful and times:
            odd = {n: f"NOT {literals.holds(c.arrow, self.name(c.name))}" for n, c in times}
            flags = ", ".join(f"CASE WHEN {test} THEN '{n},' END" for n, test in odd.items())
            text = f"CASE WHEN {' OR '.join(odd.values())} THEN pg_catalog.concat({flags}) END"
            found.append(Wire(ODD, text, pa.string(), pa.string()))
        return found

    def select(self, wires: Sequence[Wire], *, as_csv: bool) -> str:
        listed = ", ".join(f"{(as_csv and w.csv_expression) or w.expression} AS c{n}" for n, w in enumerate(wires))
        # Without a cast, which would have the server sort what an index has in order.
        order = ", ".join(map(self.name, sql.order_columns(self.page)))
        where = self.condition()
        return f"SELECT {listed} FROM {self.source} WHERE {where} ORDER BY {order} LIMIT {self.page.limit}"


def source(tracked: Tracked) -> str:
    return ".".join(quoted(p) for p in tracked.table.path)


def _not_deleted(tracked: Tracked) -> Sequence[str]:
    """Return `not_deleted` as literals. Zero dates are MySQL's: no column here can hold one."""
    values = [v for v in tracked.not_deleted if v is not None and not str(v).startswith("0000-00-00")]
    return [literals.setting(v) for v in values]
