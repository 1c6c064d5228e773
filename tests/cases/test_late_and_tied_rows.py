# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Rows that a plain watermark loses: committed late, tied with the watermark, or nearer to it than it is kept."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from tests.cases.harness import Project, kinds
from tests.conftest import SQLiteFile
from tests.servers import Database

SHIPMENTS = """\
CREATE TABLE shipments (
  id bigint PRIMARY KEY, state text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now());
INSERT INTO shipments(id, state) VALUES (100, 'packed');
"""

TICKETS = """\
CREATE TABLE tickets (code TEXT PRIMARY KEY, body TEXT,
  created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP, updated_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
INSERT INTO tickets VALUES ('m-10', 'first',  '2024-05-01 10:00:00', '2024-05-01 10:00:00'),
                           ('q-20', 'second', '2024-05-01 10:00:05', '2024-05-01 10:00:05');
"""

PRICES = """\
CREATE TABLE price_list (sku text PRIMARY KEY, cents int NOT NULL, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO price_list
SELECT to_char(g, 'FM000000'), g, '2024-05-01 00:00:00+00', '2024-05-01 00:00:00+00' FROM generate_series(1, 25000) g;
"""

LOGINS = """\
CREATE TABLE logins (id bigint PRIMARY KEY, who text, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL);
INSERT INTO logins VALUES (8, 'u1', '2024-05-01 10:00:00.123456+00', '2024-05-01 10:00:00.123456+00'),
                          (9, 'u2', '2024-05-01 10:00:00.123600+00', '2024-05-01 10:00:00.123600+00');
"""

BOOKINGS = """\
CREATE TABLE bookings (id INTEGER PRIMARY KEY, room TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO bookings VALUES (1,'a','2024-05-01 08:00:00','2024-05-09 18:00:00'),(2,'b','2024-05-01 08:00:00','2024-05-02 08:00:00'),
                            (3,'c','2024-05-01 08:00:00','2024-05-01 08:00:00');
"""


def test_a_transaction_that_began_first_and_commits_last_is_delivered(tmp_path: Path, pg: Database) -> None:
    """RC-01"""
    s2 = pg.connect()
    s2.execute(SHIPMENTS)
    project = Project(tmp_path, pg.reader_url, {"shipments": {}})
    assert kinds(project.poll()["shipments"], "id") == [("insert", 100)]
    s1 = pg.connect(autocommit=False)
    s1.execute("INSERT INTO shipments(id, state) VALUES (101, 'packed')")
    SystemClock().sleep(0.5)
    s2.execute("INSERT INTO shipments(id, state) VALUES (102, 'packed')")
    assert kinds(project.poll()["shipments"], "id") == [("insert", 102)]
    s1.commit()
    third = project.poll()["shipments"]
    assert kinds(third, "id") == [("insert", 101)]
    assert project.poll()["shipments"] == []
    assert sorted(project.merged("shipments", "id")) == [100, 101, 102]


def test_an_update_a_soft_delete_and_a_savepoint_that_commit_late_are_delivered(tmp_path: Path, pg: Database) -> None:
    s2 = pg.connect()
    s2.execute(SHIPMENTS)
    s2.execute(
        "ALTER TABLE shipments ADD deleted_at timestamptz; INSERT INTO shipments VALUES (1), (2), (3)".replace(
            "VALUES (1), (2), (3)", "SELECT g, 'x' FROM generate_series(1, 3) g"
        )
    )
    project = Project(tmp_path, pg.reader_url, {"shipments": {"lookback": "10ms"}})
    project.poll()
    s1 = pg.connect(autocommit=False)
    s1.execute("UPDATE shipments SET state = 'late', updated_at = now() WHERE id = 1")
    s1.execute("SAVEPOINT a; UPDATE shipments SET deleted_at = now() WHERE id = 2")
    s1.execute("SAVEPOINT b; DELETE FROM shipments WHERE id = 3; ROLLBACK TO b")
    for number in range(200, 203):
        s2.execute("INSERT INTO shipments SELECT %s, 'packed'", (number,))
        SystemClock().sleep(0.05)
        assert kinds(project.poll()["shipments"], "id") == [("insert", number)]
    s1.commit()
    assert kinds(project.poll()["shipments"], "id") == [("delete", 2), ("update_postimage", 1)]
    assert project.poll()["shipments"] == []
    assert sorted(project.merged("shipments", "id")) == [1, 3, 100, 200, 201, 202]


