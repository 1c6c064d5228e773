"""What is printed: every value of a change in JSON, and how far a first load has come."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from sidecar.clock import FakeClock
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.poll import Step
from sidecar.settings.scrub import Secrets
from sidecar.terminal import console, show, show_backfills, tables
from sidecar.terminal.console import LoadProgress, set_up_logging

FAR = 500_000_000_000_000_000
LONG_AGO = -99_000_000_000_000_000


def shown(value: object, type_: pa.DataType) -> object:
    table = pa.table({"x": pa.array([value], type_)})
    line = show.line(next(show.objects(table)))
    return json.loads(line)["x"]


@pytest.mark.parametrize(
    ("value", "type_", "expected"),
    [
        (9007199254740993, pa.int64(), 9007199254740993),
        (2**64 - 1, pa.uint64(), 2**64 - 1),
        (Decimal("1.50"), pa.decimal128(30, 2), "1.50"),
        (Decimal("0.0000000001"), pa.decimal128(38, 10), "0.0000000001"),
        (True, pa.bool_(), True),
        (None, pa.int32(), None),
        (None, pa.timestamp("us"), None),
        ("grün\n", pa.string(), "grün\n"),
        (b"\x00\xff", pa.binary(), "AP8="),
        (1.5, pa.float64(), 1.5),
        (float("nan"), pa.float64(), "NaN"),
        (float("inf"), pa.float64(), "Infinity"),
        (float("-inf"), pa.float64(), "-Infinity"),
        (0, pa.timestamp("us", "UTC"), "1970-01-01T00:00:00Z"),
        (1, pa.timestamp("us", "UTC"), "1970-01-01T00:00:00.000001Z"),
        (0, pa.timestamp("us", "Europe/Berlin"), "1970-01-01T00:00:00Z"),
        (1_500_000, pa.timestamp("us"), "1970-01-01T00:00:01.500000"),
        (FAR, pa.timestamp("us", "UTC"), "17814-05-16T00:53:20Z"),
        (LONG_AGO, pa.timestamp("us"), "-1168-10-24T16:00:00"),
        (0, pa.date32(), "1970-01-01"),
        (3_600_000_001, pa.time64("us"), "01:00:00.000001"),
        ([1.5, None, float("nan")], pa.list_(pa.float64()), [1.5, None, "NaN"]),
        ([Decimal("1.0")], pa.list_(pa.decimal128(5, 1)), ["1.0"]),
        ([datetime(2024, 5, 1)], pa.list_(pa.timestamp("us")), ["2024-05-01T00:00:00"]),  # noqa: DTZ001
        ({"a": b"\x00"}, pa.struct({"a": pa.binary()}), {"a": "AA=="}),
    ],
)
def test_a_value_in_json_is_exact(value: object, type_: pa.DataType, expected: object) -> None:
    assert shown(value, type_) == expected


def test_a_row_is_one_line_whatever_is_in_it() -> None:
    row = next(show.objects(pa.table({"a": ["x\ny"], "b": [1]})))
    assert show.line(row) == '{"a":"x\\ny","b":1}'


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.04, "0.0 s"), (59, "59.0 s"), (90, "1.5 min"), (7200, "2.0 h"), (172_800, "2.0 d")]
)
def test_a_length_of_time_is_said_roughly(seconds: float, expected: str) -> None:
    assert show_backfills.ago(seconds) == expected


def test_each_problem_of_settings_is_a_failure_and_a_servers_long_answer_is_one() -> None:
    assert console.failures(SettingsError("one\ntwo\n")) == ["one", "two"]
    assert console.failures(SourceUnavailable("connection failed:\n\tIs the server running?")) == [
        "connection failed: Is the server running?"
    ]


@pytest.fixture
def logging_restored() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), logging.getLogger("sidecar").level
    yield
    root.handlers[:] = before
    logging.getLogger("sidecar").setLevel(level)


def test_log_lines_say_what_they_are_and_hide_secrets(
    logging_restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(Secrets(["hunter2x"]))
    set_up_logging(Secrets(["hunter2x"]))
    log = logging.getLogger("sidecar")
    log.info("table=%s rows=%d", "orders", 3)
    log.warning("again")
    log.error("%s", SettingsError("one hunter2x\ntwo"))
    logging.getLogger("other").info("chatter")
    assert capsys.readouterr().err.splitlines() == [
        "table=orders rows=3",
        "warning: again",
        "error: one ***",
        "error: two",
    ]


def test_lines_for_later_have_their_time_and_their_level(
    logging_restored: None, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(Secrets(["hunter2x"]), dated=True)
    log = logging.getLogger("sidecar")
    log.info("table=%s rows=%d", "orders", 3)
    log.warning("again")
    log.error("%s", SettingsError("one hunter2x\ntwo"))
    said = capsys.readouterr().err.splitlines()
    assert all(re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in said)
    assert [line[21:] for line in said] == [
        "info: table=orders rows=3",
        "warning: again",
        "error: one ***",
        "error: two",
    ]


def state(**found: object) -> str:
    """Return what `status` says of a table that is not polled yet, but for what is *found*."""
    row: dict[str, object] = {
        "table": "t",
        "watermark": None,
        "lag_s": None,
        "offset": 0,
        "sinks": {},
        "queries": {},
        "backfill": None,
        "followed": True,
        "loading": False,
        "error": None,
    }
    usual = {"polling": False, "polled": None, "late": 0, "quarantined": 0, "held_by": None, "held_s": None}
    return tables.lines(show.status_table([{**row, **usual, **found}]))[1]


def test_an_error_is_shown_whole_below_the_table_and_what_ails_several_tables_once() -> None:
    error = "word " * 100 + "and what to do"
    assert state(error=error).endswith("error, not polled yet")
    one: dict[str, object] = {"table": "t", "error": error}
    assert show.status_errors([one]) == [f'error: table "t": {error}']
    found: list[dict[str, object]] = [
        {"table": "a", "error": 'sink "x": no room\ntable "a": gone'},
        {"table": "b", "error": None},
        {"table": "c", "error": 'sink "x": no room'},
    ]
    assert show.status_errors(found) == ['error: tables a, c: sink "x": no room', 'error: table "a": gone']


@pytest.mark.parametrize("polling", [False, True])
def test_a_backfill_under_way_is_shown_before_and_beside_polls(polling: bool) -> None:
    assert state(backfill={"id": "b1", "progress": "50 of about 100 (50 %)"}, polling=polling).endswith(
        "  backfill 50 of about 100 (50 %)"
    )
    assert state(loading=True, error="x", backfill={"progress": "50"}).endswith("  error, first load 50")
    assert state(late=1, quarantined=2).endswith("not polled yet, 1 row came later than lookback, 2 rows set aside")


def step(rows: int, *, done: bool = False, expected: int | None = None) -> Step:
    return Step("orders", rows, rows, 1, done, expected)


def test_a_long_load_says_how_long_it_will_take(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.INFO, "sidecar"), LoadProgress(clock, live=False) as progress:
        progress(step(0, expected=10_000))
        clock.advance(20)
        progress(step(2_000, expected=10_000))
    assert "rows=2000 rows_per_s=100 eta_s=80" in caplog.text


def test_a_long_load_says_how_far_it_is_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.INFO, "sidecar"), LoadProgress(clock, live=False) as progress:
        for _ in range(12):
            progress(step(1000))
            clock.advance(1)
        progress(step(1000, done=True))
    assert [r.getMessage() for r in caplog.records] == [
        "table=orders loading rows=6000 rows_per_s=1200",
        "table=orders loading rows=11000 rows_per_s=1100",
    ]


def test_a_backfill_that_goes_on_says_how_far_it_is_in_all(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.INFO, "sidecar"), LoadProgress(clock, live=False) as progress:
        progress(Step("orders", 1000, 900, 7, False, 20_000, job="b1", before=5_000))
        clock.advance(10)
        progress(step(3, done=True))
        progress(Step("orders", 1000, 900, 9, False, 20_000, job="b1", before=6_000))
    assert [r.getMessage() for r in caplog.records] == ["table=orders loading rows=7000 rows_per_s=200 eta_s=65"]


def test_a_short_poll_says_nothing_of_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sidecar"), LoadProgress(FakeClock(), live=False) as progress:
        progress(step(1000))
        progress(step(10, done=True))
    assert caplog.records == []


def test_in_a_terminal_a_long_load_is_a_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, clock = Terminal(), FakeClock()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with LoadProgress(clock) as progress:
        progress(step(1000))
        clock.advance(2)
        progress(step(1000))
        progress(step(500, done=True))
        assert progress._display is None
    assert "loading orders" in terminal.getvalue()
    assert "2,000 rows" in terminal.getvalue()


def test_a_row_is_one_line_whatever_is_taken_for_the_end_of_one() -> None:
    texts = ["".join(chr(c) for c in (10, 13, 11, 12, 0x1C, 0x85, 0x2028, 0x2029)), "größe \U0001f600"]
    printed = show.line({"texts": texts})
    assert printed.splitlines() == [printed]
    assert json.loads(printed)["texts"] == texts
    assert "größe" in printed
