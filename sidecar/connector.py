"""What a source must be able to do: a handful of methods, no position inside.

A connector is registered under the entry point group `sidecar.connectors`, by URL scheme. Everything it is asked is in
the arguments, everything it knows is in the answer; Sidecar stores and echoes positions without looking into them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, ClassVar

from sidecar import codec, cursor
from sidecar.clock import Clock, SystemClock
from sidecar.errors import SettingsError
from sidecar.model import CURSOR, Horizon, Memory, Page, Pass, Position, Strain, Table, Tracked, Wishes

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Source:
    """Where to connect, and how long to wait. `user` and `password`, where given, win over the URL's. Seconds."""

    url: str = field(repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout: float = 10.0
    lock_timeout: float = 5.0
    statement_timeout: float = 300.0
    clock: Clock = field(default_factory=SystemClock)

    @property
    def scheme(self) -> str:
        return self.url.partition(":")[0].lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that `sidecar check` has to say: where, what, and what to do about it."""

    level: str  # "error" | "warning" | "note": nothing is wrong
    where: str
    message: str
    advice: str = ""


class SourceConnector(ABC):
    """A database that can be read. Subclass it, set `scheme`, and register the class as an entry point.

    Errors: raise `SourceUnavailable` for what may pass by itself (refused, locked, cancelled), `SettingsError` for what
    a person must mend; both name the table. Never write to the source.
    """

    scheme: ClassVar[str]

    reads_ahead: ClassVar[bool] = False
    """Whether `read` may be called from another thread (never two calls at once): the next page is then fetched while
    the last one is written."""

    loads_by_key: ClassVar[bool] = False
    """Whether `read` takes the pass "all": every row, in order of the key, a backfill's chunks. Without it, a table's
    existing rows come with its first poll, and there are no backfills."""

    shares_views: ClassVar[bool] = False
    """Whether `copying` names its view, so that several connectors can read in it at once."""

    takes_scopes: ClassVar[bool] = False
    """Whether `read` takes `Page.scope`: a backfill of a part of a table."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def tables(self) -> Sequence[str]:
        """Return the names of the tables that may be followed, system and shadow tables left out."""

    @abstractmethod
    def describe(self, table: str) -> Table:
        """Return *table* as it is now; SettingsError, with the nearest names, if there is no such table."""

    def typed(self, table: Table, wishes: Wishes) -> Table:
        """Return *table*, as `describe` gave it, with its columns in the types that *wishes* ask for.

        SettingsError for what cannot be: a setting, or a column, of which there are no several forms here.
        """
        asked = [*wishes.general, *(name for name in wishes.named if name not in wishes.general)]
        if asked:
            raise SettingsError(f'table "{table.name}": {asked[0]}: a {self.scheme} source knows no such setting')
        return table

    @abstractmethod
    def read(self, page: Page) -> pa.Table:
        """Return *page*'s rows in its order: `cursor > closed`, strictly after the position, at most `limit`.

        A pass without a cursor is in order of the key, and its positions are keys.

        Columns: those of `page.tracked.columns` in order, with their `arrow` types, then any other column needed (key,
        `updated_at`, `created_at`, `deleted_at`). The key and the cursors, however, in the types that the table itself
        gives them: by those they are ordered, compared and remembered. Then optionally

        sidecar:cursor   int64; the pass's cursor as a comparable integer, where the column itself cannot carry it
                         (`infinity` is `INFINITY`). It then stands in positions in place of the column's value. In a
                         pass without a cursor it says so of `updated_at`.
        sidecar:version  int64; the row version's number in the source, at or above `Horizon.floor` if it is new.
                         Without it, Sidecar tells what it has delivered by the row's content.
        sidecar:deleted  bool; the row is soft-deleted. Without it: `deleted_at` is neither NULL nor in `not_deleted`.
        sidecar:value:…  for a key or cursor column that is delivered in another type: its values in that.
        sidecar:bad      string; NULL for a row that is as it should be. Otherwise a column's type cannot hold its
                         value: NULL stands in the value's place, and here what `codec.bad` makes of the reasons and of
                         the whole row. `on_bad_value` says what comes of it. Keys are never bad: raise SettingsError.

        A NULL key part or a duplicate key must not be hidden. Fewer rows than `limit` means: there are no more.
        """

    def settle(self, tracked: Tracked, held: Callable[[], pa.Schema | None]) -> Tracked:
        """Return *tracked* with its columns in the types in which they are delivered, from now on.

        For sources whose declarations leave types open. Asked before a table's first poll in a process. What *held*
        returns, the columns of the table's log, has been decided: only what is not in it may be looked for.
        """
        del held
        return tracked

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Hold one view of the source for the reads inside, where the source can; else each read sees its own."""
        yield

    @contextlib.contextmanager
    def copying(self) -> Iterator[str | None]:
        """Hold one view of the source for all reads inside, however long they take, where the source can.

        Yields a name by which other connectors to this source, in any process, can `join` that view; None: they cannot.
        """
        with self.snapshot():
            yield None

    def join(self, name: str) -> AbstractContextManager[None]:
        """Hold the view that another connector, which is `copying`, has called *name*, for the reads inside."""
        raise SettingsError(f'a {self.scheme} source has no view "{name}" that connections could share')

    def split(self, page: Page, parts: int) -> Sequence[Position]:
        """Return the keys at which *page*'s pass "all" divides into about *parts* parts of as many rows, in key order.

        An estimate, and cheap beside reading the rows. A part runs from after one key up to the next, that one
        included (`Page.until`); the last has no end. No keys: it is not to be divided.
        """
        del page, parts
        return ()

    def spelled(self, tracked: Tracked, keys: Sequence[Position]) -> Sequence[Position]:
        """Return *keys*, which somebody wrote, each in the form in which a row of *tracked* would carry it.

        SettingsError for one that no row can have.
        """
        del tracked
        return keys

    def are_one(self, tracked: Tracked, one: Position, other: Position) -> bool:
        """Return whether the source takes the keys *one* and *other* for the same, as texts under some collations are.

        Asked only where it does not see to it that no two rows have such keys.
        """
        del tracked
        return one == other

    def folded(self, tracked: Tracked, keys: pa.Table) -> pa.Table:
        """Return *keys*, as they are delivered, such that two rows of it are equal only if the source holds them for
        equal, and are so wherever it is notation alone that tells them apart.
        """
        del tracked
        return keys

    def strain(self) -> Strain:
        """Return how hard the source is at work; asked now and then, while a backfill runs."""
        return Strain()

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        """Return what is known of rows still to appear; the default is the clock, and no running transactions.

        Asked once at the start of a poll, inside its snapshot. *memory* is what the previous horizon handed out.
        """
        del tracked, memory
        now = self.source.clock.now()
        return Horizon(now=now, settled=now)

    def greatest(self, page: Page, at_most: int | None) -> int | None:
        """Return the greatest cursor value among *page*'s rows that is not above *at_most*; None without rows.

        The default reads all of them; a source that can answer by an index should.
        """
        found: int | None = None
        name = page.scan.cursor
        while name is not None:
            rows = self.read(page)
            column = CURSOR if CURSOR in rows.column_names else name
            values = cursor.comparable(rows.column(column), page.tracked.timezone)
            found = max((v for v in (found, cursor.greatest_within(values, at_most)) if v is not None), default=None)
            if len(rows) < page.limit:
                break
            last = rows.slice(len(rows) - 1)
            page = dataclasses.replace(page, after=codec.position(last, (column, *page.tracked.key)))
        return found

    def estimate(self, tracked: Tracked) -> int | None:
        """Return about how many rows the table holds, if that costs nothing to know: for a progress bar's ETA."""
        del tracked
        return None

    def hides(self, table: Table) -> str | None:
        """Return, in words for people, why there may be rows of *table* that this login is not shown; None: there are
        none, as far as the source tells. They look as if they had been deleted, so nothing is purged.
        """
        del table
        return None

    def pulse(self) -> object | None:
        """Return a value that is equal to an earlier one only if nothing at all has changed since; None: unknown."""
        return None

    def outline(self, table: Table) -> object | None:
        """Return a value that is equal to an earlier one only if *table* would be described the same; None: unknown.

        Asked before each poll that finds something: a column that comes while a loop runs is then seen at once.
        """
        del table
        return None

    def identity(self) -> str | None:
        """Return what the database is known by among others that the source's URL might have named; None: unknown.

        No host, no login: these may change while the database stays.
        """
        return None

    def stands(self, identity: str) -> bool:
        """Return whether the database that is known by *identity*, another one than this, is still to be found."""
        del identity
        return False

    def cancel(self) -> None:  # noqa: B027  a source that answers at once has nothing to break off
        """Have what is being read break off, if anything is: that `read` raises SourceUnavailable.

        Called by other threads than the one that reads, and again until it has come to an end.
        """

    def check(self, tracked: Tracked) -> Sequence[Finding]:
        """Return what stands in the way of following this table well; costs may be a full scan. It has been settled."""
        del tracked
        return ()

    def close(self) -> None:  # noqa: B027  a source without connections has nothing to let go of
        """Let go of every connection."""


def connect(source: Source) -> SourceConnector:
    """Return the connector registered for *source*'s URL scheme; SettingsError names the known ones."""
    return _registered(source.scheme)(source)


# To look for one is to open a file of each package that is installed, and connections are made again and again.
@functools.cache
def _registered(scheme: str) -> type[SourceConnector]:
    found = entry_points(group="sidecar.connectors")
    match = next((e for e in found if e.name == scheme), None)
    if match is None:
        known = ", ".join(sorted({e.name for e in found})) or "none (is the package installed?)"
        raise SettingsError(f'source url: no connector for "{scheme}://"; known schemes: {known}')
    connector: type[SourceConnector] = match.load()
    return connector


__all__ = ["Finding", "Pass", "Source", "SourceConnector", "connect"]
