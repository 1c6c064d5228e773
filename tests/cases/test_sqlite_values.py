# ruff: noqa: E501  what stands in a case's SQL stays as it was reported
"""Values of any class in SQLite's columns: one type a column, from the first row on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError, StateUnavailable
from tests.cases.harness import Project
from tests.conftest import SQLiteFile

ASSAYS = """\
CREATE TABLE assays (id INTEGER PRIMARY KEY, val NUMERIC, meta JSON, flag BOOLEAN, created_at DATETIME NOT NULL, updated_at DATETIME NOT NULL);
INSERT INTO assays VALUES (1, NULL, NULL, NULL, '2024-05-01 10:00:00','2024-05-01 10:00:00'), (2, 5, NULL, 1, '2024-05-01 10:00:01','2024-05-01 10:00:01'),
                          (3, 2.5, NULL, 0, '2024-05-01 10:00:02','2024-05-01 10:00:02');
"""

READINGS = """\
CREATE TABLE readings (id INTEGER PRIMARY KEY, val, at DATETIME, updated_at DATETIME NOT NULL);
INSERT INTO readings VALUES (1, 5, '2024-05-01 09:00', '2024-05-01 10:00:00'), (2, 7, NULL, '2024-05-01 10:00:01');
"""


@pytest.mark.spark
def test_a_column_keeps_its_type_from_null_over_integers_to_reals(
    tmp_path: Path, sqlite_db: SQLiteFile, spark: SparkSession
) -> None:
    """RC-38"""
    s1 = sqlite_db.connection
    s1.executescript(ASSAYS)
    lake = tmp_path / "lake"
    sinks = {"lake": {"format": "parquet", "path": str(lake)}}
    project = Project(tmp_path, sqlite_db.url, {"assays": {}}, sinks=sinks)
    for _ in range(2):
        with sidecar.open(project.path) as sc:
            assert sc.run(spark, once=True) == 0
        s1.execute(
            "INSERT OR IGNORE INTO assays VALUES (4, 7.25, '{\"k\":1}', NULL, '2024-05-01 10:00:03','2024-05-01 10:00:03')"
        )
    frame = spark.read.option("recursiveFileLookup", "true").parquet(str(lake))
    rows = {r["id"]: r for r in frame.collect()}
    assert [rows[n]["val"] for n in (1, 2, 3, 4)] == [None, 5.0, 2.5, 7.25]
    assert [rows[n]["meta"] for n in (1, 2, 3, 4)] == [None, None, None, '{"k":1}']
    assert [rows[n]["flag"] for n in (1, 2, 3, 4)] == [None, True, False, None]
    assert rows[4]["updated_at"].isoformat() == "2024-05-01T10:00:03"


def test_a_bad_value_stops_its_table_and_is_named_until_it_is_mended(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {}})
    assert [r["val"] for r in project.poll()["readings"]] == [5, 7]
    s1.execute("INSERT INTO readings VALUES (3, 'x' || hex(zeroblob(5000)), NULL, '2024-05-01 10:00:02')")
    with pytest.raises(
        SettingsError, match=r'"readings": column "val" .*integer: \'x000.*id=3.*on_bad_value'
    ) as caught:
        project.poll()
    assert len(str(caught.value)) < 500
    s1.execute("UPDATE readings SET val = 9 WHERE id = 3")
    assert [r["val"] for r in project.poll()["readings"]] == [9]


def test_null_stands_in_for_a_bad_value_and_each_page_says_so(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "null"}})
    assert len(project.poll()["readings"]) == 2
    s1.execute(
        "INSERT INTO readings VALUES (3, 'x', 'soon', '2024-05-01 10:00:02'), (4, 'y', NULL, '2024-05-01 10:00:03')"
    )
    run = project.cli("run", "--once")
    assert run.code == 0
    assert '"readings": column "val" (declared without a type)' in run.err
    assert "(first key: id=3); delivered as NULL: 2 of this page" in run.err
    assert [(r["id"], r["val"], r["at"]) for r in project.rows("readings")[2:]] == [(3, None, None), (4, None, None)]
    again = project.cli("run", "--once")
    assert (again.code, again.err) == (0, ""), "delivered once, and told once"


def test_a_row_that_is_set_aside_is_counted_and_its_values_are_kept(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "quarantine"}})
    project.poll()
    s1.execute("INSERT INTO readings VALUES (3, 0.1, x'00ff', '2024-05-01 10:00:02')")
    for _ in range(2):
        assert project.poll()["readings"] == []
    (line,) = (project.folder / "state" / "quarantine" / "readings" / f"{2:020d}.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert found["row"] == {
        "id": 3,
        "val": {"real": "0.1"},
        "at": {"blob": "AP8="},
        "updated_at": "2024-05-01 10:00:02",
    }
    assert (found["offset"], list(found["bad"])) == (2, ["val", "at"])
    assert json.loads(project.cli("status", "--json").out)[0]["quarantined"] == 1
    assert "1 row set aside" in project.cli("status").out.replace("\n", " ")
    s1.execute("UPDATE readings SET val = 3, at = NULL WHERE id = 3")
    assert [(r["id"], r["val"]) for r in project.poll()["readings"]] == [(3, 3)]


def aside(project: Project) -> list[tuple[int, int]]:
    """Return the rows of readings that are set aside: in which segment, and which."""
    files = sorted((project.folder / "state" / "quarantine" / "readings").glob("*"))
    found = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    return [(line["offset"], line["row"]["id"]) for line in found]


def test_a_row_stays_set_aside_once_whatever_columns_come_and_go(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS + "ALTER TABLE readings ADD COLUMN unit TEXT; ALTER TABLE readings ADD COLUMN n INTEGER;")
    s1.execute("INSERT INTO readings VALUES (3, 0.1, x'00ff', '2024-05-01 10:00:02', 'm', 1)")
    project = Project(
        tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "quarantine"}}, defaults={"lookback": "1h"}
    )
    project.poll()
    assert aside(project) == [(1, 3)]
    for change in ("ADD COLUMN note TEXT", "DROP COLUMN unit", "ADD COLUMN more INTEGER"):
        s1.execute(f"ALTER TABLE readings {change}")
        for _ in range(2):
            assert "set aside" not in project.cli("run", "--once").text
        assert aside(project) == [(1, 3)], change
    assert project.cli("watermark", "set", "readings", "2024-05-01 10:00:01").code == 0
    assert "set aside" not in project.cli("run", "--once").text
    assert aside(project) == [(1, 3)], "nor where a position is moved back"
    s1.execute("ALTER TABLE readings ADD COLUMN other INTEGER")
    s1.execute("UPDATE readings SET other = 'x' WHERE id = 3")
    project.poll()
    assert [key for _, key in aside(project)] == [3, 3], "what does not fit in a new column is a change"
    with sidecar.open(project.path) as sc:
        sc.request_backfill("readings")
    project.poll()
    assert [key for _, key in aside(project)] == [3], "a backfill of all rows has read it again"


def test_a_row_whose_segment_could_not_be_written_is_not_taken_for_one_that_is_set_aside(
    tmp_path: Path, sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(
        tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "quarantine"}}, defaults={"lookback": "1h"}
    )
    with sidecar.open(project.path) as sc:
        sc.poll()
        s1.execute("ALTER TABLE readings ADD COLUMN note TEXT")
        s1.execute("INSERT INTO readings VALUES (3, 'x', NULL, '2024-05-01 10:00:02', NULL)")

        def fails(*_: object, **__: object) -> None:
            raise StateUnavailable("the disk is away")

        with monkeypatch.context() as broken:
            broken.setattr(ChangeLog, "append", fails)
            with pytest.raises(StateUnavailable):
                sc.poll()
        sc.poll()
    assert [key for _, key in aside(project)] == [3]


def test_a_row_with_a_null_for_a_bad_value_comes_once_though_a_column_is_added(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    s1.execute("INSERT INTO readings VALUES (3, 0.1, x'00ff', '2024-05-01 10:00:02')")
    project = Project(tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "null"}}, defaults={"lookback": "1h"})
    assert len(project.poll()["readings"]) == 3
    s1.execute("ALTER TABLE readings ADD COLUMN note TEXT")
    assert project.poll()["readings"] == []
    s1.execute("UPDATE readings SET note = x'00' WHERE id = 3")
    assert [(r["id"], r["note"]) for r in project.poll()["readings"]] == [(3, None)]


def test_all_rows_come_again_with_a_column_that_is_backfilled_and_are_set_aside_once(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    s1.execute("INSERT INTO readings VALUES (3, 1, x'00ff', '2024-05-01 10:00:02')")
    settings = {"on_bad_value": "quarantine", "backfill_added": True}
    project = Project(tmp_path, sqlite_db.url, {"readings": settings}, defaults={"lookback": "1h"})
    project.poll()
    s1.execute("ALTER TABLE readings ADD COLUMN note TEXT")
    assert [r["id"] for r in project.poll()["readings"]] == [1, 2]
    assert [key for _, key in aside(project)] == [3]


def test_each_cause_is_named_with_how_many_rows_are_set_aside_for_it(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "quarantine"}})
    project.poll()
    s1.execute("INSERT INTO readings VALUES (3, 'x', NULL, '2024-05-01 10:00:02')")
    told = project.cli("run", "--once").err
    assert "1 row is set aside in " in told
    s1.executescript(
        "INSERT INTO readings VALUES (4, 'x', NULL, '2024-05-01 10:00:03'), (5, 'y', NULL, '2024-05-01 10:00:03'),"
        "(6, 1, x'00', '2024-05-01 10:00:03'), (7, x'00', NULL, '2024-05-01 10:00:03')"
    )
    told = project.cli("run", "--once").err
    assert "4 rows are set aside in " in told
    causes = [cause.partition("(")[2].partition(")")[0] for cause in told.partition(": column ")[2].split("; column ")]
    assert causes == ["2 rows, first key: id=4", "1 row, first key: id=6", "1 row, first key: id=7"]


def test_a_key_without_a_declared_type_is_what_its_values_are(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE k (id PRIMARY KEY, at DATETIME, updated_at TIMESTAMP NOT NULL)")
    s1.executemany("INSERT INTO k VALUES (?, NULL, ?)", [(n, 1714557600 + n % 3) for n in range(10)])
    project = Project(tmp_path, sqlite_db.url, {"k": {"page_size": 2, "on_bad_value": "null"}})
    assert sorted(r["id"] for r in project.poll()["k"]) == list(range(10))
    assert project.poll()["k"] == []
    s1.execute("INSERT INTO k VALUES ('x', NULL, 1714557700)")
    with pytest.raises(SettingsError, match=r'"k": key column "id".*class text.*choose another key column'):
        project.poll()


def test_a_stamp_that_is_no_time_moves_nothing_where_stamps_are_delivered_as_times(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {"on_bad_value": "null"}})
    project.poll()
    s1.execute("INSERT INTO readings VALUES (3, 1, NULL, 'infinity')")
    assert [(r["id"], r["updated_at"]) for r in project.poll()["readings"]] == [(3, None)]
    s1.execute("INSERT INTO readings VALUES (4, 1, NULL, '2024-05-01 10:00:01')")
    assert [r["id"] for r in project.poll()["readings"]] == [4]
    assert project.poll()["readings"] == []


def test_a_log_from_before_keeps_the_types_that_it_has(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {}})
    s1.execute("UPDATE readings SET at = 'unknown' WHERE id = 1")
    assert [r["at"] for r in project.poll()["readings"]] == ["unknown", None]
    s1.execute("UPDATE readings SET at = '2024-05-01 09:00', updated_at = '2024-05-01 10:00:05'")
    assert {r["at"] for r in project.poll()["readings"]} == {"2024-05-01 09:00"}


def test_two_texts_of_one_time_are_two_keys(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(
        "CREATE TABLE t (id DATETIME PRIMARY KEY, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);"
        "INSERT INTO t VALUES ('2024-05-01 10:00', '2024-05-01', '2024-05-01'),"
        " ('2024-05-01T10:00:00', '2024-05-01', '2024-05-01');"
    )
    rows = Project(tmp_path / "p", sqlite_db.url, {"t": {}}).poll()["t"]
    assert [row["id"] for row in rows] == ["2024-05-01 10:00", "2024-05-01T10:00:00"]


def test_the_year_0_is_no_time_whatever_stands_beside_it(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    sqlite_db.connection.executescript(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, d DATETIME, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);"
        "INSERT INTO t VALUES (1, '0000-01-01 00:00:00', '2024-05-01', '2024-05-01');"
    )
    (row,) = Project(tmp_path / "p", sqlite_db.url, {"t": {}}).poll()["t"]
    assert row["d"] == "0000-01-01 00:00:00"


def test_check_names_the_types_that_no_declaration_tells(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript(READINGS + ASSAYS)
    project = Project(tmp_path, sqlite_db.url, {"readings": {}, "assays": {}})
    found = project.cli("check")
    assert (found.code, "note: " not in found.out.partition("assays")[2]) == (0, True)
    assert 'note: their values decide how these columns arrive: "val" (no type) as bigint\n' in found.out
    assert ", 0 errors, " in found.out
    s1.execute("UPDATE readings SET at = 'soon', val = 0.5 WHERE id = 1")
    assert '"val" (no type) as double, "at" (DATETIME) as string' in project.cli("check").out
    s1.execute("DELETE FROM readings")
    assert "note: " not in project.cli("check").out
