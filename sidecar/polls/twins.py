"""Keys that the source does not hold to be unique: rows that share one are an error, also where a page ends between.

The next page begins behind the last row's cursor and key. Of two rows with the same of both, one at a page's end and
one behind it, the second would never be read. So where a key is only said to be unique, a page looks one row further.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pyarrow.compute as pc

from sidecar import codec
from sidecar.connector import SourceConnector
from sidecar.errors import SettingsError, counted
from sidecar.model import CURSOR, Page, Position, Tracked


def read(connector: SourceConnector, page: Page) -> pa.Table:
    """Return *page*'s rows; SettingsError if a key stands twice among them, or among them and the row behind them."""
    tracked = page.tracked
    if tracked.key_is_unique:
        return connector.read(page)
    data = connector.read(dataclasses.replace(page, limit=page.limit + 1))
    if any(data.column(name).null_count for name in tracked.key) or not len(data):
        return data.slice(0, page.limit)  # a NULL is refused by whoever takes the page
    counts = data.group_by(list(tracked.key)).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts.column("count_all"), 1))
    if len(twice):
        raise _refusal(tracked, len(twice), next(iter(codec.rows(twice, tracked.key))))
    if len(data) > page.limit:
        last, behind = (codec.position(data.slice(at, 1), tracked.key) for at in (page.limit - 1, page.limit))
        if _is_tie(page, data) and None not in behind and connector.are_one(tracked, last, behind):
            raise _refusal(tracked, 1, behind)
    return data.slice(0, page.limit)


def _is_tie(page: Page, data: pa.Table) -> bool:
    """Return whether *page*'s last row and the one behind it have the same cursor value."""
    name = CURSOR if CURSOR in data.column_names else page.scan.cursor
    if page.scan.cursor is None or name is None:
        return True
    values = data.column(name).slice(page.limit - 1, 2).to_pylist()
    return bool(values[0] == values[1])


def _refusal(tracked: Tracked, number: int, key: Position) -> SettingsError:
    shown = ", ".join(f"{name}={value!r}" for name, value in zip(tracked.key, key, strict=True))
    return SettingsError(
        f'table "{tracked.name}": {counted(number, "key stands", "keys stand")} more than once (first: {shown}). Rows '
        "are told apart by a key that is unique: add the columns that make it so to primary_key."
    )
