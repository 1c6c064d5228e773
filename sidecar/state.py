"""The state: watermarks, remembered deliveries and consumer positions, in RocksDB; synced, one batch for what belongs
together.

RocksDB is an index of what the log and the position files say: every write here follows a durable write there, so a
lost or older database is rolled forward from them (`recovery.py`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from sidecar.codec import dump_watermark, load_watermark
from sidecar.errors import StateDamaged
from sidecar.model import Watermark

if TYPE_CHECKING:
    import rocksdict

Remembered: TypeAlias = Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """How far a consumer has acknowledged, and the end of the batch that it may have begun to write."""

    acknowledged: int = 0
    intended: int | None = None


class WatermarkStore(Protocol):
    """What a poll and its consumers must find again after any crash. Each `save` is atomic and durable."""

    def watermark(self, table: str) -> Watermark | None:
        """Return *table*'s watermark, or None before its first poll."""

    def tables(self) -> set[str]:
        """Return the tables that have a watermark."""

    def save(self, table: str, watermark: Watermark, remembered: Remembered, *, forget_all: bool = False) -> None:
        """Store the watermark together with what is remembered; an empty value forgets its key."""

    def recall(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return what is remembered of each key."""

    def remembered(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield all that is remembered of *table*."""

    def prune(self, table: str, expired: Callable[[bytes], bool]) -> int:
        """Forget what is *expired*; return how much is left."""

    def position(self, table: str, consumer: str) -> ConsumerPosition:
        """Return where *consumer* stands in *table*'s log."""

    def save_position(self, table: str, consumer: str, position: ConsumerPosition) -> None:
        """Store where *consumer* stands."""

    def positions(self) -> dict[tuple[str, str], ConsumerPosition]:
        """Return all positions by (table, consumer)."""

    def note(self, table: str, text: str | None) -> None:
        """Store the table's last error for `status`, or that there is none; need not survive a power cut."""

    def notes(self) -> dict[str, str]:
        """Return the last errors by table."""

    def close(self) -> None:
        """Let go."""


class MemoryWatermarkStore:
    """A store that lives as long as the process; for tests, and for copies that are made anew each time."""

    def __init__(self) -> None:
        self._watermarks: dict[str, str] = {}
        self._recent: dict[str, dict[bytes, bytes]] = {}
        self._positions: dict[tuple[str, str], ConsumerPosition] = {}
        self._notes: dict[str, str] = {}

    def watermark(self, table: str) -> Watermark | None:
        text = self._watermarks.get(table)
        return None if text is None else load_watermark(text)

    def tables(self) -> set[str]:
        return set(self._watermarks)

    def save(self, table: str, watermark: Watermark, remembered: Remembered, *, forget_all: bool = False) -> None:
        recent = self._recent.setdefault(table, {})
        if forget_all:
            recent.clear()
        for key, value in remembered.items():
            if value:
                recent[key] = value
            else:
                recent.pop(key, None)
        self._watermarks[table] = dump_watermark(watermark)

    def recall(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        recent = self._recent.get(table, {})
        return [recent.get(key) for key in keys]

    def remembered(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        yield from self._recent.get(table, {}).items()

    def prune(self, table: str, expired: Callable[[bytes], bool]) -> int:
        kept = {key: value for key, value in self._recent.get(table, {}).items() if not expired(value)}
        self._recent[table] = kept
        return len(kept)

    def position(self, table: str, consumer: str) -> ConsumerPosition:
        return self._positions.get((table, consumer), ConsumerPosition())

    def save_position(self, table: str, consumer: str, position: ConsumerPosition) -> None:
        self._positions[table, consumer] = position

    def positions(self) -> dict[tuple[str, str], ConsumerPosition]:
        return dict(self._positions)

    def note(self, table: str, text: str | None) -> None:
        if text is None:
            self._notes.pop(table, None)
        else:
            self._notes[table] = text

    def notes(self) -> dict[str, str]:
        return dict(self._notes)

    def close(self) -> None:
        pass


_FAMILIES = ("watermarks", "recent", "positions", "notes")
_IDENTITY = b"identity"
_SUM = b"sum "
_BATCH = 10_000
_HELD = 100_000


class RocksDBWatermarkStore:
    """The store that a runner uses. One process writes; the caller holds the lock that makes sure of it.

    StateDamaged where RocksDB finds a checksum, a file or the identity marker wrong: never an empty answer instead.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        import rocksdict as rd

        self.path = path
        self._rd = rd
        self._memory: dict[str, dict[bytes, bytes] | None] = {}
        options = rd.Options(raw_mode=True)
        options.create_if_missing(create)
        options.create_missing_column_families(create)
        options.set_paranoid_checks(True)
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        families = {name: rd.Options(raw_mode=True) for name in _FAMILIES}
        access = rd.AccessType.read_only(False) if read_only else rd.AccessType.read_write()
        with self._damage():
            self._db = rd.Rdict(str(path), options, families, access)
            self._families = {name: self._db.get_column_family(name) for name in _FAMILIES}
            self._handles = {name: self._db.get_column_family_handle(name) for name in _FAMILIES}
            identity = self._db.get(_IDENTITY)
        self._synced = rd.WriteOptions()
        self._synced.sync = True
        if create and identity is None:
            self._write([("", _IDENTITY, b"sidecar 1")])
        elif identity != b"sidecar 1":
            self.close()
            raise StateDamaged(_damaged(path, "the identity marker is missing"))

    def watermark(self, table: str) -> Watermark | None:
        raw = self._get("watermarks", table.encode())
        try:
            return None if raw is None else load_watermark(raw)
        except (ValueError, KeyError) as error:
            reason = f'the watermark of table "{table}" does not parse: {error}'
            raise StateDamaged(_damaged(self.path, reason)) from error

    def tables(self) -> set[str]:
        return {key.decode() for key, _ in self._scan("watermarks", b"")}

    def save(self, table: str, watermark: Watermark, remembered: Remembered, *, forget_all: bool = False) -> None:
        prefix = _prefix(table)
        if forget_all:
            remembered = {key: b"" for key, _ in self.remembered(table)} | dict(remembered)
        writes: list[tuple[str, bytes, bytes | None]] = [
            ("recent", prefix + key, value or None) for key, value in remembered.items()
        ]
        writes.append(("watermarks", table.encode(), dump_watermark(watermark).encode()))
        writes.append(self._sum(table, dict(remembered)))
        self._write(writes)
        self._hold(table, remembered)

    def recall(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        held = self._held(table)
        if held is not None:
            return [held.get(key) for key in keys]
        prefix = _prefix(table)
        with self._damage():
            return self._multi_get("recent", [prefix + key for key in keys])

    def _held(self, table: str) -> dict[bytes, bytes] | None:
        """Return all that is remembered of *table* from memory, if it is little: a look-up there is a hundredth."""
        if table not in self._memory:
            some = dict(itertools.islice(self.remembered(table), _HELD + 1))
            self._memory[table] = some if len(some) <= _HELD else None
        return self._memory[table]

    def _hold(self, table: str, changed: Mapping[bytes, bytes]) -> None:
        held = self._memory.get(table)
        if held is None:
            return
        for key, value in changed.items():
            if value:
                held[key] = value
            else:
                held.pop(key, None)
        if len(held) > _HELD:
            self._memory[table] = None

    def remembered(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        prefix = _prefix(table)
        for key, value in self._scan("recent", prefix):
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def prune(self, table: str, expired: Callable[[bytes], bool]) -> int:
        kept, doomed = 0, list[bytes]()
        for key, value in self.remembered(table):
            if not expired(value):
                kept += 1
                continue
            doomed.append(key)
            if len(doomed) == _BATCH:
                # While the scan goes on, which sees what was there when it began: a list of all would be held in
                # memory, as would one batch of all. Forgetting late is harmless.
                self._forget(table, doomed)
                doomed = []
        if doomed:
            self._forget(table, doomed)
        return kept

    def _forget(self, table: str, keys: Sequence[bytes]) -> None:
        prefix, gone = _prefix(table), dict.fromkeys(keys, b"")
        self._write([*(("recent", prefix + key, None) for key in keys), self._sum(table, gone)])
        self._hold(table, gone)

    def verify(self) -> None:
        """Raise StateDamaged if what is remembered is not what was last written, whole tables of it missing included.

        RocksDB checks each block, but a manifest that ends early makes a database of older and newer parts.
        """
        sums: dict[bytes, int] = {}
        for key, value in self._scan("recent", b""):
            size = 4 + int.from_bytes(key[:4], "big")
            sums[key[4:size]] = sums.get(key[4:size], 0) ^ _hash(key[size:], value)
        marks = {key for key, _ in self._scan("watermarks", b"")}
        held = {key[len(_SUM) :]: int.from_bytes(value, "big") for key, value in self._scan("", _SUM)}
        for key in sorted({*marks, *sums, *held}):
            if key not in marks or held.get(key) != sums.get(key, 0):
                raise StateDamaged(_damaged(self.path, f'what is remembered of table "{key.decode()}" is not complete'))

    def position(self, table: str, consumer: str) -> ConsumerPosition:
        raw = self._get("positions", _pair(table, consumer))
        return ConsumerPosition() if raw is None else ConsumerPosition(*json.loads(raw))

    def save_position(self, table: str, consumer: str, position: ConsumerPosition) -> None:
        value = json.dumps([position.acknowledged, position.intended]).encode()
        self._write([("positions", _pair(table, consumer), value)])

    def positions(self) -> dict[tuple[str, str], ConsumerPosition]:
        found = {}
        for key, value in self._scan("positions", b""):
            table, consumer = json.loads(key)
            found[table, consumer] = ConsumerPosition(*json.loads(value))
        return found

    def note(self, table: str, text: str | None) -> None:
        if text is not None or self._get("notes", table.encode()) is not None:
            self._write([("notes", table.encode(), None if text is None else text.encode())])

    def notes(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self._scan("notes", b"")}

    def close(self) -> None:
        # RocksDB keeps its lock while a handle of a family lives.
        self._handles, self._families = {}, {}
        # Closing flushes what is in memory; should that fail (a full disk), the log of synced writes still has it all.
        with contextlib.suppress(Exception):
            self._db.close()

    def _sum(self, table: str, changed: Mapping[bytes, bytes]) -> tuple[str, bytes, bytes]:
        """Return the write that brings the table's checksum up to *changed*."""
        total, name = 0, _SUM + table.encode()
        for (key, value), before in zip(changed.items(), self.recall(table, list(changed)), strict=True):
            total ^= (_hash(key, before) if before else 0) ^ (_hash(key, value) if value else 0)
        with self._damage():
            held = int.from_bytes(self._db.get(name) or b"", "big")
        return "", name, (held ^ total).to_bytes(8, "big")

    def _multi_get(self, family: str, keys: list[Any]) -> list[bytes | None]:
        found: list[bytes | None] = list(self._families[family].get(keys) or ())
        return found

    def _get(self, family: str, key: bytes) -> bytes | None:
        with self._damage():
            value: bytes | None = self._families[family].get(key)
        return value

    def _scan(self, family: str, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from *start* on. Only `iter()` with `status()` tells corruption from the end."""
        # One guard for all entries: one for each would take twice as long as reading them.
        with self._damage():
            iterator = (self._families[family] if family else self._db).iter()
            iterator.seek(start) if start else iterator.seek_to_first()
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()

    def _write(self, writes: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        batch = self._rd.WriteBatch(raw_mode=True)
        for family, key, value in writes:
            handle = self._handles[family] if family else None
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        with self._damage():
            self._db.write(batch, self._synced)

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise StateDamaged(_damaged(self.path, str(error))) from error


_NO_ROOM = ("No space left", "Read-only file system", "File too large", "Disk quota", "Permission denied")


def _damaged(path: Path, reason: str) -> str:
    if any(words in reason for words in _NO_ROOM):
        return f"{path}: cannot be written: {reason}. Make room, or let this user write here, and run again."
    return (
        f"{path}: {reason}. Nothing has been read from the source. Move this folder away and run again: "
        "it is rebuilt from the change log and the position files, from where they stand."
    )


def _hash(key: bytes, value: bytes) -> int:
    return int.from_bytes(blake2b(key + value, digest_size=8).digest(), "big")


def _prefix(table: str) -> bytes:
    name = table.encode()
    return len(name).to_bytes(4, "big") + name


def _pair(table: str, consumer: str) -> bytes:
    return json.dumps([table, consumer]).encode()


if TYPE_CHECKING:
    _memory: WatermarkStore = MemoryWatermarkStore()
    _rocks: type[rocksdict.Rdict] = rocksdict.Rdict
