"""SQLite's half of the matrix of types in docs/types.md: what real rows become, as the connector says."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connectors.sqlite import SQLiteConnector
from sidecar.connector import Source
from sidecar.model import BAD, Page
from sidecar.testing.contract import tracked
from tests.types_matrix import Half, shown, spark_name

HALF: Half = Half("sqlite")


@dataclass(frozen=True)
class Case:
    """A declaration, literals of what is stored when its type is decided, and of what comes later; a note.

    `at` is SQL behind the table's columns.
    """

    declared: str
    stored: tuple[str, ...]
    later: tuple[str, ...] = ()
    note: str = ""
    at: str = ""


_BROKEN = "CAST(x'61ff' AS TEXT)"
_DAY = "2024-05-01"

CASES = (
    Case("INTEGER", ("-9223372036854775808", "9223372036854775807"), ("1.5", "'x'")),
    Case("UNSIGNED BIG INT", ("1.0",), (), "SQLite stores it as an integer"),
    Case("REAL", ("5e-324", "1", "9e999", "9e999 - 9e999"), ("'x'",), "NaN is NULL in SQLite"),
    Case("DOUBLE PRECISION", ("0.1",)),
    Case("TEXT", ("'größe'", "1.5", "'a' || char(0) || 'b'"), (_BROKEN, "x'00'"), "a NUL is a character"),
    Case("VARCHAR(3)", ("'longer'",), (), "SQLite takes a length for no limit"),
    Case("JSON", ("""'{"k": 1.0}'""", "1"), (_BROKEN,)),
    Case("UUID", ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",)),
    Case("TIME", ("'10:00'",)),
    Case("BLOB", ("x'00ff27'",), ("'x'", "1")),
    Case("BOOLEAN", ("0", "1"), ("2",)),
    Case("BOOLEAN", ("0", "2")),
    Case("BOOLEAN", ("1", "0.5")),
    Case("BOOLEAN", ("1", "'true'")),
    Case("DECIMAL(10,2)", ("1.5", "'0.10'"), ("9007199254740993", "'n/a'"), "SQLite stores both as doubles"),
    Case("NUMERIC", ("0.1", "9007199254740993"), (), "an integer that no double is"),
    Case("NUMERIC", ("0.1", "'n/a'")),
    Case("DATE", (f"'{_DAY}'", "'0001-01-01'", "'9999-12-31'"), (f"'{_DAY} 10:00'",)),
    Case("DATE", (f"'{_DAY}'", f"'{_DAY} 10:00'")),
    Case(
        "DATETIME",
        (f"'{_DAY} 10:00:00'", f"'{_DAY}T10:00:00.123456'", f"'{_DAY} 10:00'", f"'{_DAY}'"),
        (f"'{_DAY} 10:00:00Z'", "'soon'", "1714557600"),
        "no zone",
    ),
    Case(
        "DATETIME",
        (f"'{_DAY} 10:00:00Z'", f"'{_DAY}T10:00:00+02:00'", f"'{_DAY} 10:00:00 UTC'"),
        (f"'{_DAY} 10:00:00'",),
        "a zone",
    ),
    Case("DATETIME", (f"'{_DAY} 10:00:00'", f"'{_DAY} 10:00:00Z'"), (), "with and without a zone"),
    Case("DATETIME", (f"'{_DAY} 10:00:00.1234567'",), (), "no whole microsecond"),
    Case("DATETIME", (f"'{_DAY} 10:00'", "'soon'"), (), "not all are times"),
    Case("TIMESTAMP", ("1714557600",), ("1714557600000", "0"), "seconds; of 0, nobody can tell the unit"),
    Case("TIMESTAMP", ("1714557600123",), (), "milliseconds"),
    Case("TIMESTAMP", ("1714557600123456",), (), "microseconds"),
    Case("TIMESTAMP", ("1714557600123456000",), ("1714557600123456001",), "nanoseconds"),
    Case("TIMESTAMP", ("2460431.5",), (), "Julian days"),
    Case("TIMESTAMP", ("1714557600", "1714557600123"), (), "two units"),
    Case("TIMESTAMP", ("1714557600", f"'{_DAY} 10:00'"), (), "numbers beside texts"),
    Case("DATETIME", (), (f"'{_DAY} 10:00'",), "nothing but NULL, and no other column to go by"),
    Case("", ("1", "-9223372036854775808"), ("0.5", "'x'")),
    Case("", ("1", "0.5")),
    Case("", ("9007199254740993", "0.5"), (), "an integer that no double is"),
    Case("", ("1", "'x'", "0.5"), ("x'00'",)),
    Case("", ("x'00ff27'",), ("1",)),
    Case("", ("1", "x'00'"), (), "a blob beside other values"),
    Case("", (), ("1", "'x'"), "nothing but NULL"),
    Case("", (_BROKEN,)),
    Case("POINT", ("'1 2'",), (), "a word that says nothing"),
    Case("ANY", ("1", "'1'"), (), "STRICT", ") STRICT"),
    Case("INT", ("1",), (), "STRICT", ") STRICT"),
    Case("TEXT", ("1",), (), "STRICT, WITHOUT ROWID", ") STRICT, WITHOUT ROWID"),
    Case("AS (id * 2)", (), (), "generated"),
    Case("AS (id * 0.5) STORED", (), (), "generated"),
    Case("INTEGER AS (id * 2)", (), (), "generated"),
)


def rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the matrix: declaration, Arrow, Spark, values as stored and as read, notes."""
    path = folder / "zoo.db"
    database = sqlite3.connect(path, isolation_level=None)
    connector = SQLiteConnector(Source(f"sqlite:///{path}"))
    try:
        for n, case in enumerate(CASES):
            yield _row(database, connector, f"t{n}", case)
    finally:
        connector.close()
        database.close()


def _row(database: sqlite3.Connection, connector: SQLiteConnector, name: str, case: Case) -> tuple[str, ...]:
    database.execute(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL, c {case.declared} {case.at or ')'}"
    )
    is_generated = "AS (" in case.declared
    stored = case.stored or ("NULL",)

    def insert(literals: tuple[str, ...], first: int) -> None:
        for key, literal in enumerate(literals, first):
            names, values = ("", "") if is_generated else (", c", f", {literal}")
            database.execute(f"INSERT INTO {name} (id, updated_at{names}) VALUES ({key}, 1{values})")

    insert(stored, 1)
    followed = connector.settle(tracked(connector, name), lambda: None)
    insert(case.later, 1 + len(stored))
    found = connector.read(Page(followed, followed.passes[0], {}, None, 100)).sort_by("id")
    values = found.column("c").to_pylist()
    marks = found.column(BAD).to_pylist() if BAD in found.column_names else [None] * len(found)
    given = ("id = 1",) if is_generated else (*stored, *case.later)
    lines = []
    for literal, value, mark in zip(given, values, marks, strict=True):
        reads = f"`{shown(value)}`" if mark is None else "bad: it " + json.loads(mark)["bad"]["c"]
        lines.append(f"`{literal}` → {reads}")
    column = next(c for c in followed.columns if c.name == "c")
    declared = f"`{case.declared}`" if case.declared else "none"
    return declared, f"`{column.arrow}`", f"`{spark_name(column.arrow)}`", "<br>".join(lines), case.note


def matrix() -> str:
    """Return the SQLite part of docs/types.md."""
    with tempfile.TemporaryDirectory() as folder:
        head = ("declared", "Arrow", "Spark", "what is stored → what arrives", "")
        return HALF.table(head, rows(Path(folder)))
