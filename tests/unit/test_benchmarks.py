"""The benchmarks run, on tables too small to measure anything. No test looks at a time."""

from __future__ import annotations

import io
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks import (
    current,
    freshness,
    idle,
    latency,
    loss,
    loss_writers,
    mirror,
    peers,
    poll_cost,
    poll_size,
    session,
    stream,
    tie,
    tied_rows,
    workload,
)
from benchmarks.bench import Bench
from benchmarks.loss_pollers import Copy, Naive
from benchmarks.measure import Answer, Contender, Result, Sample, show, take_turns
from sidecar.changelog import ChangeLog
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    quiet = Console(file=io.StringIO())
    with Bench(
        runs=1, small=200, large=400, tie=400, sources=("sqlite",), folder=tmp_path / "bench", console=quiet
    ) as bench:
        yield bench


def test_contenders_take_turns_and_warm_rounds_do_not_count() -> None:
    order: list[str] = []

    def contender(name: str, value: float, against: str | None = None) -> Contender:
        def run() -> Sample:
            order.append(name)
            return Sample(value * (100 if len(order) <= 2 else 1), {"half": value / 2})

        return Contender(name, run, against, aim=2.5)

    slow = take_turns([contender("fast", 2.0), contender("slow", 5.0, "fast")], 2)[1]
    assert order == ["fast", "slow"] * 3
    assert (slow.samples, slow.median, slow.ratio, slow.parts, slow.reached) == (
        [5.0, 5.0],
        5.0,
        2.5,
        {"half": 2.5},
        True,
    )


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine is ten times as slow in the second round, for both alike.
    weather = {"a": iter((1.0, 10.0, 1.0)), "b": iter((2.0, 20.0, 2.0))}
    both = [
        Contender("a", lambda: Sample(next(weather["a"]))),
        Contender("b", lambda: Sample(next(weather["b"])), "a"),
    ]
    assert take_turns(both, 3, warm=0)[1].ratio == 2.0


def test_a_limit_on_the_figure_itself_may_be_missed() -> None:
    assert Result("r", [0.8], 0.8, {}, limit=0.7).reached is False
    assert Result("r", [0.8], 0.8, {}).reached is None


def test_an_answer_shows_its_figures_aims_and_notes() -> None:
    results = [Result("base", [1.0], 1.0, {}), Result("ours", [2.0, 4.0], 3.0, {"Spark": 1.5}, "base", 3.0, aim=2.5)]
    out = io.StringIO()
    show(Console(file=out, width=150), Answer("q", "A question", "s", results, ["Read this."]))
    for text in ("A question", "3.00×", "≤ 2.5× missed", "2 – 4", "Spark 1.5", "Read this."):
        assert text in out.getvalue()


def test_rows_are_the_same_however_often_they_are_made(tmp_path: Path) -> None:
    first, again = (list(workload.rows(120)) for _ in range(2))
    assert first == again
    path = workload.sqlite_file(tmp_path, 120)
    connection = sqlite3.connect(path)
    try:
        assert len(connection.execute("SELECT * FROM orders").fetchall()) == 120
        stored = connection.execute(
            "SELECT id, note, payload, created_at, updated_at, deleted_at FROM orders ORDER BY id"
        )
        assert stored.fetchall() == [(r[0], *r[4:]) for r in first[0]]
    finally:
        connection.close()


@pytest.mark.parametrize("turn", [0, 1, 7])
def test_changes_are_spread_over_the_whole_table(turn: int) -> None:
    keys = workload.spread(1000, 10, turn)
    assert len(keys) == 10
    assert 1 <= keys[0] < keys[-1] <= 1000
    assert keys[-1] - keys[0] == 900


def test_a_poll_s_size_can_be_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_size, "LOOKBACK", 0.01)
    answer = poll_size.ask(bench)
    assert [r.name for r in answer.results] == ["SQLite: of 200 rows", "SQLite: of 400 rows"]
    assert answer.results[1].against == "SQLite: of 200 rows"


def test_a_poll_s_cost_can_be_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_cost, "LOOKBACK", 0.01)
    monkeypatch.setattr(poll_cost, "POLLS", 2)
    idle_, few, more = poll_cost.ask(bench)
    for answer in (idle_, few, more):
        assert [r.name for r in answer.results] == ["SQLite: plain watermark", "SQLite: Sidecar"]
    assert "100 changes" in more.title


@pytest.mark.soak
def test_the_price_of_the_table_can_be_asked_for(spark: SparkSession, bench: Bench) -> None:
    answer = current.ask(bench)
    assert [r.against for r in answer.results] == [None, *["window function, by Spark"] * 2]


def test_idle_runs_can_be_asked_for(bench: Bench) -> None:
    cold, warm = idle.ask(bench)
    assert [r.name for r in cold.results] == ["python -c pass", "SQLite: sidecar run --once"]
    assert [r.name for r in warm.results] == ["SQLite: poll"]
    assert not [p for p in bench.folder.iterdir() if p.name.startswith("run-")]


@pytest.mark.soak
def test_a_mirror_can_be_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "CHANGES", (10,))
    monkeypatch.setattr(mirror, "dlt_mirror", lambda _: None)
    load, large, changes = mirror.ask(bench)
    for answer in (load, large, changes):
        assert [r.name for r in answer.results] == ["SQLite: Sidecar, mirror"]
    assert changes.title == "10 changes, all over a mirror of 600 rows"


