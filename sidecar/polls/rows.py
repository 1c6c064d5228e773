"""A page as the core sees it: its rows, what they are, and what must be remembered of them.

Rows at or below a closed value are never read again, so nothing of them is kept. Of the others Sidecar remembers, by
key, what it delivered last: the row's version where the source has versions (PostgreSQL's xmin), else a fingerprint of
its content with the cursor values that will close it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import classify, codec
from sidecar.clock import SECOND
from sidecar.cursor import DAY, NONE, Flags, Integers, comparable, exact_text, kind, show
from sidecar.errors import SettingsError
from sidecar.model import (
    BAD,
    CURSOR,
    DELETED,
    INFINITY,
    VALUE,
    VERSION,
    Page,
    PassName,
    Position,
    Scalar,
    Tracked,
)
from sidecar.polls import deliveries
from sidecar.polls.deliveries import CONTENT, CREATED, MORE, UPDATED, Keys, Records
from sidecar.polls.fingerprint import digests
from sidecar.settings.words import section

_INTEGER = int.from_bytes(b"integer ", "little")
_BELIEVABLE = (DAY, 7_258_118_400 * SECOND)
"""1970-01-02, a day above zero for the sake of zones, and 2200: nothing is deleted at the ends of a calendar."""


@dataclass(frozen=True)
class Rows:
    """Rows of one page, column-wise, with their cursor columns as comparable integers (NULL is `cursor.NONE`)."""

    tracked: Tracked
    data: pa.Table
    updated: Integers
    created: Integers | None
    deleted: Integers | None
    gone: Flags
    version: Integers | None

    def __len__(self) -> int:
        return len(self.updated)

    def take(self, mask: Flags) -> Rows:
        """Return the rows where *mask* is true."""
        if mask.all():
            return self
        return Rows(
            self.tracked,
            # A list: pyarrow looks at an array of numpy's through numpy.ma, which takes longer to import than it saves.
            self.data.filter(pa.array(mask.tolist(), pa.bool_())),
            self.updated[mask],
            None if self.created is None else self.created[mask],
            None if self.deleted is None else self.deleted[mask],
            self.gone[mask],
            None if self.version is None else self.version[mask],
        )

    @functools.cached_property
    def ranks(self) -> tuple[Integers, Integers, Integers]:
        """By pass, the value at which that pass meets the row; NONE where it never does."""
        nothing = np.full(len(self), NONE, dtype=np.int64)
        deleted = nothing if self.deleted is None else np.where(self.gone, self.deleted, NONE)
        unstamped = self.updated == NONE
        created = nothing if self.created is None else self.created
        # A row with no stamp at all is met at every poll, by key: nothing closes it.
        created = np.where(unstamped, np.where(created == NONE, INFINITY, created), NONE)
        return self.updated, deleted, created

    def keys(self) -> Keys:
        return keys_of(self.tracked, self.data)

    def change_types(self) -> pa.Array:
        return classify.change_types(self.updated, self.created, self.gone, classify.tolerance(self.tracked))

    def delivered(self) -> pa.Table:
        """Return the columns that users see, in the source's order and in the types that users see."""
        names, there = [c.name for c in self.tracked.columns], {*self.data.column_names}
        typed = [VALUE + n if VALUE + n in there else n for n in names]
        return pa.table([self.data.column(n) for n in typed], names)


def keys_of(tracked: Tracked, data: pa.Table) -> Keys:
    """Return what stands for each row's key: the key itself where it is one integer, else a digest."""
    if len(tracked.key) == 1 and pa.types.is_signed_integer(data.schema.field(tracked.key[0]).type):
        values = pc.cast(data.column(tracked.key[0]), pa.int64()).to_numpy()
        return np.stack([values, np.full(len(data), _INTEGER, dtype=np.int64)])
    return digests([_one_zero(data.column(name)) for name in tracked.key], len(data))


