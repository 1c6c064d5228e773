"""SQLite as a source: tables, their columns, and pages of their rows, each from one short read transaction."""

from __future__ import annotations

import contextlib
import difflib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from connectors import sqlite_conditions as scoped
from connectors import sqlite_keys as keys
from connectors import sqlite_types as types
from connectors.sqlite_bulk import Bulk
from connectors.sqlite_cursor import Cursors, odd_deletions
from connectors.sqlite_file import File
from connectors.sqlite_query import Statement, check_condition, page_statements, presence
from connectors.sqlite_rows import arrow, uncollected
from connectors.sqlite_scope import rowid_of
from connectors.sqlite_settle import settle
from sidecar.connector import Finding, Source, SourceConnector
from sidecar.errors import SettingsError
from sidecar.model import Column, Horizon, Memory, Page, Position, Table, Tracked
from sidecar.sql import quoted

if TYPE_CHECKING:
    from sqlite_utils import Database

_SHADOWS = (
    "config", "content", "data", "docsize", "idx", "node", "parent", "rowid", "segdir", "segments", "stat", "vocab",
)  # fmt: skip
"""What FTS and R-Tree call their own tables, after the name of the virtual one."""

_FEW, _MANY = 2, 200
"""Between these numbers of stretches it is asked first in which of them anything is: mostly in one, or in none."""

# A table by its exact name, where nothing virtual makes it doubtful whose it is: the usual case, which needs no help of
# sqlite-utils, whose import is a tenth of an idle run.
_ONE = (
    "SELECT name, type FROM sqlite_master WHERE name = ? AND type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%'"
    " ESCAPE '!' AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE sql LIKE 'CREATE VIRTUAL%')"
)


