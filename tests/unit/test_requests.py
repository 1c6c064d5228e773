"""Requests for backfills: durable, one of a kind, begun once, ended once, whoever makes them."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from sidecar.backfilling.requests import Request, Requests
from sidecar.clock import SECOND, SystemClock
from sidecar.errors import StateDamaged
from sidecar.model import ALL, Among, Scope

KEYS = Scope(among=Among(("id", "name"), ((2**60, "é"), (-1, "a,b"))))


@pytest.fixture
def requests(tmp_path: Path) -> Requests:
    return Requests(tmp_path)


def test_a_request_is_found_again_as_it_was_made(requests: Requests, tmp_path: Path) -> None:
    scope = Scope("total < 0 -- odd", Among(("id", "raw"), ((2**60, b"\0"), (-1, b""))))
    asked = requests.ask("My.Table/é", 5, kind="refresh", scope=scope, purge=True)
    again = Requests(tmp_path)
    assert again.open("My.Table/é") == [asked]
    assert again.tables() == {"My.Table/é"}
    assert again.open(asked.table) == [asked]
    assert again.tables() == {asked.table}


def test_what_waits_already_is_not_asked_for_twice(requests: Requests) -> None:
    first = requests.ask("t", 1)
    assert requests.ask("t", 2) == first
    others = [
        requests.ask("t", 3, scope=KEYS),
        requests.ask("t", 4, purge=True),
        requests.ask("t", 5, kind="refresh"),
        requests.ask("u", 6),
    ]
    assert len({first.id, *(r.id for r in others)}) == 5
    assert [r.at for r in requests.open("t")] == [1, 3, 4, 5]


def test_what_runs_does_not_answer_for_what_is_asked_since(requests: Requests) -> None:
    first = requests.ask("t", 1)
    assert requests.begin(first)
    second = requests.ask("t", 2)
    assert second.id != first.id
    running, waiting = requests.open("t")
    assert (running.id, running.running) == (first.id, True)
    assert waiting == second
    assert requests.begin(running)
    assert requests.stands(first.id, "t")
    assert not requests.stands(second.id, "t")


def test_a_request_that_is_gone_does_not_begin(requests: Requests) -> None:
    asked = requests.ask("t", 1)
    requests.end(asked, "cancelled", 2)
    assert not requests.begin(asked)
    assert requests.open("t") == []
    (ended,) = requests.ended("t")
    assert (ended.ending, ended.at, ended.request.id) == ("cancelled", 2, asked.id)
    assert requests.has_ended(asked.id, "t")


def test_one_that_runs_is_cancelled_by_taking_it_away(requests: Requests) -> None:
    asked = requests.ask("t", 1)
    requests.begin(asked)
    (running,) = requests.open("t")
    requests.end(running, "cancelled", 2)
    assert not requests.stands(asked.id, "t")
    assert not requests.begin(running)


def test_how_the_last_ones_ended_is_remembered(requests: Requests) -> None:
    for at in range(30):
        asked = requests.ask("t", at)
        requests.begin(asked)
        requests.end(asked, "done", at + 1, read=at, written=1)
    found = requests.ended("t")
    assert [(e.read, e.written, e.ending) for e in found] == [(at, 1, "done") for at in range(10, 30)]
    assert requests.open("t") == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": "1"}', "\udcff"])
def test_a_damaged_request_is_named(requests: Requests, tmp_path: Path, text: str) -> None:
    requests.ask("t", 1)
    (path,) = (tmp_path / "backfills" / "t").glob("*.json")
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StateDamaged, match=path.name):
        requests.open("t")


def _ask(state: Path, barrier: object, at: int) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    requests = Requests(state)
    for _ in range(20):
        requests.ask("t", at, scope=Scope(f"n = {at}"))
        requests.open("t")


def test_several_processes_ask_at_once(requests: Requests, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    barrier = context.Barrier(4)
    processes = [context.Process(target=_ask, args=(tmp_path, barrier, at)) for at in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert [r.scope.where for r in requests.open("t")] == [f"n = {at}" for at in range(4)]
    assert all(r.scope != ALL for r in requests.open("t"))


def test_what_another_process_asks_for_is_seen_however_often_nothing_was(tmp_path: Path) -> None:
    ours, theirs = Requests(tmp_path, SystemClock()), Requests(tmp_path)
    folder = tmp_path / "backfills" / "t"
    seen = 0
    for age in (3600, 0, 3600, 0):
        assert len(ours.open("t")) == seen
        # An hour old: nothing can have come in the same moment, so the folder is not listed again.
        folder.mkdir(parents=True, exist_ok=True)
        then = SystemClock().now() / SECOND - age
        os.utime(folder, (then, then))
        assert [len(ours.open("t")) for _ in range(3)] == [seen] * 3
        theirs.keep(Request(f"{seen}", "t", seen))
        seen += 1
        assert [r.id for r in ours.open("t")] == [f"{n}" for n in range(seen)]
    ours.open("t").clear()
    assert len(ours.open("t")) == seen