def _one_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return *column* with one zero: a unique key holds -0.0 and 0.0 for the same, and so does Spark."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def from_page(page: Page, data: pa.Table) -> tuple[Rows, Position | None]:
    """Return what a connector sent for *page*, and the position after it (None without rows).

    SettingsError if a key holds a NULL: such a key does not tell rows apart.
    """
    tracked = page.tracked
    _refuse_nulls(tracked, data)
    names = (
        *((CURSOR if CURSOR in data.column_names else page.scan.cursor,) if page.scan.cursor else ()),
        *tracked.key,
    )
    last = codec.position(data.slice(len(data) - 1), names) if len(data) else None
    stamps: dict[str, Integers] = {}
    for name in (tracked.updated_at, tracked.created_at, tracked.deleted_at):
        if name is not None and name not in stamps:
            carried = CURSOR in data.column_names and name == (page.scan.cursor or tracked.updated_at)
            stamps[name] = comparable(data.column(CURSOR if carried else name), tracked.timezone)
    deleted = stamps[tracked.deleted_at] if tracked.deleted_at else None
    if deleted is not None and tracked.deleted_at is not None and tracked.not_deleted:
        # A placeholder is no deletion's time: the deleted pass does not meet such a row, whatever `deleted_when` says.
        deleted = np.where(_are_listed(data.column(tracked.deleted_at), deleted, tracked.not_deleted), NONE, deleted)
    version = data.column(VERSION).to_numpy().astype(np.int64, copy=False) if VERSION in data.column_names else None
    rows = Rows(
        tracked,
        data,
        stamps[tracked.updated_at],
        stamps[tracked.created_at] if tracked.created_at else None,
        deleted,
        _gone(tracked, data, deleted),
        version,
    )
    return rows, last


def above(rows: Rows, page: Page) -> Rows:
    """Return the rows that are *page*'s own: above its closed value, and not read by an earlier pass of the poll."""
    closed, scan = page.closed, page.scan
    mask = np.ones(len(rows), dtype=bool)
    own = {"updated": rows.updated, "deleted": rows.deleted, "created": rows.created}.get(scan.name)
    value = closed.get(scan.name)
    if own is not None and value is not None:
        mask &= own > value
    if scan.name == "deleted":
        mask &= rows.gone
        mask &= ~_reached(rows.updated, closed.get("updated"))
    if scan.name in ("created", "unstamped") and rows.deleted is not None:
        mask &= ~(rows.gone & _reached(rows.deleted, closed.get("deleted")))
    return rows.take(mask)


def shape(data: pa.Table) -> tuple[str, ...]:
    """Return the columns that a fingerprint is made of."""
    # What stands for a key or a cursor is in itself a fingerprint's part; its delivered form says nothing more.
    ours = (CURSOR, VERSION, BAD)
    return tuple(n for n in data.column_names if n not in ours and not n.startswith(VALUE))


def are_null(rows: Rows, names: Collection[str]) -> Flags:
    """Return which rows are NULL in all columns of *names*."""
    found = np.ones(len(rows), dtype=bool)
    for name in names:
        found &= rows.data.column(name).is_null().to_numpy()
    if BAD in rows.data.column_names:
        # For a value that does not fit, too, stands a NULL.
        marks = [None if mark is None else json.loads(mark)["bad"] for mark in rows.data.column(BAD).to_pylist()]
        found &= np.array([mark is None or mark.keys().isdisjoint(names) for mark in marks], dtype=bool)
    return found


def records(rows: Rows, keys: Keys, columns: Sequence[str] | None = None) -> Records:
    """Return what is to be remembered of each row, should it be met again; as if it had only *columns*, if given."""
    found = deliveries.nothing(keys)
    if rows.version is not None:
        found[deliveries.VERSION] = rows.version
        return found
    found[UPDATED : CREATED + 1] = rows.ranks
    if not len(rows):
        return found
    names = shape(rows.data) if columns is None else columns
    content = [rows.data.column(name) for name in names]
    found[CONTENT : MORE + 1] = digests(content, len(rows))
    if BAD in rows.data.column_names and rows.data.column(BAD).null_count < len(rows):
        # A row is the same in a page with and without bad ones; a bad value, NULL in its column, tells itself.
        is_bad = rows.data.column(BAD).is_valid()
        read = (json.loads(mark)["row"] for mark in rows.data.column(BAD).filter(is_bad).to_pylist())
        texts = [str({name: value for name, value in row.items() if name in names}) for row in read]
        marked = [*(column.filter(is_bad) for column in content), pa.chunked_array([pa.array(texts, pa.string())])]
        found[CONTENT : MORE + 1, is_bad.to_numpy()] = digests(marked, len(texts))
    return found


def may_return(rows: Rows, closing: Mapping[PassName, int | None], floor: int | None) -> Flags:
    """Return which rows a later poll may meet again unchanged, when *closing* are the closed values by then."""
    if rows.version is not None:
        return np.ones(len(rows), dtype=bool) if floor is None else rows.version >= floor
    return _met(rows, closing)


def met(rows: Rows, closed: Mapping[PassName, int | None], floor: int | None) -> Flags:
    """Return which rows a poll reads that begins above *closed* and, where the source has versions, at *floor*."""
    found = _met(rows, closed)
    return found if rows.version is None or floor is None else found & (rows.version >= floor)


