"""What stands in the way of following a PostgreSQL table well. Counts stop at a limit, plans are only explained; what
may read a whole table is a search for NULLs, for times in the future, and for keys that stand twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import pyarrow as pa

from connectors import postgres_catalog as catalog
from connectors import postgres_literals as literals
from connectors.postgres_query import Statements, column, cursor_column, source
from connectors.postgres_session import Session
from connectors.postgres_types import kind_of
from sidecar.clock import SECOND, Clock
from sidecar.connector import Finding
from sidecar.cursor import PER_SECOND
from sidecar.errors import SettingsError, counted
from sidecar.model import Page, Pass, Tracked
from sidecar.sql import quoted

_COUNTED = 10_000
_SMALL = 1 << 20
"""Bytes of a table that may be read and sorted at each poll."""
_SKEW = 2 * SECOND


def findings(session: Session, tracked: Tracked, clock: Clock) -> Sequence[Finding]:
    """Return all that there is to say about *tracked*, the passes in their order."""
    with session.snapshot(tracked.name):
        return [
            *_clock(session, tracked, clock),
            *_relation(session, tracked),
            *_money(session, tracked),
            *_key(session, tracked),
            *_forms(session, tracked),
            *(finding for scan in tracked.passes for finding in _pass(session, _page(tracked, scan))),
        ]


def _page(tracked: Tracked, scan: Pass) -> Page:
    """Return a page of *scan* as it is after the first poll, when passes no longer leave rows to each other."""
    return Page(tracked, scan, {} if scan.name == "updated" else {"updated": 0}, None, tracked.page_size)


def _clock(session: Session, tracked: Tracked, clock: Clock) -> Iterator[Finding]:
    before = clock.now()
    server = session.rows("SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::int8")[0][0]
    after = clock.now()
    apart = int(server) - (before + after) // 2
    if abs(apart) > _SKEW + (after - before) // 2:
        yield Finding(
            "warning",
            tracked.name,
            f"the server's clock is {abs(apart) / SECOND:.1f} s {'ahead of' if apart > 0 else 'behind'} this machine's",
            "Polls go by the server's clock; correct the one that is wrong.",
        )


def _relation(session: Session, tracked: Tracked) -> Iterator[Finding]:
    hidden = catalog.unreadable(session, tracked.table)
    if hidden:
        blind = " (and without xmin, rows are told apart by their content)" if tracked.table.kind == "view" else ""
        yield Finding(
            "warning",
            tracked.name,
            f"the role may not read {_listed(hidden)}: left out{blind}",
            f"GRANT SELECT ON {source(tracked)} TO the role, to have them; or set columns, to say that this is meant.",
        )
    if catalog.is_filtered(session, tracked.table):
        yield Finding("warning", tracked.name, *catalog.FILTERED)
    kind = catalog.kind(session, tracked.table)
    if kind == "m":
        yield Finding(
            "warning",
            tracked.name,
            "rows of a materialized view appear when it is refreshed, long after their stamps",
            "Set lookback to more than the time from one refresh to the next.",
        )
    elif kind == "f":
        yield Finding(
            "warning",
            tracked.name,
            "this server does not know which transactions run behind a foreign table",
            "Set lookback to more than the longest of them, or read the table at its own server.",
        )
    if catalog.is_subscribed(session, tracked.table):
        yield Finding(
            "warning",
            tracked.name,
            "a subscription fills it: what a publisher has committed appears later, under its stamps, and this server "
            "does not know which transactions run there",
            "Set lookback to more than the longest of them and the subscription's lag, or read the publisher.",
        )
    if not tracked.table.primary_key:
        yield Finding(
            "warning",
            tracked.name,
            f"no primary key; rows are told apart by {_listed(tracked.key)}",
            "These columns must be unique together and never NULL.",
        )


def _money(session: Session, tracked: Tracked) -> Iterator[Finding]:
    names = [c.name for c in tracked.columns if any(k.builtin and k.name == "money" for k in kind_of(c).leaves())]
    if names and catalog.own_setting(session, "lc_monetary"):
        yield Finding(
            "warning",
            tracked.name,
            f"{_listed(names)}: money, which does not say how many decimals it has; the role has an lc_monetary of its"
            " own, so two are taken for granted",
            "ALTER ROLE … RESET lc_monetary, to have those of the database's.",
        )


def _key(session: Session, tracked: Tracked) -> Iterator[Finding]:
    statements = Statements(Page(tracked, tracked.passes[0], {}, None, 1))
    for name in tracked.key:
        test = f"{statements.name(name)} IS NULL"
        if column(tracked, name).nullable and (count := _count(session, statements, test, members=False)):
            yield Finding(
                "error",
                f"{tracked.name}.{name}",
                f"key column with {_said(count, 'NULL')}: such rows cannot be told apart, and polls stop at them",
                "Fill them, or choose a primary_key of columns that are never NULL.",
            )
    if tracked.key_is_unique:
        return
    names = ", ".join(statements.name(n) for n in tracked.key)
    texts = ", ".join(f"{statements.name(n)}::text" for n in tracked.key)
    twice = session.rows(
        f"SELECT {texts} FROM {statements.source} GROUP BY {names} HAVING count(*) > 1 LIMIT 1", table=tracked.name
    )
    if twice:
        first = ", ".join(f"{n}={v}" for n, v in zip(tracked.key, twice[0], strict=True))
        yield Finding(
            "error",
            tracked.name,
            f"the key {_listed(tracked.key)} is not unique (first: {first})",
            "Add the columns that make it so to primary_key.",
        )


_EQUAL = {
    "numeric": "1.0 and 1.00",
    "numrange": "[1.0,2) and [1.00,2)",
    "nummultirange": "{[1.0,2)} and {[1.00,2)}",
    "jsonb": "1.0 and 1.00",
    "bpchar": "texts with and without blanks at their end",
    "interval": "1 day and 24:00:00",
    "float4": "0 and -0",
    "float8": "0 and -0",
    "citext": "a and A",
}
"""What the server takes for one, of two texts that are two."""


def _forms(session: Session, tracked: Tracked) -> Iterator[Finding]:
    """Yield in which parts of the key there are equal values of more than one text."""
    loose = catalog.loosely_collated(session, tracked.table)
    for name in tracked.key:
        described = column(tracked, name)
        kind, is_text = kind_of(described), pa.types.is_string(described.arrow)
        # A character of so many characters has all its blanks.
        leaves = [leaf for leaf in kind.leaves() if is_text and not (leaf.name == "bpchar" and leaf.typmod > 0)]
        equal = next((_EQUAL[leaf.name] for leaf in leaves if leaf.name in _EQUAL), None)
        if name in loose:
            equal = "texts that its nondeterministic collation does not tell apart"
        if equal is not None:
            yield Finding(
                "note",
                f"{tracked.name}.{name}",
                f"key column ({described.type}) that takes {equal} for one: each is a key of its own in the log, so a "
                "row whose key is rewritten as the other stands under both until a purge",
                f"After such updates: sidecar backfill {tracked.name} --purge",
            )


def _pass(session: Session, page: Page) -> Iterator[Finding]:
    tracked, name = page.tracked, page.scan.cursor
    if name is None:
        return
    where = f"{tracked.name}.{name}"
    try:
        type_ = cursor_column(tracked, name).arrow
    except SettingsError as error:
        yield Finding("error", where, str(error))
        return
    yield from _index(session, page, name)
    statements = Statements(page)
    reference = statements.name(name)
    if page.scan.name == "updated" and column(tracked, name).nullable:
        yield from _nulls(session, statements, name)
    if pa.types.is_timestamp(type_) and type_.tz is None and tracked.timezone is None:
        yield Finding(
            "warning",
            where,
            "timestamp without time zone; its values are taken for UTC",
            'If the application writes local time: timezone = "Europe/Berlin" (or yours).',
        )
    if literals.is_time(type_):
        odd = f"NOT {literals.holds(type_, reference)}"
        if count := _count(session, statements, odd):
            yield Finding(
                "warning",
                where,
                f"{_said(count, 'value is', 'values are')} infinite or outside the years 1 to 9999 (first key: "
                f"{_first(session, statements, odd)}): they are delivered as NULL, and move nothing",
                "Correct them, or have NULL say what they mean.",
            )
    now = _now(tracked, type_)
    late = f"{reference} > {now}" + (f" AND {literals.holds(type_, reference)}" if literals.is_time(type_) else "")
    if now and (count := _count(session, statements, late)):
        yield Finding(
            "warning",
            where,
            f"{_said(count, 'value lies', 'values lie')} in the future "
            f"(first key: {_first(session, statements, late)}): such rows are read again at each poll until their "
            "time has come",
            "Correct the writer's clock, or the rows.",
        )


def _now(tracked: Tracked, type_: pa.DataType) -> str | None:
    """Return the present in a cursor column's terms, with a minute for clocks; None where numbers tell no time."""
    soon = "(pg_catalog.now() + '1 minute'::interval)"
    if pa.types.is_integer(type_):
        per = PER_SECOND[tracked.unit] if tracked.unit else None
        return f"(extract(epoch FROM {soon}) * {per})::int8" if per else None
    if pa.types.is_timestamp(type_) and type_.tz:
        return soon
    reading = f"({soon} AT TIME ZONE {literals.setting(tracked.timezone or 'UTC')})"
    return reading if pa.types.is_timestamp(type_) else f"{reading}::date"


