"""Reading elsewhere, without Spark: turns that end, and chunks that come once and in order, whatever was attempted."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import pickle
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import pyarrow as pa
import pytest

from sidecar.backfill import WHOLE, Chunk
from sidecar.backfilling import spark_copying, turns
from sidecar.backfilling.copying import Failed, Work
from sidecar.backfilling.spark_copying import Abroad, SparkCopying
from sidecar.backfilling.turns import Order
from sidecar.clock import FakeClock, SystemClock
from sidecar.connector import Source, SourceConnector
from sidecar.errors import SettingsError, SourceUnavailable, StateDamaged
from sidecar.log import storage
from sidecar.model import Column, Page, Table, Tracked

STAMP = pa.timestamp("us", "UTC")
COLUMNS = (Column("id", "int", pa.int64(), nullable=False), Column("updated_at", "stamp", STAMP))
BLOBS = pa.list_(pa.binary())
TRACKED = Tracked(Table("t", ("t",), COLUMNS, ("id",)), ("id",), "updated_at", columns=COLUMNS)
SPARK = cast(Any, object())


class NumbersConnector(SourceConnector):
    """The numbers from 1 to 100, in views that can be shared."""

    scheme = "numbers"
    reads_ahead = True
    shares_views: ClassVar[bool] = True
    joined: ClassVar[list[str]] = []
    broken_at: ClassVar[int | None] = None

    def tables(self) -> Sequence[str]:
        return ["t"]

    def describe(self, table: str) -> Table:
        return TRACKED.table

    @contextlib.contextmanager
    def copying(self) -> Iterator[str | None]:
        yield "view-1" if self.shares_views else None

    @contextlib.contextmanager
    def join(self, name: str) -> Iterator[None]:
        self.joined.append(name)
        yield

    def read(self, page: Page) -> pa.Table:
        low = cast(int, page.after[0]) if page.after else 0
        high = cast(int, page.until[0]) if page.until else 100
        ids = range(low + 1, min(high, low + page.limit) + 1)
        if self.broken_at in ids:
            raise SourceUnavailable(f'table "t": {self.broken_at} is out of reach')
        return pa.table([pa.array(ids, pa.int64()), pa.nulls(len(ids), STAMP)], names=["id", "updated_at"])


@pytest.fixture(autouse=True)
def numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "connect", NumbersConnector)
    monkeypatch.setattr(spark_copying, "_ask", lambda _, order: turns.take(pickle.loads(pickle.dumps(order))))
    monkeypatch.setattr(spark_copying, "_tag", lambda *_: None)
    monkeypatch.setattr(spark_copying, "_cancel", lambda *_: None)
    monkeypatch.setattr(NumbersConnector, "joined", [])


def work(span: int = 0, after: int | None = None, until: int | None = None, job: str = "j") -> Work:
    page = Page(TRACKED, WHOLE, {}, None if after is None else (after,), 7, until=None if until is None else (until,))
    return Work(job, 0, span, page, 3, None, False)


def order(folder: Path, **changes: Any) -> Order:
    source = Source("numbers://", clock=SystemClock())
    given: dict[str, Any] = {"chunks": 3, "size": 1 << 20, "seconds": 60.0, "page": work().page, **changes}
    return Order(source, "view-1", work(), folder=folder, **given)


def copying(folder: Path, readers: int = 2) -> SparkCopying:
    source = Source("numbers://", password="geheim", clock=FakeClock())
    abroad = Abroad(source, lambda: SPARK, lambda table: folder / table / "_staging")
    return SparkCopying(lambda: NumbersConnector(source), FakeClock(), readers, abroad, shared=True)


def chunks(copying: SparkCopying, *works: Work) -> Iterator[Chunk]:
    try:
        copying.begin(works)
        while not copying.is_over:
            chunk = copying.next(0.1)
            if chunk is not None:
                yield chunk
    finally:
        copying.close()


def test_a_turn_ends_after_so_many_chunks_bytes_or_seconds_and_the_next_goes_on(tmp_path: Path) -> None:
    first = turns.read_back(turns.take(order(tmp_path)), order(tmp_path))
    assert [turns.load(s.path).column("id").to_pylist() for s in first.staged] == [
        [*range(n, n + 7)] for n in (1, 8, 15)
    ]
    assert [s.page.after for s in first.staged] == [None, (7,), (14,)]
    assert first.page is not None
    assert (first.page.after, first.page.limit) == ((21,), 7)
    assert list(tmp_path.iterdir()) == []
    assert len(turns.read_back(turns.take(order(tmp_path, size=1)), order(tmp_path)).staged) == 1
    none = turns.read_back(turns.take(order(tmp_path, seconds=0.0)), order(tmp_path))
    assert none == turns.Turn((), work().page)
    last = turns.read_back(turns.take(order(tmp_path, chunks=100, page=first.page)), order(tmp_path))
    assert last.page is None
    assert sum(len(turns.load(s.path)) for s in last.staged) == 100 - 21


def test_what_a_turn_has_read_before_it_failed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbersConnector, "broken_at", 16)
    found = turns.read_back(turns.take(order(tmp_path)), order(tmp_path))
    assert len(found.staged) == 2
    assert isinstance(found.error, SourceUnavailable)
    assert str(found.error) == 'table "t": 16 is out of reach'


def test_an_error_of_the_connectors_own_is_the_one_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(SettingsError):
        pass

    def read(self: object, page: Page) -> pa.Table:
        raise Own("so not")

    monkeypatch.setattr(NumbersConnector, "read", read)
    found = turns.read_back(turns.take(order(tmp_path)), order(tmp_path)).error
    assert type(found) is SettingsError
    assert str(found) == "so not"


def test_a_folder_that_an_executor_does_not_see_is_named(tmp_path: Path) -> None:
    found = turns.read_back(turns.take(order(tmp_path / "elsewhere")), order(tmp_path)).error
    assert isinstance(found, SettingsError)
    assert str(tmp_path / "elsewhere") in str(found)


def test_a_folder_that_takes_no_more_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa, "OSFile", full)
    found = turns.read_back(turns.take(order(tmp_path)), order(tmp_path)).error
    assert isinstance(found, StateDamaged)
    assert "No space left" in str(found)


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    at = datetime.datetime(2024, 5, 1, 12, 0, 0, 1, datetime.UTC)
    table = pa.table(
        {
            "dec": pa.array([decimal.Decimal("-1.10"), None], pa.decimal128(38, 10)),
            "wide": pa.array([decimal.Decimal(10**60), None], pa.decimal256(70, 2)),
            "map": pa.array([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int32())),
            "struct": pa.array([{"x": 1.5, "y": [b"\x00"]}, None], pa.struct({"x": pa.float32(), "y": BLOBS})),
            "utc": pa.array([at, None], STAMP),
            "zone": pa.array([at, None], pa.timestamp("us", "Europe/Berlin")),
            "naive": pa.array([at.replace(tzinfo=None), None], pa.timestamp("us")),
            "time": pa.array([datetime.time(23, 59, 59, 999_999), None], pa.time64("us")),
            "date": pa.array([datetime.date(1, 1, 1), None], pa.date32()),
            "span": pa.array([datetime.timedelta(days=-1), None], pa.duration("us")),
            "text": pa.array(["\ufeff\x01'", ""], pa.string()),
            "long": pa.array(["x" * 100_000, None], pa.large_string()),
            "flag": pa.array([True, None], pa.bool_()),
            "double": pa.array([float("inf"), -0.0], pa.float64()),
            "nothing": pa.nulls(2),
        }
    )  # fmt: skip
    variant = pa.field("json", pa.string(), nullable=False, metadata={"sidecar": "variant"})
    table = table.append_column(variant, pa.array(["{}", "[]"]))
    for rows in (table, table.slice(1), table.slice(0, 0), pa.concat_tables([table, table])):
        back = turns.load(tmp_path / turns._put(tmp_path, rows))
        assert back.schema.equals(rows.schema, check_metadata=True)
        assert back.equals(rows)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateDamaged, match=r"gone\.arrow"):
        turns.load(tmp_path / "gone.arrow")


def test_spans_are_read_by_turns_each_in_order_and_nothing_is_left(tmp_path: Path) -> None:
    found = chunks(copying(tmp_path), work(0, None, 40), work(1, 40, 41), work(2, 41, None))
    by_span: dict[int, list[int]] = {}
    for chunk in found:
        by_span.setdefault(chunk.span, []).extend(chunk.data.column("id").to_pylist())
        assert (chunk.table, chunk.job, chunk.part, chunk.low) == ("t", "j", 0, 3)
        assert chunk.data.column("id")[0].as_py() == (chunk.page.after[0] if chunk.page.after else 0) + 1  # type: ignore[operator]
    assert by_span == {0: [*range(1, 41)], 1: [41], 2: [*range(42, 101)]}
    assert set(NumbersConnector.joined) == {"view-1"}
    assert list((tmp_path / "t").iterdir()) == []


def test_a_span_begins_with_the_size_that_the_last_one_has_come_to(tmp_path: Path) -> None:
    works = [dataclasses.replace(w, adaptive=True) for w in (work(0, None, 60), work(1, 60, None))]
    found = list(chunks(copying(tmp_path, readers=1), *works))
    assert [c.page.limit for c in found] == [7, 14, 28, 56, 56]


def test_an_attempt_that_was_made_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = spark_copying._ask

    def twice(spark: Any, order: Order) -> str:
        ask(spark, order)
        answer = ask(spark, order)
        (storage.local(order.folder) / ".half.arrow.tmp").write_bytes(b"half")
        return answer

    monkeypatch.setattr(spark_copying, "_ask", twice)
    found = chunks(copying(tmp_path), work(0, None, 50), work(1, 50, None))
    assert sorted(n for c in found for n in c.data.column("id").to_pylist()) == [*range(1, 101)]
    assert list((tmp_path / "t").iterdir()) == []


@pytest.mark.parametrize("works", [[work()], [work(0, None, 50), work(0, 50, None, job="other")], []])
def test_what_is_not_divided_is_read_here(tmp_path: Path, works: list[Work]) -> None:
    found = copying(tmp_path)
    found._abroad = cast(Any, None)
    assert sum(len(c.data) for c in chunks(found, *works)) == 100 * bool(works)


def test_a_source_that_shares_no_view_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbersConnector, "shares_views", False)
    found = copying(tmp_path)
    found._abroad = cast(Any, None)
    assert sum(len(c.data) for c in chunks(found, work(0, None, 50), work(1, 50, None))) == 100


def test_a_failure_comes_after_the_chunks_before_it_and_names_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NumbersConnector, "broken_at", 16)
    found: list[Chunk] = []
    with pytest.raises(Failed, match="16 is out of reach") as caught:
        found.extend(chunks(copying(tmp_path, readers=1), work(0, None, 50), work(1, 50, None)))
    assert [len(c.data) for c in found] == [7, 7]
    assert caught.value.table == "t"
    assert isinstance(caught.value.error, SourceUnavailable)


def test_closing_ends_readers_that_wait_and_removes_what_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_copying, "CHUNKS", 1)
    reading = copying(tmp_path)
    reading.begin([work(0, None, 50), work(1, 50, None)])
    assert reading.next(5) is not None
    reading.close()
    assert not any(t.is_alive() for t in reading._threads)
    assert list((tmp_path / "t").iterdir()) == []


def test_no_more_lies_there_than_two_turns_of_each_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_copying, "CHUNKS", 2)
    asked = threading.Semaphore(0)
    ask = spark_copying._ask

    def counted(spark: Any, order: Order) -> str:
        asked.release()
        return ask(spark, order)

    monkeypatch.setattr(spark_copying, "_ask", counted)
    reading = copying(tmp_path, readers=1)
    reading.begin([work(0, None, 99), work(1, 99, None)])
    try:
        assert all(asked.acquire(timeout=10) for _ in range(2))
        assert not asked.acquire(timeout=0.3)
        assert len(list((tmp_path / "t").rglob("*.arrow"))) == 4
    finally:
        reading.close()


FAILURES = {
    "An exception was thrown from the Python worker:\nTraceback…\nModuleNotFoundError: No module named 'sidecar'": (
        SettingsError,
        'no Python package "sidecar". Install sidecar',
    ),
    "An exception was thrown from the Python worker:\nTraceback…\n  File x\nKeyError: 'geheim'": (
        SourceUnavailable,
        "could not read it: KeyError: '***'.",
    ),
    "An error occurred while calling o1.collectToPython.\n: org.apache.spark.SparkException: Executor lost.\n\tat x": (
        SourceUnavailable,
        'table "t": Spark could not read it: org.apache.spark.SparkException: Executor lost.',
    ),
    "": (SourceUnavailable, "could not read it: RuntimeError."),
}


@pytest.mark.parametrize("text", FAILURES)
def test_what_spark_says_is_told_without_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError(text)

    monkeypatch.setattr(spark_copying, "_ask", fail)
    kind, said = FAILURES[text]
    with pytest.raises(Failed) as caught:
        list(chunks(copying(tmp_path), work(0, None, 50), work(1, 50, None)))
    assert type(caught.value.error) is kind
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_session_that_does_not_start_is_the_tables_failure(tmp_path: Path) -> None:
    def no_java() -> Any:
        raise SettingsError("no Java")

    reading = copying(tmp_path)
    reading._abroad = Abroad(reading._abroad.source, no_java, reading._abroad.staging)
    with pytest.raises(Failed, match="no Java"):
        list(chunks(reading, work(0, None, 50), work(1, 50, None)))
