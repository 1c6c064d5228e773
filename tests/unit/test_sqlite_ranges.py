"""The stretches of a cursor column hold everything above a closed value, each row once, and little else."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given
from hypothesis import strategies as st

from connectors import sqlite_ranges as ranges_
from connectors.sqlite_ranges import Range
from sidecar import cursor
from sidecar.clock import SECOND, micros
from sidecar.model import INFINITY, Scalar

CLOSED = micros(datetime(2024, 3, 31, 1, 30, 15, 500_000, UTC))
ZONES = st.sampled_from([None, "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"])
ODD = ["", "0000-00-00 00:00:00", "0001-01-01T00:00:00", "1714557600", "05/01/2024", "never", "x' OR 1=1 --", "é"]


@st.composite
def stamps(draw: st.DrawFn) -> str:
    """A time near CLOSED in one of the forms that applications write; at times something that is none."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(ODD))
    near = draw(st.sampled_from([0, 0, 0, 1, 15, 60, 3600, 7200, 86_400, 3 * 86_400]))
    moment = datetime(2024, 3, 31, 1, 30, 15, tzinfo=UTC) + timedelta(seconds=draw(st.integers(-near, near)))
    offset = draw(st.sampled_from([None, None, "Z", 2, -5, -12, 14]))
    shown = moment.astimezone(timezone(timedelta(hours=offset))) if isinstance(offset, int) else moment
    text = shown.strftime(draw(st.sampled_from(["%Y-%m-%d", "%Y-%m-%d{}%H:%M", *["%Y-%m-%d{}%H:%M:%S{}"] * 4])))
    if len(text) == 10:
        return text
    fraction = draw(st.sampled_from(["", ".5", ",5", ".500001", ",6", ".123456789"])) if text.count("{}") == 2 else ""
    text = text.replace("{}", draw(st.sampled_from([" ", "T"])), 1).replace("{}", fraction)
    if isinstance(offset, int):
        return text + f"{offset:+03d}:00"
    return text + (offset or "")


def selected(texts: list[str], ranges: list[Range]) -> list[str]:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("CREATE TABLE t (c TEXT)")
        connection.executemany("INSERT INTO t VALUES (?)", [(t,) for t in texts])
        found: list[str] = []
        for each in ranges:
            parameters: list[Scalar] = []
            found += [
                v for (v,) in connection.execute(f"SELECT c FROM t WHERE {each.sql('c', parameters)}", parameters)
            ]
        return found
    finally:
        connection.close()


def behind(texts: list[str], zone: str | None) -> bool:
    connection = sqlite3.connect(":memory:")
    try:
        condition = ranges_.behind(zone).replace("{c}", "?1")
        return any(connection.execute(f"SELECT {condition}", (t,)).fetchone()[0] for t in texts)
    finally:
        connection.close()


@given(st.lists(stamps(), unique=True, max_size=30), st.integers(-5 * SECOND, 5 * SECOND), ZONES, st.booleans())
@example(["2024-03-31T01:00:00-05:00", "2024-03-31 02:00:00"], 0, None, False)
@example(["2024-03-31 01:30", "2024-03-31"], 0, None, False)
def test_every_text_above_the_closed_value_is_in_one_stretch(
    texts: list[str], shift: int, zone: str | None, anyway: bool
) -> None:
    closed = CLOSED + shift
    ranges = ranges_.texts(closed, zone, offsets=anyway or behind(texts, zone))
    found = selected(texts, ranges)
    assert len(found) == len(set(found))
    values = {t: cursor.from_text(t, zone) for t in texts}
    # A text that is no time is met wherever it sorts outside of the years in which times are.
    must = {t for t, v in values.items() if v is not None and v > closed}
    must |= {t for t in ODD if t in texts and values[t] is None}
    assert must <= set(found)


@given(st.lists(stamps(), unique=True, max_size=30), st.integers(0, 30), ZONES)
def test_going_on_after_any_value_leaves_out_and_repeats_nothing(texts: list[str], at: int, zone: str | None) -> None:
    ranges = ranges_.texts(CLOSED, zone, offsets=True)
    whole = sorted(selected(texts, ranges))
    if not whole:
        return
    last = whole[at % len(whole)]
    assert sorted(selected(texts, ranges_.after(ranges, last))) == [t for t in whole if t > last]


def test_a_table_at_rest_reads_none_of_its_day_again() -> None:
    day = [
        f"2024-05-01{sign}{h:02}:{m:02}:{s:02}" for sign in " T" for h in range(24) for m in (0, 59) for s in (0, 59)
    ]
    closed = cursor.from_text("2024-05-01 12:59:59")
    assert closed is not None
    found = selected(day, ranges_.texts(closed, None, offsets=False))
    above = [t for t in day if (v := cursor.from_text(t)) is not None and v > closed]
    assert sorted(found) == sorted(above)


def test_values_ahead_of_utc_are_no_reason_to_look_back() -> None:
    assert not behind(["2024-05-01 10:00:00+02:00", "2024-05-01T10:00:00Z", "2024-05-01", "2024-05-01 10:00"], None)
    assert behind(["2024-05-01T10:00:00-03:30"], None)
    assert behind(["2024-05-01T10:00:00-0500"], None)
    assert behind(["2024-05-01T10:00:00Z"], "Europe/Berlin")
    assert not behind(["2024-05-01 10:00:00"], "Europe/Berlin")


def test_closed_values_outside_of_any_calendar_do_not_fail() -> None:
    texts = ["2024-05-01 10:00:00", "9999-12-31 23:59:59", "zzz"]
    for closed in (-(2**63), -1, INFINITY - 1, INFINITY):
        assert "zzz" in selected(texts, ranges_.texts(closed, None, offsets=False))
    assert selected(texts, ranges_.texts(-(2**62), None, offsets=True)) == texts


def test_numbers_of_each_unit_have_their_own_bounds() -> None:
    closed = 1_714_557_600 * SECOND
    for unit, number in (("s", 1_714_557_600), ("ms", 1_714_557_600_123), ("us", 1_714_557_600_123_456)):
        last = ranges_.counts(closed, unit, None)[-1]
        assert isinstance(last.low, int)
        assert last.low <= number < last.low + cursor.PER_SECOND[unit]
        assert cursor.from_number(str(last.low)) == closed
        # The clock in Berlin is ahead: its reading, taken for an instant, would pass rows over.
        ahead = ranges_.counts(closed + 7_200 * SECOND, unit, "Europe/Berlin")[-1]
        assert isinstance(ahead.low, int)
        assert ahead.low <= last.low
    julian = ranges_.counts(closed, "julian", None)[-1]
    assert isinstance(julian.low, float)
    assert 0 <= 2_460_431.916666667 - julian.low < 1e-9


def test_reals_are_bounded_from_below() -> None:
    for closed in (0, 1_714_557_600_123_456, 1_714_557_600_123 * SECOND):
        (only,) = ranges_.reals(closed)
        assert isinstance(only.low, float)
        assert only.low < (closed + 1) / SECOND
