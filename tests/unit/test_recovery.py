"""The state is a fold over the log: whatever of it is lost is rolled forward."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.log import recovery
from sidecar.model import PassMark, PassName
from sidecar.polls.deliveries import NOTHING
from sidecar.state import MemoryWatermarkStore
from tests.unit.records import Known, keys, known, lasting, records
from tests.unit.test_changelog import changes, fill, mark

KEY = 11


def test_a_state_that_is_level_with_its_log_is_left_alone(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 2), MemoryWatermarkStore()
    assert recovery.recover(log, store) == 2
    assert recovery.recover(log, store) == 0
    assert store.watermark("t") == mark(2)
    assert set(known(store.remembered("t"))) == {1, 2}


def test_an_empty_log_and_an_empty_state_agree(tmp_path: Path) -> None:
    store = MemoryWatermarkStore()
    assert recovery.recover(ChangeLog(tmp_path, "t"), store) == 0
    assert store.watermark("t") is None


@settings(max_examples=25)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 2), st.none() | st.tuples(st.integers(0, 2), st.integers(0, 9))), max_size=6
    )
)
def test_from_wherever_it_stood_the_state_ends_the_same(steps: list[Known]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log, whole = ChangeLog(Path(folder), "t"), MemoryWatermarkStore()
        for offset, remembered in enumerate(steps, 1):
            log.append(offset, changes(offset, 1), mark(offset), records(remembered), committed=0, origin="poll")
            whole.save("t", mark(offset), records(remembered))
        for applied in range(len(steps) + 1):
            part = MemoryWatermarkStore()
            for offset, remembered in enumerate(steps[:applied], 1):
                part.save("t", mark(offset), records(remembered))
            assert recovery.recover(log, part) == len(steps) - applied
            assert part.watermark("t") == whole.watermark("t")
            assert known(part.remembered("t")) == known(whole.remembered("t"))


def test_what_was_forgotten_in_the_log_stays_forgotten(tmp_path: Path) -> None:
    log, store = ChangeLog(tmp_path, "t"), MemoryWatermarkStore()
    log.append(1, changes(1), mark(1), lasting(KEY), committed=0, origin="poll")
    log.append(2, changes(2), mark(2), records({KEY: None}), committed=0, origin="poll")
    recovery.recover(log, store)
    assert known(store.recall("t", keys(KEY))) == {}


def test_a_log_shorter_than_its_state_is_refused_and_named(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 3), MemoryWatermarkStore()
    recovery.recover(log, store)
    log.list()[2].path.unlink()
    with pytest.raises(StateDamaged, match="ends at offset 2, but 3 had been written"):
        recovery.recover(log, store)
    assert store.watermark("t") == mark(3)


def test_a_segment_that_does_not_read_stops_the_rebuild(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 3), MemoryWatermarkStore()
    path = log.list()[1].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StateDamaged, match=path.name):
        recovery.recover(log, store)


def test_half_written_files_are_swept_up(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 1)
    (log.folder / ".x.tmp").write_text("-")
    recovery.recover(log, MemoryWatermarkStore())
    assert [p.name for p in log.folder.iterdir()] == [f"{1:020d}.parquet"]


def test_a_watermark_moved_by_hand_is_moved_by_a_rebuild_too(tmp_path: Path) -> None:
    """Killed between the segment and the state, a reset still takes effect, and what was remembered is forgotten."""
    log, store = ChangeLog(tmp_path, "t"), MemoryWatermarkStore()
    closed: dict[PassName, PassMark] = {"updated": PassMark(closed=1_000)}
    store.save("t", dataclasses.replace(mark(1), marks=closed, since=9), lasting(KEY))
    log.append(1, changes(1), mark(1), NOTHING, committed=1, origin="poll")
    log.append(2, changes(0), dataclasses.replace(mark(2), marks={}), NOTHING, committed=2, origin="poll", moved=True)
    assert recovery.recover(log, store) == 1
    found = store.watermark("t")
    assert found is not None
    assert (found.closed(), found.since) == ({}, None)
    assert known(store.remembered("t")) == {}


def test_an_older_segment_never_opens_what_the_state_has_closed(tmp_path: Path) -> None:
    """What lies below a closed value has been forgotten, so reading it again would deliver it again."""
    log, store = ChangeLog(tmp_path, "t"), MemoryWatermarkStore()
    store.save("t", dataclasses.replace(mark(1), marks={"updated": PassMark(closed=1_000)}, since=9), NOTHING)
    log.append(1, changes(1), mark(1), NOTHING, committed=1, origin="poll")
    lower = dataclasses.replace(mark(2), marks={"updated": PassMark(closed=500)}, since=4)
    log.append(2, changes(1), lower, NOTHING, committed=2, origin="poll")
    recovery.recover(log, store)
    found = store.watermark("t")
    assert found is not None
    assert (found.closed(), found.since) == ({"updated": 1_000}, 9)
