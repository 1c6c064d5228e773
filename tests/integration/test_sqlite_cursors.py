"""What orders SQLite's rows, and what is no row any more: cursor columns of every form, deletions, missing stamps."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from connectors.sqlite import SQLiteConnector
from sidecar import cursor
from sidecar.clock import FakeClock
from sidecar.connector import Source
from sidecar.errors import SettingsError
from sidecar.model import DELETED, Page, PassName, Tracked
from tests.conftest import SQLiteFile
from tests.integration.sqlite_reading import at, fill, rows, tracked

# Cursor columns


def test_forms_of_time_may_stand_side_by_side(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    write = sqlite_db.connection
    write.executescript("""
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, updated_at TEXT);
        CREATE INDEX jobs_updated ON jobs (updated_at, id);
        INSERT INTO jobs VALUES (1, '2024-05-02T07:00:00Z'), (2, '2024-05-02 06:00:00'),
                                (3, '2024-05-02T09:30:00+02:00');
    """)
    table = tracked(source, "jobs")
    source.horizon(table, None)
    closed: dict[PassName, int | None] = {"updated": at("2024-05-02T07:30:00Z")}
    write.executescript("""
        INSERT INTO jobs VALUES (4, '2024-05-02 08:00:00'), (5, '2024-05-02T03:05:00-05:00'), (6, '2024-05-02');
        UPDATE jobs SET updated_at = '2024-05-02 08:05:00' WHERE id = 2;
    """)
    assert {r["id"] for r in rows(source, table, 2, closed)} >= {2, 4, 5, 6}
    assert source.greatest(Page(table, table.passes[0], {}, None, 10), None) == at("2024-05-02 23:59:59.999999")
    limit = at("2024-05-02 08:04:00")
    greatest = source.greatest(Page(table, table.passes[0], closed, None, 10), limit)
    assert greatest is None or at("2024-05-02 07:30:00") < greatest <= limit


def test_offsets_once_seen_are_remembered_by_the_next_process(sqlite_db: SQLiteFile, clock: FakeClock) -> None:
    write = sqlite_db.connection
    write.execute("CREATE TABLE jobs (id INTEGER PRIMARY KEY, updated_at TEXT)")
    write.execute("CREATE INDEX jobs_updated ON jobs (updated_at, id)")
    write.execute("INSERT INTO jobs VALUES (0, '2024-05-01T07:00:00-05:00')")
    fill(sqlite_db, "INSERT INTO jobs VALUES (?, '2024-05-02 07:00:00')", [(n,) for n in range(1, 1000)])
    first = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    assert len(rows(first, tracked(first, "jobs"), 10_000, {})) == 1000
    memory = first.horizon(tracked(first, "jobs"), None).memory
    assert memory == {"offsets": ["updated_at"], "timezone": None}
    first.close()
    write.execute("INSERT INTO jobs VALUES (5000, '2024-05-02T02:30:00-05:00')")
    second = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    table = tracked(second, "jobs")
    assert second.horizon(table, memory).memory == memory
    found = rows(second, table, 100, {"updated": at("2024-05-02 07:00:00")})
    assert [r["id"] for r in found if r["updated_at"].endswith("-05:00")] == [5000]
    second.close()


def test_text_that_is_no_time_is_delivered_and_named_once(
    sqlite_db: SQLiteFile, source: SQLiteConnector, caplog: pytest.LogCaptureFixture
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (code TEXT PRIMARY KEY, updated_at TEXT)")
    table = tracked(source, "t")
    for code, stamp in (("a", ""), ("b", "0000-00-00 00:00:00"), ("c", "2024-05-09 10:00:09' OR 1=1 --"), ("d", "zzz")):
        sqlite_db.connection.execute("INSERT INTO t VALUES (?, ?)", (code, stamp))
    for n in range(5):
        sqlite_db.connection.execute("INSERT INTO t VALUES (?, '2024-05-01 10:00:00')", (f"x{n}",))
    with caplog.at_level(logging.WARNING, "sidecar"):
        for _ in range(2):
            found = rows(source, table, 100, {"updated": at("2024-05-02 10:00:00")})
            assert [r["code"] for r in found] == ["a", "b", "c", "d"]
    (message,) = [r.getMessage() for r in caplog.records]
    assert 'table "t": cursor column "updated_at" holds a text that is no time (first key: code=\'a\')' in message
    assert source.greatest(Page(table, table.passes[0], {}, None, 10), None) == at("2024-05-01 10:00:00")


def test_numbers_and_text_in_one_cursor_column_are_refused_with_one_of_each(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, 1714557600), (2, '2024-05-01 10:00:00')")
    with pytest.raises(SettingsError, match=r"t.*updated_at.*numbers and text.*1714557600.*'2024-05-01 10:00:00'"):
        rows(source, tracked(source, "t"))
    sqlite_db.connection.execute("UPDATE t SET updated_at = 1714557600123 WHERE id = 2")
    with pytest.raises(SettingsError, match=r"two units.*1714557600 and 1714557600123"):
        rows(source, tracked(source, "t"))


def test_numbers_in_a_column_declared_for_times_are_read_in_their_unit(
    sqlite_db: SQLiteFile, source: SQLiteConnector
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at DATETIME)")
    first = 1_714_557_600_000
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", [(n, first + n // 2) for n in range(10)])
    table = tracked(source, "t")
    assert [r["id"] for r in rows(source, table, 3)] == list(range(10))
    assert rows(source, table)[0]["updated_at"] == "1714557600000"
    closed: dict[PassName, int | None] = {"updated": (first + 2) * 1000}
    assert [r["id"] for r in rows(source, table, 3, closed)] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("declared", "first", "step"),
    [("INTEGER", 1_714_557_600, 1), ("INTEGER", -3, 1), ("REAL", 1_714_557_600.25, 0.000_001), ("NUMERIC", 5, 1)],
)
def test_number_cursors_are_read_above_their_closed_value(
    sqlite_db: SQLiteFile, source: SQLiteConnector, declared: str, first: float, step: float
) -> None:
    sqlite_db.connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at {declared})")
    stamps = [first + n * step for n in range(8)]
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", list(enumerate(stamps)))
    table = tracked(source, "t")
    page = Page(table, table.passes[0], {}, None, 100)
    values = [int(v) for v in cursor.comparable(source.read(page).column("updated_at"))]
    for n in range(8):
        above = {r["id"] for r in rows(source, table, 3, {"updated": values[n]})}
        assert above >= set(range(n + 1, 8))
        assert len(above) <= 8 - n + 1
        greatest = source.greatest(page, values[n])
        assert greatest == values[n]
    assert source.greatest(page, None) == values[-1]
    assert source.greatest(page, values[0] - 1) is None
    assert source.greatest(dataclasses.replace(page, closed={"updated": values[-1]}), None) is None


def test_the_greatest_value_skips_what_lies_in_the_future(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    future = [(n, f"9999-12-31 23:{n // 60:02}:{n % 60:02}") for n in range(1000)]
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", future)
    table = tracked(source, "t")
    page = Page(table, table.passes[0], {}, None, 10)
    assert source.greatest(page, at("2024-05-02 00:00:00")) is None
    sqlite_db.connection.execute("INSERT INTO t VALUES (5000, '2024-05-01 10:00:00')")
    assert source.greatest(page, at("2024-05-02 00:00:00")) == at("2024-05-01 10:00:00")
    assert source.greatest(page, at("2024-05-01 09:00:00")) is None
    assert source.greatest(page, None) == at("9999-12-31 23:16:39")


# Deletions, and rows without a stamp


def deletions(source: SQLiteConnector, table: Tracked) -> dict[int, bool]:
    return {r["id"]: r[DELETED] for r in rows(source, table)}


def test_a_zero_date_deletes_nothing_until_it_is_explained(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, updated_at TEXT, deleted_at TEXT DEFAULT '0000-00-00 00:00:00');
        INSERT INTO users (id, updated_at) VALUES (1, '2024-05-01 10:00:00'), (2, '2024-05-01 10:01:00');
        INSERT INTO users VALUES (3, '2024-05-01 10:02:00', '2024-05-01 10:05:00');
    """)
    with pytest.raises(SettingsError, match=r'users\.deleted_at holds "0000-00-00 00:00:00".*id=1.*not_deleted = '):
        rows(source, tracked(source, "users", deleted_at="deleted_at"))
    table = tracked(source, "users", deleted_at="deleted_at", not_deleted=("0000-00-00 00:00:00",))
    assert deletions(source, table) == {1: False, 2: False, 3: True}
    closed: dict[PassName, int | None] = {"updated": at("2024-05-01 11:00:00")}
    assert [r["id"] for r in rows(source, table, 2, closed, table.passes[1])] == [3]


