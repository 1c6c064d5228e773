"""Values and watermarks survive being written down: equal values of equal types come back."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import codec
from sidecar.model import Horizon, PassMark, Position, Progress, Scalar, Watermark

SCALARS: st.SearchStrategy[Scalar] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
)
POSITIONS: st.SearchStrategy[Position] = st.lists(SCALARS, max_size=5).map(tuple)
INTS = st.integers(-(2**63), 2**63 - 1)
PASSES = st.sampled_from(["updated", "deleted", "created", "unstamped"])
MARKS = st.builds(
    PassMark,
    closed=st.none() | INTS,
    greatest=st.lists(st.tuples(INTS, INTS), max_size=4).map(tuple),
)
MEMORY = st.none() | st.dictionaries(st.text(), st.none() | INTS | st.text() | st.lists(INTS), max_size=3)
HORIZONS = st.builds(Horizon, now=INTS, settled=st.none() | INTS, floor=st.none() | INTS, memory=MEMORY)
WATERMARKS = st.builds(
    Watermark,
    settings=st.text(),
    offset=st.integers(0, 2**63),
    marks=st.dictionaries(PASSES, MARKS),
    since=st.none() | INTS,
    memory=MEMORY,
    progress=st.none()
    | st.builds(
        Progress,
        horizon=HORIZONS,
        closing=st.dictionaries(PASSES, MARKS),
        scan=PASSES,
        after=st.none() | POSITIONS,
    ),
    polled=st.none() | INTS,
    kind=st.sampled_from(["instant", "reading", "number", "text"]),
    unit=st.none() | st.sampled_from(["s", "ms", "us", "ns"]),
)


def typed(values: Position) -> list[tuple[type, Scalar]]:
    return [(type(v), v) for v in values]


@given(POSITIONS)
def test_a_packed_position_comes_back_with_its_types(values: Position) -> None:
    text = codec.pack(values)
    assert typed(codec.unpack(text)) == typed(values)
    assert text.isascii()
    assert "\n" not in text


@given(POSITIONS, POSITIONS)
def test_different_values_never_meet(a: Position, b: Position) -> None:
    same = typed(a) == typed(b) and repr(a) == repr(b)
    assert (codec.pack(a) == codec.pack(b)) == same


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1,), (True,)),
        ((1,), (1.0,)),
        ((1,), ("1",)),
        (("1",), (b"1",)),
        ((0.0,), (-0.0,)),
        ((None,), ("None",)),
        (("a,b",), ("a", "b")),
        (("a', 'b",), ("a", "b")),
        (("a|b", "c"), ("a", "b|c")),
        (("",), ()),
    ],
)
def test_keys_that_look_alike_stay_apart(a: Position, b: Position) -> None:
    assert codec.pack(a) != codec.pack(b)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 5e-324, 0.1, 1.7976931348623157e308])
def test_floats_come_back_to_the_last_bit(value: float) -> None:
    assert codec.unpack(codec.pack((value,))) == (value,)


def test_a_nan_comes_back_as_one() -> None:
    assert str(codec.unpack(codec.pack((float("nan"),)))) == "(nan,)"


@given(WATERMARKS)
def test_a_watermark_comes_back_as_it_was(mark: Watermark) -> None:
    again = codec.load_watermark(codec.dump_watermark(mark))
    assert again == mark
    assert repr(again) == repr(mark)


def test_what_a_connector_writes_into_its_memory_is_not_stored_by_that() -> None:
    view = Horizon(now=1, settled=1, memory={"seen": 1})
    text = codec.dump_watermark(Watermark("id by u", memory={"seen": 1}, progress=Progress(view, {}, "updated")))
    for _ in range(2):
        mark = codec.load_watermark(text)
        assert mark.progress is not None
        for memory in (mark.memory, mark.progress.horizon.memory):
            assert isinstance(memory, dict)
            assert memory == {"seen": 1}
            memory["seen"] = 2
    text = codec.dump_watermark(Watermark("id by u", memory={"seen": 1}))
    for _ in range(2):
        memory = codec.load_watermark(text).memory
        assert isinstance(memory, dict)
        assert memory == {"seen": 1}
        memory["seen"] = 2


def test_a_watermark_of_another_format_is_refused() -> None:
    later = json.loads(codec.dump_watermark(Watermark("id by u"))) | {"format": 5}
    with pytest.raises(ValueError, match="format 5; this version knows 4"):
        codec.load_watermark(json.dumps(later))


@pytest.mark.parametrize(
    ("type_", "values", "plain"),
    [
        (pa.timestamp("us", "UTC"), [datetime(2024, 5, 1, 10, 0, 0, 1)], [1_714_557_600_000_001]),  # noqa: DTZ001
        (pa.timestamp("ns"), [1], [1]),
        (pa.timestamp("s", "Europe/Berlin"), [1], [1]),
        (pa.date32(), [date(1969, 12, 31)], [-1]),
        (pa.time64("us"), [time(0, 0, 1)], [1_000_000]),
        (pa.time32("s"), [time(0, 1)], [60]),
        (pa.duration("us"), [timedelta(seconds=1)], [1_000_000]),
        (pa.decimal128(38, 3), [Decimal("-12345678901234567890.125")], ["-12345678901234567890.125"]),
        (pa.int64(), [2**63 - 1], [2**63 - 1]),
        (pa.binary(), [b"\x00"], [b"\x00"]),
        (pa.bool_(), [True], [True]),
        (pa.large_string(), ["ß"], ["ß"]),
        (pa.dictionary(pa.int8(), pa.string()), ["a"], ["a"]),
    ],
)
def test_column_values_become_what_the_codec_takes(type_: Any, values: list[Any], plain: list[Scalar]) -> None:
    for column in (pa.array([*values, None], type_), pa.chunked_array([pa.array([*values, None], type_)])):
        found = codec.plain(column)
        assert found == [*plain, None]
        assert codec.unpack(codec.pack(found)) == (*plain, None)


def test_rows_are_read_across_chunks_and_a_position_is_the_last_of_them() -> None:
    one, two = pa.table({"a": [1, 2], "b": ["x", "y"]}), pa.table({"a": [3], "b": ["z"]})
    both = pa.concat_tables([one, two])
    assert list(codec.rows(both, ("b", "a"))) == [("x", 1), ("y", 2), ("z", 3)]
    assert codec.position(both.slice(2), ("b", "a")) == ("z", 3)
    assert list(codec.rows(both.slice(0, 0), ("a",))) == []