def stamps(rows: Rows) -> Integers:
    """Return by row the greatest value at which any pass meets it."""
    found: Integers = np.maximum.reduce(rows.ranks)
    return found


def late(rows: Rows, due: Mapping[PassName, int | None]) -> Flags:
    """Return which rows should have appeared earlier: every pass that meets them was *due* beyond them."""
    return ~_met(rows, due)


def _met(rows: Rows, closed: Mapping[PassName, int | None]) -> Flags:
    """Return which rows any pass meets, when *closed* are the closed values."""
    updated, deleted, created = rows.ranks
    return (
        _beyond(updated, closed.get("updated"))
        | _beyond(deleted, closed.get("deleted"))
        | _beyond(created, closed.get("created"))
    )


def _beyond(ranks: Integers, closed: int | None) -> Flags:
    return (ranks != NONE) if closed is None else ranks > closed


def _reached(values: Integers, closed: int | None) -> Flags:
    """Return which values a pass closed at *closed* reads."""
    return _beyond(values, closed)


def _gone(tracked: Tracked, data: pa.Table, deleted: Integers | None) -> Flags:
    if DELETED in data.column_names and len(data):
        column = data.column(DELETED)
        flags: Flags = (pc.fill_null(column, False) if column.null_count else column).to_numpy().astype(bool)
        return flags
    if deleted is None or tracked.deleted_at is None or not len(data):
        return np.zeros(len(data), dtype=bool)
    column = data.column(tracked.deleted_at)
    return ~_among(column, (None, *tracked.not_deleted))


def _are_listed(column: pa.ChunkedArray, stamps_: Integers, some: tuple[Scalar, ...]) -> Flags:
    """Return which values of *column*, in time *stamps_*, are among *some*, as the settings say them."""
    if pa.types.is_string(column.type):
        # A number that arrives as text.
        return _among(column, tuple(v if isinstance(v, str) else repr(v) for v in some))
    if not pa.types.is_timestamp(column.type) and not pa.types.is_date(column.type):
        return _among(column, some)
    times = (found[0] for v in some if isinstance(v, str) and (found := exact_text(v)) is not None)
    is_date = pa.types.is_date(column.type)
    return np.isin(stamps_, [at // DAY * DAY + DAY - 1 if is_date else at for at in times])


def _among(column: pa.ChunkedArray, some: tuple[Scalar, ...]) -> Flags:
    values = codec.plain(column)
    return np.fromiter((v in some for v in values), bool, len(values))


def refuse_placeholders(found: Rows) -> None:
    """Raise SettingsError for a `deleted_at` at which nothing can have been deleted: before there were such tables, or
    in a far future. It stands for "not deleted", and taken for a time it would delete every row.
    """
    tracked, data, deleted, gone = found.tracked, found.data, found.deleted, found.gone
    if deleted is None or tracked.deleted_at is None:
        return
    kind_ = kind(data.column(tracked.deleted_at).type, f'table "{tracked.name}", column "{tracked.deleted_at}"')
    first, last = (0, INFINITY) if kind_ in ("number", "real") else _BELIEVABLE
    odd = np.flatnonzero(gone & (deleted != NONE) & ((deleted <= first) | (deleted >= last)))
    if not len(odd):
        return
    row = int(odd[0])
    value = codec.plain(data.column(tracked.deleted_at).slice(row, 1))[0]
    if kind_ in ("instant", "reading"):
        value = show(int(deleted[row]), kind_).replace("T", " ")
    shown = f'"{value}"' if isinstance(value, str) else repr(value)
    key = ", ".join(f"{n}={codec.plain(data.column(n).slice(row, 1))[0]!r}" for n in tracked.key)
    name, table = tracked.deleted_at, tracked.name
    raise SettingsError(
        f'table "{table}": {table}.{name} holds {shown}, a placeholder rather than the time of a deletion (first key: '
        f"{key}). If it means that the row is not deleted, say so: [{section('tables', table)}] "
        f"not_deleted = [{shown}]. If such rows are deleted: deleted_at = false and "
        f'deleted_when = "{name} IS NOT NULL"'
    )


def _refuse_nulls(tracked: Tracked, data: pa.Table) -> None:
    for name in tracked.key:
        if data.column(name).null_count:
            raise SettingsError(
                f'table "{tracked.name}": key column "{name}" holds a NULL, so rows cannot be told apart by it. '
                "Choose a primary_key of columns that are never NULL."
            )
