"""What is said of the forms in which one column holds its times, and when it is looked through anew."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pyarrow as pa
import pytest

from connectors import sqlite_forms as forms
from connectors.sqlite_ranges import Range
from sidecar.clock import SECOND, FakeClock
from sidecar.errors import SettingsError
from sidecar.model import Column, Table, Tracked

COLUMNS = (Column("id", "INTEGER", pa.int64()), Column("at", "DATETIME", pa.string()))
TRACKED = Tracked(Table("t", ("t",), COLUMNS, ("id",)), ("id",), "at", columns=COLUMNS)
SECONDS, MILLIS = 1_714_557_600, 1_714_557_600_000


def holding(*values: object) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at BLOB)")  # as they are
    connection.executemany("INSERT INTO t (at) VALUES (?)", [(value,) for value in values])
    return connection


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((), "text"),
        ((None,), "text"),
        (("", "2024-05-01"), "text"),
        ((SECONDS, None), "s"),
        ((MILLIS, 3), "ms"),
        ((MILLIS, 5 * 10**16, 2e30), "ms"),  # of no unit at all
        ((2_460_431.5,), "julian"),
        ((7, 8), ""),
    ],
)
def test_a_column_holds_texts_or_numbers_of_a_unit(values: tuple[object, ...], said: str) -> None:
    assert forms.numbers_or_text(holding(*values), TRACKED, "at") == said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((SECONDS, ""), f"holds numbers and text, for example {SECONDS} and ''"),
        ((7, "2024-05-01"), "holds numbers and text, for example 7 and '2024-05-01'"),
        ((SECONDS, MILLIS), f"counts time in two units, for example {SECONDS} and {MILLIS}"),
        ((2_460_431.5, SECONDS), f"counts time in two units, for example 2460431.5 and {SECONDS}"),
    ],
)
def test_two_forms_are_shown_each(values: tuple[object, ...], said: str) -> None:
    with pytest.raises(SettingsError) as raised:
        forms.numbers_or_text(holding(*values), TRACKED, "at")
    assert said in str(raised.value)


def test_what_means_not_deleted_is_no_form_of_a_deletion_s_times() -> None:
    deleted = replace(TRACKED, updated_at="id", deleted_at="at", not_deleted=("never", 0))
    assert forms.numbers_or_text(holding(SECONDS, "never", 0), deleted, "at") == "s"
    with pytest.raises(SettingsError, match="numbers and text"):
        forms.numbers_or_text(holding(SECONDS, "never"), replace(TRACKED, not_deleted=("never",)), "at")


def test_what_begins_like_no_year_is_found_between_the_years_and_nothing_else_is() -> None:
    stored = holding("1998-05-01", "1999", "1999-05-01", "2024-01-01", "2024/05/01", "2025-01-01", "2026-01-01", "x")
    found = forms.strays(stored, TRACKED, "at", "2026-01-15")
    assert found == [Range("1999", "1999-"), Range("2024/05/01", "2025-")]


def test_a_column_is_looked_through_when_something_was_written_and_that_is_cheap() -> None:
    clock, key = FakeClock(), ("t", "at")
    looks = forms.Looks(clock)
    assert looks.are_due(key, 7), "nobody has looked yet"
    with looks.made(key, "first", 7):
        clock.sleep(1)
    looked = clock.now() - SECOND
    assert not looks.are_due(key, 7)
    clock.sleep(5)
    assert looks.settled(key, "first") == clock.now(), "nothing has been written since"
    assert not looks.are_due(key, 7)
    assert looks.are_due(key, 6), "what lies above less was not looked at"
    assert looks.settled(key, "second") == looked
    assert not looks.are_due(key, 7)
    clock.sleep(14)
    assert looks.settled(key, "second") == clock.now()
    assert looks.are_due(key, 7)
