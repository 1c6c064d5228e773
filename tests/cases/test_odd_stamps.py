# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Stamps that are missing, for ever, far away, read twice, or in a clock's other hour."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sidecar.clock import SECOND, FakeClock, micros
from tests.cases.harness import Project, kinds
from tests.conftest import SQLiteFile
from tests.servers import Database

VISITS = """\
CREATE TABLE visits (id bigint PRIMARY KEY, page text, created_at timestamptz NOT NULL, updated_at timestamptz);
INSERT INTO visits VALUES (1, 'home', '2024-05-01 08:00+00', NULL), (2, 'cart', '2024-05-01 08:05+00', '2024-05-01 08:06+00');
"""

PERMITS = """\
CREATE TABLE permits (id int PRIMARY KEY, note text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO permits VALUES (1, 'normal', '2024-05-01 10:00+00', '2024-05-01 10:00+00'),
  (2, 'for ever', '2024-05-01 10:01+00', 'infinity'), (4, 'long ago', '2024-05-01 10:02+00', '-infinity');
"""

SHIFTS = """\
CREATE TABLE shifts (id int PRIMARY KEY, who text, created_at timestamp NOT NULL, updated_at timestamp NOT NULL);
-- Europe/Berlin wall clock on 2024-10-27: 02:50 is still summer time (00:50Z)
INSERT INTO shifts VALUES (1, 'early', '2024-10-27 02:50:00', '2024-10-27 02:50:00');
"""

NOTES = """\
CREATE TABLE notes (id INTEGER PRIMARY KEY, txt TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO notes VALUES (1, 'two clock reads', '2024-05-01 10:00:00.711', '2024-05-01 10:00:00.713'),
                         (2, 'one clock read',  '2024-05-01 10:00:00.900', '2024-05-01 10:00:00.900');
"""

EVENTS = """\
CREATE TABLE ev_s  (id INTEGER PRIMARY KEY, v TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
CREATE TABLE ev_ms (id INTEGER PRIMARY KEY, v TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL);
INSERT INTO ev_s  VALUES (1,'s', 1714557600, 1714557600);
INSERT INTO ev_ms VALUES (1,'ms', 1714557600123, 1714557600123);
"""


def test_rows_without_updated_at_are_delivered_by_created_at(tmp_path: Path, pg: Database) -> None:
    """RC-08"""
    s1 = pg.connect()
    s1.execute(VISITS)
    project = Project(tmp_path, pg.reader_url, {"visits": {}})
    first = project.poll()["visits"]
    assert kinds(first, "id") == [("insert", 1), ("insert", 2)]
    assert next(r for r in first if r["id"] == 1)["updated_at"] is None
    s1.execute("INSERT INTO visits VALUES (3, 'pay', '2024-05-01 08:10+00', NULL)")
    s1.execute("UPDATE visits SET page = 'home2', updated_at = '2024-05-01 08:12+00' WHERE id = 1")
    second = project.poll()["visits"]
    assert kinds(second, "id") == [("insert", 3), ("update_postimage", 1)]
    assert project.merged("visits", "id")[1]["page"] == "home2"
    assert project.poll()["visits"] == []


def test_rows_without_updated_at_are_delivered_from_sqlite_too(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, page TEXT, created_at TEXT, updated_at TEXT, deleted_at TEXT);"
        "INSERT INTO visits VALUES (1, 'home', '2024-05-01 08:00:00', NULL, NULL), (2, 'neither', NULL, NULL, NULL),"
        "(3, 'gone', NULL, NULL, '2024-05-01 08:00:01'), (4, 'cart', '2024-05-01 08:00:00', '2024-05-01 08:06:00', NULL);"
    )
    project = Project(tmp_path, sqlite_db.url, {"visits": {"page_size": 1}})
    assert [r["id"] for r in project.poll()["visits"]] == [1, 2, 3, 4]
    assert sorted(project.merged("visits", "id")) == [1, 2, 4]
    s1.execute("INSERT INTO visits VALUES (5, 'pay', '2024-05-01 08:10:00', NULL, NULL)")
    s1.execute("UPDATE visits SET page = 'home2', updated_at = '2024-05-01 08:12:00' WHERE id = 1")
    s1.execute("UPDATE visits SET page = 'still neither' WHERE id = 2")
    assert sorted(r["id"] for r in project.poll()["visits"]) == [1, 2, 5]
    assert project.poll()["visits"] == []


