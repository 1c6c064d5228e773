"""The contract of a connector, as tests. Subclass `ConnectorContract` and give two fixtures:

    class TestParcels(ConnectorContract):
        @pytest.fixture
        def connect(self): return lambda: ParcelsConnector(Source("parcels://…"))   # a new connection each time

        @pytest.fixture
        def writer(self): return ParcelsWriter(…)                                   # writes to the same source

What a source cannot hold (`Writer.kinds`) is reported as skipped, by name.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pytest

from sidecar import codec
from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND
from sidecar.connector import SourceConnector
from sidecar.model import Page, Pass, Scalar, Tracked
from sidecar.poll import poll
from sidecar.rows import from_page
from sidecar.state import MemoryWatermarkStore

Connect = Callable[[], SourceConnector]
Row = dict[str, Scalar]

BASE = 1_714_557_600 * SECOND
"""2024-05-01T10:00:00Z: where the rows of these tests stand in time."""


class Writer(Protocol):
    """Writes to the source that is under test. Stamps are microseconds since the epoch; a missing value is NULL."""

    kinds: frozenset[str]
    """Which of "integer", "text", "collated", "bytes", "uuid", "stamp" a column may be."""

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
        """Make *table* with columns by kind and return the name under which the connector knows it."""

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert and commit."""

    def update(self, table: str, where: Row, values: Row) -> None:
        """Update the rows that equal *where* and commit."""

    def content(self) -> object:
        """Return something that differs if anything at all in the source differs."""


STAMPS = {"created_at": "stamp", "updated_at": "stamp"}


def stamped(rows: Sequence[Row], at: Callable[[int], int] = lambda n: BASE + n) -> list[Row]:
    """Return *rows* with both stamps set to *at* of their number."""
    return [{**row, "created_at": at(n), "updated_at": at(n)} for n, row in enumerate(rows)]


def tracked(connector: SourceConnector, name: str, page_size: int = 100, **settings: object) -> Tracked:
    """Return *name* as it would be followed by default."""
    table = connector.describe(name)
    created = next((c for c in ("created_at",) if table.column(c)), None)
    deleted = next((c for c in ("deleted_at",) if table.column(c)), None)
    plain = Tracked(
        table,
        table.primary_key,
        "updated_at",
        created_at=created,
        deleted_at=deleted,
        columns=table.columns,
        page_size=page_size,
    )
    return dataclasses.replace(plain, **settings)  # type: ignore[arg-type]


def scan(
    connector: SourceConnector, followed: Tracked, reconnect: Connect | None = None, by: Pass | None = None
) -> list[pa.Table]:
    """Return the pages of a pass, else the first, each asked for after the last one's position, packed and unpacked."""
    pages: list[pa.Table] = []
    page = Page(followed, by or followed.passes[0], {}, None, followed.page_size)
    while True:
        with connector.snapshot():
            data = connector.read(page)
        pages.append(data)
        _, last = from_page(page, data)
        if len(data) < page.limit or last is None:
            return pages
        page = dataclasses.replace(page, after=codec.unpack(codec.pack(last)))
        if reconnect is not None:
            connector.close()
            connector = reconnect()


def values(pages: Sequence[pa.Table], *names: str) -> list[tuple[Scalar, ...]]:
    """Return the named columns of all pages, row by row."""
    return [row for page in pages for row in codec.rows(page, names)]


class Follower:
    """A table followed by real polls into a log of its own."""

    def __init__(self, connector: SourceConnector, followed: Tracked, folder: Path) -> None:
        self.connector, self.followed = connector, followed
        self.log = ChangeLog(folder, followed.name)
        self.store = MemoryWatermarkStore()

    def poll(self) -> list[dict[str, object]]:
        """Poll once and return the new changes."""
        before = self.log.last()
        for _ in poll(self.connector, self.followed, self.log, self.store):
            pass
        return list(self.log.rows(before))


