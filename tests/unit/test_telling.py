"""What the loop says of itself: once each thing, and that what had failed goes on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from sidecar.clock import FakeClock
from sidecar.connector import Finding
from sidecar.errors import SettingsError, SourceUnavailable
from sidecar.model import Table, Tracked
from sidecar.running.telling import SOURCE, Telling

AWAY = SourceUnavailable("db:5432/shop: cannot connect")


@pytest.fixture
def telling(caplog: pytest.LogCaptureFixture, clock: FakeClock, tmp_path: Path) -> Telling:
    caplog.set_level(logging.INFO, "sidecar")
    return Telling(clock, tmp_path)


def named(name: str) -> Tracked:
    return Tracked(Table(name, (name,), (), ("id",)), ("id",), "updated_at")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def test_a_run_begins_with_what_it_follows_once_that_is_known(
    telling: Telling, caplog: pytest.LogCaptureFixture
) -> None:
    tables = [named("a"), named("b")]
    telling.begins([], 5, lambda _: [])
    assert said(caplog) == []
    telling.begins(tables, 5, lambda found: [Finding("warning", "b", f"{len(found)} are lost")])
    telling.begins(tables, 5, lambda _: [])
    assert said(caplog) == ["following 2 tables, polling every 5 s", "2 are lost"]


def test_a_source_that_is_back_is_said_once_for_all_its_tables(
    telling: Telling, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    for second in range(3):
        for where in ("a", "b", SOURCE):
            telling.stops(where, AWAY)
            telling.failed(where, AWAY)
        clock.advance(1 + second)
    assert len(said(caplog)) == 3
    for where in (SOURCE, "a", "b", "a"):
        telling.goes_on(where)
    assert said(caplog) == ["the source answers again, after 6 s"]


def test_a_table_that_had_stopped_by_itself_says_that_it_goes_on_and_no_other_does(
    telling: Telling, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    locked = SourceUnavailable('table "a": something holds the table locked')
    telling.stops("a", locked)
    telling.stops("b", SettingsError("no such column"))
    clock.advance(90)
    telling.goes_on("c")
    assert said(caplog) == []
    telling.goes_on("a")
    telling.goes_on("b")
    assert said(caplog) == ["table=a goes on after 90 s", "table=b goes on after 90 s"]


def test_a_failure_is_said_again_after_a_minute_or_once_it_is_another(
    telling: Telling, caplog: pytest.LogCaptureFixture, clock: FakeClock
) -> None:
    for error in (AWAY, AWAY, SourceUnavailable("db:5432/shop: starting up")):
        telling.failed(SOURCE, error)
    assert len(said(caplog)) == 2
    clock.advance(61)
    telling.failed(SOURCE, SourceUnavailable("db:5432/shop: starting up"))
    assert len(said(caplog)) == 1
