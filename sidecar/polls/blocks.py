"""What is remembered of one table, in blocks: thousands of records in one entry of the database, sorted by their keys.

A key stands in one block at most: where a newer record takes its place, the older one is marked as dead in its block's
header. So a block can be dropped as soon as none of its records can be met again, whatever other blocks hold; the
header says so. Small blocks are drawn into the one that follows them, so that there are few.

Headers are held in memory (some 100 bytes for thousands of records), and of the records themselves a bounded part. An
integer key finds its block by the range of keys in the headers: pages come in the order of the key where many rows
carry one stamp.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from sidecar.cursor import Flags, Integers
from sidecar.polls import deliveries
from sidecar.polls.deliveries import KEY, REST, UPDATED, Keys, Records, count

LIMIT = 50_000
"""Records in a block: a page."""

HELD = 500_000
"""Records that are held in memory: 32 MB."""

_FIXED = struct.Struct(">7q8s")

Change = tuple[int, bytes | None, bytes | None]
"""A block's number, its header, and its records; None for a block that is gone, and for records that stay."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a block without looking into it; `most` are the greatest values, from UPDATED on."""

    size: int
    first: int
    last: int
    most: tuple[int, int, int, int]
    check: bytes
    dead: bytes = b""

    @classmethod
    def of(cls, records: Records, packed: bytes) -> Header:
        most = records[UPDATED:].max(axis=1).tolist()
        return cls(count(records), int(records[KEY, 0]), int(records[KEY, -1]), tuple(most), checksum(packed))

    def dump(self) -> bytes:
        return _FIXED.pack(self.size, self.first, self.last, *self.most, self.check) + self.dead

    @classmethod
    def load(cls, raw: bytes) -> Header:
        """Return the header that `dump` wrote; ValueError if that is none."""
        try:
            size, first, last, *most, check = _FIXED.unpack_from(raw)
        except struct.error as error:
            raise ValueError(f"a header of {len(raw)} bytes") from error
        updated, deleted, created, version = most
        return cls(size, first, last, (updated, deleted, created, version), check, raw[_FIXED.size :])

    def is_dead(self) -> Flags:
        """Return which records count no more."""
        if not self.dead:
            return np.zeros(self.size, dtype=bool)
        try:
            bits = np.frombuffer(zlib.decompress(self.dead), np.uint8)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        return np.unpackbits(bits, count=self.size).astype(bool)

    def with_dead(self, dead: Flags) -> Header:
        bits = zlib.compress(np.packbits(dead).tobytes(), 1)
        return Header(self.size, self.first, self.last, self.most, self.check, bits)


