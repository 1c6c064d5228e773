# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Keys that are given out twice, rows that move between partitions, and known cases beside a transaction left open."""

from __future__ import annotations

import shlex
import sqlite3
from pathlib import Path

import pytest

import sidecar
from sidecar.clock import SystemClock
from tests.cases.harness import Project, kinds
from tests.cases.test_late_and_tied_rows import LOGINS, SHIPMENTS
from tests.conftest import SQLiteFile
from tests.servers import Database

SEATS = """\
CREATE TABLE seats (id INTEGER PRIMARY KEY, guest TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO seats(guest, created_at, updated_at) VALUES ('ann','2024-05-01 10:00:00','2024-05-01 10:00:00'),('bob','2024-05-01 10:01:00','2024-05-01 10:01:00'),('carol','2024-05-01 10:02:00','2024-05-01 10:02:00');
"""

MEAS = """\
CREATE TABLE meas (id int NOT NULL, region text NOT NULL, v int, created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE meas_eu PARTITION OF meas FOR VALUES IN ('eu');
CREATE TABLE meas_us PARTITION OF meas FOR VALUES IN ('us');
INSERT INTO meas VALUES (1,'eu',10,'2024-05-01 10:00+00','2024-05-01 10:00+00'),(2,'us',20,'2024-05-01 10:00+00','2024-05-01 10:00+00');
"""

VISITS = """\
CREATE TABLE visits (id bigint PRIMARY KEY, page text, created_at timestamptz NOT NULL, updated_at timestamptz);
INSERT INTO visits VALUES (1, 'home', '2024-05-01 08:00+00', NULL), (2, 'cart', '2024-05-01 08:05+00', '2024-05-01 08:06+00');
"""

POSTS = """\
CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL, deleted_at TEXT);
INSERT INTO posts VALUES (1,'one','2024-05-01 10:00:00','2024-05-01 10:00:00',NULL),(2,'two','2024-05-01 10:01:00','2024-05-01 10:01:00',NULL),
                         (3,'three','2024-05-01 10:02:00','2024-05-01 10:30:00',NULL);
"""


