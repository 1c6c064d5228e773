"""A pass is closed only as far as nothing can come any more, and comes to rest at the greatest value seen."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import horizon
from sidecar.clock import SECOND
from sidecar.model import INFINITY, Column, Horizon, Pass, PassMark, Table, Tracked, Unit

NOW = 1_714_557_600 * SECOND
BACK = 60 * SECOND
INSTANT = pa.timestamp("us", "UTC")
UPDATED = Pass("updated", "u")


def tracked(type_: Any = INSTANT, lookback: int = BACK, **settings: Any) -> Tracked:
    table = Table("t", ("t",), (Column("u", "", type_),), ("u",))
    return Tracked(table, ("u",), "u", lookback=lookback, **settings)


def at(now: int, settled: int | None = None) -> Horizon:
    return Horizon(now, now if settled is None else settled)


POLLS = st.lists(
    st.tuples(
        st.integers(0, 200 * SECOND),  # time that has passed
        st.none() | st.integers(0, 100 * SECOND),  # how far the greatest value lies behind the clock
        st.integers(0, 300 * SECOND),  # how long the oldest transaction has run
    ),
    max_size=80,
)


@given(POLLS, st.integers(0, 100 * SECOND))
def test_closed_never_moves_back_and_never_passes_the_clock_less_lookback(
    polls: list[tuple[int, int | None, int]], lookback: int
) -> None:
    now, mark, seen = NOW, PassMark(), list[tuple[int, int]]()
    for passed, behind, running in polls:
        now += passed
        greatest = None if behind is None else now - behind
        if greatest is not None:
            seen.append((now, greatest))
        after = horizon.close(mark, greatest, at(now, now - running), tracked(lookback=lookback), UPDATED)
        if after.closed != mark.closed:
            assert after.closed is not None
            assert mark.closed is None or after.closed > mark.closed
            assert after.closed <= now - running - lookback
            assert after.closed <= max(value for _, value in seen)
        assert len(after.greatest) <= 33
        assert list(after.greatest) == sorted(after.greatest)
        # Thinning may only make an entry's value lower for its time, never higher.
        for when, value in after.greatest:
            assert value <= max(v for w, v in seen if w <= when)
        mark = after


@given(POLLS)
def test_without_thinning_no_more_would_be_closed_than_stood_for_lookback(
    polls: list[tuple[int, int | None, int]],
) -> None:
    now, mark, seen = NOW, PassMark(), list[tuple[int, int]]()
    for passed, behind, _ in polls:
        now += passed
        value = None if behind is None else now // SECOND - behind // SECOND
        if value is not None:
            seen.append((now, value))
        # Numbers without a clock: nothing but what has stood for the lookback may be closed.
        mark = horizon.close(mark, value, at(now), tracked(pa.int64()), UPDATED)
        stood = max((v for w, v in seen if w <= now - BACK), default=None)
        assert mark.closed is None or (stood is not None and mark.closed <= stood)


def test_an_idle_table_comes_to_rest_at_the_greatest_value() -> None:
    mark = horizon.close(PassMark(), NOW - 5, at(NOW), tracked(), UPDATED)
    assert mark.closed == NOW - 5 - BACK
    mark = horizon.close(mark, NOW - 5, at(NOW + BACK - 1), tracked(), UPDATED)
    assert mark.closed == NOW - 5 - BACK
    mark = horizon.close(mark, NOW - 5, at(NOW + BACK), tracked(), UPDATED)
    assert mark.closed == NOW - 5
    later = horizon.close(mark, None, at(NOW + 10**12), tracked(), UPDATED)
    assert (later.closed, later.greatest) == (mark.closed, mark.greatest)


def test_a_table_without_rows_closes_nothing() -> None:
    mark = horizon.close(PassMark(), None, at(NOW), tracked(), UPDATED)
    assert (mark.closed, mark.greatest) == (None, ())


def test_what_lies_only_in_the_future_moves_nothing() -> None:
    # `begin` asks for the greatest value up to now: year 9999 is not among what it is told.
    mark = horizon.close(PassMark(), NOW - 1, at(NOW), tracked(), UPDATED)
    for minutes in range(1, 100):
        mark = horizon.close(mark, None, at(NOW + minutes * BACK), tracked(), UPDATED)
    assert mark.closed == NOW - 1


def test_a_running_transaction_holds_everything_from_its_start_less_lookback() -> None:
    began = NOW - 3600 * SECOND
    mark = horizon.close(PassMark(), NOW, at(NOW, began), tracked(), UPDATED)
    mark = horizon.close(mark, NOW, at(NOW + 7200 * SECOND, began), tracked(), UPDATED)
    assert mark.closed is not None
    assert mark.closed <= began - BACK


def test_where_running_transactions_are_unknown_nothing_is_closed_and_what_was_stays_so() -> None:
    unknown = Horizon(NOW, None)
    mark = horizon.close(PassMark(), NOW - BACK, unknown, tracked(), UPDATED)
    assert mark.closed is None
    closed = horizon.close(mark, NOW - BACK, at(NOW + BACK), tracked(), UPDATED)
    assert closed.closed == NOW - BACK
    assert horizon.close(closed, NOW, Horizon(NOW + 9 * BACK, None), tracked(), UPDATED).closed == NOW - BACK


def test_a_source_whose_data_lie_far_behind_our_clock_is_not_closed_over_its_head() -> None:
    old = NOW - 10**13
    mark = horizon.close(PassMark(), old, at(NOW), tracked(), UPDATED)
    assert mark.closed == old - BACK


@pytest.mark.parametrize(
    ("type_", "unit", "lookback", "effective"),
    [
        (INSTANT, None, 0, 0),
        (pa.string(), None, 0, horizon.TICK),
        (pa.int64(), "s", 1, horizon.TICK),
        (pa.int64(), "ms", 1, 1),
        (pa.int64(), None, 1, horizon.TICK),
        (pa.string(), None, BACK, BACK),
    ],
)
def test_clocks_that_stand_still_for_a_second_are_given_two(
    type_: Any, unit: Unit | None, lookback: int, effective: int
) -> None:
    follows = tracked(type_, lookback=lookback, unit=unit)
    assert horizon.lookback(follows, horizon.kind_of(follows, UPDATED)) >= effective


def test_a_pass_without_a_cursor_is_never_closed() -> None:
    mark = horizon.close(PassMark(), None, at(NOW), tracked(), Pass("unstamped", None, ("u",)))
    assert mark == PassMark()


@given(st.integers(33, 200))
def test_a_long_history_is_thinned_and_still_closes_in_time(polls: int) -> None:
    mark = PassMark()
    for second in range(polls):
        mark = horizon.close(mark, NOW + second * SECOND, at(NOW + second * SECOND), tracked(), UPDATED)
    rest = NOW + (polls - 1) * SECOND
    mark = horizon.close(mark, None, at(rest + BACK + horizon.TICK), tracked(), UPDATED)
    assert mark.closed == rest


@pytest.mark.parametrize("least", [-INFINITY, -INFINITY + SECOND])
def test_the_least_of_all_values_closes_once_it_has_stood_and_nothing_below_it(least: int) -> None:
    first = horizon.close(PassMark(), least, at(NOW), tracked(), UPDATED)
    assert first.closed is None
    assert horizon.close(first, None, at(NOW + BACK), tracked(), UPDATED).closed == least
