"""What holds of a connector that a backfill asks for chunks: of the pass "all", and of the views that it is read in."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import pytest

from sidecar import codec
from sidecar.connector import SourceConnector
from sidecar.model import Among, Page, Pass, Position, Scalar, Scope, Strain, Tracked
from sidecar.polls.rows import from_page
from sidecar.testing.parts import BASE, STAMPS, Connect, Contract, Row, Writer, stamped, tracked, values

KINDS = ("integer", "text", "collated", "bytes", "uuid")
ALL = Pass("all", None)


def chunk(
    connector: SourceConnector,
    followed: Tracked,
    after: Position | None = None,
    until: Position | None = None,
    *,
    limit: int = 1000,
    scope: Scope | None = None,
) -> list[Position]:
    """Return the keys of a chunk, page by page, each position packed and unpacked."""
    found: list[Position] = []
    page = Page(followed, ALL, {}, _again(after), limit, until=_again(until), scope=scope or Scope())
    while True:
        data = connector.read(page)
        found += values([data], *followed.key)
        _, last = from_page(page, data)
        if len(data) < limit or last is None:
            return found
        page = dataclasses.replace(page, after=_again(last))


def _again(position: Position | None) -> Position | None:
    return None if position is None else codec.unpack(codec.pack(position))


def ends(keys: Sequence[Position]) -> Iterator[tuple[Position | None, Position | None]]:
    """Yield the ends of the parts that *keys* divide a table into."""
    return itertools.pairwise([None, *keys, None])


class ChunksContract(Contract):
    """What holds for every connector that reads the pass "all"."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("composite", [False, True], ids=["one column", "two columns"])
    def test_chunks_divide_a_table_with_no_row_lost_or_twice(
        self, connect: Connect, writer: Writer, kind: str, composite: bool
    ) -> None:
        connector, followed, every = self._filled(connect, writer, kind, composite)
        whole = chunk(connector, followed)
        assert sorted(whole) == sorted(every)
        for step, limit in ((1, 5), (3, 1), (3, 2), (4, 1000), (len(whole), 3)):
            cuts = whole[step - 1 :: step]
            with connector.snapshot():
                parts = [chunk(connector, followed, low, high, limit=limit) for low, high in ends(cuts)]
            assert list(itertools.chain(*parts)) == whole, f"chunks of {step}, pages of {limit}"
            assert [part[-1:] for part in parts[:-1]] == [[cut] for cut in cuts], "each ends at its own last key"

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_chunk_ends_where_no_row_is(self, connect: Connect, writer: Writer, kind: str) -> None:
        connector, followed, _ = self._filled(connect, writer, kind, True)
        whole = chunk(connector, followed)
        low, high = whole[1], whole[-2]
        between = (high[0], 4)
        inside = chunk(connector, followed, low, between)
        assert inside + chunk(connector, followed, between, None) == whole[2:]
        assert chunk(connector, followed, high, high) == []
        assert chunk(connector, followed, high, low) == [], "an end before the beginning"

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_divides_a_table_is_in_order_and_leaves_no_row_out(
        self, connect: Connect, writer: Writer, kind: str
    ) -> None:
        connector, followed, every = self._filled(connect, writer, kind, True)
        for parts in (1, 2, 3, len(every), 3 * len(every)):
            cuts = connector.split(Page(followed, ALL, {}, None, 1000), parts)
            assert len(cuts) < max(parts, 2)
            found = [chunk(connector, followed, low, high) for low, high in ends(cuts)]
            assert list(itertools.chain(*found)) == chunk(connector, followed)
            if cuts:
                assert max(map(len, found)) <= 2 * len(every) / min(parts, len(every)), "about as many rows in each"

    def test_an_empty_table_is_divided_by_nothing(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("nothing", {"id": "integer", **STAMPS}, ("id",))
        connector = self._loading(connect())
        followed = tracked(connector, name)
        assert list(connector.split(Page(followed, ALL, {}, None, 10), 4)) == []
        assert chunk(connector, followed, None, (5,)) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_among_some_values_are_these_and_no_others(self, connect: Connect, writer: Writer, kind: str) -> None:
        connector, followed, every = self._filled(connect, writer, kind, True)
        if not connector.takes_scopes:
            pytest.skip("this source has no backfills of parts")
        whole = chunk(connector, followed)
        parts = list(dict.fromkeys(key[0] for key in every))
        pairs = (*whole[::3], (parts[0], 77))
        cases: list[tuple[Among, list[Position]]] = [
            (Among(("k",), tuple((part,) for part in parts[::2])), [key for key in whole if key[0] in parts[::2]]),
            (Among(("k", "n"), pairs), whole[::3]),
            (Among(("n", "k"), tuple((n, k) for k, n in pairs)), whole[::3]),
            (Among(("v",), tuple((part,) for part in parts[1:3])), [key for key in whole if key[0] in parts[1:3]]),
            (Among(("n",), tuple((n,) for n in range(-500, 2))), [key for key in whole if key[1] < 2]),  # type: ignore[operator]
            (Among(("n",), ((77,),)), []),
        ]
        for among, wanted in cases:
            scope = Scope(among=among)
            for limit in (1, 2, 1000):
                assert chunk(connector, followed, limit=limit, scope=scope) == wanted, f"{among}, pages of {limit}"
            low, high = whole[2], whole[-3]
            inside = [key for key in whole[3:-2] if key in wanted]
            assert chunk(connector, followed, low, high, limit=2, scope=scope) == inside
            assert list(connector.split(Page(followed, ALL, {}, None, 9, scope=scope), 3)) == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_keys_that_are_asked_for_as_rows_have_them_stay_these(
        self, connect: Connect, writer: Writer, kind: str
    ) -> None:
        connector, followed, _ = self._filled(connect, writer, kind, True)
        whole = connector.read(Page(followed, ALL, {}, None, 1000)).select(list(followed.key))
        keys = values([whole], *followed.key)
        assert [*connector.spelled(followed, keys)] == keys
        assert [*connector.spelled(followed, [])] == []
        folded = values([connector.folded(followed, whole)], *followed.key)
        assert len(set(folded)) == len(keys), "no two keys of a table are one"

    def test_a_copy_is_of_one_instant(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("accounts", {"id": "integer", "money": "integer", **STAMPS}, ("id",))
        other = writer.create("others", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": n, "money": 10} for n in range(20)]))
        connector = self._loading(connect())
        followed, following = tracked(connector, name), tracked(connector, other)
        with connector.copying() as view:
            connector.read(Page(followed, ALL, {}, None, 1))
            before = connector.horizon(followed, None)
            sums, rows = [], 0
            for at in range(0, 20, 5):
                if not self._wrote(writer, name, other, at):
                    pytest.skip("nothing can be written to this source while a copy is made of it")
                page = Page(followed, ALL, {}, (at - 1,), 100, until=(at + 4,))
                sums += values([connector.read(page)], "money")
                if view is not None:
                    joiner = connect()
                    with joiner.join(view):
                        rows += len(joiner.read(page))
                        rows += len(joiner.read(Page(following, ALL, {}, None, 10)))
            assert connector.horizon(followed, None).floor == before.floor
            alone = connector.read(Page(following, ALL, {}, None, 10))
        if view is None and len(alone):
            pytest.skip("this source shows each read what is there by then")
        assert sums == [(10,)] * 20
        assert view is None or rows == 20
        with connector.snapshot():
            assert len(connector.read(Page(following, ALL, {}, None, 10))) == 4

    def test_a_source_says_how_hard_it_is_at_work_or_nothing(self, connect: Connect, writer: Writer) -> None:
        name = writer.create("calm", {"id": "integer", **STAMPS}, ("id",))
        writer.insert(name, stamped([{"id": 1}]))
        connector = connect()
        with connector.copying():
            inside = connector.strain()
            connector.read(Page(tracked(connector, name), tracked(connector, name).passes[0], {}, None, 10))
        for found in (inside, connector.strain()):
            assert isinstance(found, Strain)
            assert all(value is None or value >= 0 for value in (found.replication_lag, found.lock_wait))

    def _filled(
        self, connect: Connect, writer: Writer, kind: str, composite: bool
    ) -> tuple[SourceConnector, Tracked, list[Position]]:
        """Return a table of keys of *kind*: alone, or each with some numbers, that is in groups."""
        parts = self.keys(writer, kind)
        columns = {"k": kind, "n": "integer", "v": kind, **STAMPS}
        name = writer.create(f"chunks_{kind}", columns, ("k", "n") if composite else ("k",))
        numbers: dict[Scalar, Sequence[int]] = {
            part: ((-300, 3, 2**53 + 1, 2**63 - 1) if at % 2 else (0,)) if composite else (at,)
            for at, part in enumerate(parts)
        }
        rows: list[Row] = [{"k": k, "n": n, "v": k} for k, ns in numbers.items() for n in ns]
        writer.insert(name, stamped(rows[::2]) + stamped(rows[1::2], lambda n: BASE - n))
        connector = self._loading(connect())
        followed = tracked(connector, name)
        return connector, followed, [tuple(row[c] for c in followed.key) for row in rows]

    def _loading(self, connector: SourceConnector) -> SourceConnector:
        if not connector.loads_by_key:
            pytest.skip("this source is loaded by its cursors")
        return connector

    def _wrote(self, writer: Writer, name: str, other: str, at: int) -> bool:
        """Take from a row that is still to be read and write into another table; False where a copy forbids it."""
        with contextlib.suppress(Exception):
            writer.update(name, {"id": 19 - at // 5}, {"money": 0, "updated_at": BASE + 100})
            writer.insert(other, stamped([{"id": at}]))
            return True
        return False
