"""Where sinks begin that are new: with a base where the log does not tell all; and what is said where nothing does."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sidecar
from sidecar import faults
from sidecar.errors import SinkError
from sidecar.lake import current
from sidecar.log import bases
from sidecar.log.retention import drop_old
from sidecar.mirrors.mirror import MirrorSink
from sidecar.sinks import Batch
from tests.conftest import SQLiteFile
from tests.unit.mirrors import VERSION, changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
LAKE = '[sinks.lake]\nformat = "delta"\nmode = "mirror"\npath = "lake"\n'
POND = LAKE.replace("lake", "pond")


class Shop:
    """A project of one table, and its source."""

    def __init__(self, db: SQLiteFile, folder: Path) -> None:
        self.folder, self.path, self.connection = folder, folder / "sidecar.toml", db.connection
        self.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, updated_at TEXT NOT NULL, deleted_at TEXT)")
        self._settings = f'[source]\nurl = "{db.url}"\n[tables.t]\nlookback = "1us"\n'
        self.sinks("")

    def execute(self, sql: str) -> sqlite3.Cursor:
        return self.connection.execute(sql)

    def sinks(self, said: str) -> None:
        self.path.write_text(self._settings + said)

    def write(self, *ids: int, v: object = 1) -> None:
        for id_ in ids:
            self.execute(f"INSERT OR REPLACE INTO t VALUES ({id_}, {v}, {NOW}, NULL)")

    def poll(self) -> None:
        with sidecar.open(self.path) as sc:
            sc.poll()

    def base(self) -> int:
        """Write a base as of now, without Spark, and let retention drop what is before."""
        with sidecar.open(self.path) as sc:
            log = sc.log("t")
            offset, columns = log.last(), current.plan(log, None, lambda: pa.schema([])).schema
            bases.aside(log, offset).mkdir()
            rows = self.execute(f"SELECT {', '.join(columns.names)} FROM t WHERE deleted_at IS NULL").fetchall()
            arrays = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), columns, strict=True)]
            pq.write_table(
                pa.table(arrays, schema=columns), bases.aside(log, offset) / "part-0.parquet", row_group_size=2
            )
            bases.settled(log, offset, 7, columns)
            return offset

    def drop(self) -> None:
        with sidecar.open(self.path) as sc:
            assert drop_old(sc.log("t"), sc.store, [], before=2**62) > 0

    def run(self, spark: SparkSession | None = None) -> int:
        with sidecar.open(self.path) as sc:
            return sc.run(spark, once=True)

    def live(self) -> list[Any]:
        return self.execute("SELECT id, v FROM t WHERE deleted_at IS NULL ORDER BY id").fetchall()

    def mirror(self, sink: str) -> list[Any]:
        from deltalake import DeltaTable

        rows = pa.table(DeltaTable(str(self.folder / sink / "t")).to_pyarrow_table()).sort_by("id").to_pylist()
        return [(r["id"], r["v"]) for r in rows if r.get("_valid_to") is None]


@pytest.fixture
def shop(sqlite_db: SQLiteFile, tmp_path: Path) -> Shop:
    return Shop(sqlite_db, tmp_path)


def based(shop: Shop) -> None:
    """Let the log begin behind a base of five rows, one of which has changed since; another has come, one has gone."""
    shop.write(1, 2, 3)
    shop.poll()
    shop.write(4, 5)
    shop.poll()
    shop.base()
    shop.write(1, 6, v=2)
    shop.poll()
    shop.drop()
    shop.execute(f"UPDATE t SET deleted_at = {NOW}, updated_at = {NOW} WHERE id = 2")


@pytest.mark.parametrize("more", ["", "history = true\n"], ids=["current", "history"])
def test_a_new_mirror_begins_with_the_base_once_the_log_has_been_shortened(
    shop: Shop, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    based(shop)
    shop.sinks(LAKE + more)
    for name in ("mirror-written", "mirror-committed"):

        def die(point: str, name: str = name) -> None:
            if point == name:
                raise KeyboardInterrupt

        monkeypatch.setattr(faults, "point", die)
        with pytest.raises(KeyboardInterrupt):
            shop.run()
        monkeypatch.undo()
    assert shop.run() == 0
    assert shop.mirror("lake") == shop.live()
    shop.write(7)
    assert shop.run() == 0
    assert (7, 1) in shop.mirror("lake")


def test_without_a_base_a_new_mirror_is_refused_and_what_the_error_advises_works(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.write(1, 2)
    shop.poll()
    shop.write(3)
    shop.poll()
    shop.drop()
    shop.sinks(LAKE)
    assert shop.run() == 6
    assert "sidecar watermark reset t" in caplog.text
    assert not (shop.folder / "lake").exists()
    with sidecar.open(shop.path) as sc:
        sc.reset_watermark("t")
    assert shop.run() == 0
    assert shop.mirror("lake") == shop.live()


@pytest.mark.parametrize("way", ["a reset", "a base"])
def test_behind_a_change_of_type_a_new_mirror_begins_with_a_base_or_a_reset(
    shop: Shop, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    shop.sinks(LAKE)
    shop.write(1, 2)
    assert shop.run() == 0
    shop.execute("DROP TABLE t")
    shop.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, updated_at TEXT NOT NULL, deleted_at TEXT)")
    shop.write(1, 2, 3, v="'x'")
    with sidecar.open(shop.path) as sc:
        sc.accept_schema("t")
    assert shop.run() == 6
    assert "sidecar watermark reset TABLE" in caplog.text
    shop.sinks(POND)
    assert shop.run() == 6
    assert "sidecar watermark reset t" in caplog.text
    with sidecar.open(shop.path) as sc:
        sc.reset_watermark("t")
    if way == "a base":
        shop.sinks("")
        shop.poll()
        shop.base()
        shop.sinks(POND)
    shop.write(4, v="'y'")
    assert shop.run() == 0
    assert shop.mirror("pond") == shop.live()


def saved(shop: Shop) -> Callable[[], None]:
    """Make a copy of the state; return what restores it."""
    state, copy = shop.folder / ".sidecar", shop.folder / "copy"
    shutil.copytree(state, copy)

    def restore() -> None:
        shutil.rmtree(state)
        shutil.copytree(copy, state)

    return restore


@pytest.mark.parametrize("is_longer", [False, True], ids=["shorter", "grown again"])
def test_a_mirror_knows_that_its_log_was_restored_from_an_older_copy_and_a_new_one_begins_anew(
    shop: Shop, caplog: pytest.LogCaptureFixture, is_longer: bool
) -> None:
    shop.sinks(LAKE)
    shop.write(1)
    assert shop.run() == 0
    restore = saved(shop)
    for id_ in (2, 3):
        shop.write(id_)
        assert shop.run() == 0
    restore()
    if is_longer:
        shop.sinks("")
        for id_ in range(4, 8):
            shop.write(id_)
            shop.poll()
        shop.sinks(LAKE)
    else:
        shop.write(4)
    assert shop.run() == 6
    assert "was restored from an older copy" in caplog.text
    assert len(shop.mirror("lake")) == 3
    shop.sinks(POND)
    assert shop.run() == 0
    assert shop.mirror("pond") == shop.live()


def test_a_mirror_that_lagged_when_a_damaged_log_was_reset_says_so_and_a_new_one_begins_anew(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    shop.sinks(LAKE)
    shop.write(1)
    assert shop.run() == 0
    shop.sinks("")
    for id_ in (2, 3):
        shop.write(id_)
        shop.poll()
    with sidecar.open(shop.path) as sc:
        sc.log("t").path(sc.log("t").last()).unlink()
    with sidecar.open(shop.path) as sc:
        sc.reset_watermark("t")
    shop.sinks(LAKE)
    assert shop.run() == 6
    assert "If that was damaged, and begun anew before the table had them" in caplog.text
    shop.sinks(POND)
    assert shop.run() == 0
    assert shop.mirror("pond") == shop.live()


def test_a_transform_that_makes_one_key_of_two_is_refused_with_the_key_also_where_they_are_in_two_files(
    spark: SparkSession, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    based(shop)
    base = next((shop.folder / ".sidecar" / "log" / "t" / "_bases").iterdir())
    rows = pq.read_table(base / "part-0.parquet")
    with sidecar.open(shop.path) as sc:
        log = sc.log("t")
        offset = int(base.name)
        bases.drop(log, [offset])
        bases.aside(log, offset).mkdir()
        for part in (0, 1):
            pq.write_table(rows.slice(part * 3, 3), bases.aside(log, offset) / f"part-{part}.parquet")
        bases.settled(log, offset, 7, rows.schema.remove_metadata())
    (shop.folder / "merging.py").write_text("def apart(frame):\n    return frame.withColumn('id', frame['id'] % 4)\n")
    shop.sinks(LAKE + 'transform = "merging:apart"\n')
    assert shop.run(spark) == 6
    assert "merging:apart makes one key of several rows (id=1)" in caplog.text
    assert not (shop.folder / "lake" / "t" / "_delta_log").exists()
    batch, pond = Batch("t", 1, 1, key=("id",), log="a log"), MirrorSink("p", "a:b", path=str(shop.folder / "p"))
    with pytest.raises(SinkError, match=r"a:b makes one key of several rows \(id=7\)"):
        pond.apply(changes(1, {"id": [7, 7]}), batch, VERSION)


def test_sinks_that_take_changes_and_those_with_a_transform_are_given_a_base_as_a_backfill(
    spark: SparkSession, shop: Shop
) -> None:
    based(shop)
    (shop.folder / "begun_late.py").write_text(
        "taken = []\n"
        "def take(frame, batch):\n"
        "    assert frame.columns[:4] == ['_change_type', '_commit_version', '_commit_timestamp', '_origin']\n"
        "    for r in frame.collect():\n"
        "        taken.append((batch.last, r['_commit_version'], r['_change_type'], r['_origin'], r['id'], r['v']))\n"
        "def shape(frame):\n    return frame.withColumn('v', frame['v'] * 10)\n"
    )
    shop.sinks('[sinks.function]\nforeach = "begun_late:take"\n' + LAKE + 'transform = "begun_late:shape"\n')
    assert shop.run(spark) == 0
    import begun_late  # type: ignore[import-not-found]

    first = [(n, 1) for n in range(1, 6)]
    assert sorted(begun_late.taken)[:5] == [(2, 2, "insert", "backfill", *row) for row in first]
    assert sorted(r[4] for r in begun_late.taken if r[0] > 2) == [1, 2, 6]
    assert shop.mirror("lake") == [(id_, v * 10) for id_, v in shop.live()]


def test_a_sink_that_was_stopped_in_its_beginning_goes_on_with_no_other_base(
    spark: SparkSession, shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    based(shop)
    lake = '[sinks.lake]\nformat = "json"\npath = "lake"\n'

    def die(point: str) -> None:
        if point == "sink-committed":
            raise KeyboardInterrupt

    shop.sinks(lake)
    monkeypatch.setattr(faults, "point", die)
    with pytest.raises(KeyboardInterrupt):
        shop.run(spark)
    monkeypatch.undo()
    # While nobody asks for the sink, its base goes.
    shop.sinks("")
    shop.write(8)
    shop.poll()
    offset = shop.base()
    shop.write(9)
    shop.poll()
    shop.drop()
    with sidecar.open(shop.path) as sc:
        bases.drop(sc.log("t"), [b for b in bases.offsets(sc.log("t")) if b < offset])
    shop.sinks(lake)
    assert shop.run(spark) == 6
    assert "are gone from the log since" in caplog.text
    assert spark.read.json(str(shop.folder / "lake" / "t")).count() == 5
    shop.sinks(lake.replace("lake", "pond"))
    assert shop.run(spark) == 0
    begun = spark.read.json(str(shop.folder / "pond" / "t")).collect()
    assert sorted((row["id"], row["v"]) for row in begun) == shop.live()
