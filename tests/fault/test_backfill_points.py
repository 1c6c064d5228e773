"""G4 at every named crash point of a backfill: it goes on after its last chunk, loses nothing and repeats nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fault.harness import KILLED, PostgresSource, Project, Source, SQLiteSource, Writer, clean, holds
from tests.servers import Database

COPYING_POINTS = ("backfill-begun", "chunk-read", "chunk-written", "chunk-saved", "backfill-finished")
ASKING_POINTS = ("backfill-requested", "keys-purged", "refresh-requested")
LOST = [False, pytest.param(True, marks=pytest.mark.soak)]
"""Of those that lose their state as well, what CI runs are the ones on PostgreSQL and the purges."""

KILLS = [
    *("backfill-requested", "backfill-requested:2", "backfill-begun:1", "backfill-begun:2", "chunk-read:1"),
    *("chunk-read:6", "chunk-written:1", "chunk-written:5", "chunk-saved:1", "chunk-saved:6"),
    *("backfill-finished:1", "backfill-finished:2"),
]
CHUNK, READERS = 7, 2

MakeSource = Callable[[], Source]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def filled(source: Source, seed: int) -> Writer:
    """Fill both tables: with rows that no poll will read, and others."""
    writer = Writer(source, seed)
    for table in ("t", "u"):
        writer.fill(60, table)
        source.execute(f"UPDATE {table} SET updated_at = '2024-05-01 10:00:00.000000+00' WHERE id % 3 > 0")
    writer.write(60)
    return writer


def count(source: Source, table: str) -> int:
    return len(source.content(table))


def killed_in_a_first_backfill(source: Source, folder: Path, point: str, *, lose: bool, consistent: bool) -> None:
    writer = filled(source, seed=7)
    project = Project(folder, source.url, defaults=f"consistent = {str(consistent).lower()}")
    assert project.run(crash=point).code == KILLED, "the point was not reached"
    writer.write(40)
    if lose:
        shutil.rmtree(project.database, ignore_errors=True)
    clean(project.run())
    holds(source, project)
    if not lose:
        # What was read and not written: one chunk in each reader's hand, those in the queue, and the one being written.
        for table in ("t", "u"):
            again = project.rows_read(table, "all") - count(source, table)
            assert again <= (2 * READERS + 1) * CHUNK, f"{again} rows were read again"
    before = project.rows_read("t", "all") + project.rows_read("u", "all")
    writer.write(20)
    clean(project.run())
    holds(source, project)
    assert project.rows_read("t", "all") + project.rows_read("u", "all") == before, "a backfill is made once"


@pytest.mark.parametrize("lose", LOST, ids=["state kept", "state lost"])
@pytest.mark.parametrize("point", KILLS)
def test_a_first_backfill_that_is_killed_goes_on(sqlite: SQLiteSource, tmp_path: Path, point: str, lose: bool) -> None:
    killed_in_a_first_backfill(sqlite, tmp_path / "project", point, lose=lose, consistent=False)


@pytest.mark.parametrize("point", KILLS)
def test_a_first_backfill_by_two_readers_that_is_killed_goes_on(pg: Database, tmp_path: Path, point: str) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    killed_in_a_first_backfill(source, tmp_path / "project", point, lose=False, consistent=False)


@pytest.mark.parametrize("point", ["chunk-read:6", "chunk-written:5", "chunk-saved:6", "backfill-finished:1"])
def test_a_first_backfill_by_two_readers_that_is_killed_and_loses_its_state_goes_on(
    pg: Database, tmp_path: Path, point: str
) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    killed_in_a_first_backfill(source, tmp_path / "project", point, lose=True, consistent=False)


@pytest.mark.parametrize("lose", LOST, ids=["state kept", "state lost"])
@pytest.mark.parametrize("point", ["backfill-begun:2", "chunk-read:4", "chunk-written:5", "chunk-saved:5"])
def test_a_copy_of_one_instant_that_is_killed_goes_on(
    sqlite: SQLiteSource, tmp_path: Path, point: str, lose: bool
) -> None:
    killed_in_a_first_backfill(sqlite, tmp_path / "project", point, lose=lose, consistent=True)


@pytest.mark.parametrize("lose", LOST, ids=["state kept", "state lost"])
@pytest.mark.parametrize("point", ["backfill-begun:2", "chunk-written:5", "chunk-saved:5"])
def test_a_copy_of_one_instant_by_two_readers_that_is_killed_goes_on(
    pg: Database, tmp_path: Path, point: str, lose: bool
) -> None:
    source = PostgresSource(pg.connect(), pg.reader_url)
    killed_in_a_first_backfill(source, tmp_path / "project", point, lose=lose, consistent=True)


def whole(source: Source, project: Project, table: str) -> None:
    """Assert that the folded log is the source, keys and all, and that no version came before an older one."""
    folded, last = dict[int, tuple[int, bool]](), dict[int, int]()
    for row in project.changes(table):
        assert row["v"] >= last.get(row["id"], 0), row
        last[row["id"]] = row["v"]
        folded[row["id"]] = (row["v"], row["_change_type"] == "delete")
    there = {key: value for key, value in folded.items() if not value[1]}
    assert there == {key: value for key, value in source.content(table).items() if not value[1]}


@pytest.mark.parametrize("lose", [False, True], ids=["state kept", "state lost"])
@pytest.mark.parametrize(
    "point",
    ["backfill-begun", "chunk-written:3", "chunk-saved:3", "keys-purged:1", "keys-purged:2", "backfill-finished"],
)
def test_a_purge_that_is_killed_deletes_each_key_once(
    sqlite: SQLiteSource, tmp_path: Path, point: str, lose: bool
) -> None:
    filled(sqlite, seed=8)
    project = Project(tmp_path / "project", sqlite.url)
    clean(project.run())
    doomed = [key for key in sqlite.content("t") if key % 4 == 0]
    sqlite.execute("DELETE FROM t WHERE id % 4 = 0")
    clean(project.run("backfill", "t", "--purge"))
    first = project.log().last()
    assert project.run(crash=point).code == KILLED, "the point was not reached"
    if lose:
        shutil.rmtree(project.database)
    clean(project.run())
    whole(sqlite, project, "t")
    purged = Counter(
        row["id"]
        for row in project.changes()
        if row["_commit_version"] > first and row["_change_type"] == "delete" and row["id"] in doomed
    )
    alive = {
        row["id"] for row in project.changes() if row["_commit_version"] <= first and row["_change_type"] != "delete"
    }
    assert set(purged) <= set(doomed) & alive
    assert set(purged.values()) == {1}
    written = Counter(row["id"] for row in project.changes() if row["_commit_version"] > first)
    assert set(written.values()) == {1}, "a chunk came twice"


def test_a_request_that_was_killed_after_it_was_made_is_done(sqlite: SQLiteSource, tmp_path: Path) -> None:
    filled(sqlite, seed=9)
    project = Project(tmp_path / "project", sqlite.url)
    clean(project.run())
    first = project.log().last()
    assert project.run("backfill", "t", crash="backfill-requested").code == KILLED
    clean(project.run())
    assert {row["id"] for row in project.log().rows(first)} == set(sqlite.content("t"))
    whole(sqlite, project, "t")


@pytest.mark.parametrize("point", ["refresh-requested", "backfill-requested", "chunk-written", "backfill-finished"])
def test_children_are_delivered_again_although_the_process_was_killed(
    sqlite: SQLiteSource, tmp_path: Path, point: str
) -> None:
    filled(sqlite, seed=10)
    project = Project(
        tmp_path / "project", sqlite.url, tables='[[tables.u.refresh_on]]\ntable = "t"\non = { id = "id" }\n'
    )
    clean(project.run())
    first = project.log("u").last()
    with sqlite3.connect(sqlite.path) as owner:
        owner.execute("UPDATE t SET v = v + 1000000, updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = 1001")
    owner.close()
    assert project.run(crash=point).code == KILLED, "the point was not reached"
    clean(project.run())
    assert {row["id"] for row in project.log("u").rows(first)} == {1001}
    whole(sqlite, project, "u")
