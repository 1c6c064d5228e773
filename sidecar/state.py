"""The state: watermarks, remembered deliveries and consumer positions, in RocksDB; one batch for what belongs together.

RocksDB is an index of what the log and the position files say: every write here follows a durable write there, so a
lost or older database is rolled forward from them (`recovery.py`). Hence a lazy write: what a power cut takes of it is
the newest part, and that is found again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sidecar.codec import dump_watermark, load_watermark
from sidecar.errors import StateDamaged
from sidecar.model import Watermark
from sidecar.polls import deliveries
from sidecar.polls.blocks import Blocks, checksum
from sidecar.polls.deliveries import CONTENT, Keys, Records

if TYPE_CHECKING:
    import rocksdict


@dataclass(frozen=True, slots=True)
class ConsumerPosition:
    """How far a consumer has acknowledged, and the end of the batch that it may have begun to write.

    `loading`: that batch is the table as of its end, in place of the changes up to there.
    """

    acknowledged: int = 0
    intended: int | None = None
    loading: bool = False


class WatermarkStore(Protocol):
    """What a poll and its consumers must find again after any crash. Each `save` is atomic, and durable unless `lazy`.

    What is lazy survives the process, and a power cut as soon as anything durable has followed it.
    """

    def watermark(self, table: str) -> Watermark | None:
        """Return *table*'s watermark, or None before its first poll."""

    def tables(self) -> set[str]:
        """Return the tables that have a watermark."""

    def save(
        self, table: str, watermark: Watermark, remembered: Records, *, forget_all: bool = False, lazy: bool = False
    ) -> None:
        """Store the watermark together with what is remembered, in place of what was of the same keys.

        What no poll can meet again under *watermark* is forgotten, sooner or later.
        """

    def remembers(self, table: str) -> bool:
        """Return whether anything is remembered of *table*."""

    def recall(self, table: str, keys: Keys) -> Records:
        """Return what is remembered of each key."""

    def remembered(self, table: str) -> Iterator[Records]:
        """Yield all that is remembered of *table*, many records at a time; no key stands twice."""

    def position(self, table: str, consumer: str) -> ConsumerPosition:
        """Return where *consumer* stands in *table*'s log."""

    def save_position(self, table: str, consumer: str, position: ConsumerPosition) -> None:
        """Store where *consumer* stands, lazily: a file says it, too."""

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
        self._recent: dict[str, Records] = {}
        self._positions: dict[tuple[str, str], ConsumerPosition] = {}
        self._notes: dict[str, str] = {}

    def watermark(self, table: str) -> Watermark | None:
        text = self._watermarks.get(table)
        return None if text is None else load_watermark(text)

    def tables(self) -> set[str]:
        return set(self._watermarks)

    def save(
        self, table: str, watermark: Watermark, remembered: Records, *, forget_all: bool = False, lazy: bool = False
    ) -> None:
        del lazy
        known = deliveries.NOTHING if forget_all else self._recent.get(table, deliveries.NOTHING)
        known = known[:, deliveries.find(deliveries.ordered(remembered), known[:CONTENT]) < 0]
        known = deliveries.joined([known, remembered])
        over = deliveries.says_nothing(known) | deliveries.expired(known, deliveries.limits_of(watermark))
        self._recent[table] = deliveries.ordered(known[:, ~over])
        self._watermarks[table] = dump_watermark(watermark)

    def remembers(self, table: str) -> bool:
        return table in self._recent and bool(deliveries.count(self._recent[table]))

    def recall(self, table: str, keys: Keys) -> Records:
        found, known = deliveries.nothing(keys), self._recent.get(table, deliveries.NOTHING)
        at = deliveries.find(known, keys)
        found[:, at >= 0] = known[:, at[at >= 0]]
        return found

    def remembered(self, table: str) -> Iterator[Records]:
        yield self._recent.get(table, deliveries.NOTHING)

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


_FAMILIES = ("watermarks", "recent", "records", "positions", "notes")
"""`recent` has the headers of blocks, `records` what is in them."""

_IDENTITY = b"identity"
_SUM = b"sum "


