"""The log is a folder of immutable, numbered files that say of themselves what a rebuild needs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import changelog
from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated, StateDamaged
from sidecar.log import segments
from sidecar.model import PassMark, Watermark
from sidecar.polls import deliveries
from sidecar.polls.deliveries import NOTHING
from tests.unit.records import Known, known, lasting, records


def changes(offset: int, rows: int = 3) -> pa.Table:
    return pa.table({"_commit_version": pa.array([offset] * rows, pa.int64()), "id": pa.array(range(rows), pa.int64())})


def mark(offset: int) -> Watermark:
    return Watermark("id by u", offset=offset, marks={"updated": PassMark(offset, ((1, 2),))})


def fill(log: ChangeLog, count: int, start: int = 1) -> ChangeLog:
    for offset in range(start, start + count):
        remembered = lasting(offset, content=offset)
        log.append(offset, changes(offset), mark(offset), remembered, committed=offset * 10, origin="poll")
    return log


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path / "none", "t")
    assert (log.list(), log.last(), log.floor(), log.schema(), log.get(1), log.metadata(1)) == (
        [],
        0,
        0,
        None,
        None,
        None,
    )
    assert list(log.rows()) == []
    assert list(log.replay(0)) == []
    assert changelog.tables(tmp_path / "none") == []
    log.sweep_up()
    assert not (tmp_path / "none").exists()


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 3)
    assert [s.offset for s in log.list()] == [1, 2, 3]
    assert [s.offset for s in log.list(1, 2)] == [2]
    assert log.list(3) == log.list(5, 5) == []
    assert log.get(2) == changes(2)
    assert log.get(4) is None
    assert [r["_commit_version"] for r in log.rows(1)] == [2] * 3 + [3] * 3
    assert log.schema() == changes(1).schema
    found = log.metadata(2)
    assert found is not None
    assert (found.offset, found.rows, found.committed, found.origin, found.watermark) == (2, 3, 20, "poll", mark(2))
    assert log.metadata(4) is None
    assert changelog.tables(tmp_path) == ["t"]


def test_a_segment_is_plain_parquet_under_a_plain_name(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 2)
    assert sorted(p.name for p in log.folder.iterdir()) == [f"{1:020d}.parquet", f"{2:020d}.parquet"]
    assert pq.read_table(log.folder).num_rows == 6


INTS = st.integers(-(2**63), 2**63 - 1)
REMEMBERED = st.dictionaries(st.integers(0, 2**63 - 1), st.none() | st.tuples(INTS, INTS), max_size=5)


@given(REMEMBERED)
def test_what_is_remembered_comes_back_bit_for_bit(remembered: Known) -> None:
    found = segments.unpack(segments.pack(records(remembered)))
    assert found.tolist() == records(remembered).tolist()


@pytest.mark.parametrize("packed", [b"", b"\0" * 7, b"\0" * 9, bytes(7) + b"\1", bytes(7) + b"\1" + bytes(30)])
def test_what_nobody_packed_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        deliveries.unpack(packed)


def test_what_is_remembered_is_in_a_segment_once(tmp_path: Path) -> None:
    log, remembered = ChangeLog(tmp_path, "t"), lasting(*range(1000))
    segment = log.append(1, changes(1), mark(1), remembered, committed=10, origin="poll")
    more = log.append(2, changes(1), mark(1), NOTHING, committed=10, origin="poll")
    grown = segment.path.stat().st_size - more.path.stat().st_size
    assert grown < 1.5 * len(segments.pack(remembered))
    assert known(found for _, found, _ in log.replay(0)) == known(remembered)


def test_a_replay_begins_after_what_is_known(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 3)
    assert [m.offset for m, _, _ in log.replay(1)] == [2, 3]
    ((watermark, remembered, moved),) = log.replay(2)
    assert (watermark, known(remembered), moved) == (mark(3), known(lasting(3, content=3)), False)


def test_what_a_killed_writer_left_is_swept_up_and_never_read(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 1)
    aside = log.folder / f".{2:020d}.parquet.tmp"
    aside.write_bytes(b"half")
    assert log.last() == 1
    log.sweep_up()
    assert not aside.exists()
    assert log.last() == 1


def test_other_files_in_the_folder_are_no_segments(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 1)
    for name in ("notes.txt", "latest.parquet", "_positions.json", "1.csv"):
        (log.folder / name).write_text("-")
    assert log.last() == 1


def test_dropped_segments_are_named_and_numbers_go_on(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 4)
    assert log.drop(3, mark(4), lasting(9)) == 3
    assert (log.floor(), log.last(), [s.offset for s in log.list(3)]) == (3, 4, [4])
    for attempt in (lambda: log.list(0), lambda: list(log.rows(2)), lambda: log.get(3), lambda: log.metadata(1)):
        with pytest.raises(LogTruncated, match=r'table "t".*begins at 4.*since=3'):
            attempt()
    assert log.get(5) is None
    assert log.drop(3, mark(4), NOTHING) == 0
    fill(log, 1, start=5)
    assert [s.offset for s in log.list(3)] == [4, 5]


def test_a_range_that_ends_before_it_begins_is_empty_even_below_the_floor(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 3)
    log.drop(2, mark(3), NOTHING)
    assert log.list(1, 1) == []


def test_a_log_of_which_all_is_dropped_still_knows_its_last_number(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 3)
    log.drop(3, mark(3), NOTHING)
    assert log.last() == 3
    assert log.list(3) == []
    with pytest.raises(LogTruncated):
        log.list(2)


def test_a_drop_that_was_cut_short_counts_as_done(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 4)
    kept = log.list()[1].path.read_bytes()
    log.drop(3, mark(4), NOTHING)
    (log.folder / f"{2:020d}.parquet").write_bytes(kept)
    assert [s.offset for s in log.list(3)] == [4]
    with pytest.raises(LogTruncated):
        log.list(1)


def test_a_rebuild_after_a_drop_begins_with_what_the_floor_took_over(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 5)
    everything = lasting(1, 2, 3, 4)
    log.drop(2, mark(4), everything)
    found = [(m.offset, known(r)) for m, r, _ in log.replay(0)]
    assert found == [(4, known(everything)), (5, known(lasting(5, content=5)))]
    assert [m.offset for m, _, _ in log.replay(3)] == [4, 5]


@pytest.mark.parametrize("size", [0, 1, 4, 100, -1, -8])
def test_a_truncated_segment_is_named(tmp_path: Path, size: int) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 2)
    path = log.list()[1].path
    raw = path.read_bytes()
    path.write_bytes(raw[:size])
    with pytest.raises(StateDamaged, match=path.name):
        log.metadata(2)
    with pytest.raises(StateDamaged, match=path.name):
        list(log.replay(0))
    assert log.metadata(1) is not None


def test_a_foreign_parquet_file_in_the_log_is_named(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 1)
    path = log.folder / f"{2:020d}.parquet"
    pq.write_table(changes(2), path)
    with pytest.raises(StateDamaged, match=f"{path.name}.*no Sidecar footer"):
        log.metadata(2)


def test_a_log_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file where the folder should be")
    with pytest.raises(StateDamaged, match="cannot be created"):
        fill(ChangeLog(tmp_path, "t"), 1)
