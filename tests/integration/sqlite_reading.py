"""A SQLite table as tests read it: followed as settings would have it, filled, and read page by page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from connectors.sqlite import SQLiteConnector
from sidecar import codec, cursor
from sidecar.model import Page, Pass, PassName, Position, Tracked
from sidecar.polls.quarantine import sorted_out
from sidecar.polls.rows import from_page
from tests.conftest import SQLiteFile


def tracked(source: SQLiteConnector, name: str, **settings: Any) -> Tracked:
    table = source.describe(name)
    return Tracked(
        table,
        settings.pop("key", table.primary_key),
        settings.pop("updated_at", "updated_at"),
        columns=settings.pop("columns", table.columns),
        **settings,
    )


def rows(
    source: SQLiteConnector,
    table: Tracked,
    limit: int = 100,
    closed: Mapping[PassName, int | None] | None = None,
    scan: Pass | None = None,
) -> list[dict[str, Any]]:
    """Return all rows of a pass, read in pages of *limit*, each position once through the codec."""
    scan = scan or table.passes[0]
    after: Position | None = None
    found: list[dict[str, Any]] = []
    names = ((scan.cursor,) if scan.cursor else ()) + table.key
    while True:
        page = Page(table, scan, closed or {}, after, limit)
        data = source.read(page)
        sorted_out(from_page(page, data)[0])
        assert len(data) <= limit
        found += data.to_pylist()
        if len(data) < limit:
            return found
        after = codec.unpack(codec.pack(codec.position(data.slice(len(data) - 1), names)))


def fill(file: SQLiteFile, sql: str, values: Iterable[Sequence[object]]) -> None:
    """Write many rows in one transaction."""
    file.connection.execute("BEGIN")
    file.connection.executemany(sql, values)
    file.connection.execute("COMMIT")


def at(text: str) -> int:
    found = cursor.from_text(text)
    assert found is not None
    return found
