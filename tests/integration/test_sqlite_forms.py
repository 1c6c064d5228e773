"""Whatever forms of time stand in a SQLite column, and wherever new ones appear: each row above a closed value is met,
or an error shows a value of each form."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from connectors.sqlite import SQLiteConnector
from connectors.sqlite_forms import Look
from sidecar import codec, cursor
from sidecar.clock import SECOND, FakeClock, micros
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import Page, Tracked
from tests.conftest import SQLiteFile

CLOSED = datetime(2026, 1, 15, 11, 59, 0, 500_000, UTC)
OFFSETS = ["", "", "Z", " UTC", "+02:00", "-0500", "-12", "+14:00", " -05:00", "-00:30:30"]
DATES = ["%Y-%m-%d", "%Y-%m-%d ", "%G-W%V-%u"]
CLOCKS = ["%H:%M:%S", "%H:%M:%S", "%H:%M:%S.%f", "%H:%M:%S,5", "%H:%M:%S.%f123", "%H:%M", "%H", "%H%M", "%H%M%S"]
ODD = ["", "1753000000", "1814557600123", "2460431.5", "2024/05/01", "1999", "never", "-1", "0000-00-00 00:00:00"]


def shown(moment: datetime, date: str, sign: str, clock: str, offset: str) -> str:
    """Return *moment* as the digits of the zone that *offset* says."""
    digits = offset.strip().replace(":", "")
    if digits[:1] in ("+", "-"):
        hours, minutes, seconds = (int(digits[n : n + 2] or 0) for n in (1, 3, 5))
        ahead = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        moment = moment.astimezone(timezone(ahead if digits[0] == "+" else -ahead))
    return (
        f"{moment:{date}}"
        if date in DATES[:2] and not sign
        else f"{moment:{date.strip()}}{sign}{moment:{clock}}{offset}"
    )


NEAR = st.sampled_from([0, 1, 30, 60, 3600, 7200, 86_400]).flatmap(lambda n: st.integers(-n, n))
MOMENTS = st.builds(
    lambda s, us: CLOSED.replace(microsecond=us) + timedelta(seconds=s), NEAR, st.sampled_from([0, 500_000, 7])
)
TIMES = st.builds(
    shown, MOMENTS, st.sampled_from([*DATES[:1] * 4, *DATES]), st.sampled_from(["", " ", "T", " ", "T", "t", "_"]),
    st.sampled_from(CLOCKS), st.sampled_from(OFFSETS),
)  # fmt: skip
TEXTS = st.one_of(*[TIMES] * 9, st.sampled_from(ODD))
NUMBERS = st.one_of(
    MOMENTS.flatmap(
        lambda m: st.sampled_from(
            [
                int(m.timestamp()),
                m.timestamp(),
                micros(m) // 1000,
                micros(m),
                micros(m) * 1000,
                micros(m) / cursor.DAY + 2_440_587.5,
            ]
        )
    ),
    st.sampled_from([0, -1, 3_000_000, 11 * 10**9, 10**13, 5 * 10**16, 253_402_300_799]),
)
UNITS = [lambda m: micros(m) // SECOND, lambda m: micros(m) // 1000, lambda m: micros(m) * 1000]
ZONES = st.sampled_from([None, None, "Europe/Berlin", "America/New_York"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forms") / "forms.db"


def followed(source: SQLiteConnector, zone: str | None = None, unit: object = None) -> Tracked:
    table = source.describe("t")
    return Tracked(table, ("id",), "updated_at", columns=table.columns, timezone=zone, unit=unit)  # type: ignore[arg-type]


def unmet(
    path: Path, declared: str, before: list[object], later: list[object], zone: str | None, *, index: bool
) -> list[object]:
    """Return what stands above CLOSED, or is no time, and is not read by two polls, between which *later* came."""
    path.unlink(missing_ok=True)
    writer = sqlite3.connect(path, isolation_level=None)
    source = SQLiteConnector(Source(f"sqlite:///{path}", clock=FakeClock(micros(CLOSED) + 60 * SECOND)))
    closed, memory = micros(CLOSED), None
    try:
        writer.execute("PRAGMA synchronous = OFF")
        writer.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at {declared})")
        if index:
            writer.execute("CREATE INDEX t_updated ON t (updated_at, id)")
        tracked = followed(source, zone)
        for values in (before, later):
            writer.execute("BEGIN")
            writer.executemany("INSERT INTO t (updated_at) VALUES (?)", [(v,) for v in values])
            writer.execute("COMMIT")
            view = source.horizon(tracked, memory)
            page, memory = Page(tracked, tracked.passes[0], {"updated": closed}, None, 2), view.memory
            source.greatest(page, view.now)
            read = []
            while len(data := source.read(page)):
                read += data.column("id").to_pylist()
                page = replace(page, after=codec.position(data.slice(len(data) - 1), ("updated_at", "id")))
            assert len(read) == len(set(read))
            held = {key: v if isinstance(v, str) else repr(v) for key, v in writer.execute("SELECT * FROM t")}
            found = {key: cursor.from_text(v, zone) for key, v in held.items()}
            missed: list[object] = [held[k] for k, at in found.items() if (at is None or at > closed) and k not in read]
            if missed:
                return missed
        return []
    except SettingsError as error:
        told = str(error)
        return [] if "no common order" in told or "two units" in told else [told]
    finally:
        source.close()
        writer.close()


HURRIED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@HURRIED
@given(st.lists(TEXTS, max_size=5), st.lists(TEXTS, min_size=1, max_size=4), ZONES, st.booleans())
@example(["2026-01-15 11:00:00"], ["2026-01-15"], "America/New_York", True)
@example(["2026-01-15T01:00:00-05:00"], ["2026-01-15 ", "2026-01-15 120000"], None, True)
@example(
    ["2026-01-15 12:00:00"], ["2026-01-15T115930", "2026-01-15T11:59 ", "2026-01-15T11:59:00.5Z"], "Europe/Berlin", True
)
@example(["2025-01-15 12:00:00", "2026-01-15 12:00:00"], ["1999", "2024/05/01", "never"], None, True)
@example(["2026-01-15T12:00:00Z"], ["2026-01-15T06:59:30-05:00:00"], None, True)
def test_texts_of_any_form_are_met(
    path: Path, before: list[object], later: list[object], zone: str | None, index: bool
) -> None:
    assert unmet(path, "TEXT", before, later, zone, index=index) == []


@HURRIED
@given(
    st.sampled_from(UNITS).flatmap(lambda unit: st.lists(MOMENTS.map(unit), max_size=4)),
    st.lists(NUMBERS, min_size=1, max_size=3),
    ZONES,
    st.booleans(),
)
@example([micros(CLOSED) // 1000], [11 * 10**9], None, True)
@example([3_000_000, micros(CLOSED) // 1000], [micros(CLOSED) // SECOND + 5], None, True)
@example([10**16 + 5, micros(CLOSED) // 1000], [micros(CLOSED) // SECOND + 5], None, True)
def test_numbers_of_any_unit_are_met_or_refused(
    path: Path, before: list[object], later: list[object], zone: str | None, index: bool
) -> None:
    assert unmet(path, "DATETIME", before, later, zone, index=index) == []


def test_an_epoch_written_as_text_among_years_is_refused(sqlite_db: SQLiteFile, clock: FakeClock) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at, id)")
    years = [(f"{year}-05-01 10:00:00",) for year in range(1990, 2027)]
    sqlite_db.connection.executemany("INSERT INTO t (updated_at) VALUES (?)", years)
    source = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    tracked = followed(source)
    page = Page(tracked, tracked.passes[0], {"updated": micros(datetime(2026, 5, 1, 10, tzinfo=UTC))}, None, 100)
    assert len(source.read(page)) == 0
    sqlite_db.connection.execute("INSERT INTO t VALUES (99, '1814557600')")
    with pytest.raises(SettingsError, match=r"holds a number as text, '1814557600' \(key: id=99\)"):
        source.read(page)
    source.close()


def test_an_offset_far_below_the_newest_stamps_is_met(sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at, id)")
    closed = micros(CLOSED)
    stamps = [(f"{CLOSED - timedelta(seconds=n):%Y-%m-%dT%H:%M:%S}Z",) for n in range(60, 3000)]
    sqlite_db.connection.execute("BEGIN")
    sqlite_db.connection.executemany("INSERT INTO t (updated_at) VALUES (?)", stamps)
    sqlite_db.connection.execute("COMMIT")
    clock = FakeClock(closed + 60 * SECOND)
    source = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    tracked = followed(source)
    page = Page(tracked, tracked.passes[0], {"updated": closed}, None, 100)
    memory = source.horizon(tracked, None).memory
    assert len(source.read(page)) == 0
    late = f"{CLOSED - timedelta(hours=5) + timedelta(seconds=30):%Y-%m-%dT%H:%M:%S}-05:00"
    sqlite_db.connection.execute("INSERT INTO t VALUES (99999, ?)", (late,))
    # To look through the column took a second: for a while nobody looks again, and nothing that came since is closed.
    (key,) = source._cursors._looks._last
    source._cursors._looks._last[key] = Look(clock.now(), 1.0, "before", closed)
    looked = clock.now()
    clock.sleep(5)
    assert source.horizon(tracked, memory).settled == looked
    assert source.greatest(page, None) is None
    assert len(source.read(page)) == 0
    clock.sleep(15)
    assert source.horizon(tracked, memory).settled == clock.now()
    source.greatest(page, None)
    assert source.read(page).column("id").to_pylist() == [99999]
    source.close()


def test_an_offset_is_met_whatever_was_closed_when_that_was_last_looked_for(sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at, id)")
    behind = f"{CLOSED - timedelta(hours=5) + timedelta(seconds=30):%Y-%m-%dT%H:%M:%S}-05:00"
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, ?), (2, ?)", (behind, f"{CLOSED + timedelta(days=9)}"))
    source = SQLiteConnector(Source(sqlite_db.url, clock=FakeClock(micros(CLOSED + timedelta(days=11)))))
    tracked = followed(source)
    # A table that is new, one in which all is closed, and one whose position was set back by hand.
    for closed, met in ((cursor.NONE, [1, 2]), (micros(CLOSED + timedelta(days=10)), []), (micros(CLOSED), [1, 2])):
        page = Page(tracked, tracked.passes[0], {"updated": closed}, None, 100)
        source.horizon(tracked, None)
        source.greatest(page, None)
        if closed != cursor.NONE:
            assert source.read(page).column("id").to_pylist() == met
    source.close()


@pytest.mark.parametrize(("declared", "unit", "right", "wrong"), [
    ("INTEGER", "ms", 1_768_478_340_000, 1_768_478_345), ("REAL", "s", 1_768_478_340.5, 2_461_056.0),
])  # fmt: skip
def test_a_number_in_a_lesser_unit_than_the_settings_say_is_refused(
    sqlite_db: SQLiteFile, clock: FakeClock, declared: str, unit: str, right: float, wrong: float
) -> None:
    sqlite_db.connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at {declared})")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, ?), (2, ?), (3, 0)", (right, right))
    source = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    tracked = followed(source, unit=unit)
    page = Page(tracked, tracked.passes[0], {}, None, 100)
    assert len(source.read(page)) == 3
    sqlite_db.connection.execute("INSERT INTO t VALUES (4, ?)", (wrong,))
    with pytest.raises(SettingsError, match=f'holds {wrong}, beside {right}.*updated_at_unit = "{unit}"'):
        source.read(page)
    source.close()