def test_a_prepared_transaction_that_outlives_its_session_is_delivered(tmp_path: Path, pg: Database) -> None:
    s2 = pg.connect()
    s2.execute(SHIPMENTS)
    project = Project(tmp_path, pg.reader_url, {"shipments": {"lookback": "10ms"}})
    project.poll()
    s2.execute("BEGIN; INSERT INTO shipments(id, state) VALUES (101, 'x'); PREPARE TRANSACTION 'late'")
    for number in (102, 103):
        s2.execute("INSERT INTO shipments(id, state) VALUES (%s, 'x')", (number,))
        SystemClock().sleep(0.05)
        assert kinds(project.poll()["shipments"], "id") == [("insert", number)]
    s2.execute("COMMIT PREPARED 'late'")
    assert kinds(project.poll()["shipments"], "id") == [("insert", 101)]


def test_a_lower_key_in_the_watermarks_second_is_delivered(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-03"""
    s1 = sqlite_db.connection
    s1.executescript(TICKETS)
    project = Project(tmp_path, sqlite_db.url, {"tickets": {}})
    assert len(project.poll()["tickets"]) == 2
    row = "'2024-05-01 10:00:05', '2024-05-01 10:00:05'"
    s1.execute(f"INSERT INTO tickets VALUES ('b-05', 'same second, lower key', {row})")
    s1.execute(f"INSERT INTO tickets VALUES ('z-99', 'same second, higher key', {row})")
    assert kinds(project.poll()["tickets"], "code") == [("insert", "b-05"), ("insert", "z-99")]
    assert project.poll()["tickets"] == []
    assert sorted(project.merged("tickets", "code")) == ["b-05", "m-10", "q-20", "z-99"]


def test_a_row_written_twice_in_one_second_is_delivered_twice(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(TICKETS)
    project = Project(tmp_path, sqlite_db.url, {"tickets": {"page_size": 1}})
    project.poll()
    for body in ("once", "twice", "once"):
        s1.execute("UPDATE tickets SET body = ? WHERE code = 'm-10'", (body,))
        s1.execute("UPDATE tickets SET updated_at = '2024-05-01 10:00:05' WHERE code = 'm-10'")
        assert [r["body"] for r in project.poll()["tickets"]] == [body]


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("key", ["uuid", "bytea", "composite", "numeric", "date", "bool", "regclass"])
def test_ties_are_walked_by_any_kind_of_key(tmp_path: Path, pg: Database, key: str, page_size: int) -> None:
    s1 = pg.connect()
    types = {
        "composite": "a text COLLATE \"C\", b int",
        "uuid": "a uuid, b int", "bytea": "a bytea, b int", "numeric": "a numeric, b int", "date": "a date, b int",
        "bool": "a bool, b int", "regclass": "a regclass, b int",
    }  # fmt: skip
    values: dict[str, list[object]] = {
        "composite": ["", "a", "a|b", "é", "\U0001f600", "B", "a' OR '1'='1"],
        "uuid": [uuid.UUID(int=n << 100) for n in range(7)],
        "bytea": [b"", b"\0", b"\0\xff", b"'", b"\\", b"\xff", b"\x80a"],
        "numeric": ["0", "-1.5", "1.50", "12345678901234567890.000001", "1e-20", "9007199254740993", "2"],
        "date": ["2024-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "1970-01-01", "1970-01-02", "2024-05-01"],
        "bool": [True, False],
        "regclass": ["pg_class", "ties", "pg_type"],
    }
    s1.execute(f"CREATE TABLE ties ({types[key]}, v int, updated_at timestamptz NOT NULL, PRIMARY KEY (a, b))")
    stamp = "2024-05-01 10:00+00"
    rows = [(a, b) for a in values[key] for b in (2, 1, -1)]
    for a, b in rows:
        s1.execute("INSERT INTO ties VALUES (%s, %s, 0, %s)", (a, b, stamp))
    project = Project(tmp_path, pg.reader_url, {"ties": {"page_size": page_size}})
    assert len(project.poll()["ties"]) == len(rows)
    s1.execute("UPDATE ties SET v = 1 WHERE b = -1")
    assert {r["b"] for r in project.poll()["ties"]} == {-1}
    merged = project.merged("ties", "a", "b")
    assert len(merged) == len(rows)
    assert sum(r["v"] for r in merged.values()) == len(values[key])
    assert project.poll()["ties"] == []


def test_a_bulk_import_killed_within_a_tie_ends_complete(tmp_path: Path, pg: Database) -> None:
    """RC-05"""
    s1 = pg.connect()
    s1.execute(PRICES)
    project = Project(tmp_path, pg.reader_url, {"price_list": {"page_size": 1000}})
    killed = project.cli("run", "--once", env={"SIDECAR_CRASH_AT": "chunk-saved:10"})
    assert killed.code == -9
    assert 0 < len(project.rows("price_list")) <= 10_000
    project.poll()
    merged = project.merged("price_list", "sku")
    assert (len(merged), len(project.rows("price_list"))) == (25_000, 25_000)
    assert sum(r["cents"] for r in merged.values()) == 312_512_500
    assert project.poll()["price_list"] == []
    s1.execute("UPDATE price_list SET cents = -1, updated_at = '2024-05-01 00:00:00+00' WHERE sku = '000007'")
    s1.execute("INSERT INTO price_list VALUES ('030000', 30000, '2024-05-01 00:00:00+00', '2024-05-01 00:00:00+00')")
    found = project.poll()["price_list"]
    assert [(r["sku"], r["cents"]) for r in found] == [("000007", -1), ("030000", 30_000)]
    assert len(project.merged("price_list", "sku")) == 25_001


def test_a_bulk_import_into_sqlite_killed_within_a_tie_ends_complete(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript("CREATE TABLE bulk (sku TEXT PRIMARY KEY, cents INT, updated_at TEXT NOT NULL) WITHOUT ROWID;")
    rows = [(f"{n:06}", n, "2024-05-01T00:00:00Z") for n in range(1, 5001)]
    s1.execute("BEGIN")
    s1.executemany("INSERT INTO bulk VALUES (?, ?, ?)", rows)
    s1.execute("COMMIT")
    project = Project(tmp_path, sqlite_db.url, {"bulk": {"page_size": 300}})
    assert project.cli("run", "--once", env={"SIDECAR_CRASH_AT": "segment-renamed:7"}).code == -9
    project.poll()
    assert len(project.rows("bulk")) == len(project.merged("bulk", "sku")) == 5000
    s1.execute("UPDATE bulk SET cents = -1 WHERE sku = '000007'")
    s1.execute("INSERT INTO bulk VALUES ('000000', 0, '2024-05-01T00:00:00Z')")
    assert [(r["sku"], r["cents"]) for r in project.poll()["bulk"]] == [("000000", 0), ("000007", -1)]
    assert project.poll()["bulk"] == []


def test_the_watermark_keeps_its_microseconds(tmp_path: Path, pg: Database) -> None:
    """RC-06"""
    s1 = pg.connect()
    s1.execute(LOGINS)
    project = Project(tmp_path, pg.reader_url, {"logins": {}})
    assert kinds(project.poll()["logins"], "id") == [("insert", 8), ("insert", 9)]
    assert "10:00:00.123600" in project.cli("watermark", "show", "logins").out
    assert project.poll()["logins"] == []
    stamp = "'2024-05-01 10:00:00.123900+00'"
    s1.execute(f"INSERT INTO logins VALUES (3, 'u3', {stamp}, {stamp})")
    (found,) = project.poll()["logins"]
    assert (found["id"], found["_change_type"]) == (3, "insert")
    assert found["updated_at"].isoformat() == "2024-05-01T10:00:00.123900+00:00"
    assert "10:00:00.123900" in project.cli("watermark", "show", "logins").out


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "America/St_Johns", "Pacific/Apia"])
def test_the_servers_zone_changes_no_instant(tmp_path: Path, pg: Database, zone: str) -> None:
    s1 = pg.connect()
    s1.execute(LOGINS)
    s1.execute(f"ALTER ROLE {pg.reader} SET timezone = '{zone}'; ALTER ROLE {pg.reader} SET datestyle = 'SQL, DMY'")
    project = Project(tmp_path, pg.reader_url, {"logins": {"page_size": 1}})
    found = project.poll()["logins"]
    assert sorted(r["updated_at"].isoformat() for r in found) == [  # two readers, in no order
        "2024-05-01T10:00:00.123456+00:00", "2024-05-01T10:00:00.123600+00:00"
    ]  # fmt: skip
    assert project.poll()["logins"] == []


def test_the_watermark_is_the_greatest_value_and_empty_polls_keep_it(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-34"""
    s1 = sqlite_db.connection
    s1.executescript(BOOKINGS)
    project = Project(tmp_path, sqlite_db.url, {"bookings": {}})
    assert len(project.poll()["bookings"]) == 3
    shown = project.cli("watermark", "show", "bookings").out
    assert "2024-05-09T18:00:00" in shown
    assert project.poll()["bookings"] == project.poll()["bookings"] == []
    assert "greatest seen 2024-05-09T18:00:00" in project.cli("watermark", "show", "bookings").out
    s1.execute("INSERT INTO bookings VALUES (4,'d','2024-05-10 08:00:00','2024-05-10 08:00:00')")
    assert kinds(project.poll()["bookings"], "id") == [("insert", 4)]
