"""Sinks that are a user's function, or any other Spark format; users' transforms; and what fails says where."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sidecar import feed
from sidecar.errors import SettingsError, SinkError
from sidecar.feed import dataframe
from sidecar.sinks import Batch, FileSink, FormatSink, FunctionSink, failing_as, load_function
from tests.unit.batches import VERSION, changes, held, logged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# -- users' functions --------------------------------------------------------------------------------------------------

FUNCTIONS = """
from pyspark.sql import functions as F

taken = []

def upper(frame):
    return frame.withColumn("word", F.upper("word")).drop("_origin")

def nothing(frame):
    pass

def broken(frame):
    raise RuntimeError("no such luck\\nand a stack")

def late(frame):
    return frame.select(F.raise_error(F.lit("row 7 is odd")))

def take(frame, batch):
    taken.append((batch, sorted(row["word"] for row in frame.collect())))

number = 5
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    """A module with functions, in a folder that only the settings know of."""
    name = "functions_of_a_user"
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / f"{name}.py").write_text(FUNCTIONS)
    before = list(sys.path)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)


@pytest.fixture
def words(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return dataframe(spark, logged(tmp_path, "words", changes(1, ("word", pa.array(["a", "b"])))))


BATCH = Batch("words", 1, 1)


def test_a_transform_shapes_what_is_written(spark: SparkSession, words: DataFrame, module: str, tmp_path: Path) -> None:
    sink = FileSink("lake", f"{module}:upper", tmp_path / "beside", path=str(tmp_path / "lake"))
    sink.write(words, BATCH, VERSION)
    read = spark.read.parquet(str(tmp_path / "lake" / "words"))
    assert sorted(row["word"] for row in read.collect()) == ["A", "B"]
    assert "_origin" not in read.columns


def test_a_function_is_handed_the_batch_and_its_rows(words: DataFrame, module: str, tmp_path: Path) -> None:
    sink = FunctionSink("mine", f"{module}:upper", tmp_path / "beside", function=f"{module}:take")
    sink.write(words, BATCH, VERSION)
    sink.write(words, Batch("words", 1, 1, replay=True), VERSION)
    assert sys.modules[module].taken == [(BATCH, ["A", "B"]), (Batch("words", 1, 1, replay=True), ["A", "B"])]


@pytest.mark.parametrize(("function", "reason"), [("broken", "RuntimeError: no such luck"), ("late", "row 7 is odd")])
def test_what_a_transform_raises_is_one_line_that_says_where(
    words: DataFrame, module: str, tmp_path: Path, function: str, reason: str
) -> None:
    sink = FileSink("lake", f"{module}:{function}", tmp_path / "beside", path=str(tmp_path / "lake"))
    with pytest.raises(SinkError) as raised, failing_as(sink, BATCH):
        sink.write(words, BATCH, VERSION)
    message = str(raised.value)
    assert message.startswith('sink "lake", table "words", offsets 1 to 1: ')
    # What is raised while Spark works has no line of the user's any more.
    assert (f"{module}.py, line 13, in broken: " in message) == (function == "broken")
    assert reason in message
    assert "\n" not in message
    folder = tmp_path / "lake" / "words"
    assert not folder.exists() or not [p for p in folder.iterdir() if p.name.startswith("part-")]


def test_a_transform_that_returns_nothing_is_a_mistake_in_the_settings(
    words: DataFrame, module: str, tmp_path: Path
) -> None:
    sink = FileSink("lake", f"{module}:nothing", tmp_path / "beside", path=str(tmp_path / "lake"))
    with pytest.raises(SettingsError, match=r'sink "lake".*returned None instead of a DataFrame'):
        sink.write(words, BATCH, VERSION)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("nowhere", "write it as"),
        (":f", "write it as"),
        ("functions_of_a_user:", "write it as"),
        ("no_such_module:f", "No module named"),
        ("functions_of_a_user:missing", "has no attribute"),
        ("functions_of_a_user:number", "is not a function"),
    ],
)
def test_a_function_that_is_not_there_is_named(module: str, tmp_path: Path, spec: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason) as raised:
        load_function(spec, "sinks.lake.transform", tmp_path / "beside")
    assert f'sinks.lake.transform = "{spec}"' in str(raised.value)


def test_an_error_without_a_text_is_named_by_its_kind() -> None:
    with pytest.raises(SinkError, match="KeyError"), failing_as(FileSink("lake"), BATCH):
        raise KeyError
    with pytest.raises(SettingsError, match=r"^as it is$"), failing_as(FileSink("lake"), BATCH):
        raise SettingsError("as it is")


# -- other formats -----------------------------------------------------------------------------------------------------


@dataclass
class Stored:
    """A sink of any format, over a folder, and what it holds."""

    spark: SparkSession
    sink: FormatSink
    folder: Path

    def write(self, frame: DataFrame, first: int, last: int, *, replay: bool = False) -> None:
        self.sink.write(frame, Batch("orders", first, last, replay), VERSION)


def test_a_replayed_batch_that_is_there_already_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1), changes(2), changes(3))
    stored = Stored(spark, FormatSink("lake", format="parquet", path=str(tmp_path / "lake")), tmp_path / "lake")
    stored.write(dataframe(spark, log, 0, 2), 1, 2, replay=True)
    stored.write(dataframe(spark, log, 0, 2), 1, 2, replay=True)
    stored.write(dataframe(spark, log, 2, 3), 3, 3)
    stored.write(dataframe(spark, log, 2, 3), 3, 3, replay=True)
    assert held(spark, tmp_path / "lake" / "orders") == [1, 1, 2, 2, 3, 3]


def test_a_format_that_only_writes_gets_the_batch_again(spark: SparkSession, tmp_path: Path) -> None:
    log = logged(tmp_path, "orders", changes(1))
    FormatSink("away", format="noop").write(dataframe(spark, log), Batch("orders", 1, 1, replay=True), VERSION)


def test_what_a_function_raises_in_an_executor_is_said_and_not_where() -> None:
    from pyspark.errors import PythonException

    trace = "Traceback (most recent call last):\n  File shapes.py\nValueError: on purpose\n"
    raised = PythonException(f"An exception was thrown from the Python worker:\n{trace}")
    assert feed.reason(raised) == "ValueError: on purpose"
    assert feed.reason(ValueError("one\ntwo")) == "ValueError: one"
