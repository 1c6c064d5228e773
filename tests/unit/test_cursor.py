"""Cursor values become integers in the order in which they stand in time."""

from __future__ import annotations

import dataclasses
import math
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar import cursor
from sidecar.clock import SECOND, instant, micros
from sidecar.errors import SettingsError
from sidecar.model import INFINITY, Column, Table, Tracked, Unit

NAIVE_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  readings have no zone
MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia"]
SEPARATORS = st.sampled_from((" ", "T"))


def reading(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - NAIVE_EPOCH) // timedelta(microseconds=1)


def written(moment: datetime, separator: str, digits: int) -> str:
    """Return *moment* with *digits* decimals, as applications write it."""
    text = moment.strftime(f"%Y-%m-%d{separator}%H:%M:%S").rjust(19, "0")
    return text + (f".{moment.microsecond:06d}000"[: digits + 1] if digits else "")


def cut(moment: datetime, digits: int) -> datetime:
    unit = 10 ** max(0, 6 - digits)
    return moment.replace(microsecond=moment.microsecond // unit * unit)


@given(MOMENTS, SEPARATORS, st.integers(0, 9))
def test_a_text_without_a_zone_is_its_reading(moment: datetime, separator: str, digits: int) -> None:
    text = written(moment, separator, digits)
    assert cursor.from_text(text) == reading(cut(moment, digits))
    assert cursor.from_text(text, "America/New_York") == reading(cut(moment, digits))


@given(MOMENTS, OFFSETS, SEPARATORS, st.integers(0, 9), st.sampled_from(("%z", ":", "space")))
def test_a_text_with_an_offset_is_an_instant(
    moment: datetime, offset: timezone, separator: str, digits: int, form: str
) -> None:
    aware = moment.replace(tzinfo=offset)
    shift = aware.strftime("%z")
    suffix = {"%z": shift, ":": f"{shift[:3]}:{shift[3:]}", "space": f" {shift}"}[form]
    text = written(moment, separator, digits) + suffix
    assert cursor.from_text(text) == micros(cut(aware, digits))
    assert cursor.from_text(f" {text}\n") == micros(cut(aware, digits))
    local = cut(aware, digits).astimezone(ZoneInfo("Europe/Berlin"))
    assert cursor.from_text(text, "Europe/Berlin") == reading(local)


@given(MOMENTS, SEPARATORS, st.integers(0, 9), st.sampled_from(("Z", " UTC", "+00:00", "+0000", " +0000", "+00")))
def test_all_ways_to_write_utc_are_one(moment: datetime, separator: str, digits: int, suffix: str) -> None:
    text = written(moment, separator, digits) + suffix
    assert cursor.from_text(text) == micros(cut(moment.replace(tzinfo=UTC), digits))


@given(MOMENTS)
def test_a_day_is_over_only_at_its_end_and_a_minute_too(moment: datetime) -> None:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert cursor.from_text(midnight.strftime("%Y-%m-%d").rjust(10, "0")) == reading(midnight) + cursor.DAY - 1
    minute = moment.replace(second=0, microsecond=0)
    text = minute.strftime("%Y-%m-%d %H:%M").rjust(16, "0")
    assert cursor.from_text(text) == reading(minute) + 60 * SECOND - 1
    days = pa.array([midnight.date(), None])
    assert cursor.comparable(days).tolist() == [reading(midnight) + cursor.DAY - 1, cursor.NONE]


@pytest.mark.parametrize(
    ("number", "at"),
    [
        ("1714557600", 1_714_557_600_000_000),
        ("1714557600.25", 1_714_557_600_250_000),
        ("1714557600123", 1_714_557_600_123_000),
        ("1714557600123456", 1_714_557_600_123_456),
        ("1714557600123456789", 1_714_557_600_123_456),
        ("2460431.916666667", 1_714_557_600_000_028),
        ("2440587.5", 0),
    ],
)
def test_a_number_in_a_column_of_times_is_the_instant_that_it_counts(number: str, at: int) -> None:
    assert cursor.from_text(number) == at
    assert cursor.from_text(number, "Europe/Berlin") in (at + 3_600 * SECOND, at + 7_200 * SECOND)
    found = cursor.comparable(pa.array([number, None]))
    assert found.tolist() == [at, cursor.NONE]


@given(st.integers(10**15, 2 * 10**15), st.sampled_from(("s", "ms", "us", "ns", "julian")))
def test_no_number_above_a_bound_is_at_or_below_its_instant(at: int, unit: cursor.Count) -> None:
    bound = cursor.in_unit(at, unit)
    found = cursor.from_number(repr(bound))
    assert found is not None
    assert found <= at
    following = cursor.from_number(repr(bound + 1 if type(bound) is int else math.nextafter(bound, math.inf)))
    assert following is not None
    assert following >= at if unit == "s" else following > at


def test_numbers_of_different_units_never_overlap() -> None:
    assert [cursor.unit_of(10**n) for n in range(20)] == [
        *(None,) * 8, "s", "s", None, "ms", "ms", None, "us", "us", None, "ns", "ns", None,
    ]  # fmt: skip
    assert cursor.unit_of(20_240_501) is None
    assert cursor.unit_of(float("inf")) is None
    assert cursor.unit_of(2_460_431.5) == "julian"


@pytest.mark.parametrize(
    "text",
    ["", "now", "infinity", "17145576", "0", "nan", "-1e400", "0000-00-00 00:00:00", "0000-00-00", "2024-13-01",
     "2024-02-30 10:00:00",
     "01.05.2024 10:00", "20240501T100000", "2024-05-01 25:00:00", "2024-05-01 UTC",
     "2024-05-01T10:00:00 Europe/Paris"],
)  # fmt: skip
def test_what_is_no_time_is_later_than_any_clock(text: str) -> None:
    assert cursor.from_text(text) is None
    assert cursor.comparable(pa.array([text, None])).tolist() == [INFINITY, cursor.NONE]


@given(st.text())
@example("-" * 10)
@example("2024-05-01 10:00:00 +")
@example("²024-05-01")
def test_no_text_whatsoever_raises(text: str) -> None:
    found = cursor.from_text(text)
    assert found is None or isinstance(found, int)


@given(st.lists(st.none() | MOMENTS, max_size=5), st.sampled_from(("us", "ms", "s", "ns")), st.booleans())
def test_timestamps_are_microseconds_whatever_their_unit(
    moments: list[datetime | None], unit: str, zoned: bool
) -> None:
    type_ = pa.timestamp(unit, "Europe/Berlin" if zoned else None)
    size = {"us": 1, "ms": 1_000, "s": SECOND, "ns": 1}[unit]
    values = [None if m is None else reading(m) // size for m in moments]
    array = pa.array([None if v is None else v * (1000 if unit == "ns" else 1) for v in values], pa.int64())
    expected = [cursor.NONE if v is None else v * size for v in values]
    assert cursor.comparable(array.cast(type_)).tolist() == expected
    assert cursor.comparable(pa.chunked_array([array.cast(type_)])).tolist() == expected


TEXTS = st.builds(written, MOMENTS, SEPARATORS, st.integers(0, 9))


@given(
    st.lists(st.none() | TEXTS | st.builds("{}{}".format, TEXTS, st.sampled_from(("Z", "+02:00", " UTC", "?")))),
    st.sampled_from((None, "Europe/Berlin")),
)
def test_many_texts_are_read_as_each_of_them_alone(texts: list[str | None], zone: str | None) -> None:
    alone = [cursor.comparable(pa.array([text], pa.string()), zone).item() for text in texts]
    assert cursor.comparable(pa.array(texts * 20, pa.string()), zone).tolist() == alone * 20


@given(st.lists(st.none() | st.integers(-(2**63) + 1, 2**63 - 1), max_size=5))
def test_numbers_stay_what_they_are(values: list[int | None]) -> None:
    expected = [cursor.NONE if v is None else v for v in values]
    assert cursor.comparable(pa.array(values, pa.int64())).tolist() == expected


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (pa.timestamp("us", "UTC"), "instant"),
        (pa.timestamp("ns"), "reading"),
        (pa.date32(), "reading"),
        (pa.int16(), "number"),
        (pa.float64(), "real"),
        (pa.string(), "text"),
        (pa.large_string(), "text"),
    ],
)
def test_what_a_column_holds_is_told_by_its_type(type_: Any, kind: str) -> None:
    assert cursor.kind(type_, "here") == kind


