"""A mirror's table: whose it is, how far it has come, which files are touched, and its upkeep."""

from __future__ import annotations

import itertools
import shutil
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, FakeClock, SystemClock
from sidecar.delivering.delivery import Delivery
from sidecar.errors import SinkError
from sidecar.log import log_records
from sidecar.log.files import sync
from sidecar.mirrors import delta_files
from sidecar.mirrors.mirror import MirrorSink
from tests.conftest import SQLiteFile
from tests.unit import mirrors
from tests.unit.mirrors import MIRROR, VERSION, apply, batch, changes, files, held, insert, project

if TYPE_CHECKING:
    pass

sink = mirrors.sink


# -- whose it is, and how far it has come ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"log": "another log"}, "mirrors another change log"),
        ({"sink": "pond"}, 'was written by the sink "pond"'),
        ({"key": ("v",)}, "was written by the key"),
        ({"kind": "history"}, "was written as history"),
    ],
)
def test_a_table_that_something_else_keeps_is_refused(tmp_path: Path, other: dict[str, Any], said: str) -> None:
    name, kind = other.pop("sink", "lake"), other.pop("kind", "current")
    first = MirrorSink(name, path=str(tmp_path / "lake"), kind=kind)
    first.apply(changes(1, {"id": [1], "v": [1]}), batch(1, **other), VERSION)
    with pytest.raises(SinkError, match=said):
        apply(MirrorSink("lake", path=str(tmp_path / "lake")), 1, {"id": [1], "v": [2]})
    assert held(first).column("v").to_pylist() == [1]


def test_a_delta_table_that_sidecar_has_not_made_is_refused(sink: MirrorSink) -> None:
    from deltalake import write_deltalake

    write_deltalake(f"{sink.path}/t", pa.table({"id": [1]}))
    with pytest.raises(SinkError, match=r"was not written by Sidecar.*another path"):
        apply(sink, 1, {"id": [1]})


def test_a_folder_of_other_files_is_refused_and_left_alone(sink: MirrorSink) -> None:
    folder = Path(sink.path, "t")
    folder.mkdir(parents=True)
    (folder / "part-1.parquet").write_text("mine")
    with pytest.raises(SinkError, match="no Delta table, and not empty"):
        apply(sink, 1, {"id": [1]})
    assert [p.name for p in folder.iterdir()] == ["part-1.parquet"]


def test_a_batch_that_is_partly_there_is_applied_from_where_the_table_stands(sink: MirrorSink) -> None:
    apply(sink, 1, {"id": [1], "v": [1]})
    apply(sink, 2, {"id": [1], "v": [2]})
    # An older copy of the positions: a batch with another end.
    again = pa.concat_tables([changes(o, {"id": [1], "v": [o]}) for o in (1, 2, 3)])
    sink.apply(again, batch(1, 3), VERSION)
    assert held(sink).to_pydict() == {"id": [1], "v": [3]}
    assert DeltaTable(f"{sink.path}/t").version() == 3


def test_a_table_that_is_behind_its_position_is_no_place_to_go_on(sink: MirrorSink) -> None:
    apply(sink, 1, {"id": [1]})
    with pytest.raises(SinkError, match=r"has changes up to offset 1, and the next ones are from 3 on"):
        apply(sink, 3, {"id": [3]})
    shutil.rmtree(f"{sink.path}/t")
    with pytest.raises(SinkError, match=r"there is no Delta table at .*up to offset 1"):
        apply(MirrorSink("lake", path=sink.path), 2, {"id": [2]})


def test_a_new_mirror_of_a_log_that_begins_later_begins_there(sink: MirrorSink) -> None:
    sink.apply(changes(8, {"id": [1]}), batch(8, floor=7), VERSION)
    apply(sink, 9, {"id": [2]})
    assert held(sink).column("id").to_pylist() == [1, 2]


