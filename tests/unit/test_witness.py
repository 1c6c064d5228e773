"""A row that is remembered of what a sink has made of a log, and what its absence says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sidecar.changelog import ChangeLog
from sidecar.errors import SinkError
from sidecar.mirrors.keys import Keys
from sidecar.mirrors.witness import Witness
from tests.unit.batches import changes, logged

KEY = ("id",)


@pytest.fixture
def log(tmp_path: Path) -> ChangeLog:
    return logged(tmp_path, "t", changes(1))


def keys(*ids: int, name: str = "id") -> pa.Table:
    return pa.table({name: pa.array(ids, pa.int64())})


def rows(**offsets: int) -> pa.Table:
    """Return a table's rows by key, each as of its offset."""
    return pa.table({
        "id": pa.array([int(key[1:]) for key in offsets], pa.int64()),
        "at": pa.array(offsets.values(), pa.int64()),
    })  # fmt: skip


def test_the_row_is_there_as_of_its_offset_or_a_later_one(log: ChangeLog) -> None:
    Witness(log, "lake").remember(keys(3), 5)
    known = Witness(log, "lake")  # by another process
    known.check(rows(_3=5), KEY, "at", "t")
    known.check(rows(_1=1, _3=7), KEY, "at", "t")
    with pytest.raises(SinkError, match="the row id=3 was as of offset 5, and is as of offset 4"):
        known.check(rows(_3=4, _4=9), KEY, "at", "t")
    with pytest.raises(SinkError, match="the row id=3 was as of offset 5, and is not there"):
        known.check(rows(_1=9, _4=9), KEY, "at", "t")


def test_it_is_asked_for_with_the_others(log: ChangeLog) -> None:
    known = Witness(log, "lake")
    assert not known.has_begun
    assert known.beside(keys(1)) == keys(1)
    known.remember(keys(3), 5)
    assert known.beside(keys(1)).column("id").to_pylist() == [1, 3]


def test_it_is_forgotten_by_what_changes_it_and_by_nothing_else(log: ChangeLog) -> None:
    known = Witness(log, "lake")
    known.remember(keys(3), 5)
    known.forget(Keys(KEY, keys(1, 2)))
    known.forget(Keys(("other",), keys(3, name="other")))
    assert Witness(log, "lake").key == keys(3)
    known.forget(Keys(KEY, keys(2, 3)))
    after = Witness(log, "lake")
    assert after.key is None
    assert after.has_begun
    after.check(rows(_1=1), KEY, "at", "t")


def test_under_another_key_it_says_nothing(log: ChangeLog) -> None:
    known = Witness(log, "lake")
    known.remember(keys(3, name="was"), 5)
    assert known.beside(keys(1)) == keys(1)
    known.check(rows(_1=1), KEY, "at", "t")
