"""Files know how far a log had come: a state that was restored, deleted or mixed with another is said by its sinks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sidecar
from sidecar.delivering.folder import Folder
from sidecar.delivering.given import Given, give_up, reached, read, truly_had, write
from sidecar.errors import SinkError
from sidecar.feed import dataframe
from sidecar.log import consumers
from sidecar.sinks import Batch, FormatSink
from tests.conftest import SQLiteFile
from tests.unit.batches import VERSION, changes, logged
from tests.unit.test_seeding import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = '[sinks.{0}]\nformat = "parquet"\npath = "{0}"\n'


@pytest.fixture
def shop(sqlite_db: SQLiteFile, tmp_path: Path) -> Shop:
    return Shop(sqlite_db, tmp_path)


@pytest.mark.parametrize(
    ("given", "acknowledged", "said"),
    [
        (Given("other", 2, 2), 2, "are of another change log"),
        (Given("mine", 4, 4), 2, r"up to offset 4 of a log that by now ends at offset 3: it was restored"),
        (Given("mine", 3, 7), 2, r"up to offset 3 of a log that has something else there than it had"),
        (Given("mine", 1, 1), 2, r"up to offset 1, and the sink has been given those up to 2: they are an older copy"),
    ],
)
def test_what_does_not_fit_together_is_named_and_what_to_do(
    tmp_path: Path, given: Given, acknowledged: int, said: str
) -> None:
    log = logged(tmp_path, "t", changes(1), changes(2), changes(3))
    with pytest.raises(SinkError, match=rf"{said}.*another name and path"):
        reached(given, "mine", log, acknowledged)


def test_files_that_are_ahead_of_their_position_are_gone_on_from(tmp_path: Path) -> None:
    log = logged(tmp_path, "t", changes(1), changes(2), changes(3))
    for committed in (2, None):
        assert reached(Given("mine", 2, committed), "mine", log, 2) == 2
        assert reached(Given("mine", 2, committed), "mine", log, 0) == 2


def test_what_was_given_up_had_not_been_had_as_long_as_the_position_is_where_it_was(tmp_path: Path) -> None:
    log = logged(tmp_path, "t", changes(1), changes(2), changes(3))
    assert truly_had(log, "lake", 3) == 3
    give_up(log, {"lake": 2}, 3)
    assert [truly_had(log, sink, 3) for sink in ("lake", "pond")] == [2, 3]
    assert truly_had(log, "lake", 5) == 5


def rows(spark: SparkSession, shop: Shop, sink: str) -> list[tuple[int, int]]:
    found = spark.read.parquet(str(shop.folder / sink / "t")).select(VERSION, "id").collect()
    return sorted((row[0], row[1]) for row in found)


def test_a_state_that_was_restored_is_said_by_files_and_a_position_that_was_is_mended(
    shop: Shop, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    state, copy = shop.folder / ".sidecar", shop.folder / "copy"
    positions = state / "log" / "t" / "_positions"
    shop.sinks(FILES.format("lake"))
    shop.write(1)
    assert shop.run(spark) == 0
    shutil.copytree(state, copy)
    for id_ in (2, 3):
        shop.write(id_)
        assert shop.run(spark) == 0
    # The positions alone are older: what they forget is there, once.
    shutil.copytree(copy / "log" / "t" / "_positions", positions, dirs_exist_ok=True)
    shutil.rmtree(state / "db")
    shop.write(4)
    assert shop.run(spark) == 0
    assert rows(spark, shop, "lake") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert "has changes up to offset 3, and its position is of an older copy" in caplog.text
    # All of the state is older; and the log tells otherwise what was in it after that.
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    shop.write(5)
    for _ in range(2):
        assert shop.run(spark) == 6
    assert "by now ends at offset 2: it was restored from an older copy" in caplog.text
    for id_ in (6, 7, 8):
        shop.write(id_)
        shop.poll()
    assert shop.run(spark) == 6
    assert "has something else there than it had" in caplog.text
    assert rows(spark, shop, "lake") == [(1, 1), (2, 2), (3, 3), (4, 4)]
    shop.sinks(FILES.format("pond"))
    assert shop.run(spark) == 0
    assert {id_ for _, id_ in rows(spark, shop, "pond")} == set(range(1, 9))


def test_files_that_lagged_when_a_damaged_log_was_reset_are_gone_on_with(shop: Shop, spark: SparkSession) -> None:
    shop.sinks(FILES.format("lake"))
    shop.write(1)
    assert shop.run(spark) == 0
    for id_ in (2, 3):
        shop.write(id_)
        for _ in range(2):  # what is given up twice is what had been had before
            shop.poll()
            with sidecar.open(shop.path) as sc:
                sc.log("t").path(sc.log("t").last()).unlink()
            with sidecar.open(shop.path) as sc:
                sc.reset_watermark("t")
    assert shop.run(spark) == 0
    assert {id_ for _, id_ in rows(spark, shop, "lake")} == {1, 2, 3}


def test_a_batch_that_was_killed_before_it_was_acknowledged_is_no_older_copy(
    shop: Shop, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    shop.sinks(FILES.format("lake"))
    shop.write(1)
    assert shop.run(spark) == 0
    with sidecar.open(shop.path) as sc:
        last = sc.log("t").last()
        consumers.acknowledge(sc.log("t"), sc.store, "lake", 0)
        consumers.intend(sc.log("t"), sc.store, "lake", last)
    assert shop.run(spark) == 0
    assert "older copy" not in caplog.text
    assert rows(spark, shop, "lake") == [(1, 1)]


def test_any_other_format_that_can_be_read_back_says_that_it_has_more_than_its_position(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = logged(tmp_path, "t", changes(1), changes(2), changes(3))
    sink = FormatSink("lake", format="parquet", path=str(tmp_path / "lake"))
    sink.recognise(spark, Batch("t", 1, 2), VERSION)
    sink.write(dataframe(spark, log, 0, 2), Batch("t", 1, 2), VERSION)
    sink.recognise(spark, Batch("t", 1, 2, replay=True), VERSION)
    sink.recognise(spark, Batch("t", 3, 3), VERSION)
    for batch in (Batch("t", 2, 2), Batch("t", 1, 1, replay=True)):
        with pytest.raises(SinkError, match=r"holds changes after offset 1, .*the state was restored.*another name"):
            sink.recognise(spark, batch, VERSION)
    FormatSink("away", format="noop").recognise(spark, Batch("t", 1, 1), VERSION)
    # What a format raises that Spark knows no word for: Hudi's does for a table that is yet to be made.
    FormatSink("odd", format="no.such.format", path=str(tmp_path / "odd")).recognise(spark, Batch("t", 1, 1), VERSION)


def test_a_small_file_that_a_power_cut_has_emptied_is_named_and_what_to_do(spark: SparkSession, tmp_path: Path) -> None:
    folder = Folder(spark, str(tmp_path / "lake"))
    write(folder, "s", Given("mine", 3, 3))
    assert read(folder, "s") == Given("mine", 3, 3)
    name = "_sidecar_given-s.json"
    (tmp_path / "lake" / f".{name}.crc").unlink()
    (tmp_path / "lake" / name).write_bytes(b"")
    with pytest.raises(SinkError, match=rf"{name}: is damaged, as by a power cut .*delete it"):
        read(folder, "s")
    (tmp_path / "lake" / name).unlink()
    assert read(folder, "s") is None