def test_batches_without_a_row_count(sink: MirrorSink) -> None:
    none = pa.array([], pa.int64())
    apply(sink, 1, {"id": none})
    apply(sink, 2, {"id": none})
    apply(sink, 3, {"id": pa.array([3], pa.int64())})
    assert held(sink).column("id").to_pylist() == [3]


def test_a_log_keeps_its_identity_and_no_two_have_the_same(tmp_path: Path) -> None:
    logs = [ChangeLog(tmp_path / name, "t") for name in ("a", "b")]
    found = [log_records.identity(log) for log in logs]
    assert len(set(found)) == 2
    assert [log_records.identity(ChangeLog(tmp_path / name, "t")) for name in ("a", "b")] == found


# -- which files are touched -------------------------------------------------------------------------------------------


def ids(*ranges: range) -> pa.Array:
    return pa.array([n for some in ranges for n in some], pa.int64())


def test_only_files_that_hold_a_changed_key_are_written_anew(sink: MirrorSink) -> None:
    for offset in range(1, 5):
        apply(sink, offset, {"id": ids(range(offset * 10, offset * 10 + 10))}, origin="backfill")
    before = files(sink)
    assert list(before.values()) == [10] * 4
    apply(sink, 5, {"id": ids(range(25, 26))}, kind="delete")
    kept = before.keys() & files(sink).keys()
    assert len(kept) == 3
    assert sorted(files(sink).values()) == [9, 10, 10, 10]
    # Between two files' bounds, and beyond them: nothing is rewritten.
    apply(sink, 6, {"id": ids(range(5), range(100, 105))})
    assert kept < files(sink).keys()
    assert len(files(sink)) == 5


def test_two_zeros_and_two_nans_are_one_key_each(sink: MirrorSink) -> None:
    for offset, key in enumerate([0.0, float("nan"), -0.0, float("nan")], 1):
        apply(sink, offset, {"id": [key], "v": [offset]})
    both = changes(5, {"id": [0.0], "v": [5]}), changes(6, {"id": [-0.0], "v": [6]})
    sink.apply(pa.concat_tables(both), batch(5, 6), VERSION)
    assert sorted(held(sink).column("v").to_pylist()) == [4, 6]