def test_a_key_that_is_given_out_again_folds_to_its_newest_row(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-26, its full diffs apart"""
    s1 = sqlite_db.connection
    s1.executescript(SEATS)
    project = Project(tmp_path, sqlite_db.url, {"seats": {}})
    project.poll()
    s1.execute("DELETE FROM seats WHERE id = 3")
    s1.execute(
        "INSERT INTO seats(guest, created_at, updated_at) VALUES ('dave','2024-05-01 11:00:00','2024-05-01 11:00:00')"
    )
    s1.execute("INSERT OR REPLACE INTO seats VALUES (1,'ann II','2024-05-01 11:01:00','2024-05-01 11:01:00')")
    assert sorted(r["id"] for r in project.poll()["seats"]) == [1, 3]
    merged = project.merged("seats", "id")
    assert {k: r["guest"] for k, r in merged.items()} == {1: "ann II", 2: "bob", 3: "dave"}
    assert project.poll()["seats"] == []


def test_a_partitioned_table_is_one_table_and_rows_that_move_are_delivered(tmp_path: Path, pg: Database) -> None:
    """RC-57, its full diffs apart: the row that left its partition is a hard delete of its old key"""
    s1 = pg.connect()
    s1.execute(MEAS)
    project = Project(tmp_path, None, {}, source={"url": pg.reader_url, "include": ["public.*"]})
    with sidecar.open(project.path) as sc:
        assert list(sc.tracked) == ["meas"]
        assert sc.tracked["meas"].key == ("id", "region")
    assert len(project.poll()["meas"]) == 2
    s1.execute("UPDATE meas SET region = 'us', v = 11, updated_at = '2024-05-01 11:00+00' WHERE id = 1")
    s1.execute("CREATE TABLE meas_ap PARTITION OF meas FOR VALUES IN ('ap')")
    s1.execute("INSERT INTO meas VALUES (3,'ap',30,'2024-05-01 11:01+00','2024-05-01 11:01+00')")
    found = project.poll()["meas"]
    assert sorted((r["id"], r["region"], r["v"]) for r in found) == [(1, "us", 11), (3, "ap", 30)]
    assert project.poll()["meas"] == []


def test_rows_that_were_written_before_their_table_became_a_partition_are_delivered(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """RC-57, and the partition is filled, and polls go on, before it is attached"""
    s1 = pg.connect()
    s1.execute(MEAS)
    project = Project(tmp_path, pg.reader_url, {"meas": {}})
    project.poll()
    s1.execute('CREATE TABLE "Meas ap" (LIKE meas)')
    s1.execute("""INSERT INTO "Meas ap" SELECT g, 'ap', 30, now(), now() FROM generate_series(3, 4) g""")
    s1.execute("""INSERT INTO "Meas ap" VALUES (5, 'ap', 50, '2023-05-01', '2023-05-01')""")
    s1.execute("CREATE TABLE meas_na PARTITION OF meas FOR VALUES IN ('na')")
    s1.execute("INSERT INTO meas VALUES (6, 'eu', 60, now(), now()), (7, 'na', 70, now(), now())")
    assert kinds(project.poll()["meas"], "id") == [("insert", 6), ("insert", 7)]
    assert not [r for r in caplog.records if r.levelname == "WARNING"], "a new partition is nothing to speak of"
    s1.execute("""ALTER TABLE meas ATTACH PARTITION "Meas ap" FOR VALUES IN ('ap')""")
    assert kinds(project.poll()["meas"], "id") == [("insert", 3), ("insert", 4)]
    (told,) = (r.getMessage() for r in caplog.records if r.levelname == "WARNING")
    assert project.poll()["meas"] == []
    s1.execute('ALTER TABLE meas DETACH PARTITION "Meas ap"')
    assert project.poll()["meas"] == []
    s1.execute('UPDATE "Meas ap" SET v = 31, updated_at = now() WHERE id = 3')
    assert project.poll()["meas"] == []
    s1.execute("""ALTER TABLE meas ATTACH PARTITION "Meas ap" FOR VALUES IN ('ap')""")
    assert [(r["id"], r["v"]) for r in project.poll()["meas"]] == [(3, 31)]
    assert project.poll()["meas"] == []
    run = project.cli("backfill", *shlex.split(told.rpartition("sidecar backfill ")[2]))
    assert run.code == 0, run.text
    project.poll()
    assert sorted(project.merged("meas", "id")) == [1, 2, 3, 4, 5, 6, 7], "and the older ones by what was said"


def test_rows_that_were_written_before_their_table_became_an_heir_are_delivered(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    s1.execute("CREATE TABLE t (id int, v int, updated_at timestamptz NOT NULL DEFAULT now())")
    s1.execute("CREATE TABLE heir (LIKE t INCLUDING ALL)")
    s1.execute("INSERT INTO heir VALUES (2, 1)")
    project = Project(tmp_path, pg.reader_url, {"t": {"primary_key": ["id"]}})
    project.poll()
    s1.execute("INSERT INTO t VALUES (1, 1)")
    assert [r["id"] for r in project.poll()["t"]] == [1]
    s1.execute("ALTER TABLE heir INHERIT t")
    assert [r["id"] for r in project.poll()["t"]] == [2]
    assert project.poll()["t"] == []


def test_a_late_commit_beside_one_that_is_never_over_is_delivered(tmp_path: Path, pg: Database) -> None:
    """RC-01, with another transaction open throughout"""
    s2, s1, s0 = pg.connect(), pg.connect(autocommit=False), pg.connect(autocommit=False)
    s2.execute(SHIPMENTS)
    s0.execute("INSERT INTO shipments(id, state) VALUES (50, 'open')")
    project = Project(tmp_path, pg.reader_url, {"shipments": {"lookback": "100ms"}})
    assert kinds(project.poll()["shipments"], "id") == [("insert", 100)]
    s1.execute("INSERT INTO shipments(id, state) VALUES (101, 'packed')")
    SystemClock().sleep(0.5)
    s2.execute("INSERT INTO shipments(id, state) VALUES (102, 'packed')")
    assert kinds(project.poll()["shipments"], "id") == [("insert", 102)]
    SystemClock().sleep(0.3)
    assert project.poll()["shipments"] == []
    s1.commit()
    assert kinds(project.poll()["shipments"], "id") == [("insert", 101)]
    SystemClock().sleep(0.3)
    for _ in range(3):
        assert project.poll()["shipments"] == []
    s0.commit()
    assert kinds(project.poll()["shipments"], "id") == [("insert", 50)]
    assert project.poll()["shipments"] == []
    assert sorted(project.merged("shipments", "id")) == [50, 100, 101, 102]


def test_microseconds_survive_a_transaction_left_open(tmp_path: Path, pg: Database) -> None:
    """RC-06, with a transaction open from before the first poll until after the last"""
    s1, s0 = pg.connect(), pg.connect(autocommit=False)
    s1.execute(LOGINS)
    s0.execute("INSERT INTO logins VALUES (4, 'u4', '2024-05-01 10:00:00.123700+00', '2024-05-01 10:00:00.123700+00')")
    project = Project(tmp_path, pg.reader_url, {"logins": {}})
    assert kinds(project.poll()["logins"], "id") == [("insert", 8), ("insert", 9)]
    assert project.poll()["logins"] == []
    s1.execute("INSERT INTO logins VALUES (3, 'u3', '2024-05-01 10:00:00.123900+00', '2024-05-01 10:00:00.123900+00')")
    (late,) = project.poll()["logins"]
    assert (late["id"], late["updated_at"].microsecond) == (3, 123900)
    s0.commit()
    (later,) = project.poll()["logins"]
    assert (later["id"], later["updated_at"].microsecond) == (4, 123700)
    assert project.poll()["logins"] == []


def test_rows_without_updated_at_survive_a_transaction_left_open(tmp_path: Path, pg: Database) -> None:
    """RC-08, with a transaction open from before the first poll until after the last"""
    s1, s0 = pg.connect(), pg.connect(autocommit=False)
    s1.execute(VISITS)
    s0.execute("INSERT INTO visits VALUES (9, 'open', '2024-05-01 08:01+00', NULL)")
    s0.execute("UPDATE visits SET page = 'cart2', updated_at = '2024-05-01 08:06:30+00' WHERE id = 2")
    project = Project(tmp_path, pg.reader_url, {"visits": {}})
    assert sorted(r["id"] for r in project.poll()["visits"]) == [1, 2]
    s1.execute("INSERT INTO visits VALUES (3, 'pay', '2024-05-01 08:10+00', NULL)")
    s1.execute("UPDATE visits SET page = 'home2', updated_at = '2024-05-01 08:12+00' WHERE id = 1")
    assert kinds(project.poll()["visits"], "id") == [("insert", 3), ("update_postimage", 1)]
    assert project.poll()["visits"] == []
    s0.commit()
    assert kinds(project.poll()["visits"], "id") == [("insert", 9), ("update_postimage", 2)]
    assert project.poll()["visits"] == []


def test_a_soft_delete_in_a_transaction_left_open_comes_when_it_commits(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-18, its writes in transactions that are open while polls run"""
    s1 = sqlite_db.connection
    s1.executescript("PRAGMA journal_mode = WAL;" + POSTS)
    writer = sqlite3.connect(sqlite_db.path, isolation_level=None)
    project = Project(tmp_path, sqlite_db.url, {"posts": {}})
    assert len(project.poll()["posts"]) == 3
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE posts SET deleted_at = '2024-05-01 11:00:00' WHERE id = 2")
    assert project.poll()["posts"] == []
    writer.execute("COMMIT")
    assert kinds(project.poll()["posts"], "id") == [("delete", 2)]
    assert project.poll()["posts"] == []
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE posts SET deleted_at = NULL, updated_at = '2024-05-01 12:00:00' WHERE id = 2")
    assert project.poll()["posts"] == []
    writer.execute("COMMIT")
    project.poll()
    assert sorted(project.merged("posts", "id")) == [1, 2, 3]
    assert project.poll()["posts"] == []
    writer.close()