class RocksDBWatermarkStore:
    """The store that a runner uses. One process writes; the caller holds the lock that makes sure of it.

    StateDamaged where RocksDB finds a checksum, a file or the identity marker wrong: never an empty answer instead.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        import rocksdict as rd

        self.path = path
        self._rd = rd
        self._blocks: dict[str, Blocks] = {}
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
        self._lazy, self._synced = rd.WriteOptions(), rd.WriteOptions()
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

    def save(
        self, table: str, watermark: Watermark, remembered: Records, *, forget_all: bool = False, lazy: bool = False
    ) -> None:
        raw = dump_watermark(watermark).encode()
        writes: list[tuple[str, bytes, bytes | None]] = [("watermarks", table.encode(), raw)]
        try:
            with self._damage():
                blocks = self._blocks_of(table)
                changes = blocks.forget_all() if forget_all else []
                changes += blocks.put(remembered, deliveries.limits_of(watermark))
            for number, header, records in changes:
                writes.append(("recent", _block(table, number), header))
                if header is None or records is not None:
                    writes.append(("records", _block(table, number), records))
            writes.append(("", _SUM + table.encode(), _sum(raw, blocks)))
            self._write(writes, lazy=lazy)
        except BaseException:
            # What it holds is not what is written: it is read anew.
            self._blocks.pop(table, None)
            raise

    def remembers(self, table: str) -> bool:
        with self._damage():
            return bool(self._blocks_of(table))

    def recall(self, table: str, keys: Keys) -> Records:
        with self._damage():
            return self._blocks_of(table).recall(keys)

    def remembered(self, table: str) -> Iterator[Records]:
        with self._damage():
            yield from self._blocks_of(table).records()

    def _blocks_of(self, table: str) -> Blocks:
        if table not in self._blocks:
            start = _block(table, 0)
            headers = []
            for key, value in self._scan("recent", start):
                if not key.startswith(start[:-8]):
                    break
                headers.append((int.from_bytes(key[-8:], "big"), value))
            self._blocks[table] = Blocks(headers, functools.partial(self._load, table))
        return self._blocks[table]

    def _load(self, table: str, number: int) -> bytes:
        return self._get("records", _block(table, number)) or b""

    def verify(self) -> None:
        """Raise StateDamaged if what is remembered is not what was last written, whole tables of it missing included.

        RocksDB checks each of its blocks, but a manifest that ends early makes a database of older and newer parts.
        Records are compared with their header when they are read.
        """
        named = {key[4 : 4 + int.from_bytes(key[:4], "big")] for key, _ in self._scan("recent", b"")}
        marks = dict(self._scan("watermarks", b""))
        held = {key[len(_SUM) :]: value for key, value in self._scan("", _SUM)}
        for key in sorted({*marks, *named, *held}):
            with self._damage():
                is_complete = key in marks and held.get(key) == _sum(marks[key], self._blocks_of(key.decode()))
            if not is_complete:
                raise StateDamaged(_damaged(self.path, f'what is remembered of table "{key.decode()}" is not complete'))

    def position(self, table: str, consumer: str) -> ConsumerPosition:
        raw = self._get("positions", _pair(table, consumer))
        return ConsumerPosition() if raw is None else ConsumerPosition(*json.loads(raw))

    def save_position(self, table: str, consumer: str, position: ConsumerPosition) -> None:
        value = json.dumps(dataclasses.astuple(position)).encode()
        self._write([("positions", _pair(table, consumer), value)], lazy=True)

    def positions(self) -> dict[tuple[str, str], ConsumerPosition]:
        found = {}
        for key, value in self._scan("positions", b""):
            table, consumer = json.loads(key)
            found[table, consumer] = ConsumerPosition(*json.loads(value))
        return found

    def note(self, table: str, text: str | None) -> None:
        if text is not None or self._get("notes", table.encode()) is not None:
            self._write([("notes", table.encode(), None if text is None else text.encode())], lazy=True)

    def notes(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self._scan("notes", b"")}

    def close(self) -> None:
        # RocksDB keeps its lock while a handle of a family lives.
        self._handles, self._families = {}, {}
        # Closing flushes what is in memory; should that fail (a full disk), the log of synced writes still has it all.
        with contextlib.suppress(Exception):
            self._db.close()

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

    def _write(self, writes: Sequence[tuple[str, bytes, bytes | None]], *, lazy: bool = False) -> None:
        batch = self._rd.WriteBatch(raw_mode=True)
        for family, key, value in writes:
            handle = self._handles[family] if family else None
            if value is None:
                batch.delete(key, handle)
            else:
                batch.put(key, value, handle)
        with self._damage():
            self._db.write(batch, self._lazy if lazy else self._synced)

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except StateDamaged:
            raise
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


def _sum(watermark: bytes, blocks: Blocks) -> bytes:
    """Return what tells that a watermark and the headers of blocks were written together."""
    return (int.from_bytes(checksum(watermark), "big") ^ blocks.sum).to_bytes(8, "big")


def _block(table: str, number: int) -> bytes:
    name = table.encode()
    return len(name).to_bytes(4, "big") + name + number.to_bytes(8, "big")


def _pair(table: str, consumer: str) -> bytes:
    return json.dumps([table, consumer]).encode()


if TYPE_CHECKING:
    _memory: WatermarkStore = MemoryWatermarkStore()
    _rocks: type[rocksdict.Rdict] = rocksdict.Rdict


def open_database(path: Path) -> WatermarkStore:
    """Open the database at *path*. None there, or an empty folder: begin one, which is then filled from the log."""
    # CURRENT is the file that makes a folder a RocksDB; without it, opening would begin an empty one in its place.
    if path.exists() and any(path.iterdir()) and not (path / "CURRENT").exists():
        raise StateDamaged(f"{path}: its CURRENT file is missing. Move the folder away and run again: it is rebuilt.")
    if not (path / "CURRENT").exists():
        aside = path.with_name("db.new")
        shutil.rmtree(aside, ignore_errors=True)
        # Made aside and renamed: a process killed in between leaves no half-made database behind.
        RocksDBWatermarkStore(aside, create=True).close()
        if path.exists():
            path.rmdir()
        aside.rename(path)
    store = RocksDBWatermarkStore(path)
    try:
        store.verify()
    except StateDamaged:
        store.close()
        raise
    return store