def _nulls(session: Session, statements: Statements, name: str) -> Iterator[Finding]:
    tracked, test = statements.tracked, f"{statements.name(name)} IS NULL"
    if count := _count(session, statements, test, members=False):
        how = f"by {tracked.created_at} instead" if tracked.created_at else "all of them, at every poll"
        yield Finding(
            "warning",
            f"{tracked.name}.{name}",
            f"{_said(count, 'NULL')} (first key: {_first(session, statements, test, members=False)}): such rows are "
            f"read {how}, a change may be missed",
            f"Have every write set {name}.",
        )


def _index(session: Session, page: Page, name: str) -> Iterator[Finding]:
    """Find out whether an index gives the pass's order: without one, there is a Sort even where sorts are forbidden."""
    tracked = page.tracked
    statements = Statements(dataclasses.replace(page, closed={**page.closed, page.scan.name: 0}))
    if catalog.kind(session, tracked.table) in ("r", "p", "m") and catalog.size(session, tracked.table) < _SMALL:
        return
    select = statements.select(statements.wires(careful=False), as_csv=False)
    usual = _plan(session, select, tracked.name)
    _sorting(session, "off")
    forced = _plan(session, select, tracked.name)
    _sorting(session, "on")
    sorts = [node for node in forced if node.startswith(("Sort  ", "Incremental Sort  "))]
    if not sorts:
        return
    wanted = ", ".join(quoted(n) for n in (name, *tracked.key))
    only = f" WHERE {quoted(name)} IS NOT NULL" if page.scan.name == "deleted" else ""
    index = quoted(f"sidecar_{tracked.table.path[1]}_{name}"[:63])
    kind = catalog.kind(session, tracked.table)
    how = "" if kind == "p" else "CONCURRENTLY "  # a partitioned parent's indexes cannot be made that way
    advice = f"CREATE INDEX {how}{index} ON {source(tracked)} ({wanted}){only};"
    if kind in ("v", "f"):
        advice = f"Index ({wanted}) in the tables under it."
    partly = all(line.startswith("Incremental") for line in sorts)
    shown = usual if any("Sort  " in node or "Seq Scan" in node for node in usual) else forced
    yield Finding(
        "warning",
        f"{tracked.name}.{name}",
        (
            f"the index by {name} lacks the key: rows with one stamp are sorted again for each page"
            if partly
            else f"no index serves the pass by {name}: every page reads and sorts the whole table"
        )
        + f" (plan: {'; '.join(shown)})",
        advice,
    )


