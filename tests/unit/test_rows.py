"""What of a page is its own, what is new, and what must be remembered of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import cursor
from sidecar.errors import SettingsError
from sidecar.model import CURSOR, DELETED, INFINITY, VERSION, Column, Page, Pass, PassName, Table, Tracked
from sidecar.polls import deliveries, rows
from sidecar.polls.rows import Rows

INSTANT = pa.timestamp("us", "UTC")
COLUMNS = (
    Column("id", "", pa.int64(), nullable=False),
    Column("created", "", INSTANT),
    Column("updated", "", INSTANT),
    Column("deleted", "", INSTANT),
    Column("v", "", pa.string()),
)
TRACKED = Tracked(
    Table("t", ("t",), COLUMNS, ("id",)),
    ("id",),
    "updated",
    created_at="created",
    deleted_at="deleted",
    columns=COLUMNS,
)
STAMP = st.none() | st.integers(0, 6)
ROW = st.fixed_dictionaries({"created": STAMP, "updated": STAMP, "deleted": STAMP})
Stamps = Mapping[str, int | None]


def arrow(*given_: Stamps, tracked: Tracked = TRACKED, **more: Any) -> pa.Table:
    data = {c.name: pa.array([r.get(c.name) for r in given_], c.arrow) for c in COLUMNS}
    data["id"] = pa.array(range(len(given_)), pa.int64())
    return pa.table(data | more)


def page(name: PassName = "updated", tracked: Tracked = TRACKED, **closed: int | None) -> Page:
    scan = next(p for p in tracked.passes if p.name == name)
    return Page(tracked, scan, closed, None, 10)  # type: ignore[arg-type]


def read(asked: Page, data: pa.Table) -> Rows:
    return rows.from_page(asked, data)[0]


def tokens(found: Rows, columns: Sequence[str] | None = None) -> list[list[int]]:
    values: list[list[int]] = rows.records(found, found.keys(), columns)[deliveries.CONTENT :].T.tolist()
    return values


def over(found: Rows, closed: Mapping[PassName, int | None], floor: int | None) -> bool:
    remembered = rows.records(found, found.keys())
    return bool(deliveries.expired(remembered, deliveries.limits(closed, floor))[0])


def ids(found: Rows) -> list[int]:
    values: list[int] = found.data.column("id").to_pylist()
    return values


def test_rows_at_a_closed_value_are_not_the_pages_own_and_those_just_above_are() -> None:
    asked = page(updated=5)
    assert ids(rows.above(read(asked, arrow(*({"updated": u} for u in (4, 5, 6)))), asked)) == [2]
    asked = page()
    assert ids(rows.above(read(asked, arrow({"updated": -(2**62)}, {"updated": 0})), asked)) == [0, 1]


def passes_that_own(row: Stamps, closed: Mapping[str, int | None]) -> list[str]:
    found: list[str] = []
    for scan in TRACKED.passes:
        if any(row[n] is not None for n in scan.nulls) or (scan.cursor and row[scan.cursor] is None):
            continue  # the source does not send it
        asked = Page(TRACKED, scan, closed, None, 10)  # type: ignore[arg-type]
        if len(rows.above(read(asked, arrow(row)), asked)):
            found.append(scan.name)
    return found


@given(ROW, st.fixed_dictionaries(dict.fromkeys(("updated", "deleted", "created"), STAMP)))
def test_every_open_row_is_read_by_one_pass_and_every_closed_one_by_none(
    row: Stamps, closed: Mapping[str, int | None]
) -> None:
    def open_(column: str) -> bool:
        value, limit = row[column], closed[column]
        return value is not None and (limit is None or value > limit)

    expected = (
        open_("updated")
        or open_("deleted")
        or (row["updated"] is None and (row["created"] is None or open_("created")))
    )
    assert len(passes_that_own(row, closed)) == int(expected)


@given(ROW, st.fixed_dictionaries(dict.fromkeys(("updated", "deleted", "created"), STAMP)))
def test_what_a_later_poll_may_read_is_remembered_until_none_can(
    row: Stamps, closed: Mapping[PassName, int | None]
) -> None:
    found = read(page(), arrow(row))
    again = bool(passes_that_own(row, closed))  # type: ignore[arg-type]
    assert bool(rows.may_return(found, closed, None)[0]) == again
    assert over(found, closed, None) == (not again)


@pytest.mark.parametrize(("version", "returns"), [(99, False), (100, True), (101, True)])
def test_versions_are_remembered_from_the_floor_on(version: int, returns: bool) -> None:
    found = read(page(), arrow({"updated": 1}, **{VERSION: pa.array([version], pa.int64())}))
    assert rows.may_return(found, {}, 100).tolist() == [returns]
    assert rows.may_return(found, {}, None).tolist() == [True]
    assert over(found, {}, 100) == (not returns)
    assert not over(found, {}, None)


@pytest.mark.parametrize("column", ["created", "updated", "deleted", "v"])
def test_a_change_in_any_column_is_another_version(column: str) -> None:
    one = {"created": 1, "updated": 2, "deleted": 3}
    before, after = arrow(one), arrow(one | {column: 4 if column != "v" else None})
    after = after if column != "v" else after.set_column(4, "v", pa.array(["x"]))
    assert tokens(read(page(), before)) != tokens(read(page(), after))
    assert tokens(read(page(), before)) == tokens(read(page(), before))


def test_a_column_that_is_read_but_not_delivered_is_part_of_the_version() -> None:
    narrow = dataclasses.replace(TRACKED, columns=COLUMNS[:1])
    found = read(page(tracked=narrow), arrow({"updated": 1}))
    assert found.delivered().column_names == ["id"]
    other = read(page(tracked=narrow), arrow({"updated": 1, "created": 1}))
    assert tokens(found) != tokens(other)


def test_a_comparable_cursor_that_the_connector_sends_wins_over_the_column() -> None:
    data = arrow({"updated": 1}, {"updated": 2}, **{CURSOR: pa.array([7, INFINITY], pa.int64())})
    found, last = rows.from_page(page(), data)
    assert found.updated.tolist() == [7, INFINITY]
    assert last == (INFINITY, 1)
    _, last = rows.from_page(page("deleted"), data)
    assert last == (INFINITY, 1)
    assert rows.from_page(page("deleted"), data)[0].updated.tolist() == [1, 2]


def test_the_position_of_a_pass_without_a_cursor_is_the_key() -> None:
    assert rows.from_page(page("unstamped"), arrow({}, {}))[1] == (1,)
    assert rows.from_page(page("unstamped"), arrow())[1] is None


def test_what_is_gone_is_said_by_the_stamp_or_by_the_connector() -> None:
    stamped = arrow({"deleted": 1}, {"deleted": None}, {"deleted": 0})
    assert read(page(), stamped).gone.tolist() == [True, False, True]
    sentinel = dataclasses.replace(TRACKED, not_deleted=(0,))
    assert read(page(tracked=sentinel), stamped).gone.tolist() == [True, False, False]
    said = stamped.append_column(DELETED, pa.array([False, True, None]))
    assert read(page(), said).gone.tolist() == [False, True, False]


def test_a_placeholder_deletes_nothing_whatever_else_says_that_a_row_is_gone() -> None:
    day, far = 86_400_000_000, 7_258_118_400_000_000
    either = dataclasses.replace(TRACKED, deleted_when="v = 'gone'")
    good = arrow({"deleted": day + 1}, {"deleted": None}, {"deleted": far - 1}, {"deleted": far})
    # By the condition, the second is gone without a time, and the last one is there.
    good = good.append_column(DELETED, pa.array([True, True, True, False]))
    rows.refuse_placeholders(read(page(tracked=either), good))
    for odd in (day, 0, far):
        bad = arrow({"deleted": day + 1}, {"deleted": odd}, {"deleted": odd})
        bad = bad.append_column(DELETED, pa.array([True] * 3))
        with pytest.raises(SettingsError, match=r'"\d{4}-01-0\d 00:00:00Z", a placeholder rather .*first key: id=1\)'):
            rows.refuse_placeholders(read(page(tracked=either), bad))
        said = dataclasses.replace(either, not_deleted=(cursor.show(odd, "instant"),))
        rows.refuse_placeholders(read(page(tracked=said), bad))


def test_a_key_that_holds_a_null_is_named() -> None:
    data = arrow({"updated": 1}, {"updated": 2}).set_column(0, "id", pa.array([1, None], pa.int64()))
    with pytest.raises(SettingsError, match='table "t": key column "id" holds a NULL'):
        rows.from_page(page(), data)


def test_a_key_that_stands_twice_is_named_with_its_values() -> None:
    loose = dataclasses.replace(TRACKED, key=("v", "id"), key_is_unique=False)
    data = arrow({}, {}, {}).set_column(0, "id", pa.array([7, 8, 7], pa.int64()))
    data = data.set_column(4, "v", pa.array(["a", "a", "a"]))
    with pytest.raises(SettingsError, match=r"1 key stands more than once \(first: v='a', id=7\)"):
        rows.from_page(page(tracked=loose), data)
    assert len(read(page(tracked=dataclasses.replace(loose, key_is_unique=True)), data)) == 3


@given(st.lists(st.tuples(st.booleans(), STAMP), max_size=6))
def test_rows_taken_by_a_mask_stay_whole(chosen: list[tuple[bool, int | None]]) -> None:
    import numpy as np

    data = arrow(*({"updated": u, "created": u, "deleted": u} for _, u in chosen))
    data = data.append_column(VERSION, pa.array(range(len(chosen)), pa.int64()))
    mask = np.array([keep for keep, _ in chosen], dtype=bool)
    found = read(page(), data)
    part = found.take(mask)
    assert ids(part) == [n for n, (keep, _) in enumerate(chosen) if keep]
    assert part.version is not None
    assert part.version.tolist() == ids(part)
    assert tokens(part) == [t for t, (keep, _) in zip(tokens(found), chosen, strict=True) if keep]
    assert part.keys().tolist() == found.keys()[:, mask].tolist()
    assert len(part.change_types()) == len(part)


def test_a_pass_is_left_out_where_no_row_can_be_its_own() -> None:
    strict = tuple(dataclasses.replace(c, nullable=False) for c in COLUMNS)
    certain = dataclasses.replace(TRACKED, table=Table("t", ("t",), strict, ("id",)))
    assert certain.passes == (Pass("updated", "updated"), Pass("deleted", "deleted"))
    assert [p.name for p in TRACKED.passes] == ["updated", "deleted", "created", "unstamped"]