def test_a_zero_deletes_nothing_until_it_is_explained(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, updated_at TEXT, deleted_at INTEGER NOT NULL DEFAULT 0);
        INSERT INTO users VALUES (1, '2024-05-01 10:00:00', 0), (2, '2024-05-01 10:00:00', 1714557600);
    """)
    with pytest.raises(SettingsError, match=r"users\.deleted_at holds 0.*id=1"):
        rows(source, tracked(source, "users", deleted_at="deleted_at"))
    assert deletions(source, tracked(source, "users", deleted_at="deleted_at", not_deleted=(0,))) == {1: False, 2: True}


def test_a_condition_says_what_is_deleted(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE users (id INTEGER PRIMARY KEY, status TEXT, updated_at TEXT);
        INSERT INTO users VALUES (1, 'gone', '2024-05-01 10:00:00'), (2, 'here', '2024-05-01 10:00:00'),
                                 (3, NULL, '2024-05-01 10:00:00');
    """)
    for condition in ("status = 'gone'", "status = 'gone' -- as of old", "users.status IN ('gone') OR 0"):
        assert deletions(source, tracked(source, "users", deleted_when=condition)) == {1: True, 2: False, 3: False}
    wrongs = ("state = 'gone'", "status = ", "status = 'gone')", 'status = "gone"', "\"statsu\" = 'gone'")
    for wrong in wrongs:
        with pytest.raises(SettingsError, match=r'"users": deleted_when = .* (is no condition|there is no column)'):
            rows(source, tracked(source, "users", deleted_when=wrong))