class Blocks:
    """The blocks of one table. `load` returns a block's records, packed.

    What changes here is to be written by the caller at once; if that fails, this object is to be made anew. `sum` is a
    checksum over all headers, and each header has one over its records.
    """

    def __init__(
        self,
        headers: Iterable[tuple[int, bytes]],
        load: Callable[[int], bytes],
        *,
        limit: int = LIMIT,
        held: int = HELD,
    ) -> None:
        self._most, self._most_held = limit, held
        self._headers: dict[int, Header] = {}
        self.sum = 0
        for number, raw in headers:
            self._set(number, Header.load(raw))
        self._load = load
        self._held: dict[int, tuple[Records, Flags]] = {}
        self._credit, self._turn = 0, -1

    def __bool__(self) -> bool:
        return bool(self._headers)

    def recall(self, keys: Keys) -> Records:
        """Return what is remembered of *keys*."""
        found = deliveries.nothing(keys)
        for _, records, at, hit in self._hits(keys):
            found[:, hit] = records[:, at]
        return found

    def records(self) -> Iterator[Records]:
        """Yield all that is remembered; no key stands twice."""
        for number in list(self._headers):
            records, dead = self._look(number)
            if not dead.all():
                yield records[:, ~dead]

    def forget_all(self) -> list[Change]:
        changed: dict[int, Change] = {}
        for number in list(self._headers):
            self._drop(number, changed)
        return list(changed.values())

    def put(self, records: Records, limit: Integers) -> list[Change]:
        """Remember *records* in place of what was remembered of their keys; forget what is not above *limit*."""
        changed: dict[int, Change] = {}
        for number, header in list(self._headers.items()):
            if all(most <= least for most, least in zip(header.most, limit.tolist(), strict=True)):
                self._drop(number, changed)
        self._override(records[: REST + 1], changed)
        fresh = records[:, ~deliveries.says_nothing(records)]
        self._credit += count(fresh)
        if count(fresh):
            fresh = self._absorb(fresh, limit, changed)
        fresh = self._sift(fresh, limit, changed)
        for start in range(0, count(fresh), self._most):
            self._add(fresh[:, start : start + self._most], changed)
        return list(changed.values())

    def _override(self, keys: Keys, changed: dict[int, Change]) -> None:
        for number, records, at, _ in self._hits(keys):
            dead = self._look(number)[1].copy()
            dead[at] = True
            if dead.all():
                self._drop(number, changed)
                continue
            raw = self._set(number, self._headers[number].with_dead(dead))
            self._hold(number, records, dead)
            changed[number] = number, raw, None

    def _absorb(self, fresh: Records, limit: Integers, changed: dict[int, Change]) -> Records:
        """Return *fresh* with the records of the newest blocks, as long as those are no larger: each record is drawn
        into a block of at least twice its block's size, so a few times at most.
        """
        while self._headers:
            number, header = next(reversed(self._headers.items()))
            if header.size > count(fresh) or header.size + count(fresh) > self._most:
                break
            fresh = deliveries.joined([self._alive(number, limit), fresh])
            self._drop(number, changed)
        return fresh

    def _sift(self, fresh: Records, limit: Integers, changed: dict[int, Change]) -> Records:
        """Return *fresh* with what is left of blocks that are mostly over, of which one row may hold the rest.

        As many records are looked at as were remembered since: constant work a row.
        """
        for number in [*(n for n in self._headers if n > self._turn), *(n for n in self._headers if n <= self._turn)]:
            size = self._headers[number].size
            if size > self._credit or count(fresh) > self._most:
                break
            self._credit, self._turn = self._credit - size, number
            alive = self._alive(number, limit)
            if 2 * count(alive) <= size:
                fresh = deliveries.joined([fresh, alive])
                self._drop(number, changed)
        self._credit = min(self._credit, self._most)
        return fresh

    def _add(self, records: Records, changed: dict[int, Change]) -> None:
        number = next(reversed(self._headers), -1) + 1
        records = deliveries.ordered(records)
        packed = deliveries.pack(records)
        raw = self._set(number, Header.of(records, packed))
        self._hold(number, records, np.zeros(count(records), dtype=bool))
        changed[number] = number, raw, packed

    def _drop(self, number: int, changed: dict[int, Change]) -> None:
        self._set(number, None)
        self._held.pop(number, None)
        changed[number] = number, None, None

    def _set(self, number: int, header: Header | None) -> bytes | None:
        """Make *header* that of the block; return it as it is to be written."""
        raw, before = None if header is None else header.dump(), self._headers.get(number)
        for some in (raw, None if before is None else before.dump()):
            self.sum ^= 0 if some is None else int.from_bytes(checksum(number.to_bytes(8, "big") + some), "big")
        if header is None:
            del self._headers[number]
        else:
            self._headers[number] = header
        return raw

    def _alive(self, number: int, limit: Integers) -> Records:
        records, dead = self._look(number)
        return records[:, ~(dead | deliveries.expired(records, limit))]

    def _hits(self, keys: Keys) -> Iterator[tuple[int, Records, npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Yield blocks that hold some of *keys*: number, records, where in these, and which of *keys*."""
        if not keys.shape[1]:
            return
        least, most = int(keys[KEY].min()), int(keys[KEY].max())
        for number, header in list(self._headers.items()):
            if header.last < least or most < header.first:
                continue
            records, dead = self._look(number)
            at = deliveries.find(records, keys)
            hit = np.flatnonzero(at >= 0)
            hit = hit[~dead[at[hit]]]
            if len(hit):
                yield number, records, at[hit], hit

    def _look(self, number: int) -> tuple[Records, Flags]:
        held = self._held.pop(number, None)
        if held is None:
            header, packed = self._headers[number], self._load(number)
            if checksum(packed) != header.check:
                raise ValueError(f"block {number} is not what its header says")
            held = deliveries.unpack(packed), header.is_dead()
        self._hold(number, *held)
        return held

    def _hold(self, number: int, records: Records, dead: Flags) -> None:
        """Hold a block as the last one looked at; let go of those that were not looked at for longest."""
        self._held.pop(number, None)
        self._held[number] = records, dead
        total = sum(len(flags) for _, flags in self._held.values())
        while total > self._most_held and len(self._held) > 1:
            oldest = next(iter(self._held))
            total -= len(self._held.pop(oldest)[1])


def checksum(raw: bytes) -> bytes:
    return blake2b(raw, digest_size=8).digest()
