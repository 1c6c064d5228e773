"""SQLite values become Arrow exactly, or not at all, and the declaration alone says as what."""

from __future__ import annotations

import pyarrow as pa
import pytest

from connectors import sqlite_types as types


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
