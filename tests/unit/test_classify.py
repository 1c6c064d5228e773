"""A row's change type follows from its stamps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import classify
from sidecar.cursor import NONE
from sidecar.model import DELETE, INFINITY, INSERT, UPDATE

VALUES = st.integers(-(2**62), 2**62) | st.sampled_from((NONE, INFINITY, -INFINITY, 0))


def kind(updated: int, created: int | None, *, gone: bool = False, tolerance: int = 0) -> str:
    made = None if created is None else np.array([created], dtype=np.int64)
    found = classify.change_types(np.array([updated], dtype=np.int64), made, np.array([gone]), tolerance)
    assert len(found) == 1
    return str(found[0].as_py())


@pytest.mark.parametrize(
    ("updated", "created", "tolerance", "expected"),
    [
        (5, 5, 0, INSERT),
        (6, 5, 0, UPDATE),
        (6, 5, 1, INSERT),
        (5, 6, 1, INSERT),
        (7, 5, 1, UPDATE),
        (5, None, 0, UPDATE),
        (5, NONE, 0, UPDATE),
        (NONE, 5, 0, INSERT),
        (INFINITY, INFINITY, 0, UPDATE),
        (INFINITY, 5, 10, UPDATE),
    ],
)
def test_a_row_still_as_it_was_created_is_an_insert(
    updated: int, created: int | None, tolerance: int, expected: str
) -> None:
    assert kind(updated, created, tolerance=tolerance) == expected
    assert kind(updated, created, tolerance=tolerance, gone=True) == DELETE


@given(VALUES, VALUES, st.integers(0, 10**9))
def test_far_values_do_not_wrap_around(updated: int, created: int, tolerance: int) -> None:
    insert = kind(updated, created, tolerance=tolerance) == INSERT
    if NONE not in (updated, created) and INFINITY not in (updated, abs(created)):
        assert insert == (abs(updated - created) <= tolerance)


def test_nothing_is_classified_as_nothing() -> None:
    empty = np.array([], dtype=np.int64)
    assert classify.change_types(empty, empty, np.array([], dtype=bool), 0).to_pylist() == []