def test_rows_without_a_stamp_are_read_by_the_next_best(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE t (id INTEGER PRIMARY KEY, created_at TEXT, updated_at TEXT);
        INSERT INTO t VALUES (1, '2024-05-01 10:00:00', '2024-05-01 11:00:00'), (2, '2024-05-01 10:00:00', NULL),
                             (3, NULL, NULL), (4, NULL, '2024-05-01 11:00:00'), (5, NULL, NULL);
    """)
    table = tracked(source, "t", created_at="created_at")
    found = {scan.name: [r["id"] for r in rows(source, table, 1, {}, scan)] for scan in table.passes}
    assert found == {"updated": [1, 4], "created": [2], "unstamped": [3, 5]}


def test_stretches_in_which_there_is_nothing_are_not_searched_one_by_one(
    source: SQLiteConnector, sqlite_db: SQLiteFile
) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("CREATE INDEX t_updated ON t (updated_at, id)")
    stamps = ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00.5Z", "2024-05-01 10:00:01", "2024-05-02", "0000-00-00", "")
    fill(sqlite_db, "INSERT INTO t VALUES (?, ?)", enumerate(stamps, 1))
    table, asked = tracked(source, "t"), list[str]()
    assert {r["id"] for r in rows(source, table, closed={"updated": at("2024-05-01T10:00:00Z")})} >= {2, 3, 4, 5, 6}
    source.file.connection().set_trace_callback(asked.append)
    sqlite_db.connection.execute("DELETE FROM t WHERE id >= 4")
    assert {r["id"] for r in rows(source, table, closed={"updated": at("2024-05-01T10:00:00Z")})} == {2, 3}
    assert sum("ORDER BY" in statement for statement in asked) == 2
    asked.clear()
    assert rows(source, table, closed={"updated": at("2024-05-03T00:00:00Z")}) == []
    assert not [statement for statement in asked if "ORDER BY" in statement]
