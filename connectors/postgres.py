"""PostgreSQL as a source, 13 or newer, read by a role that may SELECT and nothing more; standbys too.

What makes its polls exact is that every row names the transaction that wrote it (xmin), and every snapshot which
transactions it knows. Sessions are in `postgres_session.py`, snapshots in `postgres_view.py`, the catalog in
`postgres_catalog.py`, SELECTs in `postgres_query.py`, the two readers in `postgres_read.py`, what becomes of their
answers in `postgres_answer.py`, what a snapshot cannot see in `postgres_rewritten.py`, types in `postgres_types.py`,
values that arrive as text in `postgres_values.py`, literals in `postgres_literals.py`, and what `sidecar check` says in
`postgres_check.py`. What a backfill asks for besides: parts of a table in `postgres_scope.py`, keys that divide it in
`postgres_split.py`, keys as rows spell them in `postgres_forms.py`, a snapshot that connections share in
`postgres_copying.py`, whether there is one for connectorx in `postgres_room.py`, and how hard the server is at work in
`postgres_strain.py`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import pyarrow as pa

from connectors import postgres_catalog as catalog
from connectors import postgres_literals as literals
from connectors import postgres_types as types
from connectors.postgres_attached import attached
from connectors.postgres_copying import joined
from connectors.postgres_forms import are_one, folded, spelled
from connectors.postgres_horizon import horizon
from connectors.postgres_query import Statements, cursor_column
from connectors.postgres_read import Reader
from connectors.postgres_session import Session
from connectors.postgres_split import split
from connectors.postgres_strain import strain
from connectors.postgres_view import View
from sidecar.connector import Finding, Source, SourceConnector
from sidecar.errors import SidecarError
from sidecar.model import Horizon, Memory, Page, Position, Strain, Table, Tracked, Wishes
from sidecar.sql import quoted

log = logging.getLogger("sidecar")


class PostgresConnector(SourceConnector):
    """Reads PostgreSQL through one held connection; connectorx joins in for bulk."""

    scheme: ClassVar[str] = "postgresql"
    reads_ahead: ClassVar[bool] = True
    loads_by_key: ClassVar[bool] = True
    shares_views: ClassVar[bool] = True
    takes_scopes: ClassVar[bool] = True
    _filtered: ClassVar[set[tuple[str, str]]] = set()
    """The tables of which it has been said that their rows are filtered: once a process, for all its connections."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._session = Session(source)
        self._reader = Reader(self._session)
        self._aside = Session(source)
        self._only_tables = True
        self._identity: str | None = None

    def tables(self) -> Sequence[str]:
        return catalog.tables(self._session)

    def describe(self, table: str) -> Table:
        found = catalog.describe(self._session, table)
        self._only_tables &= found.kind == "table"
        return found

    def typed(self, table: Table, wishes: Wishes) -> Table:
        return types.typed(table, wishes)

    def read(self, page: Page) -> pa.Table:
        return self._reader.read(page)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._held(self._session.snapshot()):
            yield

    @contextlib.contextmanager
    def copying(self) -> Iterator[str | None]:
        """Hold one snapshot, exported: what is asked inside, a horizon too, is of that instant, on a standby as well.

        The server keeps all row versions that it shows until it ends.
        """
        with self._held(self._session.snapshot()):
            yield self._session.export()

    @contextlib.contextmanager
    def join(self, name: str) -> Iterator[None]:
        """Hold the snapshot that another connection exports as *name*; SourceUnavailable once that one is gone."""
        with self._held(joined(self._session, name)):
            yield

    @contextlib.contextmanager
    def _held(self, snapshot: AbstractContextManager[View]) -> Iterator[None]:
        outermost = self._session.view is None
        try:
            with snapshot:
                yield
        finally:
            if outermost:
                self._reader.forget()

    def split(self, page: Page, parts: int) -> Sequence[Position]:
        """Return keys that a sample of the table's pages tells; none for views, foreign tables, parts of a table."""
        return split(self._session, self._reader, page, parts)

    def spelled(self, tracked: Tracked, keys: Sequence[Position]) -> Sequence[Position]:
        return spelled(self._session, self._reader, tracked, keys)

    def are_one(self, tracked: Tracked, one: Position, other: Position) -> bool:
        return are_one(self._session, tracked, one, other)

    def folded(self, tracked: Tracked, keys: pa.Table) -> pa.Table:
        return folded(tracked, keys)

    def strain(self) -> Strain:
        """Return what the role may see of it; a snapshot that is held is left alone, and another connection asked."""
        try:
            return strain(self._session if self._session.view is None else self._aside)
        except SidecarError:
            return Strain()

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        """Return the snapshot's clock, and since when nothing older can still be running."""
        with self._session.snapshot(tracked.name) as view:
            found = attached(self._session, tracked.table, view, memory)
            versioned = tracked.table.kind == "table"
            return horizon(view, self._session.server, memory, versioned=versioned, attached=found)

    def greatest(self, page: Page, at_most: int | None) -> int | None:
        """Return the greatest cursor value that is not above *at_most*, from the cursor's index where there is one."""
        if page.scan.cursor is None:
            return None
        statements = Statements(page)
        type_ = cursor_column(page.tracked, page.scan.cursor).arrow
        name = statements.name(page.scan.cursor)
        terms = [statements.condition(after=False)]
        if literals.is_time(type_):
            terms.append(f"{name} < 'infinity'")
        if at_most is not None:
            limit = literals.last_day_over(at_most) if pa.types.is_date(type_) else at_most
            terms.append(f"{name} <= {literals.literal(type_, limit)}")
        value = literals.comparable(type_, "found.value") if literals.is_time(type_) else "found.value"
        rows = self._session.rows(
            f"SELECT {value} FROM (SELECT max({name}) AS value FROM {statements.source}"
            f" WHERE {' AND '.join(f'({t})' for t in terms)}) AS found",
            table=page.tracked.name,
        )
        found = rows[0][0]
        return None if found is None else int(found)

    def estimate(self, tracked: Tracked) -> int | None:
        """Return what the planner believes, partitions included; and say it if the role is not shown all rows."""
        name = ".".join(map(quoted, tracked.table.path))
        here = self._session.where, tracked.name
        # To who reads the rows, in a snapshot; a check finds it by itself.
        is_to_be_said = self._session.view is not None and here not in self._filtered
        if is_to_be_said and catalog.is_filtered(self._session, tracked.table):
            self._filtered.add(here)
            log.warning('table "%s": %s. %s', tracked.name, *catalog.FILTERED)
        rows = self._session.rows(
            "SELECT sum(c.reltuples)::int8, bool_or(c.reltuples < 0) FROM pg_catalog.pg_class AS c"
            " WHERE c.relkind = 'r' AND c.oid IN"
            " (SELECT %s::regclass::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%s::regclass))",
            (name, name),
            table=tracked.name,
        )
        count, unknown = rows[0]
        if unknown:
            # Never analyzed: the planner goes by the size of its files.
            plan = self._session.rows(f"EXPLAIN (FORMAT JSON) SELECT 1 FROM {name}", table=tracked.name)[0][0]
            count = plan[0]["Plan"]["Plan Rows"]
        return None if count is None else int(count)

    def hides(self, table: Table) -> str | None:
        return ". ".join(catalog.FILTERED) if catalog.is_filtered(self._session, table) else None

    def pulse(self) -> object | None:
        """Return the server's start, last crash and next transaction id, if none runs: nothing can have changed.

        What a view or a foreign table shows may change without a transaction here, so with such tables it is unknown.
        """
        if self._session.view is not None or not self._only_tables:
            return None
        started, xmin, xmax, given = self._session.rows(
            "SELECT pg_catalog.pg_postmaster_start_time()::text, pg_catalog.pg_snapshot_xmin(s)::text,"
            " pg_catalog.pg_snapshot_xmax(s)::text, pg_catalog.age(pg_catalog.pg_snapshot_xmax(s)::xid)"
            " FROM pg_catalog.pg_current_snapshot() AS s"
        )[0]
        return f"{started} {self._session.server.crash} {xmax}" if xmin == xmax and given == 0 else None

    def outline(self, table: Table) -> object | None:
        return catalog.outline(self._session, table)

    def identity(self) -> str | None:
        if self._identity is None:
            # As the server calls it: a pooler may have another name for it.
            self._identity = str(self._session.rows("SELECT pg_catalog.current_database()")[0][0])
        return self._identity

    def stands(self, identity: str) -> bool:
        return bool(self._session.rows("SELECT FROM pg_catalog.pg_database WHERE datname = %s", (identity,)))

    def cancel(self) -> None:
        self._session.cancel()

    def check(self, tracked: Tracked) -> Sequence[Finding]:
        from connectors.postgres_check import findings

        return findings(self._session, tracked, self.source.clock)

    def close(self) -> None:
        self._reader.forget()
        self._session.close()
        self._aside.close()
