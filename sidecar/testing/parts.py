"""What the tests of the contract are made of: who writes, what is written, and how a pass is read to its end."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa
import pytest

from sidecar import codec
from sidecar.clock import SECOND
from sidecar.connector import SourceConnector
from sidecar.model import Page, Pass, Scalar, Tracked
from sidecar.polls.rows import from_page

Connect = Callable[[], SourceConnector]
Row = dict[str, Scalar]

BASE = 1_714_557_600 * SECOND
"""2024-05-01T10:00:00Z: where the rows of these tests stand in time."""


class Writer(Protocol):
    """Writes to the source that is under test. Stamps are microseconds since the epoch; a missing value is NULL."""

    kinds: frozenset[str]
    """Which of "integer", "text", "collated", "bytes", "uuid", "stamp" a column may be."""

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
        """Make *table* with columns by kind and return the name under which the connector knows it."""

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert and commit."""

    def update(self, table: str, where: Row, values: Row) -> None:
        """Update the rows that equal *where* and commit."""

    def content(self) -> object:
        """Return something that differs if anything at all in the source differs."""


STAMPS = {"created_at": "stamp", "updated_at": "stamp"}


def stamped(rows: Sequence[Row], at: Callable[[int], int] = lambda n: BASE + n) -> list[Row]:
    """Return *rows* with both stamps set to *at* of their number."""
    return [{**row, "created_at": at(n), "updated_at": at(n)} for n, row in enumerate(rows)]


def tracked(connector: SourceConnector, name: str, page_size: int = 100, **settings: object) -> Tracked:
    """Return *name* as it would be followed by default."""
    table = connector.describe(name)
    created = next((c for c in ("created_at",) if table.column(c)), None)
    deleted = next((c for c in ("deleted_at",) if table.column(c)), None)
    plain = Tracked(
        table,
        table.primary_key,
        "updated_at",
        created_at=created,
        deleted_at=deleted,
        columns=table.columns,
        page_size=page_size,
    )
    return dataclasses.replace(plain, **settings)  # type: ignore[arg-type]


def scan(
    connector: SourceConnector, followed: Tracked, reconnect: Connect | None = None, by: Pass | None = None
) -> list[pa.Table]:
    """Return the pages of a pass, else the first, each asked for after the last one's position, packed and unpacked."""
    pages: list[pa.Table] = []
    page = Page(followed, by or followed.passes[0], {}, None, followed.page_size)
    while True:
        with connector.snapshot():
            data = connector.read(page)
        pages.append(data)
        _, last = from_page(page, data)
        if len(data) < page.limit or last is None:
            return pages
        page = dataclasses.replace(page, after=codec.unpack(codec.pack(last)))
        if reconnect is not None:
            connector.close()
            connector = reconnect()


def values(pages: Sequence[pa.Table], *names: str) -> list[tuple[Scalar, ...]]:
    """Return the named columns of all pages, row by row."""
    return [row for page in pages for row in codec.rows(page, names)]


class Contract:
    """The two fixtures that every test of the contract asks for, and keys of each kind, among them the hard ones."""

    integers: ClassVar[tuple[int, ...]] = (-(2**63), -5, 0, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1)
    texts: ClassVar[tuple[str, ...]] = (
        "",
        " ",
        "a",
        "B",
        "c",
        "D",
        "_x",
        "ab",
        "a_z",
        "Zeta",
        "élan",
        "o'b",
        'q"',
        "\\",
    )

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError("give a fixture `connect`: a function that returns a new connector")

    @pytest.fixture
    def writer(self) -> Writer:
        raise NotImplementedError("give a fixture `writer`: something that writes to the source")

    def keys(self, writer: Writer, kind: str) -> Sequence[Scalar]:
        if kind not in writer.kinds:
            pytest.skip(f"this source has no keys of kind {kind!r}")
        if kind == "integer":
            return self.integers
        if kind == "bytes":
            return (b"", b"\x00", b"\x00\xff", b"a", b"a\x00", b"\xff\xfe")
        if kind == "uuid":
            return tuple(str(uuid.UUID(int=n * 0x1234567890ABCDEF)) for n in range(6))
        return self.texts