def test_infinity_moves_nothing(tmp_path: Path, pg: Database) -> None:
    """RC-10"""
    s1 = pg.connect()
    s1.execute(PERMITS)
    project = Project(tmp_path, pg.reader_url, {"permits": {}})
    run = project.cli("run", "--once")
    assert sorted(project.merged("permits", "id")) == [1, 2, 4], run.text
    for year in ("9999", "1970", "294247"):
        assert year not in str([r["updated_at"] for r in project.rows("permits")])
    assert (run.code, '"permits": column "updated_at" holds 2 times' in run.err, "id=2" in run.err) == (0, True, True)
    s1.execute("INSERT INTO permits VALUES (3, 'after', '2024-05-02 10:00+00', '2024-05-02 10:00+00')")
    s1.execute("UPDATE permits SET note = 'normal 2', updated_at = '2024-05-02 10:01+00' WHERE id = 1")
    assert kinds(project.poll()["permits"], "id") == [("insert", 3), ("update_postimage", 1)]
    assert project.poll()["permits"] == []
    s1.execute("UPDATE permits SET note = 'over', updated_at = '2024-05-03 10:00+00' WHERE id = 2")
    assert kinds(project.poll()["permits"], "id") == [("update_postimage", 2)]


@pytest.mark.parametrize("far", ["9999-12-31 23:59:59.999999+00", "2200-01-01+00", "20000-01-01+00", "0044-03-15 BC"])
def test_a_stamp_far_away_moves_nothing_in_postgres(tmp_path: Path, pg: Database, far: str) -> None:
    s1 = pg.connect()
    s1.execute(PERMITS)
    s1.execute("UPDATE permits SET updated_at = %s WHERE id = 2", (far,))
    project = Project(tmp_path, pg.reader_url, {"permits": {"page_size": 1}})
    assert len(project.poll()["permits"]) == 3
    s1.execute("INSERT INTO permits VALUES (3, 'after', '2024-05-02 10:00+00', '2024-05-02 10:00+00')")
    assert kinds(project.poll()["permits"], "id") == [("insert", 3)]
    s1.execute("UPDATE permits SET note = 'changed' WHERE id = 2")
    assert [r["id"] for r in project.poll()["permits"]] == ([] if "BC" in far else [2])


