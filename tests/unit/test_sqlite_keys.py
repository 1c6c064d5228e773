"""Keys that tell no rows apart: NULLs, and numbers beside the texts that they are read as."""

from __future__ import annotations

import itertools
import sqlite3
from dataclasses import replace

import pyarrow as pa
import pytest

from connectors.sqlite_keys import are_one, refuse_hidden_nulls, refuse_nulls, refuse_twins
from sidecar.errors import SettingsError
from sidecar.model import Column, Page, Pass, Scope, Table, Tracked


def check(declared: str, rows: list[tuple[object, object]]) -> None:
    """Hold each of *rows*, which are keys of two parts, against a table of all of them."""
    columns = (Column("a", declared, pa.string()), Column("b", "TEXT", pa.string()), Column("at", "TEXT", pa.string()))
    tracked = Tracked(Table("t", ("t",), columns, ("a", "b")), ("a", "b"), "at", columns=columns)
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (a {declared}, b TEXT, at TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, ?, '2024-05-01')", rows)
    for row in connection.execute("SELECT a, b, at FROM t").fetchall():
        refuse_twins(connection, tracked, [row])


def test_a_null_is_named_with_the_rest_of_its_key_and_outside_a_part_of_the_table_it_is_nobodys() -> None:
    columns = tuple(Column(name, "INTEGER", pa.int64()) for name in ("a", "b", "at"))
    tracked = Tracked(Table("t", ("t",), columns, ("a", "b")), ("a", "b"), "at", columns=columns)
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a INTEGER, b INTEGER, at INTEGER)")
    connection.execute("INSERT INTO t VALUES (1, 1, 7), (2, NULL, 8), (3, 1, 7)")
    with pytest.raises(SettingsError, match=r'key column "b" holds a NULL \(a=2, rowid 2\), so'):
        refuse_nulls(connection, tracked, [(1, 1, 7), (2, None, 8)])
    page = Page(tracked, Pass("all", None), {}, None, 10, until=(2, 5))
    with pytest.raises(SettingsError, match=r'key column "b" holds a NULL \(a=2, rowid 2\), so'):
        refuse_hidden_nulls(connection, page, page.until)
    refuse_hidden_nulls(connection, replace(page, scope=Scope(where="at = 7")), page.until)


@pytest.mark.parametrize(("number", "text"), [(12, "12"), (1.5, "1.5"), (-7, "-7")])
def test_a_number_beside_its_text_is_refused(number: object, text: str) -> None:
    with pytest.raises(SettingsError, match=f"\"a\" holds both the number {text} and the text '{text}'"):
        check("", [("x", "1"), (number, "1"), (text, "1")])


def test_what_differs_in_another_part_or_is_written_otherwise_is_not() -> None:
    check("", [(12, "1"), ("12", "2"), (1.5, "1"), ("1.50", "1"), (7, "1"), ("07", "1"), ("one", "1")])
    check("TEXT", [(12, "1"), ("13", "1")])  # which makes texts of all


@pytest.mark.parametrize("collation", ["BINARY", "NOCASE", "RTRIM"])
def test_keys_are_one_as_sqlite_says_and_what_is_not_alike_is_not_looked_for(collation: str) -> None:
    columns = (Column("k", "TEXT", pa.string()), Column("n", "REAL", pa.float64()))
    tracked = Tracked(Table("t", ("t",), columns, ()), ("k", "n"), "n", columns=columns)
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (k TEXT COLLATE {collation}, n REAL)")
    texts = ("", " ", "a", "A", "a ", "A  ", "aa", "\u00e9", "\u00c9", "1", "1.0")
    keys = list(itertools.product(texts, (0.0, -0.0, 2)))
    connection.executemany("INSERT INTO t VALUES (?, ?)", keys)
    for one, other in itertools.product(keys, keys):
        sql = "SELECT count(*) FROM t WHERE k = ? AND k = ? AND n = ? AND n = ?"
        (count,) = connection.execute(sql, (one[0], other[0], one[1], other[1])).fetchone()
        assert are_one(connection, tracked, one, other) == (count > 0), (one, other)
    asked: list[str] = []
    connection.set_trace_callback(asked.append)
    assert not are_one(connection, tracked, ("a", 1.0), ("b", 1.0))
    assert not are_one(connection, tracked, ("a", 1.0), ("a", 2.0))
    assert asked == []
