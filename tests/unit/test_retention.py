"""Old segments go when all have them, and a rebuild finds what it needs all the same."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import LogTruncated, SettingsError, StateDamaged
from sidecar.log import consumers, queries, recovery
from sidecar.log.retention import drop_old
from sidecar.model import Horizon, PassMark, PassName, Progress, Watermark
from sidecar.polls import deliveries
from sidecar.polls.deliveries import NOTHING
from sidecar.state import ConsumerPosition, MemoryWatermarkStore, RocksDBWatermarkStore
from tests.unit import test_custom_connector as custom
from tests.unit.records import known
from tests.unit.test_changelog import changes, fill, mark
from tests.unit.test_custom_connector import Lists, drain, followed, opened

lists = custom.lists


def ready(folder: Path, count: int = 5) -> tuple[ChangeLog, MemoryWatermarkStore]:
    log, store = fill(ChangeLog(folder, "t"), count), MemoryWatermarkStore()
    recovery.recover(log, store)
    return log, store


def test_nothing_goes_before_its_time(tmp_path: Path) -> None:
    log, store = ready(tmp_path)
    assert drop_old(log, store, [], before=10) == 0
    assert drop_old(log, store, [], before=11) == 1
    assert drop_old(log, store, [], before=31) == 2
    assert [s.offset for s in log.list(3)] == [4, 5]


def test_nothing_goes_before_every_consumer_has_it(tmp_path: Path) -> None:
    log, store = ready(tmp_path)
    consumers.acknowledge(log, store, "a", 4)
    assert drop_old(log, store, ["a", "b"], before=10**9) == 0
    consumers.acknowledge(log, store, "b", 2)
    consumers.intend(log, store, "b", 5)
    assert drop_old(log, store, ["a", "b"], before=10**9) == 2
    assert log.floor() == 2


def test_what_a_query_that_has_a_name_has_not_had_stays_until_the_query_is_forgotten(tmp_path: Path) -> None:
    log, store = ready(tmp_path)
    consumers.acknowledge(log, store, "lake", 5)
    queries.save(log, "lake", 1)  # no sink's name is taken
    queries.save(log, "b/ü", 3)
    assert drop_old(log, store, ["lake"], before=10**9) == 1
    assert queries.positions(log) == {"lake": 1, "b/ü": 3}
    assert store.positions() == {("t", "lake"): ConsumerPosition(5)}
    queries.forget(log, "lake")
    assert drop_old(log, store, ["lake"], before=10**9) == 2
    queries.forget(log, "b/ü")
    assert drop_old(log, store, ["lake"], before=10**9) == 1
    with pytest.raises(SettingsError, match='no query "lake"; there are: none'):
        queries.forget(log, "lake")


def test_a_query_s_position_that_cannot_be_read_keeps_everything(tmp_path: Path) -> None:
    log, store = ready(tmp_path)
    queries.save(log, "q", 3)
    path = log.folder / "_positions" / "queries" / "q.json"
    assert json.loads(path.read_text()) == {"query": "q", "acknowledged": 3, "run": ""}
    for text in ("", "[]", '{"query": "q"}'):
        path.write_text(text)
        with pytest.raises(StateDamaged, match=r"q\.json: not a readable position.*Remove the file"):
            drop_old(log, store, [], before=10**9)
    assert len(log.list()) == 5


def test_the_newest_segment_stays(tmp_path: Path) -> None:
    log, store = ready(tmp_path)
    assert drop_old(log, store, [], before=10**9) == 4
    assert drop_old(log, store, [], before=10**9) == 0
    assert [s.offset for s in log.list(4)] == [5]
    assert log.schema() is not None


def test_what_is_not_closed_stays_where_a_source_may_number_it_anew(tmp_path: Path) -> None:
    """Should it do so, only the log tells that it has been delivered."""

    def at(offset: int, seen: int, closed: int | None = None) -> Watermark:
        marks: dict[PassName, PassMark] = {"updated": PassMark(closed, ((1, seen),))}
        return Watermark("id by u", offset=offset, marks=marks, era="server#0", polled=offset)

    log, store = ChangeLog(tmp_path, "t"), MemoryWatermarkStore()
    for offset, seen in enumerate((10, 20, 30, 40), 1):
        log.append(offset, changes(offset), at(offset, seen), NOTHING, committed=10, origin="poll")
    recovery.recover(log, store)
    assert drop_old(log, store, [], before=10**9) == 0
    store.save("t", at(4, 40, closed=20), NOTHING)
    assert drop_old(log, store, [], before=10**9) == 2


def test_what_an_interrupted_poll_has_read_last_stays_until_that_is_closed(tmp_path: Path) -> None:
    """It is newer than the poll says to have seen, and a source that numbers it anew would have it delivered again."""

    def standing(seen: int, closed: int | None, polled: int | None, began: int | None = None) -> Watermark:
        marks: dict[PassName, PassMark] = {"updated": PassMark(closed, ((1, seen),))}
        progress = None if began is None else Progress(Horizon(began, None), marks, "updated")
        return Watermark("id by u", offset=1, marks=marks, era="server#0", polled=polled, progress=progress)

    log, store = ChangeLog(tmp_path, "t"), MemoryWatermarkStore()
    row = deliveries.nothing(np.array([[1], [1]]))
    row[deliveries.UPDATED] = 25
    log.append(1, changes(1), standing(10, None, polled=1, began=2), row, committed=2, origin="poll")
    log.append(2, changes(2), standing(10, None, polled=2), NOTHING, committed=2, origin="poll")
    recovery.recover(log, store)
    for now, dropped in (
        (standing(10, closed=10, polled=2), 0),  # the interrupted poll is complete, as of its beginning
        (standing(40, closed=20, polled=3), 0),
        (standing(40, closed=25, polled=3), 1),
    ):
        store.save("t", dataclasses.replace(now, offset=2), NOTHING)
        assert drop_old(log, store, [], before=10**9) == dropped


def test_a_table_without_a_state_or_a_log_loses_nothing(tmp_path: Path) -> None:
    log = fill(ChangeLog(tmp_path, "t"), 3)
    assert drop_old(log, MemoryWatermarkStore(), [], before=10**9) == 0
    empty = MemoryWatermarkStore()
    empty.save("none", mark(0), NOTHING)
    assert drop_old(ChangeLog(tmp_path, "none"), empty, [], before=10**9) == 0


@pytest.mark.parametrize("applied", [0, 1, 3, 4, 5])
def test_a_state_of_any_age_is_rebuilt_over_the_floor(tmp_path: Path, applied: int) -> None:
    log, store = ready(tmp_path)
    part = MemoryWatermarkStore()
    for watermark, remembered, _ in list(log.replay(0))[:applied]:
        part.save("t", watermark, remembered)
    drop_old(log, store, [], before=31)
    recovery.recover(log, part)
    assert part.watermark("t") == store.watermark("t")
    assert known(part.remembered("t")) == known(store.remembered("t"))


def test_after_a_drop_and_a_lost_database_nothing_is_delivered_again(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    rows = lists.table("t", rows=[{"id": n, "updated_at": clock.now()} for n in range(6)])
    connector = opened(clock)
    tracked = followed(connector, "t", page_size=1)
    log, store = ChangeLog(tmp_path / "log", "t"), RocksDBWatermarkStore(tmp_path / "db", create=True)
    assert len(drain(connector, tracked, log, store)) == 6
    assert drop_old(log, store, [], before=clock.now() + 1) == 5
    store.close()
    fresh = MemoryWatermarkStore()
    recovery.recover(log, fresh)
    assert drain(connector, tracked, log, fresh) == []
    rows[3]["updated_at"] = clock.now() + 1
    assert [r["id"] for r in drain(connector, tracked, log, fresh)] == [3]
    with pytest.raises(LogTruncated):
        log.list(0)
