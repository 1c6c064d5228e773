# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Runs that are killed, runs that meet, and runs that find nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sidecar
from sidecar.clock import SystemClock
from tests.cases.harness import Project, fold, kinds, wait_for
from tests.conftest import SQLiteFile
from tests.servers import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAY = """\
CREATE TABLE pay (id INTEGER PRIMARY KEY, cents INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO pay VALUES (1,100,'2024-05-01 10:00:00','2024-05-01 10:00:00'),(2,200,'2024-05-01 10:01:00','2024-05-01 10:01:00'),(3,300,'2024-05-01 10:02:00','2024-05-01 10:02:00');
"""

BIG = """\
CREATE TABLE big (id INTEGER PRIMARY KEY, v TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO big SELECT n, hex(randomblob(20)), '2024-05-01 10:00:00', '2024-05-01 10:00:00'
FROM (WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 20000) SELECT n FROM c);
"""

EMPTY = """\
CREATE TABLE empt (id INTEGER PRIMARY KEY, n INTEGER, r REAL, t TEXT, b BLOB, d DATETIME, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
"""

SINK = """\
import json, os, pathlib, signal, time
here = pathlib.Path(__file__).parent

def killed(frame, batch):
    with (here / "sink.jsonl").open("a") as file:
        file.writelines(json.dumps(row.asDict(), default=str) + "\\n" for row in frame.collect())
        file.flush()
        os.fsync(file.fileno())
    if (here / "kill").exists():
        (here / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def slow(frame, batch):
    (here / "writing").touch()
    time.sleep(60)
"""