def test_the_latency_of_a_loop_that_backfills_can_be_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "SECONDS", 0.6)
    monkeypatch.setattr(latency, "SETTLED", 0.0)
    monkeypatch.setattr(latency, "CASES", latency.CASES[:3])
    answer = latency.ask(bench)
    quiet = "SQLite: no backfill"
    assert [r.against for r in answer.results] == [None, quiet, quiet]
    assert all({"p50", "running", "poll p50", "poll p99"} == set(r.parts) for r in answer.results)
    assert not [p for p in bench.folder.iterdir() if p.name.startswith("run-")]


def test_how_fresh_a_mirror_is_can_be_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "SECONDS", 0.6)
    monkeypatch.setattr(freshness, "SETTLED", 0.0)
    answer = freshness.ask(bench)
    assert [r.name for r in answer.results] == ["SQLite: a table of 1,000 rows", "SQLite: a table of 200 rows"]
    assert all(0 < r.median <= r.parts["p99"] for r in answer.results)


@pytest.mark.soak
def test_the_cost_of_spark_s_start_can_be_asked_for(bench: Bench) -> None:
    answer = session.ask(bench)
    assert [r.against for r in answer.results] == [None, session.PLAIN, session.WITHOUT]
    assert all(r.parts["processor"] > 1 for r in answer.results)


def test_a_peer_says_why_it_failed_and_what_memory_it_took(tmp_path: Path) -> None:
    assert peers.run_measured([sys.executable, "-c", "pass"], tmp_path).parts["peak MB"] > 0
    with pytest.raises(RuntimeError, match="exit code 3: no table"):
        peers.run_measured(
            [sys.executable, "-c", "import sys; print('no table', file=sys.stderr); sys.exit(3)"], tmp_path
        )


@pytest.mark.soak
def test_rows_of_one_timestamp_can_be_polled_killed_and_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tie, "LOOKBACK", 0.2)
    monkeypatch.setattr(tie, "PAGE", 10)
    peaks, times = tie.ask(bench)
    assert [r.name for r in peaks.results] == ["SQLite: 200 rows", "SQLite: 400 rows"]
    assert peaks.results[1].aim == 1.2
    assert times.results[1].parts["rows read twice by the kill"] <= 20
    assert times.results[1].parts["at last: rows"] == 0
    assert not [p for p in bench.folder.iterdir() if p.name.startswith("run-")]


def test_a_log_of_tied_rows_that_lacks_one_or_repeats_one_is_refused(tmp_path: Path) -> None:
    log = ChangeLog(tmp_path, "ties")

    def append(offset: int, ids: list[int], values: list[int]) -> None:
        changes = pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array(values, pa.int32())})
        log.append(offset, changes, Watermark("", offset=offset), NOTHING, committed=0, origin="poll")

    append(1, [1, 2, 4], [1, 2, 4])
    append(2, [2, 3], [-1, -1])
    tied_rows.check(log, 4, {2, 3})
    for rows, touched in ((5, {2, 3}), (4, {2}), (4, {1, 2, 3})):
        with pytest.raises(RuntimeError, match="not in the log"):
            tied_rows.check(log, rows, touched)
    append(3, [3], [-1])
    with pytest.raises(RuntimeError, match="before"):
        tied_rows.check(log, 4, {2, 3})


def test_a_copy_is_scored_by_what_it_lacks_what_is_old_in_it_and_what_came_twice() -> None:
    truth = {1: 10, 2: 20, 3: 30, 4: 40}
    found = Copy([(1, 9), (1, 10), (2, 19), (4, 40), (4, 40)], polls=7, idle_reads=0)
    scored = loss.score("w", "p", truth, found, in_order=True)
    assert (scored.rows, scored.lost, scored.stale, scored.repeated, scored.polls) == (4, 1, 1, 1, 7)
    assert loss.score("w", "p", truth, found, in_order=False).repeated is None


@pytest.mark.soak
def test_a_stream_s_batches_can_be_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, spark: SparkSession
) -> None:
    monkeypatch.setattr(stream, "SEGMENTS", 2)
    (answer,) = stream.ask(bench)
    assert [r.name for r in answer.results] == ["Spark's file stream", 'format("sidecar")']
    assert answer.results[1].parts.keys() >= {"latestOffset", "addBatch"}


@pytest.mark.parametrize("epochs", [False, True])
def test_a_poller_sees_the_writers_of_sqlite_at_work(tmp_path: Path, epochs: bool) -> None:
    path = tmp_path / "items.db"

    def truth() -> dict[int, int]:
        connection = sqlite3.connect(path)
        found = dict(connection.execute("SELECT id, version FROM items").fetchall())
        connection.close()
        return found

    writing = loss_writers.sqlite(path, epochs=epochs)
    (scored,) = loss.measure("SQLite", writing, truth, [Naive(f"sqlite:///{path}")], 0.5)
    assert scored.rows > 0
    assert scored.polls > 1
    out = io.StringIO()
    loss.show(Console(file=out, width=120), [scored])
    assert "plain watermark" in out.getvalue()