@pytest.mark.parametrize("type_", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_times_outside_of_the_years_that_python_knows_are_kept(sink: MirrorSink, type_: pa.DataType) -> None:
    far = [-(10**6), 10**7] if type_ == pa.date32() else [-(10**17), 10**18]
    for offset, value in enumerate([*far, 0, far[0]], 1):
        apply(sink, offset, {"id": pa.array([value], pa.int32() if type_ == pa.date32() else pa.int64()).cast(type_)})
    numbers = held(sink).column("id").cast(pa.int32() if type_ == pa.date32() else pa.int64())
    assert numbers.to_pylist() == [far[0], 0, far[1]]


@pytest.mark.parametrize(
    "values",
    [
        [f"{'long' * 40}{n:03d}" for n in range(8)],
        [f"größe-{n}" for n in range(8)],
        [Decimal(n) / 7 for n in range(8)],
        [date(2024, 1, 1 + n) for n in range(8)],
        [datetime(2024, 1, 1, 0, 0, n, 123456, UTC) for n in range(8)],
        [datetime(9999, 12, 31, 23, 59, 59, 999_992 + n) for n in range(8)],  # noqa: DTZ001
        [bytes([n, 255]) for n in range(8)],
        [2**63 - 1 - n for n in range(8)],
        [n / 3 for n in range(8)],
    ],
    ids=["long texts", "texts", "decimals", "dates", "times", "the end of time", "bytes", "integers", "floats"],
)
def test_a_key_of_any_type_is_found_where_it_is(sink: MirrorSink, values: list[Any]) -> None:
    type_ = pa.decimal128(38, 20) if isinstance(values[0], Decimal) else None
    values = [v.quantize(Decimal("1e-20")) for v in values] if type_ else values
    key = pa.array(values, type_)
    for offset, some in enumerate((key[:3], key[3:6], key[5:8]), 1):
        apply(sink, offset, {"id": some, "v": [offset] * len(some)})
    sink._tables["t"].maintain(0)  # delta-rs' own files have bounds of its own
    apply(sink, 4, {"id": key[4:5], "v": [0]}, kind="delete")
    assert held(sink).select(["id", "v"]).to_pylist() == sorted(
        ({"id": v, "v": w} for v, w in zip(values, [1, 1, 1, 2, None, 3, 3, 3], strict=True) if w),
        key=lambda r: r["id"],
    )


def test_a_large_batch_is_written_in_the_order_of_the_key_and_in_files_of_a_size(
    sink: MirrorSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_files, "FILE_BYTES", 1_500)
    monkeypatch.setattr(delta_files, "GROUP_ROWS", 500)
    apply(sink, 1, {"id": pa.array([n * 7919 % 5_003 for n in range(5_003)], pa.int64())})
    bounds = sorted(
        (found[0].as_py(), found[-1].as_py()) for p in files(sink) if (found := pq.read_table(p).column("id"))
    )
    assert len(bounds) > 2
    assert all(a[1] < b[0] for a, b in itertools.pairwise(bounds))


@pytest.mark.parametrize(
    "keys",
    [[[1, 2], [2], [], [1, 2, None]], [{"a": 0.0}, {"a": 1.5}, {"a": None}, {"a": -1.5}]],
    ids=["lists", "structs"],
)
def test_a_key_of_several_parts_is_found_where_it_is(sink: MirrorSink, keys: list[Any]) -> None:
    type_ = pa.array(keys).type
    apply(sink, 1, {"id": pa.array(keys, type_), "v": [1] * 4})
    same = [{"a": -0.0}, *keys[1:2]] if isinstance(keys[0], dict) else keys[:2]
    apply(sink, 2, {"id": pa.array(same, type_), "v": [2, 2]})
    apply(sink, 3, {"id": pa.array(keys[2:3], type_), "v": [3]}, kind="delete")
    found = DeltaTable(f"{sink.path}/t").to_pyarrow_table().sort_by("v").to_pylist()
    assert [row["v"] for row in found] == [1, 2, 2]
    assert {repr(row["id"]).replace("-0.0", "0.0") for row in found} == {repr(keys[n]) for n in (0, 1, 3)}


def test_large_files_are_not_joined_and_small_ones_are(sink: MirrorSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_files, "SMALL_BYTES", 20_000)
    for offset, rows in ((1, 5_000), (2, 5_000), (3, 1), (4, 1)):
        apply(sink, offset, {"id": ids(range(offset * 10_000, offset * 10_000 + rows))})
    large = {path for path, rows in files(sink).items() if rows > 1}
    sink._tables["t"].maintain(10**12)
    assert large < files(sink).keys()
    assert sorted(files(sink).values()) == [2, 5_000, 5_000]


def test_a_key_that_is_null_is_refused(sink: MirrorSink) -> None:
    # The log has none; a transform may make one.
    with pytest.raises(SinkError, match='key column "id" holds NULLs'):
        apply(sink, 1, {"id": ["a", None]})


# -- upkeep ------------------------------------------------------------------------------------------------------------


def test_upkeep_is_done_when_it_is_due_and_remembered_by_the_next_process(tmp_path: Path) -> None:
    clock, log = FakeClock(), ChangeLog(tmp_path / "log", "t")
    log_records.write(log, "_log.json", {"id": "a log"})
    sink = MirrorSink("lake", path=str(tmp_path / "lake"), compact_every=600 * SECOND, vacuum_after=0)
    for offset in range(1, 6):
        apply(sink, offset, {"id": ids(range(offset, offset + 1))})
        sink.maintain(log, ("id",), clock.now())
    clock.advance(599)
    sink.maintain(log, ("id",), clock.now())
    assert len(files(sink)) == 5
    clock.advance(1)
    again = MirrorSink("lake", path=sink.path, compact_every=600 * SECOND, vacuum_after=0)
    again.maintain(log, ("id",), clock.now())  # it has delivered nothing yet, and waits for nothing
    assert list(files(sink).values()) == [5]
    apply(again, 6, {"id": ids(range(6, 7))})
    clock.advance(600)
    again.maintain(log, ("id",), clock.now())
    assert list(files(again).values()) == [6]
    assert len(list(Path(sink.path, "t").glob("*.parquet"))) == 1
    assert held(again).column("id").to_pylist() == [1, 2, 3, 4, 5, 6]
    apply(again, 7, {"id": ids(range(7, 8))})
    again.maintain(log, ("id",), clock.now())
    assert len(files(again)) == 2


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_the_last_batch_has_left_is_tidied_up_though_nothing_more_comes_and_then_that_is_over(
    sqlite_db: SQLiteFile, tmp_path: Path, is_restarted: bool
) -> None:
    path = project(sqlite_db, MIRROR + 'compact_every = "1h"\nvacuum_after = "0s"\n')
    clock = FakeClock(SystemClock().now())
    counts: list[int] = []
    with sidecar.open(path, clock=clock) as sc:
        delivery = Delivery(sc, None, threading.Event())
        for turn in range(12):
            if turn < 2:
                insert(sqlite_db.connection, turn + 1, "a")
                sc.poll()
            # Each turn may be a process of its own, as a loop's are after a restart.
            delivery = Delivery(sc, None, threading.Event()) if is_restarted else delivery
            asked = delivery.is_asked(sc.tracked["t"], delivery.sinks)
            if asked:
                delivery.deliver(sc.tracked["t"], delivery.sinks)
            counts.append(len(list((tmp_path / "lake" / "t").glob("*.parquet"))))
            clock.advance(1800)
        assert not asked, "a table that is tidy is left alone"
    assert (max(counts), counts[-1]) == (2, 1)


def test_all_that_a_table_consists_of_is_forced_to_the_disk(sink: MirrorSink, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()

    def remembering(path: Path) -> None:
        sync(path)
        synced.add(path)

    monkeypatch.setattr("sidecar.mirrors.delta_table.sync", remembering)
    for offset in (1, 2):
        apply(sink, offset, {"id": [offset]})
    apply(sink, 3, {"id": [3], "v": ["a"]})
    sink._tables["t"].maintain(10**12)
    folder = Path(sink.path, "t")
    commits = set(folder.glob("_delta_log/*.json"))
    assert len(commits) > 5, "the table was made, got its rows and a column, and was compacted"
    assert commits | {Path(path) for path in files(sink)} | {folder, folder / "_delta_log"} <= synced


def test_upkeep_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = ChangeLog(tmp_path / "log", "t")
    sink = MirrorSink("lake", path=str(tmp_path / "lake"), compact_every=1, vacuum_after=0)
    apply(sink, 1, {"id": [1]})
    sink.maintain(log, ("id",), 1)
    shutil.rmtree(f"{sink.path}/t")
    sink.maintain(log, ("id",), 10)
    assert "upkeep failed" in caplog.text


def test_a_record_of_upkeep_that_cannot_be_read_is_said_and_is_no_failure_of_the_sink(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = ChangeLog(tmp_path / "log", "t")
    sink = MirrorSink("lake", path=str(tmp_path / "lake"), compact_every=1, vacuum_after=0)
    log_records.write(log, "_mirrors/lake.json", {})
    (log.folder / "_mirrors" / "lake.json").write_text("{")
    apply(sink, 1, {"id": [1]})
    sink.maintain(log, ("id",), 1)
    assert "upkeep failed" in caplog.text


def test_the_delta_log_of_many_commits_is_read_from_a_checkpoint(sink: MirrorSink) -> None:
    for offset in range(1, 23):
        apply(sink, offset, {"id": ids(range(offset, offset + 1))})
    assert list(Path(sink.path, "t", "_delta_log").glob("*.checkpoint.parquet"))
    apply(MirrorSink("lake", path=sink.path), 22, {"id": [99]})
    assert held(sink).column("id").to_pylist() == list(range(1, 23))
