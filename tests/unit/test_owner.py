"""One writer a log that is elsewhere than in its state folder, whoever claims it, and whenever."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import StateHeld
from sidecar.log.owner import OWNER, Claim
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING
from tests.unit.batches import changes


def claim(root: Path, folder: Path) -> Claim:
    folder.mkdir(parents=True, exist_ok=True)
    found = Claim(root, folder)
    found.make(FakeClock())
    return found


def test_of_those_who_claim_a_log_in_the_same_moment_at_most_one_gets_it(tmp_path: Path) -> None:
    rivals, turns, winners = 4, 12, list[int]()
    barrier = threading.Barrier(rivals, timeout=10)

    def try_(number: int) -> None:
        for turn in range(turns):
            barrier.wait()
            try:
                claim(tmp_path / f"log {turn}", tmp_path / f"state {turn} {number}")
            except StateHeld:
                continue
            winners.append(turn)

    with ThreadPoolExecutor(rivals) as pool:
        list(pool.map(try_, range(rivals)))
    assert len(set(winners)) == len(winners), "two of them were let in"
    left = [path.name for turn in range(turns) for path in (tmp_path / f"log {turn}").glob("_claim*")]
    assert not left


def test_a_claim_that_a_killed_process_has_left_is_named(tmp_path: Path) -> None:
    root = tmp_path / "log"
    root.mkdir()
    (root / "_claim-1234.json").write_text(json.dumps({"id": "1234", "state": "/x on y", "since": "noon"}))
    with pytest.raises(StateHeld, match=r"/x on y claims it in the same moment, since noon.*delete .*_claim-1234.json"):
        claim(root, tmp_path / "state")
    assert [path.name for path in root.iterdir()] == ["_claim-1234.json"]
    (root / "_claim-1234.json").unlink()
    claim(root, tmp_path / "state")
    assert [path.name for path in root.iterdir()] == [OWNER]


def test_a_writer_that_was_taken_for_dead_writes_nothing_once_another_one_does(tmp_path: Path) -> None:
    root = tmp_path / "log"
    first = claim(root, tmp_path / "first")
    log = ChangeLog(root, "t", tmp_path / "first", first.check)

    def append(offset: int) -> None:
        log.append(offset, changes(offset), Watermark("id", offset=offset), NOTHING, committed=offset, origin="poll")

    append(1)
    (root / OWNER).unlink()
    with pytest.raises(StateHeld, match=r"is written by nobody by now.*has stopped before a change was written"):
        append(2)
    second = claim(root, tmp_path / "second")
    with pytest.raises(StateHeld, match=r"written by the state folder .*second on .* since .*this one is .*first on"):
        append(2)
    assert log.last() == 1
    second.check()


def test_a_log_in_its_state_folder_needs_no_claim(tmp_path: Path) -> None:
    claim(tmp_path / "log", tmp_path).check()
    assert not list((tmp_path / "log").iterdir())
