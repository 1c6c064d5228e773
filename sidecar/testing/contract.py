"""The contract of a connector, as tests. Subclass `ConnectorContract` and give two fixtures:

    class TestParcels(ConnectorContract):
        @pytest.fixture
        def connect(self): return lambda: ParcelsConnector(Source("parcels://…"))   # a new connection each time

        @pytest.fixture
        def writer(self): return ParcelsWriter(…)                                   # writes to the same source

What a source cannot hold (`Writer.kinds`) is reported as skipped, by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND
from sidecar.connector import SourceConnector
from sidecar.model import Pass, Tracked
from sidecar.poll import poll
from sidecar.state import MemoryWatermarkStore
from sidecar.testing.chunks import ChunksContract
from sidecar.testing.parts import BASE, STAMPS, Connect, Row, Writer, scan, stamped, tracked, values


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


class ConnectorContract(ChunksContract):
    """What holds for every connector."""

    names: ClassVar[tuple[str, ...]] = ('or"der', "select", "MixedCase", "a%b", "with space", "o'clock", "größe", "x.y")

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
        keys = self.keys(writer, kind)
        name = writer.create(f"by_{kind}", {"k": kind, **STAMPS}, ("k",))
        writer.insert(name, stamped([{"k": k} for k in keys], lambda n: BASE + n // 4))
        connector = connect()
        found = values(scan(connector, tracked(connector, name, 1), connect), "k")
        assert sorted(found) == sorted((k,) for k in keys)

    @pytest.mark.parametrize("kind", ["integer", "text", "collated", "bytes", "uuid"])
    def test_the_whole_table_is_read_by_key_whatever_its_stamps(
        self, connect: Connect, writer: Writer, kind: str
    ) -> None:
        keys = self.keys(writer, kind)
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
        found = connector.estimate(tracked(connector, name))
        assert found is None or found > 0

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


__all__ = [
    "BASE",
    "STAMPS",
    "Connect",
    "ConnectorContract",
    "Follower",
    "Row",
    "Writer",
    "scan",
    "stamped",
    "tracked",
    "values",
]
