"""A source that Hypothesis drives: writers with open transactions on a real database, and a follower that polls it.

Time belongs to the test: a world's clock is the only one, and what a database says of real time is translated into it.
The databases are in `sqlite_world.py` and `postgres_world.py`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, FakeClock
from sidecar.connector import SourceConnector
from sidecar.log import recovery
from sidecar.log.storage import AnyPath
from sidecar.model import Tracked
from sidecar.poll import Step, poll
from sidecar.state import RocksDBWatermarkStore, WatermarkStore

KEYS = range(12)
SPLIT = ((3,), (7,))
"""The keys at which these worlds divide their table: of a dozen rows, no sample would tell."""
START = 1_714_557_600 * SECOND
LOOKBACK = 60 * SECOND

Knows: TypeAlias = Literal["nothing", "numbers", "sessions"]
"""What a source says of open transactions: nothing; the numbers of those that have written; all, and since when."""


@dataclass
class Open:
    """A transaction under way: when it began, and the greatest stamp that had been written by then.

    `numbered` is when the database gave it its number (None: it has written nothing), `oldest` its least stamp. It
    keeps others from writing the keys that it has `touched`, and from locking those that are `shared`.
    """

    began: int
    above: int
    numbered: int | None = None
    oldest: int | None = None
    touched: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    savepoints: int = 0


class World(Protocol):
    """A database with one table `t(id, v, created_at, updated_at, deleted_at)`."""

    writers: int
    knows: Knows
    clock: FakeClock
    heap: str
    """Where the rows of `t` are."""

    def connector(self) -> SourceConnector:
        """Return a connector on a new connection."""

    def tracked(self, connector: SourceConnector) -> Tracked:
        """Return how the table is followed."""

    def begin(self, writer: int) -> None:
        """Begin a transaction in *writer*'s session."""

    def execute(self, writer: int, sql: str) -> None:
        """Run a statement in *writer*'s session."""

    def stamp(self, micros: int, shape: int) -> str:
        """Return a stamp as a literal of the table's own kind; *shape* picks one of its forms."""

    def content(self) -> dict[int, tuple[int, bool]]:
        """Return the committed rows: key → (version, soft-deleted)."""

    def close(self) -> None:
        """Let go."""


def folder(name: str) -> Path:
    """Make a folder, in memory where that is possible: thousands of small files are synced in it."""
    return Path(tempfile.mkdtemp(prefix=f"sidecar-{name}-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


class Follower:
    """Polls a world into a log, and can be killed, restarted, or robbed of its state between any two pages."""

    def __init__(self, world: World, root: AnyPath | None = None) -> None:
        self.world = world
        self.folder = folder("property")
        self.connector = world.connector()
        self.tracked = world.tracked(self.connector)
        self.root = root or self.folder / "log"
        self.log = ChangeLog(self.root, self.tracked.name, self.folder)
        self.store: WatermarkStore = RocksDBWatermarkStore(self.folder / "db", create=True)
        self.closed: dict[str, int] = {}
        self._steps: Generator[Step, None, None] | None = None
        self._changes: list[dict[str, Any]] = []
        self._read = 0

    def page(self) -> bool:
        """Go on with the poll under way, or a new one, by one page; return whether there was one."""
        if self._steps is None and self.waits():
            return False
        self._steps = self._steps or poll(self.connector, self.tracked, self.log, self.store)
        step = next(self._steps, None)
        if step is None:
            self._steps = None
        self._watch()
        return step is not None

    def waits(self) -> bool:
        """Return whether polls have to wait for something else."""
        return False

    def poll(self, pages: int | None = None) -> None:
        """Poll to the end, or drop the poll after some pages; one that is under way is dropped first."""
        self.drop()
        while pages != 0 and self.page():
            pages = None if pages is None else pages - 1
        self.drop()

    def drop(self) -> None:
        """Drop the poll under way, if any."""
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def restart(self, *, lose_state: bool) -> None:
        """Come back as a new process would: with RocksDB as it was, or without it."""
        self.drop()
        self.connector.close()
        self.store.close()
        if lose_state:
            shutil.rmtree(self.folder / "db")
        self.store = RocksDBWatermarkStore(self.folder / "db", create=lose_state)
        self.log = ChangeLog(self.root, self.tracked.name, self.folder)
        recovery.recover(self.log, self.store)
        if lose_state:
            self.closed = {}
        self.connector = self.world.connector()

    def changes(self) -> list[dict[str, Any]]:
        """Return the whole log; segments never change, so each is read once."""
        last = self.log.last()
        self._changes.extend(self.log.rows(self._read, last))
        self._read = last
        return self._changes

    def fold(self) -> dict[int, tuple[int, bool]]:
        """Return the log folded by key: key → (version, deleted)."""
        return {row["id"]: (row["v"], row["_change_type"] == "delete") for row in self.changes()}

    def close(self) -> None:
        self.drop()
        self.connector.close()
        self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        mark = self.store.watermark(self.tracked.name)
        assert mark is not None
        assert mark.offset == self.log.last()
        for name, value in mark.closed().items():
            if value is not None:
                assert value >= self.closed.get(name, value), f"{name} moved back"
                self.closed[name] = value


def follow(connector: SourceConnector, unit: Any = None) -> Tracked:
    """Return table `t` as it is followed in these tests: small pages, so that ties and polls are cut everywhere."""
    table = connector.describe("t")
    return Tracked(
        table,
        table.primary_key or ("id",),
        "updated_at",
        created_at="created_at",
        deleted_at="deleted_at",
        columns=table.columns,
        unit=unit,
        lookback=LOOKBACK,
        page_size=3,
        key_is_unique=bool(table.primary_key),
    )
