"""Blocks are one dictionary to whoever asks; they are few, no larger than a page, and go when they can."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidecar.cursor import Integers
from sidecar.model import INFINITY, Watermark
from sidecar.polls import blocks, deliveries
from sidecar.polls.blocks import Blocks
from sidecar.polls.deliveries import NOTHING, Keys, Records
from tests.unit.records import Known, keys, known, lasting, records
from tests.unit.test_poll_machine import BUDGET, Follow, MortalStore


@dataclass
class Disk:
    """What was written of one table."""

    headers: dict[int, bytes] = field(default_factory=dict)
    packed: dict[int, bytes] = field(default_factory=dict)
    loads: int = 0

    def write(self, changes: list[blocks.Change]) -> None:
        for number, header, packed in changes:
            if header is None:
                self.headers.pop(number, None)
                self.packed.pop(number, None)
            else:
                self.headers[number] = header
                if packed is not None:
                    self.packed[number] = packed

    def __call__(self, number: int) -> bytes:
        self.loads += 1
        return self.packed[number]

    def opened(self, *, limit: int = blocks.LIMIT, held: int = blocks.HELD) -> Blocks:
        return Blocks(sorted(self.headers.items()), self, limit=limit, held=held)


def closed(value: int | None) -> Integers:
    return deliveries.limits({"updated": value}, None)


class OneDictionary(RuleBasedStateMachine):
    """Blocks of four records, of which eight are held."""

    @initialize()
    def begin(self) -> None:
        self.disk = Disk()
        self.blocks = self.disk.opened(limit=4, held=8)
        self.model: dict[int, tuple[int, int]] = {}
        self.limit = -1

    @rule(
        some=st.dictionaries(
            st.integers(0, 40), st.none() | st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=9
        ),
        further=st.integers(0, 4),
    )
    def put(self, some: Known, further: int) -> None:
        self.limit += further
        self.disk.write(self.blocks.put(records(some), closed(self.limit)))
        self.model.update({k: v for k, v in some.items() if v is not None})
        for key in [k for k, v in some.items() if v is None]:
            self.model.pop(key, None)

    @rule()
    def forget_all(self) -> None:
        self.disk.write(self.blocks.forget_all())
        self.model = {}

    @rule()
    def open_anew(self) -> None:
        self.blocks, before = self.disk.opened(limit=4, held=8), self.blocks
        assert self.blocks.sum == before.sum

    @rule(asked=st.sets(st.integers(0, 40)))
    def recall(self, asked: set[int]) -> None:
        found = self.blocks.recall(keys(*asked))
        assert found[: deliveries.CONTENT].tolist() == keys(*asked).tolist()
        self.compare(known(found), {k: v for k, v in self.model.items() if k in asked})

    def compare(self, found: Known, model: Known) -> None:
        """What is over may be remembered or not; but never in the form that it had before."""
        assert {k: v for k, v in model.items() if v is not None and v[1] > self.limit} == {
            k: v for k, v in found.items() if v is not None and v[1] > self.limit
        }
        assert found.items() <= model.items()

    @invariant()
    def all_of_it_is_there(self) -> None:
        if hasattr(self, "disk"):
            self.compare(known(self.blocks.records()), self.model)
            assert bool(self.blocks) == bool(self.disk.headers)
            assert self.disk.headers.keys() == self.disk.packed.keys()
            assert all(deliveries.count(deliveries.unpack(p)) <= 4 for p in self.disk.packed.values())


TestOneDictionary = OneDictionary.TestCase
TestOneDictionary.settings = settings(max_examples=60, stateful_step_count=30)


def test_one_row_that_nothing_closes_keeps_a_page_from_being_forgotten_only_for_so_long() -> None:
    disk = Disk()
    held = disk.opened()
    page: Known = {n: (1, INFINITY if n == 1000 else 1) for n in range(1001)}
    disk.write(held.put(records(page), closed(0)))
    for turn in range(1, 30):
        disk.write(held.put(records({2000 + turn * 100 + n: (1, turn + 1) for n in range(100)}), closed(turn)))
    left = known(held.records())
    assert 1000 in left
    assert len(left) < 400


def test_small_blocks_are_drawn_together() -> None:
    disk, seed = Disk(), random.Random(1)
    held = disk.opened()
    for turn in range(600):
        disk.write(held.put(lasting(*(turn * 5 + n for n in range(seed.randrange(1, 5)))), closed(None)))
    assert len(disk.headers) < 20
    assert len(known(held.records())) == len(known(disk.opened().records()))


def test_memory_is_bounded_and_a_page_looks_into_the_blocks_of_its_keys_alone() -> None:
    disk = Disk()
    held = disk.opened(limit=100, held=300)

    def page(number: int) -> Records:
        found = lasting(*range(100))
        found[deliveries.KEY] = np.arange(number * 100, number * 100 + 100)
        return found

    for number in range(50):
        disk.write(held.put(page(number), closed(None)))
    assert sum(len(dead) for _, dead in held._held.values()) <= 300
    disk.loads = 0
    for number in range(50):
        found = held.recall(page(number)[: deliveries.CONTENT])
        assert not deliveries.says_nothing(found).any()
    assert disk.loads == 50
    assert not held.recall(keys()).size


def test_halves_of_keys_that_are_alike_are_told_apart() -> None:
    disk = Disk()
    held = disk.opened()
    disk.write(held.put(lasting(*range(0, 700, 2)), closed(None)))
    assert set(known(held.recall(keys(*range(700))))) == set(range(0, 700, 2))


class BlockStore(MortalStore):
    """A store with blocks, as the database has them, but in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.blocks = self.disk.opened(limit=3, held=6)

    def save(
        self, table: str, watermark: Watermark, remembered: Records, *, forget_all: bool = False, lazy: bool = False
    ) -> None:
        super().save(table, watermark, NOTHING, lazy=lazy)
        if forget_all:
            self.disk.write(self.blocks.forget_all())
        self.disk.write(self.blocks.put(remembered, deliveries.limits_of(watermark)))

    def remembers(self, table: str) -> bool:
        return bool(self.blocks)

    def recall(self, table: str, keys: Keys) -> Records:
        return self.blocks.recall(keys)

    def remembered(self, table: str) -> Iterator[Records]:
        return self.blocks.records()

    def __deepcopy__(self, memo: dict[int, object]) -> BlockStore:
        other = BlockStore()
        other._watermarks = dict(self._watermarks)
        other.disk = copy.deepcopy(self.disk)
        other.blocks = other.disk.opened(limit=3, held=6)
        return other


class FollowWithBlocks(Follow):
    new_store: ClassVar[type[MortalStore]] = BlockStore


TestFollowWithBlocks = FollowWithBlocks.TestCase
TestFollowWithBlocks.settings = BUDGET
