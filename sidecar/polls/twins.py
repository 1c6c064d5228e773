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
from sidecar.model import Page


def read(connector: SourceConnector, page: Page) -> pa.Table:
    """Return *page*'s rows; SettingsError if a key stands twice among them, or among them and the row behind them."""
    tracked = page.tracked
    if tracked.key_is_unique:
        return connector.read(page)
    data = connector.read(dataclasses.replace(page, limit=page.limit + 1))
    if not len(data):
        return data
    counts = data.group_by(list(tracked.key)).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts.column("count_all"), 1))
    if len(twice):
        values = next(iter(codec.rows(twice, tracked.key)))
        key = ", ".join(f"{n}={v!r}" for n, v in zip(tracked.key, values, strict=True))
        raise SettingsError(
            f'table "{tracked.name}": {counted(len(twice), "key stands", "keys stand")} more than once '
            f"(first: {key}). Rows are told apart by a key that is unique: add the columns that make it so to "
            "primary_key."
        )
    return data.slice(0, page.limit)
