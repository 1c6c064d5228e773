"""A consumer's place is filed beside the log before the database knows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.log import consumers, queries
from sidecar.state import ConsumerPosition, MemoryWatermarkStore
from tests.unit.test_changelog import fill


def test_an_intention_is_kept_until_it_is_acknowledged(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 3), MemoryWatermarkStore()
    assert consumers.intend(log, store, "lake", 2) == ConsumerPosition(0, 2)
    assert store.position("t", "lake") == ConsumerPosition(0, 2)
    consumers.acknowledge(log, store, "lake", 2)
    assert store.position("t", "lake") == ConsumerPosition(2)
    assert consumers.intend(log, store, "lake", 3) == ConsumerPosition(2, 3)


@pytest.mark.parametrize("names", [("lake", "warehouse"), ("a/b", "a_b", "A.b", "_x", "größe", "..")])
def test_a_lost_database_costs_no_consumer_its_place(tmp_path: Path, names: tuple[str, ...]) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 9), MemoryWatermarkStore()
    for place, name in enumerate(names, 1):
        consumers.acknowledge(log, store, name, place)
        consumers.intend(log, store, name, place + 1)
    again = MemoryWatermarkStore()
    consumers.recover(log, again)
    assert again.positions() == store.positions()
    assert again.positions() == {("t", n): ConsumerPosition(p, p + 1) for p, n in enumerate(names, 1)}


def test_the_file_wins_over_an_older_database(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 3), MemoryWatermarkStore()
    consumers.acknowledge(log, store, "lake", 3)
    store.save_position("t", "lake", ConsumerPosition(1))
    consumers.recover(log, store)
    assert store.position("t", "lake") == ConsumerPosition(3)


def test_without_files_nothing_is_recovered(tmp_path: Path) -> None:
    store = MemoryWatermarkStore()
    consumers.recover(ChangeLog(tmp_path, "t"), store)
    assert store.positions() == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"consumer": "lake"}', '{"acknowledged": 1, "intended": 2}']
)
def test_a_damaged_position_is_named(tmp_path: Path, text: str) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 1), MemoryWatermarkStore()
    consumers.acknowledge(log, store, "lake", 1)
    path = log.folder / "_positions" / "lake.json"
    assert json.loads(path.read_text()) == {"consumer": "lake", "acknowledged": 1, "intended": None}
    path.write_text(text)
    with pytest.raises(StateDamaged, match=r"lake\.json: not a readable position"):
        consumers.recover(log, store)


def test_a_log_that_ends_before_what_a_query_has_had_is_named(tmp_path: Path) -> None:
    log, store = fill(ChangeLog(tmp_path, "t"), 3), MemoryWatermarkStore()
    queries.save(log, "q", 3)
    consumers.recover(log, store)
    assert store.positions() == {}
    log.path(3).unlink()
    with pytest.raises(StateDamaged, match=r'query "q" has had 3: .* forget it: sidecar watermark forget t q'):
        consumers.recover(log, store)
    queries.forget(log, "q")
    consumers.recover(log, store)