def _plan(session: Session, select: str, table: str) -> list[str]:
    """Return the lines of the plan, without their arrows."""
    return [str(row[0]).split("->")[-1].strip() for row in session.rows(f"EXPLAIN {select}", table=table)]


def _sorting(session: Session, switch: str) -> None:
    """Let the planner sort and scan, or have it avoid both; for this transaction."""
    settings = "'{enable_sort,enable_seqscan}'::text[]"
    session.rows(f"SELECT pg_catalog.set_config(name, '{switch}', true) FROM unnest({settings}) AS name")


def _count(session: Session, statements: Statements, test: str, *, members: bool = True) -> int:
    """Return how many of the pass's rows pass *test*; beyond _COUNTED they are counted no further."""
    found: int = session.rows(
        f"SELECT count(*) FROM (SELECT FROM {_among(statements, test, members)} LIMIT {_COUNTED + 1}) AS found",
        table=statements.tracked.name,
    )[0][0]
    return found


def _said(count: int, one: str, many: str | None = None) -> str:
    return f"more than {_COUNTED:,} {many or one + 's'}" if count > _COUNTED else counted(count, one, many)


def _first(session: Session, statements: Statements, test: str, *, members: bool = True) -> str:
    key = statements.tracked.key
    texts = ", ".join(f"{statements.name(n)}::text" for n in key)
    order = ", ".join(statements.name(n) for n in key)
    rows = session.rows(
        f"SELECT {texts} FROM {_among(statements, test, members)} ORDER BY {order} LIMIT 1",
        table=statements.tracked.name,
    )
    return ", ".join(f"{n}={v}" for n, v in zip(key, rows[0], strict=True))


def _among(statements: Statements, test: str, members: bool) -> str:
    terms = f"({statements.condition()}) AND ({test})" if members else test
    return f"{statements.source} WHERE {terms}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{n}"' for n in names)
