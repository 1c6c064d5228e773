"""SQLite values become Arrow exactly, or not at all; the declaration says as what, or all of a column's values do."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Sequence

import pyarrow as pa
import pytest

from connectors import sqlite_settle
from connectors import sqlite_times as times
from connectors import sqlite_types as types
from connectors.sqlite_rows import uncollected
from sidecar.model import Column, Table, Tracked


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", pa.int64()), ("bigint", pa.int64()), ("UNSIGNED BIG INT", pa.int64()), ("BOOLEAN", pa.int64()),
        ("REAL", pa.float64()), ("DOUBLE PRECISION", pa.float64()), ("FLOATING POINT", pa.float64()),
        ("NUMERIC(12, 2)", pa.float64()), ("decimal(10,5)", pa.float64()), ("DEC(5)", pa.float64()),
        ("TEXT", pa.string()), ("VARCHAR(20)", pa.string()), ("CLOB", pa.string()),
        ("BLOB", pa.binary()), ("VARBINARY(16)", pa.binary()),
        ("DATETIME", pa.string()), ("TIMESTAMP", pa.string()), ("DATE", pa.string()), ("time", pa.string()),
        ("JSON", pa.string()), ("UUID", pa.string()), ("STRING", pa.string()), ("POINT", pa.string()),
        ("", pa.string()),
    ],
)  # fmt: skip
def test_a_declaration_decides_the_type(declared: str, expected: pa.DataType) -> None:
    assert types.arrow(declared) == expected


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64(), pa.string(), pa.binary()])
def test_nothing_but_nulls_and_nothing_at_all_keep_the_type(type_: pa.DataType) -> None:
    assert types.array((None, None), type_).type == type_
    assert types.array((), type_).type == type_


@pytest.mark.parametrize(
    ("values", "type_", "row"),
    [
        ((1, 1.5), pa.int64(), 1),
        ((1, None, "2"), pa.int64(), 2),
        ((1.5, "x"), pa.float64(), 1),
        (("x", b"x"), pa.string(), 1),
        ((b"x", "x"), pa.binary(), 1),
        ((0.5, 2**53 + 1), pa.float64(), 1),
    ],
)
def test_a_value_of_another_class_is_refused_by_its_row(
    values: tuple[object, ...], type_: pa.DataType, row: int
) -> None:
    with pytest.raises(types.Misfit) as caught:
        types.array(values, type_)
    assert caught.value.row == row


def test_integers_that_a_double_holds_exactly_are_doubles() -> None:
    assert types.array((5, 2.5, None, 2**53, 2**60), pa.float64()).to_pylist() == [5.0, 2.5, None, 2.0**53, 2.0**60]


@pytest.mark.parametrize("value", [0, -7, 2**63 - 1, 1.5, 0.1, 1e300, -0.0])
def test_numbers_in_a_text_column_are_their_exact_text_and_come_back(value: float) -> None:
    (text,) = types.array((value,), pa.string()).to_pylist()
    again = types.number(text)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("text", ["007", "1_000", " 5", "1e5", "+5", "", "abc", "0x10"])
def test_text_that_only_looks_like_a_number_stays_text(text: str) -> None:
    assert types.number(text) is text


def settled(declared: str, values: Sequence[object], held: pa.Schema | None = None) -> pa.DataType:
    """Return the type that is decided for a column declared and filled like this."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, c {declared})")
    connection.executemany("INSERT INTO t (c) VALUES (?)", [(v,) for v in values])
    columns = (Column("id", "INTEGER", pa.int64(), False), Column("c", declared, types.arrow(declared)))
    tracked = Tracked(Table("t", ("t",), columns, ("id",)), ("id",), "id", columns=columns)

    def connect() -> sqlite3.Connection:
        assert types.choices(declared), "what the declaration decides needs no scan"
        assert held is None, "what the log holds needs no scan"
        return connection

    found = sqlite_settle.settle(connect, tracked, lambda: held).columns[1].arrow
    connection.close()
    return found


BIG = 2**53 + 1
READING, INSTANT = times.READING, times.INSTANT


