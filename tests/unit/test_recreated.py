"""Which tables and columns are other ones than they were under the same name, by what a connector says of them."""

from __future__ import annotations

import pyarrow as pa

from sidecar.model import Column, Table, Tracked
from sidecar.polls.recreated import born, changes, remembered

STAMP = pa.timestamp("us", "UTC")


def seats(*columns: tuple[str, str], delivered: tuple[str, ...] = ("id", "row", "note", "gone")) -> Tracked:
    """Return a table of *columns*, each with what its connector says of it; of these, *delivered* are."""
    types = {"id": pa.int64(), "updated_at": STAMP}
    found = tuple(Column(name, "", types.get(name, pa.string()), born=said) for name, said in columns)
    chosen = tuple(c for c in found if c.name in delivered)
    return Tracked(Table("seats", ("seats",), found, ("id",)), ("id",), "updated_at", columns=chosen)


OLD = (("id", "db/7/1"), ("row", "db/7/2"), ("note", "db/7/3"), ("updated_at", "db/7/4"))


def made_again(name: str) -> tuple[tuple[str, str], ...]:
    return tuple((n, "db/7/9" if n == name else said) for n, said in OLD)


def test_nothing_is_said_of_a_table_that_is_as_it_was() -> None:
    assert changes(born(seats(*OLD)), seats(*OLD)) == ()
    assert changes({}, seats(*OLD)) == (), "nor of one of which nothing was known"


def test_a_column_that_is_delivered_or_polled_by_is_told_and_no_other() -> None:
    known = born(seats(*OLD))
    for name in ("id", "row", "note", "updated_at"):
        assert changes(known, seats(*made_again(name))) == [f'column "{name}" was dropped and added again']
    few = {"delivered": ("row",)}
    known = born(seats(*OLD, **few))
    assert changes(known, seats(*made_again("note"), **few)) == ()
    for name in ("id", "updated_at"):
        assert changes(known, seats(*made_again(name), **few))


def test_a_table_is_told_once_and_not_column_by_column() -> None:
    again = seats(*((name, said.replace("/7/", "/8/")) for name, said in OLD))
    (said,) = changes(born(seats(*OLD)), again)
    assert "the table was dropped and created again" in said
    assert changes(remembered(born(seats(*OLD)), again), again) == ()


def test_another_database_numbers_otherwise_and_nothing_is_said_of_that() -> None:
    elsewhere = seats(*((name, said.replace("db/7/", "other/8/")) for name, said in OLD))
    assert changes(born(seats(*OLD)), elsewhere) == ()


def test_a_column_that_is_gone_is_remembered_as_long_as_its_table_is_there() -> None:
    known = born(seats(*OLD, ("gone", "db/7/5")))
    known = remembered(known, seats(*OLD))
    assert changes(known, seats(*OLD, ("gone", "db/7/5"))) == ()
    assert changes(known, seats(*OLD, ("gone", "db/7/6"))) == ['column "gone" was dropped and added again']
    moved = tuple((name, said.replace("/7/", "/8/")) for name, said in OLD)
    known = remembered(known, seats(*moved))
    assert changes(known, seats(*moved, ("gone", "db/8/5"))) == (), "it is new in a table of which all rows have come"
