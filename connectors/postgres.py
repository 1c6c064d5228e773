"""PostgreSQL as a source, 13 or newer, read by a role that may SELECT and nothing more; standbys too.

What makes its polls exact is that every row names the transaction that wrote it (xmin), and every snapshot which
transactions it knows. Sessions are in `postgres_session.py`, the catalog in `postgres_catalog.py`, SELECTs in
`postgres_query.py`, the two readers in `postgres_read.py`, types and literals in `postgres_types.py`, and what
`sidecar check` says in `postgres_check.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from connectors import postgres_catalog as catalog
from connectors import postgres_types as types
from connectors.postgres_query import Statements, cursor_column
from connectors.postgres_read import Reader
from connectors.postgres_session import Server, Session, View
from sidecar.connector import Finding, Source, SourceConnector
from sidecar.model import Horizon, Memory, Page, Table, Tracked
from sidecar.sql import quoted

_KEPT = 64


class PostgresConnector(SourceConnector):
    """Reads PostgreSQL through one held connection; connectorx joins in for bulk."""

    scheme: ClassVar[str] = "postgresql"
    reads_ahead: ClassVar[bool] = True
    loads_by_key: ClassVar[bool] = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._session = Session(source)
        self._reader = Reader(self._session)
        self._only_tables = True

    def tables(self) -> Sequence[str]:
        return catalog.tables(self._session)

    def describe(self, table: str) -> Table:
        found = catalog.describe(self._session, table)
        self._only_tables &= found.kind == "table"
        return found

    def read(self, page: Page) -> pa.Table:
        return self._reader.read(page)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        try:
            with self._session.snapshot():
                yield
        finally:
            self._reader.forget()

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        """Return the snapshot's clock, and since when nothing older can still be running.

        The history says when which transaction ids had not been given out yet. So if an earlier poll's next id is not
        above this snapshot's xmin, every transaction that still runs got its id after that poll.
        """
        with self._session.snapshot(tracked.name) as view:
            past = _past(memory, view, self._session.server)
            settled = view.now if view.xmin == view.next else _settled(past.history, view)
            kept = {
                "history": [list(entry) for entry in _kept(past.history, view)],
                "server": past.server,
                "restores": past.restores,
            }
            if tracked.table.kind != "table":
                return Horizon(view.now, settled, None, kept)
            return Horizon(view.now, settled, view.xmin, kept, f"{past.server}#{past.restores}")

    def greatest(self, page: Page, at_most: int | None) -> int | None:
        """Return the greatest cursor value that is not above *at_most*, from the cursor's index where there is one."""
        if page.scan.cursor is None:
            return None
        statements = Statements(page)
        type_ = cursor_column(page.tracked, page.scan.cursor).arrow
        name = statements.name(page.scan.cursor)
        terms = [statements.condition(after=False)]
        if types.is_time(type_):
            terms.append(f"{name} < 'infinity'")
        if at_most is not None:
            limit = types.last_day_over(at_most) if pa.types.is_date(type_) else at_most
            terms.append(f"{name} <= {types.literal(type_, limit)}")
        value = types.comparable(type_, "found.value") if types.is_time(type_) else "found.value"
        rows = self._session.rows(
            f"SELECT {value} FROM (SELECT max({name}) AS value FROM {statements.source}"
            f" WHERE {' AND '.join(f'({t})' for t in terms)}) AS found",
            table=page.tracked.name,
        )
        found = rows[0][0]
        return None if found is None else int(found)

    def estimate(self, tracked: Tracked) -> int | None:
        """Return what the planner believes, partitions included."""
        name = ".".join(map(quoted, tracked.table.path))
        rows = self._session.rows(
            "SELECT sum(c.reltuples)::int8, bool_or(c.reltuples < 0) FROM pg_catalog.pg_class AS c"
            " WHERE c.relkind = 'r' AND c.oid IN"
            " (SELECT %s::regclass::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%s::regclass))",
            (name, name),
            table=tracked.name,
        )
        count, unknown = rows[0]
        return None if unknown or count is None else int(count)

    def pulse(self) -> object | None:
        """Return the server's start and its next transaction id, if no transaction runs: nothing can have changed.

        What a view or a foreign table shows may change without a transaction here, so with such tables it is unknown.
        """
        if self._session.view is not None or not self._only_tables:
            return None
        started, xmin, xmax, given = self._session.rows(
            "SELECT pg_catalog.pg_postmaster_start_time()::text, pg_catalog.pg_snapshot_xmin(s)::text,"
            " pg_catalog.pg_snapshot_xmax(s)::text, pg_catalog.age(pg_catalog.pg_snapshot_xmax(s)::xid)"
            " FROM pg_catalog.pg_current_snapshot() AS s"
        )[0]
        return f"{started} {xmax}" if xmin == xmax and given == 0 else None

    def check(self, tracked: Tracked) -> Sequence[Finding]:
        from connectors.postgres_check import findings

        return findings(self._session, tracked, self.source.clock)

    def close(self) -> None:
        self._session.close()


@dataclass(frozen=True, slots=True)
class _Past:
    """What is remembered of the server: which it is, how often it was seen to go back, and `(time, next id)`."""

    server: str
    restores: int
    history: Sequence[tuple[int, int]]


def _past(memory: Memory, view: View, server: Server) -> _Past:
    """Return what *memory* says that holds for this server.

    Ids never go back on one server, but for a restored copy of its disk, which keeps cluster and timeline. A standby
    may be behind another one that was asked before: that is no restore, but the history is of no use there.
    """
    held: Any = memory or {}
    history = [(int(time), int(following)) for time, following in held.get("history", [])]
    restores = int(held.get("restores", 0))
    if held.get("server", server.identity) != server.identity:
        return _Past(server.identity, 0, [])
    if any(following > view.next for _, following in history):
        return _Past(server.identity, restores if server.standby else restores + 1, [])
    return _Past(server.identity, restores, history)


def _settled(history: Sequence[tuple[int, int]], view: View) -> int | None:
    return max((time for time, following in history if following <= view.xmin), default=None)


def _kept(history: Sequence[tuple[int, int]], view: View) -> list[tuple[int, int]]:
    """Return the history that a later poll may need: the latest entry at or below xmin, those after it, and this one.

    Leaving out an entry can only make a later answer an earlier time, which closes less: so a long history is thinned.
    Of two entries with the same id the later says more.
    """
    known = {following: time for time, following in sorted([*history, (view.now, view.next)])}
    entries = sorted((time, following) for following, time in known.items())
    settled = [entry for entry in entries if entry[1] <= view.xmin]
    entries = [*settled[-1:], *(entry for entry in entries if entry[1] > view.xmin)]
    while len(entries) > _KEPT:
        entries = [entries[0], *entries[1:-1:2], entries[-1]]
    return entries