@pytest.mark.parametrize(
    ("declared", "normal", "far"),
    [
        ("TEXT", "2024-05-01 10:00:00", "9999-12-31 23:59:59"),
        ("DATETIME", "2024-05-01 10:00:00.5", "9999-12-31"),
        ("TEXT", "2024-05-01T10:00:00Z", "infinity"),
        ("TEXT", "2024-05-01T10:00:00+02:00", "31.12.2099"),
        ("TEXT", "2024-05-01 10:00:00", ""),
        ("INTEGER", 1714557600, 253402300799),
        ("REAL", 1714557600.25, 253402300799.0),
    ],
)
def test_a_stamp_far_away_moves_nothing_in_sqlite(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, normal: Any, far: Any
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE permits (id INTEGER PRIMARY KEY, note TEXT, updated_at {declared} NOT NULL)")
    s1.execute("INSERT INTO permits VALUES (1, 'normal', ?), (2, 'far', ?)", (normal, far))
    unit = {"updated_at_unit": "s"} if declared in ("INTEGER", "REAL") else {}
    project = Project(tmp_path, sqlite_db.url, {"permits": {"page_size": 1, **unit}})
    assert sorted(r["id"] for r in project.poll()["permits"]) == [1, 2]
    s1.execute("INSERT INTO permits VALUES (3, 'after', ?)", (normal,))
    assert [r["id"] for r in project.poll()["permits"]] == [3]
    s1.execute("UPDATE permits SET note = 'changed' WHERE id = 2")
    assert [r["id"] for r in project.poll()["permits"]] == [2]
    assert project.poll()["permits"] == []


def test_the_hour_after_the_clocks_are_set_back_is_delivered(tmp_path: Path, pg: Database) -> None:
    """RC-12"""
    s1 = pg.connect()
    s1.execute(SHIFTS)
    project = Project(tmp_path, pg.reader_url, {"shifts": {"lookback": "3700s"}})
    found = project.poll()["shifts"]
    s1.execute("INSERT INTO shifts VALUES (2, 'after the change', '2024-10-27 02:10:00', '2024-10-27 02:10:00')")
    found += project.poll()["shifts"]
    s1.execute("INSERT INTO shifts VALUES (3, 'later', '2024-10-27 03:05:00', '2024-10-27 03:05:00')")
    found += project.poll()["shifts"]
    read = [(r["_change_type"], r["id"], r["updated_at"].isoformat(), r["created_at"].tzinfo) for r in found]
    assert read == [
        ("insert", 1, "2024-10-27T02:50:00", None),
        ("insert", 2, "2024-10-27T02:10:00", None),
        ("insert", 3, "2024-10-27T03:05:00", None),
    ]
    assert project.poll()["shifts"] == []


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_a_zone_loses_nothing_when_the_clocks_are_put_forward(tmp_path: Path, sqlite_db: SQLiteFile, zone: str) -> None:
    from zoneinfo import ZoneInfo

    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE shifts (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    start = datetime(2024, 3, 31, 0, 30, tzinfo=UTC) if "/B" in zone else datetime(2024, 3, 10, 6, 30, tzinfo=UTC)
    clock = FakeClock(micros(start))
    project = Project(tmp_path, sqlite_db.url, {"shifts": {"timezone": zone}})
    for number in range(1, 8):
        local = datetime.fromtimestamp(clock.now() / SECOND, ZoneInfo(zone)).replace(tzinfo=None)
        s1.execute("INSERT INTO shifts VALUES (?, ?)", (-number, local.isoformat(" ")))
        clock.advance(1)
        assert [r["id"] for r in project.poll(clock=clock)["shifts"]] == [-number]
        clock.advance(599)


def test_two_readings_of_the_clock_are_an_insert(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-14"""
    s1 = sqlite_db.connection
    s1.executescript(NOTES)
    project = Project(tmp_path, sqlite_db.url, {"notes": {"created_at_tolerance": "50ms"}})
    first = project.poll()["notes"]
    assert kinds(first, "id") == [("insert", 1), ("insert", 2)]
    assert (first[0]["created_at"], first[0]["updated_at"]) == ("2024-05-01 10:00:00.711", "2024-05-01 10:00:00.713")
    s1.execute("UPDATE notes SET txt = 'edited', updated_at = '2024-05-01 10:00:03.900' WHERE id = 2")
    s1.execute("INSERT INTO notes VALUES (3, 'again two reads', '2024-05-01 10:00:05.000', '2024-05-01 10:00:05.001')")
    assert kinds(project.poll()["notes"], "id") == [("insert", 3), ("update_postimage", 2)]


@pytest.mark.parametrize(
    ("unit", "created", "inserted", "updated"),
    [("s", 1714557600, 1714557601, 1714557602), ("ms", 1714557600711, 1714557600761, 1714557601762),
     ("us", 1714557600711000, 1714557601711000, 1714557601711001), ("ns", 1714557600711000000, 1714557601711000000,
     1714557601711000001)],
)  # fmt: skip
def test_the_tolerance_knows_units_of_epochs(
    tmp_path: Path, sqlite_db: SQLiteFile, unit: str, created: int, inserted: int, updated: int
) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE n (id INTEGER PRIMARY KEY, created_at INTEGER, updated_at INTEGER NOT NULL)")
    table = {"updated_at_unit": unit, "created_at_tolerance": "1s"}
    project = Project(tmp_path, sqlite_db.url, {"n": table})
    assert project.poll()["n"] == []
    s1.execute("INSERT INTO n VALUES (1, ?, ?), (2, ?, ?)", (created, inserted, created, updated))
    assert kinds(project.poll()["n"], "id") == [("insert", 1), ("update_postimage", 2)]


def test_the_tolerance_works_in_both_directions_and_ends_exactly(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute("CREATE TABLE n (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz NOT NULL)")
    project = Project(tmp_path, pg.reader_url, {"n": {"created_at_tolerance": "50ms"}})
    assert project.poll()["n"] == []
    t = "timestamptz '2024-05-01 10:00:00.5+00'"
    shifts = {1: "50 ms", 2: "-50 ms", 3: "50.001 ms", 4: "-50.001 ms", 5: "0"}
    for number, shift in shifts.items():
        s1.execute(f"INSERT INTO n VALUES ({number}, {t}, {t} + interval '{shift}')")
    s1.execute(f"INSERT INTO n VALUES (6, NULL, {t})")
    found = {r["id"]: r["_change_type"] for r in project.poll()["n"]}
    assert {n for n, kind in found.items() if kind == "insert"} >= {1, 5}
    assert {n for n, kind in found.items() if kind == "update_postimage"} >= {3, 6}


def test_epochs_are_read_in_their_own_units(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-36"""
    s1 = sqlite_db.connection
    s1.executescript(EVENTS)
    tables = {"ev_s": {"updated_at_unit": "s"}, "ev_ms": {"updated_at_unit": "ms"}}
    project = Project(tmp_path, sqlite_db.url, tables)
    assert [len(rows) for rows in project.poll().values()] == [1, 1]
    status = project.cli("status", "--json").out
    assert "2024-05-01T10:00:00Z" in status
    assert "2024-05-01T10:00:00.123" in status
    s1.execute("INSERT INTO ev_s VALUES (2,'s2', 1714557601, 1714557601)")
    s1.execute("INSERT INTO ev_ms VALUES (2,'ms2', 1714557600124, 1714557600124)")
    found = project.poll()
    assert [(r["id"], r["updated_at"]) for r in found["ev_s"]] == [(2, 1714557601)]
    assert [(r["id"], r["updated_at"]) for r in found["ev_ms"]] == [(2, 1714557600124)]


@pytest.mark.parametrize(
    ("declared", "unit", "value"),
    [("BIGINT", "us", 1714557600123456), ("INTEGER", "ns", 1714557600123456789)],
)
def test_epochs_of_any_unit_are_followed(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, unit: str | None, value: Any
) -> None:
    s1 = sqlite_db.connection
    s1.execute(f"CREATE TABLE ev (id INTEGER PRIMARY KEY, v TEXT, updated_at {declared} NOT NULL)")
    s1.execute("INSERT INTO ev VALUES (5, 'a', ?)", (value,))
    project = Project(tmp_path, sqlite_db.url, {"ev": {"page_size": 1, **({"updated_at_unit": unit} if unit else {})}})
    assert [r["id"] for r in project.poll()["ev"]] == [5]
    assert "2024-05-01T10:00:00" in project.cli("watermark", "show", "ev").out
    s1.execute("INSERT INTO ev VALUES (1, 'tie', ?), (7, 'next', ?)", (value, value + (1e-6 if unit == "s" else 1)))
    assert [r["id"] for r in project.poll()["ev"]] == [1, 7]
    assert project.poll()["ev"] == []


@pytest.mark.parametrize(
    ("declared", "numbers"),
    [
        ("DATETIME", (1714557600, 1714557601, 1714557700)),
        ("TIMESTAMP", (1714557600123, 1714557600124, 1714557700000)),
        ("DATETIME", (1714557600.25, 1714557601.5, 1714557700.5)),
        ("DATETIME", (1714557600123456, 1714557600123457, 1714557700000000)),
        ("TIMESTAMP", (1714557600123456789, 1714557600123457790, 1714557700000000000)),
        ("DATETIME", (2460431.9166, 2460431.9167, 2460431.9179)),
    ],
)
def test_epochs_in_a_column_that_is_declared_for_times_come_to_rest(
    tmp_path: Path, sqlite_db: SQLiteFile, declared: str, numbers: tuple[Any, Any, Any]
) -> None:
    s1, (first, second, third) = sqlite_db.connection, numbers
    s1.execute(
        f"CREATE TABLE ev (id INTEGER PRIMARY KEY, updated_at {declared} NOT NULL, created_at {declared}, deleted_at {declared})"
    )
    s1.execute("INSERT INTO ev VALUES (1, ?, ?, NULL), (2, ?, ?, NULL)", (first, first, second, first))
    project, clock = Project(tmp_path, sqlite_db.url, {"ev": {"page_size": 1}}), FakeClock()
    assert kinds(project.poll(clock=clock)["ev"], "id") == [("insert", 1), ("insert", 2)]
    for _ in range(3):
        clock.advance(100)
        assert project.poll(clock=clock)["ev"] == []
    assert project.results["ev"].read == 0, "what has stood for lookback is read no more"
    s1.execute("UPDATE ev SET deleted_at = ? WHERE id = 1", (third,))
    s1.execute("INSERT INTO ev VALUES (3, ?, ?, NULL)", (third, third))
    assert kinds(project.poll(clock=clock)["ev"], "id") == [("delete", 1), ("insert", 3)]
    assert project.poll(clock=clock)["ev"] == []


def test_numbers_written_as_text_are_refused_with_an_example(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE ev (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    s1.execute("INSERT INTO ev VALUES (1, '2024-05-01 10:00:00'), (2, '1714557600')")
    run = Project(tmp_path, sqlite_db.url, {"ev": {}}).cli("run", "--once")
    assert run.code == 2
    assert '"ev": cursor column "updated_at" holds a number as text, \'1714557600\' (key: id=2)' in run.err


def test_two_forms_of_one_time_in_one_column_are_both_read(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-35"""
    s1 = sqlite_db.connection
    s1.execute(
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, state TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL)"
    )
    for row in (
        (1, "api", "2024-05-02T07:00:00Z"),
        (2, "cli", "2024-05-02 06:00:00"),
        (3, "offset", "2024-05-02T09:30:00+02:00"),
    ):
        s1.execute("INSERT INTO jobs VALUES (?, ?, ?3, ?3)", row)
    project, clock = Project(tmp_path, sqlite_db.url, {"jobs": {}}), FakeClock(1_714_730_000 * SECOND)
    assert sorted(r["id"] for r in project.poll(clock=clock)["jobs"]) == [1, 2, 3]
    for _ in range(2):
        # All is closed up to 07:30, the instant of the third.
        clock.advance(100)
        assert project.poll(clock=clock)["jobs"] == []
    s1.execute("INSERT INTO jobs VALUES (4, 'cli', '2024-05-02 08:00:00', '2024-05-02 08:00:00')")
    s1.execute("UPDATE jobs SET state = 'done', updated_at = '2024-05-02 08:05:00' WHERE id = 2")
    assert kinds(project.poll(clock=clock)["jobs"], "id") == [("insert", 4), ("update_postimage", 2)]
    assert project.poll(clock=clock)["jobs"] == []