@pytest.mark.parametrize(
    ("declared", "values", "expected"),
    [
        ("", [None, 1, 2**63 - 1], pa.int64()), ("ANY", [1, 2.5], pa.float64()), ("", [0.5], pa.float64()),
        ("", [BIG, 2.5], pa.string()), ("", [2**63 - 1, 0.5], pa.string()), ("", [-(2**63), 0.5], pa.float64()),
        ("", ["a"], pa.string()), ("", [1, "a"], pa.string()), ("", [b"a"], pa.binary()), ("", [], pa.string()),
        ("", [None], pa.string()), ("", [b"a", 1], pa.string()), ("", [b"a", "a"], pa.string()),
        ("NUMERIC", [5, 2.5], pa.float64()), ("NUMERIC", [], pa.float64()), ("DECIMAL", ["a", 1], pa.string()),
        ("DECIMAL(30,10)", [BIG], pa.string()), ("MONEY", [b"x"], pa.float64()),
        ("BOOLEAN", [0, 1, None], pa.bool_()), ("BOOLEAN", [0, 2], pa.int64()), ("BOOLEAN", [None], pa.int64()),
        ("BOOLEAN", ["t", "f"], pa.string()), ("BOOL", [0, 0.5], pa.float64()),
        ("DATE", ["2024-05-01"], times.DATE), ("DATE", ["2024-05-01", "2024-05-01 10:00"], READING),
        ("DATETIME", ["2024-05-01"], READING), ("DATETIME", ["2024-05-01T10:00:00.123456", None], READING),
        ("TIMESTAMP", ["2024-05-01T10:00:00Z", "2024-05-01 10:00:00+02:00"], INSTANT),
        ("TIMESTAMP", ["2024-05-01T10:00:00Z", "2024-05-01 10:00:00"], pa.string()),
        ("DATETIME", [1714557600, 1714557601.5], INSTANT), ("DATETIME", [1714557600123456000], INSTANT),
        ("DATETIME", [1714557600123456789], pa.string()), ("DATETIME", [2460431.9166], INSTANT),
        ("DATETIME", [1714557600, 1714557600123], pa.string()), ("DATETIME", [1714557600, "2024-05-01Z"], pa.string()),
        ("DATETIME", ["2024-05-01 10:00:00.1234567"], pa.string()), ("DATETIME", ["0000-00-00 00:00:00"], pa.string()),
        ("DATETIME", [b"2024-05-01"], pa.string()), ("DATETIME", [None], pa.string()), ("DATE", [5], pa.string()),
        ("JSON", [5], pa.string()), ("TIME", ["10:00"], pa.string()), ("TEXT", [5], pa.string()),
        ("INTEGER", ["x"], pa.int64()), ("REAL", ["x"], pa.float64()), ("BLOB", ["x"], pa.binary()),
    ],
)  # fmt: skip
def test_all_values_decide_where_the_declaration_does_not(
    declared: str, values: Sequence[object], expected: pa.DataType
) -> None:
    assert settled(declared, values) == expected


def test_what_stands_far_apart_is_decided_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times.Forms, "chunk", 2)
    assert settled("DATETIME", ["2024-05-01 10:00:00"] * 5) == READING
    assert settled("DATETIME", [*["2024-05-01 10:00:00"] * 4, "2024-05-01T10:00:00Z"]) == pa.string()
    assert settled("DATETIME", [*[1714557600] * 4, "2024-05-01T10:00:00Z"]) == pa.string()
    assert settled("DATETIME", [*[1714557600] * 4, 1714557600123]) == pa.string()
    assert settled("DATE", [*["2024-05-01"] * 4, "2024-05-01 10:00"]) == READING


@pytest.mark.parametrize(
    ("declared", "held", "expected"),
    [
        ("", pa.string(), pa.string()), ("", pa.int64(), pa.int64()), ("DATETIME", INSTANT, INSTANT),
        ("DATETIME", pa.string(), pa.string()), ("BOOLEAN", pa.int64(), pa.int64()),
        ("NUMERIC", pa.string(), pa.string()), ("NUMERIC", pa.binary(), pa.float64()),
        ("INTEGER", pa.string(), pa.int64()),
    ],
)  # fmt: skip
def test_what_the_log_holds_is_the_decision_where_the_column_can_still_be_that(
    declared: str, held: pa.DataType, expected: pa.DataType
) -> None:
    assert settled(declared, ["x"], pa.schema([("id", pa.int64()), ("c", held)])) == expected


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        ("2024-05-01", READING, 1714521600000000), ("2024-05-01 10:00", READING, 1714557600000000),
        ("2024-05-01 10:00:00,25", READING, 1714557600250000), ("2024-05-01T10:00:00Z", READING, None),
        ("2024-05-01 12:00:00 +0200 UTC", INSTANT, 1714557600000000), ("2024-05-01 10:00:00", INSTANT, None),
        ("0001-01-01T00:00:00+14:00", INSTANT, None), ("1714557600", INSTANT, None),
        (1714557600.1234567, INSTANT, None),
        (1714557600123, INSTANT, 1714557600123000), (5, INSTANT, None), (1714557600, READING, None),
        ("2024-05-01", times.DATE, 19844), ("2024-W18-3", times.DATE, None), ("2024-05-01 10:00", times.DATE, None),
    ],
)  # fmt: skip
def test_a_time_is_delivered_exactly_or_not_at_all(value: object, type_: pa.DataType, expected: int | None) -> None:
    assert times.one(value, type_) == expected
    found, misfits = types.fitted([value, None], type_)
    assert found.cast(pa.int32() if type_ == times.DATE else pa.int64()).to_pylist() == [expected, None]
    assert bool(misfits) == (expected is None)


def test_no_garbage_is_looked_for_while_a_page_is_read_and_it_is_again_afterwards() -> None:
    assert gc.isenabled()
    with contextlib.suppress(ValueError), uncollected():
        assert not gc.isenabled()
        raise ValueError("a page that fails")
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled(), "whoever has switched it off keeps it so"
    finally:
        gc.enable()
