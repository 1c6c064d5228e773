"""What stands in the way of following a SQLite table well. May read the whole table: it is asked by a person."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from connectors import sqlite_ranges as ranges_
from connectors import sqlite_times as times
from connectors import sqlite_types as types
from connectors.sqlite_cursor import plan
from connectors.sqlite_query import column, members
from sidecar import cursor
from sidecar.connector import Finding
from sidecar.errors import SettingsError, counted
from sidecar.model import Page, Pass, Scalar, Tracked
from sidecar.sql import quoted

if TYPE_CHECKING:
    from connectors.sqlite_cursor import Cursors

_WORDS = {
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    times.DATE: "date",
    times.READING: "timestamp without a zone",
    times.INSTANT: "timestamp",
}


def findings(connection: sqlite3.Connection, tracked: Tracked, cursors: Cursors, now: int) -> Sequence[Finding]:
    """Return all that there is to say about *tracked*, the passes in their order."""
    found: list[Finding] = [
        *_rights(connection, cursors.path),
        *_key(connection, tracked),
        *_collations(connection, tracked),
        *_types(connection, tracked),
    ]
    for scan in tracked.passes:
        page = Page(tracked, scan, {}, None, tracked.page_size)
        found += _index(connection, page)
        if scan.cursor is not None:
            found += _cursor(connection, page, scan.cursor, cursors, now)
    return found


def _rights(connection: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    """Yield what becomes of a WAL database whose owner closes it, and whose next opener is we."""
    if not hasattr(os, "geteuid") or connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        return
    owner = path.stat().st_uid
    # SQLite hands the files over to the owner where it may: as root.
    if os.geteuid() in (0, owner) or not os.access(path.parent, os.W_OK):
        return
    yield Finding(
        "warning",
        str(path),
        f"in WAL mode, and it belongs to another user (uid {owner}): when nobody else has it open, reading makes the "
        f"files {path.name}-wal and {path.name}-shm as this user's (uid {os.geteuid()}), which may keep the owner from "
        "writing",
        "Run as the owner; or take from this user the right to write to the directory, while the application keeps the "
        "database open.",
    )


def _key(connection: sqlite3.Connection, tracked: Tracked) -> Iterator[Finding]:
    table, where = quoted(tracked.name), tracked.name
    if not tracked.table.primary_key:
        yield Finding(
            "warning",
            where,
            f"the {tracked.table.kind} has no primary key; rows are told apart by {_listed(tracked.key)}",
            "These columns must be unique together and never NULL.",
        )
    for name in tracked.key:
        described = tracked.table.column(name)
        if described is None or not described.nullable:
            continue
        count = _one(connection, f"SELECT count(*) FROM {table} WHERE {column(tracked, name)} IS NULL")
        if count:
            yield Finding(
                "error",
                f"{where}.{name}",
                f"key column with {counted(count, 'NULL')}: such rows cannot be told apart, and polls stop at them",
                "Fill them, or choose a primary_key of columns that are never NULL.",
            )
    if not tracked.key_is_unique:
        names = ", ".join(column(tracked, n) for n in tracked.key)
        sql = f"SELECT {names} FROM {table} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
        twice = connection.execute(sql).fetchone()
        if twice:
            first = ", ".join(f"{n}={v!r}" for n, v in zip(tracked.key, twice, strict=True))
            yield Finding(
                "error",
                where,
                f"the key {_listed(tracked.key)} is not unique (first: {first})",
                "Add the columns that make it so to primary_key.",
            )


def _collations(connection: sqlite3.Connection, tracked: Tracked) -> Iterator[Finding]:
    """Yield by which collations a unique index of the key takes two texts for one."""
    sql = (
        "SELECT DISTINCT of.name, of.coll FROM pragma_index_list(?) AS list, pragma_index_xinfo(list.name) AS of"
        " WHERE list.\"unique\" AND of.key AND of.coll <> 'BINARY' ORDER BY of.seqno"
    )
    for name, collation in connection.execute(sql, (tracked.name,)).fetchall():
        if name in tracked.key:
            yield Finding(
                "note",
                f"{tracked.name}.{name}",
                f"key column under COLLATE {collation}: of two texts that this takes for one, each is a key of its own "
                "in the log, so a row whose key is rewritten as the other stands under both until a purge",
                f"After such updates: sidecar backfill {tracked.name} --purge",
            )


def _types(connection: sqlite3.Connection, tracked: Tracked) -> Iterator[Finding]:
    """Yield which types the values have decided, where the declaration does not lead one to expect them."""
    chosen = [
        f"{quoted(c.name)} ({c.type or 'no type'}) as {_WORDS[c.arrow]}"
        for c in tracked.columns
        if types.choices(c.type) and c.name not in tracked.key and c.arrow not in types.expected(c.type)
    ]
    if chosen and _one(connection, f"SELECT EXISTS (SELECT 1 FROM {quoted(tracked.name)})"):
        yield Finding(
            "note",
            tracked.name,
            f"their values decide how these columns arrive: {', '.join(chosen)}",
            "The change log keeps these types; a value that does not fit, later, goes by on_bad_value.",
        )


def _index(connection: sqlite3.Connection, page: Page) -> Iterator[Finding]:
    tracked, scan = page.tracked, page.scan
    if scan.cursor is None:
        return
    lines = plan(connection, page)
    if not any("TEMP B-TREE" in line for line in lines):
        return
    full = any("FOR ORDER BY" in line for line in lines)
    name = f"sidecar_{tracked.name}_{scan.cursor}"
    wanted = ", ".join(quoted(n) for n in (scan.cursor, *tracked.key))
    advice = f"CREATE INDEX {quoted(name)} ON {quoted(tracked.name)} ({wanted});"
    if tracked.table.kind == "view":
        advice = f"Index ({wanted}) in the tables under the view."
    yield Finding(
        "warning",
        f"{tracked.name}.{scan.cursor}",
        (
            f"no index serves the pass by {scan.cursor}: every page reads and sorts the whole table"
            if full
            else f"the index by {scan.cursor} lacks the key: rows with one stamp are sorted again for each page"
        )
        + f" (plan: {'; '.join(lines)})",
        advice,
    )


def _cursor(connection: sqlite3.Connection, page: Page, name: str, cursors: Cursors, now: int) -> Iterator[Finding]:
    tracked = page.tracked
    where = f"{tracked.name}.{name}"
    try:
        holds = cursors.holds(connection, page, name)
    except SettingsError as error:
        yield Finding("error", where, str(error), "")
        return
    yield from _nulls(connection, tracked, page.scan, name)
    if holds == "text":
        yield from _texts(connection, page, name, now)
    elif holds == "integer" and tracked.unit is None:
        yield from _unit(connection, page, name)
    elif not holds:
        yield Finding("error", where, "its numbers are no times that this column's declaration promises", "")
    if holds in cursor.PER_SECOND or (holds == "integer" and tracked.unit):
        per = cursor.PER_SECOND[tracked.unit or holds]
        yield from _future(connection, page, name, now * per // 1_000_000)


def _nulls(connection: sqlite3.Connection, tracked: Tracked, scan: Pass, name: str) -> Iterator[Finding]:
    described = tracked.table.column(name)
    if scan.name != "updated" or described is None or not described.nullable:
        return
    condition = f"FROM {quoted(tracked.name)} WHERE {column(tracked, name)} IS NULL"
    count = _one(connection, f"SELECT count(*) {condition}")
    if count:
        key = ", ".join(column(tracked, n) for n in tracked.key)
        row = connection.execute(f"SELECT {key} {condition} ORDER BY {key} LIMIT 1").fetchone()
        first = ", ".join(f"{n}={v!r}" for n, v in zip(tracked.key, row, strict=True))
        how = f"by {tracked.created_at} instead" if tracked.created_at else "all of them, at every poll"
        yield Finding(
            "warning",
            f"{tracked.name}.{name}",
            f"{counted(count, 'NULL')} (first key: {first}): such rows are read {how}, a change may be missed",
            f"Have every write set {name}.",
        )


def _texts(connection: sqlite3.Connection, page: Page, name: str, now: int) -> Iterator[Finding]:
    tracked, where, c = page.tracked, f"{page.tracked.name}.{name}", column(page.tracked, name)
    parameters: list[Scalar] = []
    terms = " AND ".join([f"{c} IS NOT NULL", *members(page, parameters)])
    source = f"FROM {quoted(tracked.name)} WHERE {terms}"
    key = ", ".join(column(tracked, n) for n in tracked.key)
    bad: list[tuple[object, ...]] = []
    count = zoneless = zoned = 0
    # One example of each form is enough: its digits made equal.
    for value, rows, *first in connection.execute(
        f"SELECT {c}, count(*), {key} {source} GROUP BY substr({c}, 1, 4), length({c}), substr({c}, 11, 1), "
        f"substr({c}, -6)",
        parameters,
    ):
        if not isinstance(value, str):
            continue
        if cursor.from_text(value, tracked.timezone) is None:
            count += rows
            bad = bad or [tuple(first)]
        elif value[-1:] in "zZC" or "+" in value[10:] or "-" in value[10:]:
            zoned += rows
        else:
            zoneless += rows
    if bad:
        shown = ", ".join(f"{n}={v!r}" for n, v in zip(tracked.key, bad[0], strict=True))
        yield Finding(
            "error",
            where,
            f"about {counted(count, 'value is no time', 'values are no times')} (first key: {shown}): such rows are "
            "delivered, and read again at each poll",
            "Write ISO 8601, such as 2024-05-01 10:00:00 or 2024-05-01T10:00:00Z.",
        )
    if zoneless and tracked.timezone is None:
        yield Finding(
            "warning",
            where,
            f"about {counted(zoneless, 'value carries', 'values carry')} no zone"
            + (f", {zoned:,} with one" if zoned else "")
            + "; without, they are taken for UTC, as SQLite's CURRENT_TIMESTAMP is",
            'If the application writes local time: timezone = "Europe/Berlin" (or yours).',
        )
    if high := ranges_.ceiling(now):
        yield from _future(connection, page, name, high)


def _future(connection: sqlite3.Connection, page: Page, name: str, bound: Scalar) -> Iterator[Finding]:
    tracked, c = page.tracked, column(page.tracked, name)
    parameters: list[Scalar] = [bound]
    terms = [f"{c} > ?", *members(page, parameters)]
    if isinstance(bound, str):
        terms.append(f"{c} < ':'")  # a text beyond all digits is no time at all, and has been named for that
    count = _one(connection, f"SELECT count(*) FROM {quoted(tracked.name)} WHERE {' AND '.join(terms)}", *parameters)
    if count:
        yield Finding(
            "warning",
            f"{tracked.name}.{name}",
            f"{counted(count, 'value lies', 'values lie')} in the future: "
            "such rows are read again at every poll until then",
            "Correct them.",
        )


def _unit(connection: sqlite3.Connection, page: Page, name: str) -> Iterator[Finding]:
    tracked, c = page.tracked, column(page.tracked, name)
    row = connection.execute(
        f"SELECT {c} FROM {quoted(tracked.name)} WHERE {c} < '' ORDER BY {c} DESC LIMIT 1"
    ).fetchone()
    unit = cursor.unit_of(row[0]) if row and isinstance(row[0], int) and row[0] >= ranges_.FIRST_EPOCH else None
    if unit is not None and unit != "julian":
        yield Finding(
            "warning",
            f"{tracked.name}.{name}",
            f"taken for a counter; its values look like times in {unit} (the greatest would be "
            f"{cursor.show(row[0], 'number', unit)})",
            f'If they are: [tables.{tracked.name}] updated_at_unit = "{unit}".',
        )


def _one(connection: sqlite3.Connection, sql: str, *parameters: Scalar) -> int:
    return int(connection.execute(sql, parameters).fetchone()[0])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
