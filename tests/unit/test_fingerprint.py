"""A fingerprint is equal only where all values are, and of one kind."""

from __future__ import annotations

import struct
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.polls.fingerprint import digests

VALUES = {
    pa.int64(): st.integers(-2, 2) | st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.0, float("inf")]) | st.floats(allow_nan=False),
    pa.string(): st.sampled_from(["", "1", "n", "None", "a\0b"]) | st.text(max_size=12),
    pa.binary(): st.sampled_from([b"", b"1"]) | st.binary(max_size=12),
    pa.bool_(): st.booleans(),
}
CELLS = st.sampled_from(list(VALUES)).flatmap(lambda t: st.tuples(st.just(t), st.none() | VALUES[t]))
ROWS = st.lists(CELLS, min_size=1, max_size=4)
MANY = 17


def digest(row: list[tuple[pa.DataType, Any]]) -> list[int]:
    found: list[int] = digests([column(t, v) for t, v in row], 1)[:, 0].tolist()
    # By Python for a few rows, by Arrow for many: a row that comes alone must be known by what it was among others.
    among = digests([column(t, *[v] * MANY) for t, v in row], MANY).T.tolist()
    assert among == [found] * MANY
    return found


def column(type_: pa.DataType, *values: Any) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, type_)])


@given(ROWS, ROWS)
def test_rows_are_alike_only_where_their_values_and_kinds_are(a: Any, b: Any) -> None:
    plain = [[(None if v is None else str(t), repr(v)) for t, v in row] for row in (a, b)]
    assert (digest(a) == digest(b)) == (plain[0] == plain[1])
    assert digest(a) == digest(list(a))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([(pa.int64(), 1)], [(pa.float64(), 1.0)]),
        ([(pa.int64(), 1)], [(pa.bool_(), True)]),
        ([(pa.int64(), 1)], [(pa.string(), "1")]),
        ([(pa.string(), "1")], [(pa.binary(), b"1")]),
        ([(pa.float64(), 0.0)], [(pa.float64(), -0.0)]),
        ([(pa.string(), None)], [(pa.string(), "")]),
        ([(pa.int64(), None)], [(pa.int64(), 0)]),
        ([(pa.string(), "a"), (pa.string(), "b")], [(pa.string(), "ab"), (pa.string(), "")]),
        ([(pa.string(), "a")], [(pa.string(), "a"), (pa.string(), None)]),
        ([(pa.list_(pa.int64()), [1])], [(pa.string(), "[1]")]),
        ([(pa.list_(pa.int64()), [])], [(pa.list_(pa.int64()), None)]),
    ],
)
def test_what_looks_alike_stays_apart(a: Any, b: Any) -> None:
    assert digest(a) != digest(b)


@pytest.mark.parametrize(
    ("narrow", "wide", "value"),
    [
        (pa.int16(), pa.int64(), -7),
        (pa.float32(), pa.float64(), 0.5),
        (pa.string(), pa.large_string(), "ß"),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), "a"),
        (pa.binary(), pa.binary(1), b"\x00"),
        (pa.decimal128(5, 2), pa.decimal128(38, 2), Decimal("1.50")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), 12),
        (pa.date32(), pa.date32(), date(1969, 12, 31)),
        (pa.time32("ms"), pa.time64("us"), None),
        (pa.float16(), pa.float64(), 0.5),
        (pa.uint64(), pa.uint64(), 2**63),
        (pa.date64(), pa.date64(), date(1969, 12, 31)),
        (pa.duration("us"), pa.duration("us"), timedelta(days=-1)),
        (pa.month_day_nano_interval(), pa.month_day_nano_interval(), pa.MonthDayNano([1, -2, 3])),
        (pa.null(), pa.int64(), None),
        (pa.struct([("a", pa.decimal128(5, 2))]), pa.struct([("a", pa.decimal128(9, 2))]), {"a": Decimal("1.50")}),
    ],
)
def test_a_column_that_grows_changes_no_row(narrow: pa.DataType, wide: pa.DataType, value: Any) -> None:
    assert digest([(narrow, value)]) == digest([(wide, value)])
    assert digest([(narrow, None)]) == digest([(wide, None)])


def test_every_nan_is_one() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    assert digest([(pa.float64(), odd)]) == digest([(pa.float64(), float("nan"))])


@given(
    st.lists(st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(0, 9)), max_size=20), st.integers(0, 20)
)
def test_how_a_page_is_cut_is_no_matter(rows: Any, cut: int) -> None:
    texts, numbers = (column(t, *(row[i] for row in rows)) for i, t in enumerate((pa.string(), pa.int64())))
    whole = pa.table({"a": texts, "b": numbers})
    parts = pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])
    found = digests(parts.columns, len(rows)).T.tolist()
    assert found == digests(whole.columns, len(rows)).T.tolist()
    assert found == [digest([(pa.string(), a), (pa.int64(), b)]) for a, b in rows]


def test_bytes_in_a_column_of_texts_are_told_apart_as_they_are() -> None:
    """A connector of somebody's own may let them through: few rows of them are known among many, too."""

    def texts(*values: bytes) -> pa.ChunkedArray:
        return pa.chunked_array([pa.array(values, pa.binary()).view(pa.string())])

    few, many = digests([texts(b"\xff", b"\xfe")], 2).T.tolist(), digests([texts(b"\xff", *[b"\xfe"] * MANY)], MANY + 1)
    assert few == many.T.tolist()[:2]
    assert few[0] != few[1]
