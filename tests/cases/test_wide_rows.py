"""Rows of any width: nobody knows how wide they are before they are read, and memory holds a few pages of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sidecar
from connectors.postgres import PostgresConnector
from sidecar.backfilling.copying import Work, first, following
from sidecar.clock import SystemClock, iso
from sidecar.connector import Source
from sidecar.model import Page, Pass, Table, Tracked
from sidecar.polls import ahead
from tests.cases.harness import Project
from tests.conftest import SQLiteFile
from tests.servers import Database, make

KIB = 1 << 10
NEW = "SELECT g, repeat('x', 10240), now() FROM generate_series"


def test_a_page_after_wide_rows_has_as_many_as_there_is_room_for() -> None:
    wide = pa.table({"v": [b"x" * (1 << 20)] * 8})
    assert ahead.room(200, wide) == 63
    assert ahead.room(200, pa.table({"v": [b"x" * (100 << 20)]})) == 1
    assert ahead.room(200, pa.table({"v": [1] * 200})) == 3_200
    assert ahead.room(200, wide.slice(0, 0)) == 200
    assert ahead.room(200, pa.table({"v": pa.nulls(200)})) == 3_200


def test_chunks_begin_small_and_soon_are_as_large_as_they_may_be() -> None:
    tracked = Tracked(Table("t", ("t",), (), ("id",)), ("id",), "at")
    work = Work("job", 0, 0, Page(tracked, Pass("all", None), {}, None, 20_000), 0, None, adaptive=True)
    narrow, wide = pa.table({"id": range(40_000)}), pa.table({"id": range(200), "v": [b"x" * (1 << 20)] * 200})
    assert first(work, None) == 100
    assert first(work, 40_000) == 40_000
    sizes, page = [], Page(tracked, Pass("all", None), {}, None, 100)
    for _ in range(3):
        after = following(work, page, narrow.slice(0, page.limit), seconds=0.01)
        assert after is not None
        page = after
        sizes.append(page.limit)
    assert sizes == [1_600, 20_000, 40_000]
    after = following(work, Page(tracked, Pass("all", None), {}, None, 200), wide, seconds=0.01)
    assert after is not None
    assert after.limit == 63


def test_a_poll_begins_as_the_last_rows_let_it_and_small_where_nothing_is_known_of_them() -> None:
    def of(known: int | None) -> int:
        return ahead.Reader(PostgresConnector(Source("postgresql://nowhere/db")), known).limit(50_000)

    assert of(None) == 100
    assert of(ahead.width(pa.table({"id": range(10)}))) == 2_000
    assert of(ahead.width(pa.table({"v": [b"x" * (1 << 20)] * 4}))) == 32
    assert of(1 << 40) == 1
    assert ahead.width(pa.table({"id": range(10)})) == ahead.width(pa.table({"id": range(1_000)}))


def sizes(project: Project) -> list[int]:
    with sidecar.open(project.path, read_only=True) as sc:
        log = sc.log("t")
        return [len(data) for at in range(1, log.last() + 1) if (data := log.get(at)) is not None]


@pytest.mark.parametrize("first_poll", [True, False], ids=["existing rows", "new rows"])
def test_wide_rows_come_in_small_segments_and_all_of_them_once_from_sqlite(
    sqlite_db: SQLiteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_poll: bool
) -> None:
    monkeypatch.setattr(ahead, "ROOM", 1024 * KIB)
    writer = sqlite_db.connection
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL)")
    project = Project(tmp_path, sqlite_db.url, {"t": {}})
    if not first_poll:
        project.poll()
    at = iso(SystemClock().now())
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO t VALUES (?, ?, ?)", [(n, "x" * 10 * KIB, at) for n in range(1_000)])
    writer.execute("COMMIT")
    project.poll()
    assert max(sizes(project)[1:]) <= 103
    assert sorted(row["id"] for row in project.rows("t")) == [*range(1_000)]
    with sidecar.open(project.path, read_only=True) as sc:
        mark = sc.store.watermark("t")
    assert mark is not None
    assert mark.width == 16 * KIB


@pytest.mark.parametrize("first_poll", [True, False], ids=["existing rows", "new rows"])
def test_wide_rows_come_in_small_segments_and_all_of_them_once_from_postgres(
    pg: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_poll: bool
) -> None:
    monkeypatch.setattr(ahead, "ROOM", 1024 * KIB)
    owner = pg.connect()
    make(owner, "CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
    project = Project(tmp_path, pg.reader_url, {"t": {}}, backfill={"parallelism": 1})
    if not first_poll:
        project.poll()
    make(owner, f"INSERT INTO t {NEW}(0, 999) g", "ANALYZE t")
    project.poll()
    assert max(sizes(project)[1:]) <= 103
    assert sorted(row["id"] for row in project.rows("t")) == [*range(1_000)]