def test_a_kill_after_the_sink_has_committed_loses_nothing(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-59"""
    s1 = sqlite_db.connection
    s1.executescript(PAY)
    project = Project(tmp_path, sqlite_db.url, {"pay": {}}, sinks={"out": {"foreach": "mysink:killed"}})
    (tmp_path / "mysink.py").write_text(SINK)
    (tmp_path / "kill").touch()
    assert project.cli("run", "--once").code == -9
    first = [json.loads(line) for line in (tmp_path / "sink.jsonl").read_text().splitlines()]
    assert sorted(r["id"] for r in first) == [1, 2, 3]
    s1.execute("UPDATE pay SET cents = 201, updated_at = '2024-05-01 11:00:00' WHERE id = 2")
    again = project.cli("run", "--once")
    assert again.code == 0, again.text
    rows = [json.loads(line) for line in (tmp_path / "sink.jsonl").read_text().splitlines()]
    replayed = rows[3:-1]
    assert sorted(map(str, replayed)) in ([], sorted(map(str, first)))
    assert len({(r["id"], r["_commit_version"]) for r in rows}) == 4
    rows.sort(key=lambda r: r["_commit_version"])
    assert {n: r["cents"] for n, r in fold(rows, "id").items()} == {1: 100, 2: 201, 3: 300}
    assert {n: r["cents"] for n, r in project.merged("pay", "id").items()} == {1: 100, 2: 201, 3: 300}


@pytest.mark.parametrize("point", ["page-read:2", "segment-written:2", "segment-renamed", "watermark-saved",
                                   "poll-completed"])  # fmt: skip
def test_a_kill_at_any_step_of_a_poll_repeats_and_loses_nothing(tmp_path: Path, pg: Database, point: str) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TABLE pay (id int PRIMARY KEY, cents int, updated_at timestamptz NOT NULL, deleted_at timestamptz);"
        "INSERT INTO pay SELECT g, g, '2024-05-01 10:00+00' FROM generate_series(1, 10) g"
    )
    project = Project(tmp_path, pg.reader_url, {"pay": {"page_size": 3}})
    assert project.cli("run", "--once", env={"SIDECAR_CRASH_AT": point}).code == -9
    s1.execute("UPDATE pay SET cents = -1 WHERE id IN (1, 10)")
    s1.execute("UPDATE pay SET deleted_at = '2024-05-01 11:00+00' WHERE id = 5")
    project.poll()
    assert {n: r["cents"] for n, r in project.merged("pay", "id").items()} == {
        1: -1, 2: 2, 3: 3, 4: 4, 6: 6, 7: 7, 8: 8, 9: 9, 10: -1
    }  # fmt: skip
    versions = [(r["id"], r["cents"], r["_change_type"]) for r in project.rows("pay")]
    assert len(versions) == len(set(versions))
    assert project.poll()["pay"] == []


def test_a_second_runner_is_turned_away_and_a_killed_one_leaves_no_obstacle(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    """RC-61"""
    sqlite_db.connection.executescript(BIG)
    project = Project(tmp_path, sqlite_db.url, {"big": {}}, sinks={"out": {"foreach": "mysink:slow"}})
    (tmp_path / "mysink.py").write_text(SINK)
    first = project.start("run", "--once")
    try:
        assert wait_for((tmp_path / "writing").exists, 120)
        second = project.cli("run", "--once")
        assert second.code == 4
        assert str(tmp_path / "state") in second.err
        assert str(first.pid) in second.err
        assert "Traceback" not in second.err
        for look in (("status", "--json"), ("changes", "big", "--limit", "2")):
            assert project.cli(*look).code == 0
        assert project.cli("watermark", "reset", "big").code == 4
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    project.write(sinks={})
    assert project.poll()["big"] == []
    rows = project.rows("big")
    assert (len(rows), len(fold(rows, "id"))) == (20_000, 20_000)


def test_two_runners_that_start_at_once_deliver_once(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(PAY)
    project = Project(tmp_path, sqlite_db.url, {"pay": {}})
    runs = [project.start("run", "--once") for _ in range(3)]
    said = [run.communicate(timeout=60) for run in runs]
    assert {run.returncode for run in runs} <= {0, 4}, said
    assert 0 in {run.returncode for run in runs}
    assert kinds(project.rows("pay"), "id") == [("insert", 1), ("insert", 2), ("insert", 3)]


def test_a_loop_that_is_told_to_stop_lets_go_at_once(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(PAY)
    project = Project(tmp_path, sqlite_db.url, {"pay": {}})
    loop = project.start("run", "--interval", "1h")
    assert wait_for(lambda: bool(list((tmp_path / "state").rglob("*.parquet"))))
    SystemClock().sleep(0.3)
    loop.terminate()
    loop.communicate(timeout=20)
    assert loop.returncode == 0
    assert project.poll()["pay"] == []


def test_polls_without_changes_give_typed_frames_and_no_files(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession
) -> None:
    """RC-70"""
    s1 = sqlite_db.connection
    s1.executescript(EMPTY)
    project = Project(tmp_path, sqlite_db.url, {"empt": {}}, sinks={"lake": {"format": "parquet", "path": "lake"}})
    with sidecar.open(project.path) as sc:
        assert sc.run(spark, once=True) == 0
        before = sc.dataframe(spark, "empt")
        assert before.count() == 0
    s1.execute(
        "INSERT INTO empt VALUES (1, 5, 1.5, 'x', X'01', '2024-05-01 09:00:00', '2024-05-01 10:00:00','2024-05-01 10:00:00')"
    )
    for _ in range(2):
        with sidecar.open(project.path) as sc:
            assert sc.run(spark, once=True) == 0
            after = sc.dataframe(spark, "empt")
            quiet = sc.dataframe(spark, "empt", since=1)
    assert (after.count(), quiet.count()) == (1, 0)
    assert before.dtypes == quiet.dtypes == after.dtypes
    types = dict(before.dtypes)
    assert (types["n"], types["r"], types["t"], types["b"]) == ("bigint", "double", "string", "binary")
    held = spark.read.parquet(str(tmp_path / "lake" / "empt"))
    assert [(r["n"], r["r"], r["t"], bytes(r["b"])) for r in held.collect()] == [(5, 1.5, "x", b"\x01")]


def test_an_empty_table_of_every_type_gives_the_frame_of_a_full_one(
    tmp_path: Path, pg: Database, spark: SparkSession
) -> None:
    s1 = pg.connect()
    s1.execute(
        "CREATE TYPE mood AS ENUM ('ok'); CREATE DOMAIN posint AS int CHECK (VALUE > 0);"
        "CREATE TABLE every (id int PRIMARY KEY, a smallint, b bigint, c real, d float8, e numeric, f numeric(10,2), g"
        " text, h varchar(9), i char(5), j bytea, k bool, l date, m time, n timetz, o timestamp, p timestamptz, q interval,"
        " r uuid, s json, t jsonb, u int[], v text[], w mood, x posint, y inet, z point, aa money, bb bit(3), cc macaddr, dd"
        " int4range, ee numeric(38,38), ff numeric(50,2), gg tsvector, hh oid, updated_at timestamptz NOT NULL)"
    )
    project = Project(tmp_path, pg.reader_url, {"every": {}})
    project.poll()
    with sidecar.open(project.path) as sc:
        before = sc.dataframe(spark, "every").schema
    s1.execute(
        "INSERT INTO every VALUES (1, 1, 1, 1.5, 1.5, 1.50, 1.50, 't', 'v', 'c', '\\x00ff', true, '2024-05-01', '10:00',"
        " '10:00+02', '2024-05-01 10:00', '2024-05-01 10:00+00', '1 day', '0b1dd3a6-2b0c-4c55-8e1c-0fb8a1bd6bfc', '{}',"
        " '{}', '{1}', '{a}', 'ok', 1, '::1', '(1,2)', 1.5, '101', '08:00:2b:01:02:03', '[1,2)', 0.5, 1.5, 'a', 1, now()),"
        " (2" + ", NULL" * 34 + ", now())"
    )
    assert len(project.poll()["every"]) == 2
    with sidecar.open(project.path) as sc:
        frame = sc.dataframe(spark, "every")
        assert frame.schema.simpleString() == before.simpleString()
        assert len(frame.collect()) == 2
    assert project.poll()["every"] == []