@pytest.mark.parametrize("type_", [pa.bool_(), pa.binary(), pa.list_(pa.int64()), pa.time64("us"), pa.null()])
def test_a_type_that_cannot_be_a_cursor_is_named(type_: Any) -> None:
    with pytest.raises(SettingsError, match=r"^here: a column of type .* cannot be a cursor"):
        cursor.kind(type_, "here")


# -- wall clocks -------------------------------------------------------------------------------------------------------


def transitions(zone: ZoneInfo) -> list[int]:
    """Return the instants of the years 2009 to 2026 at which *zone*'s offset changes, to the minute."""
    found = []
    at, end, step = 1_230_768_000, 1_767_225_600, 6 * 3600

    def offset(seconds: int) -> timedelta | None:
        return instant(seconds * SECOND).astimezone(zone).utcoffset()

    while at < end:
        if offset(at) != offset(at + step):
            low, high = at, at + step
            while high - low > 60:
                middle = (low + high) // 120 * 60
                low, high = (middle, high) if offset(middle) == offset(low) else (low, middle)
            found.append(high)
        at += step
    return found


TRANSITIONS = [(name, at) for name in ZONES for at in transitions(ZoneInfo(name))]


def wall(at: int, zone: ZoneInfo) -> int:
    return reading(instant(at).astimezone(zone))


def test_the_zones_do_turn_their_clocks() -> None:
    assert {name for name, _ in TRANSITIONS} == set(ZONES)
    assert len(TRANSITIONS) > 100