class ConnectorContract:
    """What holds for every connector."""

    integers: ClassVar[tuple[int, ...]] = (-(2**63), -5, 0, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1)
    texts: ClassVar[tuple[str, ...]] = (
        "",
        " ",
        "a",
        "B",
        "c",
        "D",
        "_x",
        "ab",
        "a_z",
        "Zeta",
        "élan",
        "o'b",
        'q"',
        "\\",
    )
    names: ClassVar[tuple[str, ...]] = ('or"der', "select", "MixedCase", "a%b", "with space", "o'clock", "größe", "x.y")

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError("give a fixture `connect`: a function that returns a new connector")

    @pytest.fixture
    def writer(self) -> Writer:
        raise NotImplementedError("give a fixture `writer`: something that writes to the source")

    def test_a_composite_key_is_described_in_its_declared_order(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("pairs", {"a": "integer", "b": "integer", **STAMPS}, ("b", "a"))
        assert connect().describe(name).primary_key == ("b", "a")

    def test_the_table_is_among_the_tables(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("listed", {"id": "integer", **STAMPS}, ("id",))
        assert name in connect().tables()
        assert connect().describe(name).name == name

    @pytest.mark.parametrize("size", range(1, 9))
    def test_a_tie_split_over_pages_is_neither_lost_nor_repeated(
        self, connect: Connect, writer: Writer, size: int
    ) -> None:
        name = writer.create("ties", {"id": "integer", **STAMPS}, ("id",))
        rows: list[Row] = [{"id": n} for n in (5, 3, 8, 1, 7, 2, 6)]
        writer.insert(name, stamped(rows, lambda n: BASE + n // 5))
        connector = connect()
        pages = scan(connector, tracked(connector, name, size))
        assert values(pages, "id") == [(1,), (3,), (5,), (7,), (8,), (2,), (6,)]
        assert all(len(page) == size for page in pages[:-1])

    @pytest.mark.parametrize("kind", ["integer", "text", "collated", "bytes", "uuid"])
    def test_a_scan_is_resumed_from_a_decoded_position_on_a_new_connection(
        self, connect: Connect, writer: Writer, kind: str
    ) -> None:
        keys = self._keys(writer, kind)
        name = writer.create(f"by_{kind}", {"k": kind, **STAMPS}, ("k",))
        writer.insert(name, stamped([{"k": k} for k in keys], lambda n: BASE + n // 4))
        connector = connect()
        found = values(scan(connector, tracked(connector, name, 1), connect), "k")
        assert sorted(found) == sorted((k,) for k in keys)

    @pytest.mark.parametrize("kind", ["integer", "text", "collated", "bytes", "uuid"])
    def test_the_whole_table_is_read_by_key_whatever_its_stamps(
        self, connect: Connect, writer: Writer, kind: str
    ) -> None:
        keys = self._keys(writer, kind)
        name = writer.create(f"all_{kind}", {"k": kind, **STAMPS, "deleted_at": "stamp"}, ("k",))
        some = stamped([{"k": k} for k in keys[2:]], lambda n: BASE - n)
        writer.insert(name, [{"k": keys[0]}, {"k": keys[1], "deleted_at": BASE}, *some])
        connector = connect()
        if not connector.loads_by_key:
            pytest.skip("this source is loaded by its cursors")
        for size in (1, 2, len(keys)):
            followed = tracked(connector, name, size)
            found = values(scan(connector, followed, by=Pass("all", None)), "k")
            assert sorted(found) == sorted((k,) for k in keys), f"pages of {size}"

    def test_composite_keys_with_separators_inside_stay_apart(self, connect: Connect, writer: Writer) -> None:
        keys = [("A|B", "C"), ("A", "B|C"), ("1", "23"), ("12", "3"), ("x", ""), ("", "x"), ("d", "v"), ("e", "a")]
        name = writer.create("bins", {"site": "text", "bin": "text", **STAMPS}, ("site", "bin"))
        writer.insert(name, stamped([{"site": s, "bin": b} for s, b in keys], lambda _: BASE))
        connector = connect()
        found = values(scan(connector, tracked(connector, name, 2)), "site", "bin")
        assert sorted(found) == sorted(keys)

    @pytest.mark.parametrize("odd", names)
    def test_any_identifier_is_only_a_name(self, connect: Connect, writer: Writer, tmp_path: Path, odd: str) -> None:
        columns = {odd: "integer", f"v {odd}": "text", **STAMPS}
        name = writer.create(odd, columns, (odd,))
        writer.insert(name, stamped([{odd: 1, f"v {odd}": "one"}, {odd: 2, f"v {odd}": odd}]))
        connector = connect()
        follower = Follower(connector, tracked(connector, name, 1), tmp_path)
        assert [(r[odd], r[f"v {odd}"]) for r in follower.poll()] == [(1, "one"), (2, odd)]
        assert follower.poll() == []

    def test_a_row_changed_in_mid_scan_is_seen_again(self, connect: Connect, writer: Writer, tmp_path: Path) -> None:
        name = writer.create("moving", {"id": "integer", "v": "text", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": n, "v": "old"} for n in range(6)]))
        connector = connect()
        follower = Follower(connector, tracked(connector, name, 2), tmp_path)
        steps = poll(connector, follower.followed, follower.log, follower.store)
        next(steps)
        steps.close()
        writer.update(name, {"id": 0}, {"v": "new", "updated_at": BASE + 100})
        follower.poll()
        follower.poll()
        changes = [(r["id"], r["v"]) for r in follower.log.rows()]
        assert sorted(changes) == sorted([(0, "old"), (0, "new"), *((n, "old") for n in range(1, 6))])

    def test_an_interrupted_poll_goes_on_where_it_was(self, connect: Connect, writer: Writer, tmp_path: Path) -> None:
        name = writer.create("long", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": n} for n in range(20)], lambda _: BASE))
        connector = connect()
        follower = Follower(connector, tracked(connector, name, 3), tmp_path)
        for _ in range(7):
            steps = poll(connector, follower.followed, follower.log, follower.store)
            next(steps)
            steps.close()
        assert sorted(r["id"] for r in follower.log.rows()) == list(range(20))  # type: ignore[type-var]
        assert follower.poll() == []

    def test_an_empty_table_moves_nothing(self, connect: Connect, writer: Writer, tmp_path: Path) -> None:
        name = writer.create("empty", {"id": "integer", **STAMPS}, ("id",))
        connector = connect()
        follower = Follower(connector, tracked(connector, name), tmp_path)
        assert follower.poll() == []
        assert follower.poll() == []
        mark = follower.store.watermark(name)
        assert mark is not None
        assert mark.closed()["updated"] is None
        writer.insert(name, stamped([{"id": 1}]))
        assert [r["id"] for r in follower.poll()] == [1]

    def test_a_lower_key_with_the_last_stamp_is_delivered_once(
        self, connect: Connect, writer: Writer, tmp_path: Path
    ) -> None:
        name = writer.create("tick", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": 5}], lambda _: BASE))
        connector = connect()
        follower = Follower(connector, tracked(connector, name), tmp_path)
        assert [r["id"] for r in follower.poll()] == [5]
        writer.insert(name, stamped([{"id": 2}, {"id": 9}], lambda _: BASE))
        assert [r["id"] for r in follower.poll()] == [2, 9]
        assert follower.poll() == []

    def test_insert_update_and_soft_delete_are_told_apart(
        self, connect: Connect, writer: Writer, tmp_path: Path
    ) -> None:
        columns = {"id": "integer", **STAMPS, "deleted_at": "stamp"}
        name = writer.create("living", columns, ("id",))
        writer.insert(name, stamped([{"id": n} for n in range(3)]))
        connector = connect()
        follower = Follower(connector, tracked(connector, name), tmp_path)
        assert {r["_change_type"] for r in follower.poll()} == {"insert"}
        writer.update(name, {"id": 0}, {"updated_at": BASE + 50})
        writer.update(name, {"id": 1}, {"deleted_at": BASE + 60})
        writer.update(name, {"id": 2}, {"deleted_at": BASE + 70, "updated_at": BASE + 70})
        found = {r["id"]: r["_change_type"] for r in follower.poll()}
        assert found == {0: "update_postimage", 1: "delete", 2: "delete"}
        assert follower.poll() == []

    def test_a_row_without_a_stamp_is_delivered_once(self, connect: Connect, writer: Writer, tmp_path: Path) -> None:
        name = writer.create("unstamped", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(
            name, [{"id": 1, "created_at": BASE}, {"id": 2, "created_at": BASE, "updated_at": BASE}, {"id": 3}]
        )
        connector = connect()
        follower = Follower(connector, tracked(connector, name, 1), tmp_path)
        assert sorted(r["id"] for r in follower.poll()) == [1, 2, 3]  # type: ignore[type-var]
        writer.insert(name, [{"id": 4, "created_at": BASE + SECOND}, {"id": 5}])
        assert sorted(r["id"] for r in follower.poll()) == [4, 5]  # type: ignore[type-var]
        assert follower.poll() == []

    def test_an_estimate_is_a_number_of_rows_or_nothing(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("counted", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": n + 1} for n in range(10)]))
        connector = connect()
        assert connector.estimate(tracked(connector, name)) in (None, 10)

    def test_the_source_is_never_written_to(self, connect: Connect, writer: Writer, tmp_path: Path) -> None:
        name = writer.create("untouched", {"id": "integer", **STAMPS, "deleted_at": "stamp"}, ("id",))
        writer.insert(name, stamped([{"id": n} for n in range(10)]))
        before = writer.content()
        connector = connect()
        follower = Follower(connector, tracked(connector, name, 3), tmp_path)
        follower.poll()
        connector.tables()
        connector.check(follower.followed)
        connector.pulse()
        connector.close()
        assert writer.content() == before

    def test_a_name_that_is_not_there_is_named_with_its_neighbours(self, connect: Connect, writer: Writer) -> None:
        from sidecar.errors import SettingsError

        writer.create("customers", {"id": "integer", **STAMPS}, ("id",))
        with pytest.raises(SettingsError, match="customers"):
            connect().describe("customer")

    def _keys(self, writer: Writer, kind: str) -> Sequence[Scalar]:
        if kind not in writer.kinds:
            pytest.skip(f"this source has no keys of kind {kind!r}")
        if kind == "integer":
            return self.integers
        if kind == "bytes":
            return (b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"\xff\xfe")
        if kind == "uuid":
            return tuple(str(uuid.UUID(int=n * 0x1234567890ABCDEF)) for n in range(6))
        return self.texts