class SQLiteConnector(SourceConnector):
    """One SQLite file, read by its own process's sqlite3, never written.

    The connection is held, a transaction never is: each read is fetched to memory and let go. So `snapshot` holds
    nothing, and two reads may see two states; the core is made for that. Only `copying` holds one.
    """

    reads_ahead = True
    loads_by_key = True
    takes_scopes = True
    scheme = "sqlite"

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.file = File(source)
        self._cursors = Cursors(self.file)
        self._bulk = Bulk(self.file)
        self._without_rows: dict[str, tuple[Tracked, pa.Table]] = {}
        self._lock = threading.RLock()

    def tables(self) -> Sequence[str]:
        with self._lock:
            self.file.look()
            with self.file.reading():
                database = self._utils()
                return [*_real(database), *database.view_names()]

    def describe(self, table: str) -> Table:
        with self._lock:
            self.file.look()
            with self.file.reading(table) as connection:
                found = connection.execute(_ONE, (table,)).fetchone()
                if found is None:
                    database = self._utils()
                    name = _named(table, [*_real(database), *database.view_names()], str(self.file.path))
                    found = (name, "view" if name in database.view_names() else "table")
                name, kind = found
                key = _key_of(connection, name) if kind == "table" else ()
                return Table(name, (name,), _columns(connection, name, key), key, kind)

    def read(self, page: Page) -> pa.Table:
        with self._lock, uncollected():
            return self._read(page)

    def settle(self, tracked: Tracked, held: Callable[[], pa.Schema | None]) -> Tracked:
        with self._lock, contextlib.ExitStack() as reads:

            def connect() -> sqlite3.Connection:
                self.file.look()
                return reads.enter_context(self.file.reading(tracked.name))

            return settle(connect, tracked, held)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._lock:
            self.file.look()
            self._bulk.begin()
        yield

    @contextlib.contextmanager
    def copying(self) -> Iterator[str | None]:
        """Hold one read transaction: all tables are seen at one instant. Other connections cannot join it.

        Meanwhile a WAL can grow only, and in rollback mode no writer can commit.
        """
        with contextlib.ExitStack() as held:
            with self._lock:
                held.enter_context(self.file.holding())
            yield None

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        with self._lock, self.file.reading(tracked.name) as connection:
            if tracked.deleted_when:
                _check_condition(connection, tracked)
            memory = self._cursors.recalled(tracked, memory)
            settled = self._cursors.settled(connection, tracked)
        return Horizon(now=self.source.clock.now(), settled=settled, memory=memory)

    def greatest(self, page: Page, at_most: int | None) -> int | None:
        if page.scan.cursor is None:
            return None
        with self._lock, self.file.reading(page.tracked.name) as connection:
            return self._cursors.greatest(connection, page, at_most)

    def estimate(self, tracked: Tracked) -> int | None:
        """Return the greatest rowid: the count of a table that nothing was deleted from, found in no time."""
        if tracked.table.kind == "view":
            return None
        with self._lock, self.file.reading(tracked.name) as connection:
            try:
                found = connection.execute(f"SELECT max(rowid) FROM {quoted(tracked.name)}").fetchone()[0]
            except sqlite3.OperationalError:
                return None  # WITHOUT ROWID
        return found if isinstance(found, int) and found > 0 else None

    def identity(self) -> str | None:
        return str(self.file.path)

    def stands(self, identity: str) -> bool:
        try:
            return not Path(identity).samefile(self.file.path)
        except OSError:
            return False

    def pulse(self) -> object | None:
        with self._lock:
            found = self.file.look()
            version = self.file.version()
            # The times catch a copy over the file in place.
            state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            return (self.file.generation, *state, version)

    def outline(self, table: Table) -> object | None:
        with self._lock:
            self.file.look()
            with self.file.reading(table.name) as connection:
                return (self.file.generation, connection.execute("PRAGMA schema_version").fetchone()[0])

    def cancel(self) -> None:
        self.file.interrupt()
        self._bulk.cancel()

    def check(self, tracked: Tracked) -> Sequence[Finding]:
        from connectors.sqlite_check import findings

        with self._lock:
            self.file.look()
            with self.file.reading(tracked.name) as connection:
                if tracked.deleted_when:
                    _check_condition(connection, tracked)
                return findings(connection, tracked, self._cursors, self.source.clock.now())

    def close(self) -> None:
        with self._lock:
            self.file.close()
            self._bulk.rest()

    def _utils(self) -> Database:
        # 60 ms of a start; Database(path) would make the file, and plugins may do anything.
        from sqlite_utils import Database

        return Database(self.file.connection(), recursive_triggers=False, execute_plugins=False)

    def _read(self, page: Page) -> pa.Table:
        tracked = page.tracked
        check_condition(tracked)
        table = self._bulk.read(page, self._statements) if self._bulk.takes(page, self.estimate) else None
        if table is None:
            rows = self._rows(page)
            table = arrow(tracked, rows) if rows else self._empty(tracked)
        if len(table) < page.limit:
            self._bulk.rest()
        self._cursors.saw(page, table)
        odd_deletions(tracked, table)
        return table

    def are_one(self, tracked: Tracked, one: Position, other: Position) -> bool:
        with self._lock, self.file.reading(tracked.name) as connection:
            return keys.are_one(connection, tracked, one, other)

    def _empty(self, tracked: Tracked) -> pa.Table:
        """Return a page without rows: most polls find nothing in all passes but one."""
        held = self._without_rows.get(tracked.name)
        if held is None or held[0] is not tracked:
            held = self._without_rows[tracked.name] = tracked, arrow(tracked, [])
        return held[1]

    def _rows(self, page: Page) -> list[tuple[object, ...]]:
        rows: list[tuple[object, ...]] = []
        with self.file.reading(page.tracked.name) as connection:
            for statement in self._statements(connection, page):
                rows += self._fetch(connection, page, statement, page.limit - len(rows))
                if len(rows) >= page.limit:
                    break
            keys.refuse_nulls(connection, page.tracked, rows)
            keys.refuse_twins(connection, page.tracked, rows)
        self._bulk.learn(page, rows)
        return rows

    def _statements(
        self, connection: sqlite3.Connection, page: Page, shown: Callable[[str, str], str] | None = None
    ) -> Sequence[Statement]:
        if page.scope.where is not None:
            scoped.check(connection, page)
        ranges, indexed = self._cursors.ranges(connection, page)
        position = self._cursors.raw(connection, page, page.after)
        until = self._cursors.raw(connection, page, page.until)
        if indexed:
            keys.refuse_hidden_nulls(connection, page, until)
        if indexed and position is None and _FEW < len(ranges) <= _MANY:
            asked = presence(page, ranges)
            found = connection.execute(asked.sql, asked.parameters).fetchone()
            ranges = [each for each, is_there in zip(ranges, found, strict=True) if is_there]
            if not ranges:
                return ()
        rowid = rowid_of(connection, page)
        return list(page_statements(page, ranges, position, indexed=indexed, until=until, rowid=rowid, shown=shown))

    def _fetch(
        self, connection: sqlite3.Connection, page: Page, statement: Statement, limit: int
    ) -> list[tuple[object, ...]]:
        tracked = page.tracked
        parameters = (*statement.parameters, limit)
        try:
            return connection.execute(statement.sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if "decode to UTF-8" in str(error):
                connection.text_factory = types.decoded
                try:
                    return connection.execute(statement.sql, parameters).fetchall()
                finally:
                    connection.text_factory = str
            if tracked.deleted_when and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
                _check_condition(connection, tracked)
            if page.scope.where is not None and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
                raise scoped.refused(page, error) from error
            raise


def _named(asked: str, known: Sequence[str], path: str) -> str:
    """Return *asked* as the database spells it; names are case-insensitive in SQLite."""
    if asked in known:
        return asked
    folded = [n for n in known if n.lower() == asked.lower()]
    if len(folded) == 1:
        return folded[0]
    near = difflib.get_close_matches(asked, known, n=3, cutoff=0.5) or sorted(known)[:5]
    hint = f"; there are {', '.join(near)}" if near else "; there are none at all"
    raise SettingsError(f'{path}: there is no table or view "{asked}"{hint}')


def _key_of(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """Return the primary key in its declared order."""
    rows = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    return tuple(name for _, name in sorted((in_key, name) for _, name, _, _, _, in_key, _ in rows if in_key))


def _real(database: Database) -> list[str]:
    """Return the tables that hold an application's rows: not SQLite's own, not virtual, not a virtual table's store."""
    found = [n for n in database.table_names() if not n.lower().startswith("sqlite_")]
    virtual = {n for n in found if database.table(n).virtual_table_using}
    shadows = {f"{name}_{ending}" for name in virtual for ending in _SHADOWS}
    return [n for n in found if n not in virtual and n not in shadows]


def _columns(connection: sqlite3.Connection, table: str, key: Sequence[str]) -> tuple[Column, ...]:
    """Return *table*'s columns, generated ones too: sqlite-utils, like PRAGMA table_info, does not see those."""
    rows = connection.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall()
    indexes = connection.execute(f"PRAGMA index_list({quoted(table)})").fetchall()
    # An INTEGER PRIMARY KEY without an index of its own is the rowid, which is never NULL. Other keys may hold NULLs,
    # by an old mistake that SQLite keeps, unless the table is STRICT or WITHOUT ROWID: then notnull says so.
    is_rowid = len(key) == 1 and not any(index[3] == "pk" for index in indexes)
    found = []
    for _, name, declared, not_null, _, in_key, hidden in rows:
        if hidden == 1:
            continue
        nullable = not not_null and not (in_key and is_rowid and declared.upper() == "INTEGER")
        found.append(Column(name, declared, types.arrow(declared), nullable))
    return tuple(found)


def _check_condition(connection: sqlite3.Connection, tracked: Tracked) -> None:
    """Raise SettingsError if it is `deleted_when` that the database does not understand."""
    try:
        connection.execute(f"SELECT (\n{tracked.deleted_when}\n) FROM {quoted(tracked.name)} LIMIT 0")
    except sqlite3.Error as error:
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"SELECT 1 FROM {quoted(tracked.name)} LIMIT 0")
            raise SettingsError(
                f'table "{tracked.name}": deleted_when = "{tracked.deleted_when}" is no condition on it: {error}'
            ) from error