@given(st.sampled_from(TRANSITIONS), st.integers(-30 * 3600 * SECOND, 30 * 3600 * SECOND))
def test_the_least_reading_is_that_of_a_scan_over_all_that_comes(turn: tuple[str, int], shift: int) -> None:
    zone, at = ZoneInfo(turn[0]), turn[1] * SECOND + shift
    ahead = [at, *(turn[1] * SECOND + m * 60 * SECOND for m in range(-35 * 60, 60 * 60))]
    brute = min(wall(moment, zone) for moment in ahead if moment >= at)
    assert cursor.least_reading(at, zone) == brute


@pytest.mark.parametrize(("name", "at"), TRANSITIONS)
def test_the_least_reading_is_right_at_the_turn_itself(name: str, at: int) -> None:
    zone = ZoneInfo(name)
    after = wall(at * SECOND, zone)
    for before in (1, SECOND, SECOND + 1, 1799 * SECOND):
        moment = at * SECOND - before
        assert cursor.least_reading(moment, zone) == min(wall(moment, zone), after)
    assert cursor.least_reading(at * SECOND, zone) == after


@pytest.mark.parametrize("at", [micros(datetime.max.replace(tzinfo=UTC)), micros(datetime.min.replace(tzinfo=UTC))])
def test_the_ends_of_the_calendar_break_nothing(at: int) -> None:
    assert isinstance(cursor.least_reading(at, ZoneInfo("Europe/Berlin")), int)


# -- bounds ------------------------------------------------------------------------------------------------------------

NOW = 1_714_557_600_123_456


def tracked(type_: Any = None, **settings: Any) -> Tracked:
    table = Table("t", ("t",), (Column("u", "", type_ or pa.timestamp("us", "UTC")),), ("u",))
    return dataclasses.replace(Tracked(table, ("u",), "u"), **settings)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("s", 1_714_557_600), ("ms", 1_714_557_600_123), ("us", NOW), ("ns", NOW * 1000), (None, None)],
)
def test_a_clock_bounds_numbers_in_their_own_unit(unit: Unit | None, expected: int | None) -> None:
    assert cursor.bound(NOW, tracked(unit=unit), "number") == expected
    assert cursor.ceiling(NOW, tracked(unit=unit), "number") == expected


def test_a_duration_is_counted_in_the_columns_unit() -> None:
    assert cursor.span(60 * SECOND, tracked(unit="ms"), "number") == 60_000
    assert cursor.span(60 * SECOND, tracked(), "number") is None
    assert cursor.span(60 * SECOND, tracked(), "text") == 60 * SECOND


def test_readings_of_a_zone_are_bounded_by_its_wall_clock() -> None:
    local = tracked(timezone="Europe/Berlin")
    assert cursor.bound(NOW, local, "reading") == NOW + 7200 * SECOND
    assert cursor.ceiling(NOW, local, "text") == NOW + 7200 * SECOND
    assert cursor.bound(NOW, local, "instant") == NOW
    assert cursor.bound(NOW, tracked(), "reading") == NOW


def test_before_the_clocks_are_set_back_the_hour_to_come_counts() -> None:
    local, turn = tracked(timezone="Europe/Berlin"), 1_729_990_800 * SECOND
    half_past = turn - 1800 * SECOND  # 02:30, the first time
    two = wall(turn, ZoneInfo("Europe/Berlin"))
    assert cursor.bound(half_past, local, "reading") == two
    assert cursor.ceiling(half_past, local, "reading") == two + 1800 * SECOND


def test_the_greatest_value_is_neither_null_nor_infinity_nor_in_the_future() -> None:
    values = np.array([cursor.NONE, 5, 9, INFINITY], dtype=np.int64)
    assert cursor.greatest_within(values, None) == 9
    assert cursor.greatest_within(values, 9) == 9
    assert cursor.greatest_within(values, 8) == 5
    assert cursor.greatest_within(values, 4) is None
    assert cursor.greatest_within(values[:1], None) is None


def test_a_comparable_value_is_shown_as_people_read_it() -> None:
    assert cursor.show(NOW, "instant") == "2024-05-01T10:00:00.123456Z"
    assert cursor.show(NOW, "reading") == "2024-05-01T10:00:00.123456"
    assert cursor.show(1_714_557_600, "number", "s") == "2024-05-01T10:00:00Z"
    assert cursor.show(7, "number") == "7"
    assert cursor.show(None, "instant") == "-"
    assert cursor.show(INFINITY, "instant") == "infinity"


def test_a_date_is_comparable_to_a_text_of_it() -> None:
    assert cursor.comparable(pa.array([date(2024, 5, 1)])).tolist() == [cursor.from_text("2024-05-01")]


def test_a_number_whose_digits_leave_two_answers_is_no_exact_time() -> None:
    assert cursor.exact_number("1714557600") == 1_714_557_600 * SECOND
    # The last second of the year 9999, or a day of 1978 in milliseconds.
    assert cursor.exact_number("253402300799") is None
    assert cursor.exact_text("2024-05-01 10:00:00\0") is None
