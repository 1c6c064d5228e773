"""A mirror's Delta table that somebody else has changed: it is said, and taken back it is gone on with."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, SystemClock
from sidecar.errors import SinkError
from sidecar.log import log_records
from sidecar.mirrors.delta_history import Commit, foreign, parsed
from sidecar.mirrors.mirror import MirrorSink
from tests.unit import mirrors
from tests.unit.mirrors import apply, held

sink = mirrors.sink


def at(sink: MirrorSink) -> DeltaTable:
    return DeltaTable(f"{sink.path}/t")


def filled(sink: MirrorSink) -> DeltaTable:
    for offset in range(1, 5):
        apply(sink, offset, {"id": [offset], "v": [offset]})
    return at(sink)


@pytest.mark.parametrize("is_new", [True, False], ids=["the next process", "this process"])
def test_a_table_that_was_restored_to_an_older_version_is_said_and_goes_on_once_that_is_taken_back(
    sink: MirrorSink, is_new: bool
) -> None:
    filled(sink).restore(2)
    sink = MirrorSink("lake", path=sink.path) if is_new else sink
    for _ in range(2):
        with pytest.raises(SinkError, match=r"were changed by somebody else: version 5 \(RESTORE, 20.*restore\(4\)"):
            apply(sink, 5, {"id": [5], "v": [5]})
    at(sink).restore(4)
    apply(sink, 5, {"id": [5], "v": [5]})
    assert held(sink).column("id").to_pylist() == [1, 2, 3, 4, 5]


def test_rows_that_somebody_has_deleted_or_added_are_said_and_upkeep_is_not(sink: MirrorSink, tmp_path: Path) -> None:
    filled(sink)
    at(sink).optimize.compact()
    at(sink).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    at(sink).alter.set_table_properties({"mine": "1"}, raise_if_not_exists=False)
    apply(sink, 5, {"id": [5], "v": [5]})
    at(sink).delete("id = 2")
    at(sink).optimize.compact()
    log = ChangeLog(tmp_path / "log", "t")
    log_records.write(log, "_log.json", {"id": "a log"})
    log_records.write(log, "_mirrors/lake.json", {"maintained": 0, "until": 10})
    sink.maintain(log, ("id",), 10)
    assert at(sink).version() == 11, "what is needed to take that back must not go"
    with pytest.raises(SinkError, match=r"somebody else: version 10 \(DELETE"):
        apply(sink, 6, {"id": [6], "v": [6]})
    at(sink).restore(9)
    apply(sink, 6, {"id": [6], "v": [6]})
    write_deltalake(at(sink), pa.table({"id": [9], "v": [9]}), mode="append")
    with pytest.raises(SinkError, match=r"\(WRITE"):
        apply(MirrorSink("lake", path=sink.path), 7, {"id": [7], "v": [7]})


def test_a_table_whose_log_was_tidied_up_after_days_without_a_batch_is_gone_on_with(sink: MirrorSink) -> None:
    log, days_ago = Path(sink.path, "t", "_delta_log"), SystemClock().now() / SECOND - 3 * 86400
    apply(sink, 1, {"id": [1], "v": [1]})
    at(sink).alter.set_table_properties({"delta.checkpointInterval": "3"})
    for offset in (2, 3):
        apply(sink, offset, {"id": [offset], "v": [offset]})
    for path in log.iterdir():
        os.utime(path, (days_ago, days_ago))
    for offset in (4, 5):
        apply(sink, offset, {"id": [offset], "v": [offset]})
    assert not (log / f"{4:020d}.json").exists(), "what the sink had looked at last"
    assert held(sink).column("id").to_pylist() == [1, 2, 3, 4, 5]
    Path(log.parent).rename(log.parent.with_name("away"))
    with pytest.raises(SinkError, match=r"was replaced|there is no Delta table"):
        apply(sink, 6, {"id": [6], "v": [6]})


def test_a_table_that_was_dropped_or_put_back_while_the_sink_is_at_work_is_said(
    sink: MirrorSink, tmp_path: Path
) -> None:
    filled(sink)
    folder = Path(sink.path, "t")
    shutil.copytree(folder, tmp_path / "older")
    for offset in (5, 6):
        apply(sink, offset, {"id": [offset], "v": [offset]})
    shutil.copytree(folder, tmp_path / "newest")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "older", folder)
    for _ in range(2):
        write_deltalake(at(sink), pa.table({"id": [9], "v": [9]}), mode="append")
    with pytest.raises(SinkError, match="was replaced, or put back to an older copy"):
        apply(sink, 7, {"id": [7], "v": [7]})
    with pytest.raises(SinkError, match=r"somebody else: version 5 \(WRITE"):
        apply(sink, 7, {"id": [7], "v": [7]})
    shutil.rmtree(folder)
    with pytest.raises(SinkError, match=r"there is no Delta table at .*up to offset 6"):
        apply(sink, 7, {"id": [7], "v": [7]})
    shutil.copytree(tmp_path / "newest", folder, dirs_exist_ok=True)
    apply(sink, 7, {"id": [7], "v": [7]})
    assert held(sink).column("id").to_pylist() == [1, 2, 3, 4, 5, 6, 7]


def test_what_is_committed_while_a_batch_is_written_is_not_written_over(sink: MirrorSink) -> None:
    table = filled(sink)
    mirrored = sink._tables["t"]
    mirrored.open(pa.schema([]), 0)
    table.delete("id = 2")
    with pytest.raises(SinkError, match=r"somebody else has committed to the Delta table .* in the same moment"):
        mirrored._write([], "append", None, mirrored.schema())  # type: ignore[attr-defined]


def commit(version: int, text: str, *lines: object) -> Commit:
    said = [{"commitInfo": {"operation": text, "timestamp": 0}}, *lines]
    return parsed(version, "\n".join(map(json.dumps, said)).encode(), "us")


def test_a_row_deleted_by_a_vector_is_a_change_and_a_file_joined_is_none() -> None:
    vector = {"path": "a", "deletionVector": {"storageType": "u", "pathOrInlineDv": "x"}, "dataChange": True}
    deleted = commit(1, "DELETE", {"remove": {"path": "a", "dataChange": True}}, {"add": vector})
    assert str(foreign([deleted])) == "version 1 (DELETE, 1970-01-01T00:00:00Z)"
    again = commit(2, "RESTORE", {"remove": vector}, {"add": {"path": "a", "dataChange": True}})
    assert foreign([deleted, again]) is None
    joined = commit(
        3, "OPTIMIZE", {"remove": {"path": "a", "dataChange": False}}, {"add": vector | {"dataChange": False}}
    )
    ours = commit(4, "WRITE", {"add": {"path": "b"}}, {"txn": {"appId": "us", "version": 1}})
    assert foreign([joined, ours]) is None
    added = commit(5, "WRITE", {"add": {"path": "c"}})
    assert foreign([joined, ours, added]) == added
    assert foreign([deleted, joined, commit(6, "WRITE", {"add": {"path": "b"}}, {"txn": {"appId": "us"}})]) == deleted
