"""Columns come, go and grow; every other change is for somebody to decide."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.polls import evolution

BEFORE = pa.schema([("id", pa.int32()), ("name", pa.string()), ("price", pa.decimal128(8, 2))])


def kinds(after: pa.Schema) -> dict[str, str]:
    return {change.column: change.kind for change in evolution.changes(BEFORE, after)}


def test_the_same_columns_in_another_order_are_no_change() -> None:
    assert kinds(pa.schema(list(reversed(BEFORE)))) == {}


def test_each_change_has_its_kind_and_its_words() -> None:
    after = pa.schema([("id", pa.int64()), ("color", pa.string()), ("price", pa.float64())])
    assert kinds(after) == {"id": "widened", "color": "added", "price": "changed", "name": "dropped"}
    assert [str(c) for c in evolution.changes(BEFORE, after)] == [
        'column "id" was int32 and is int64 now',
        'column "color" (string) is new: NULL in older rows',
        'column "price" was decimal128(8, 2) and is double now',
        'column "name" (string) is gone',
    ]
    assert not evolution.compatible(BEFORE, after)
    assert evolution.compatible(BEFORE, pa.schema([("id", pa.int64()), ("price", pa.decimal128(10, 2))]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(8, 2), pa.decimal128(8, 4)),
        (pa.decimal128(8, 2), pa.decimal128(8, 1)),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("us")),
        (pa.int32(), pa.string()),
        (pa.string(), pa.binary()),
    ],
)
def test_what_does_not_hold_every_older_value_is_no_widening(before: pa.DataType, after: pa.DataType) -> None:
    assert not evolution.widens(before, after)


TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    (pa.decimal128(12, 4), st.decimals(-99999999, 99999999, places=4)),
    (pa.string(), st.text()),
]


@given(st.sampled_from(TYPES), st.sampled_from(TYPES), st.data())
def test_what_widens_keeps_every_value(before: Any, after: Any, data: st.DataObject) -> None:
    if not evolution.widens(before[0], after[0]):
        return
    values = data.draw(st.lists(before[1]))
    held = pa.table({"v": pa.array(values, before[0])})
    read = evolution.conformed(held, pa.schema([("new", pa.string()), ("v", after[0])]))
    assert read.column("v").to_pylist() == values
    assert read.column("new").null_count == len(values)


def test_a_decimal_grows_on_either_side_of_the_point() -> None:
    held = pa.table({"v": pa.array([Decimal("999.99")], pa.decimal128(5, 2))})
    assert evolution.conformed(held, pa.schema([("v", pa.decimal128(9, 4))])).column("v")[0].as_py() == Decimal(
        "999.99"
    )
