"""Keys that stand twice, as a connector of somebody's own gives them: it need not know of this."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from sidecar.connector import Source, SourceConnector
from sidecar.errors import SettingsError
from sidecar.model import Page, Pass, Table, Tracked
from sidecar.polls import rows, twins


class Listed(SourceConnector):
    """Keys, in their order; a page begins where the key of the last one ends, as in any source."""

    scheme = "listed"

    def __init__(self, keys: Sequence[int | None]) -> None:
        super().__init__(Source("listed://"))
        self._keys = keys

    def tables(self) -> Sequence[str]:
        return ("t",)

    def describe(self, table: str) -> Table:
        return Table(table, (table,), (), ())

    def read(self, page: Page) -> pa.Table:
        after = page.after[0] if page.after else None
        found = [
            key for key in self._keys if after is None or (isinstance(after, int) and key is not None and key > after)
        ]
        return pa.table({"id": pa.array(found[: page.limit], pa.int64())})


def page(limit: int, after: int | None = None) -> Page:
    tracked = Tracked(Table("t", ("t",), (), ()), ("id",), "updated_at", key_is_unique=False)
    return Page(tracked, Pass("all", None), {}, None if after is None else (after,), limit)


def pages(connector: SourceConnector, limit: int) -> list[int]:
    after, met = None, []
    while found := twins.read(connector, page(limit, after)).column("id").to_pylist():
        met += found
        after = found[-1]
    return met


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_two_rows_of_one_key_are_named_wherever_a_page_ends(limit: int) -> None:
    with pytest.raises(SettingsError, match=r'table "t": 1 key stands more than once \(first: id=3\)'):
        pages(Listed([1, 2, 3, 3, 4]), limit)


def test_keys_that_are_unique_come_page_by_page() -> None:
    assert pages(Listed(range(1, 8)), 3) == [*range(1, 8)]


def test_keys_that_are_null_are_no_twins_and_are_named_as_what_they_are() -> None:
    asked = page(3)
    data = twins.read(Listed([None, None, 1, 2]), asked)
    assert len(data) == 3
    with pytest.raises(SettingsError, match='key column "id" holds a NULL'):
        rows.from_page(asked, data)
