"""What a mirror needs of the table that it keeps, whatever keeps it for us, and whose table it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from sidecar.errors import SinkError
from sidecar.mirrors.folding import After, Changes, Held


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose table it is: the log that it mirrors, the sink that writes it, and in which way."""

    log: str
    sink: str
    table: str
    key: tuple[str, ...]
    kind: str

    @property
    def properties(self) -> dict[str, str]:
        """What the table says of itself."""
        found = {"log": self.log, "sink": self.sink, "table": self.table, "key": json.dumps(self.key)}
        return {f"sidecar.{name}": value for name, value in (found | {"kind": self.kind}).items()}


@dataclass(frozen=True, slots=True)
class Reached:
    """An offset that a table has come to, and when that was committed to the log, by which a log is known again."""

    offset: int
    committed: int | None = None


class MirrorTable(Protocol):
    """One table that one sink keeps. Used by one thread; forgotten, and made anew, after any failure."""

    @property
    def what(self) -> str:
        """What to call it in an error: which sort of table, and where."""

    def exists(self) -> bool:
        """Return whether there is such a table."""

    def open(self, schema: pa.Schema, begins: int) -> None:
        """Open the table, or make it, of the columns *schema*, for the changes after offset *begins*.

        SinkError if there is something there that this sink has not written for this log.
        """

    def applied(self, acknowledged: int) -> int:
        """Return the last offset that the table is known to have; *acknowledged*: what the sink has."""

    def newest(self, acknowledged: int, version: str) -> int:
        """Return the greatest offset of which there is anything in the table, whole or not; *version*: the column of a
        change's offset.
        """

    def committed(self) -> int | None:
        """Return when that offset was committed to the log, in microseconds; None if the table does not know."""

    def schema(self) -> pa.Schema:
        """Return the table's columns."""

    def renew(self, columns: Iterable[str], over: str | None) -> None:
        """Take notice that the log has *columns* by now; one that had gone and is back becomes NULL in the rows held,
        but for those with a value in the column *over*.
        """

    def evolve(self, schema: pa.Schema, own: Sequence[str]) -> None:
        """Make the table able to hold rows of *schema*; *own* of its columns are Sidecar's. SinkError if it cannot be.

        What is there is NULL in columns that come, and stays in those that have gone.
        """

    def apply(self, changes: Changes, rule: Callable[[Changes, Held], After], through: Reached, *, whole: bool) -> None:
        """Make of the rows that *changes* touch what *rule* says, in one commit; nothing, where that was done before.

        Afterwards the table has offset *through*. *whole*: the rule asks for the rows themselves, not only for whether
        they are there.
        """

    def load(self, pieces: Iterable[Changes], rule: Callable[[Changes, Held], After], through: Reached) -> None:
        """Do the same, with a piece after the other, where the table holds no row yet but those of an attempt at this,
        and no key stands in two pieces.
        """

    def maintain(self, keep: int) -> tuple[int, int]:
        """Join small files, and remove those that are of no version since *keep* microseconds; return how many each."""


def refuse_another(found: Mapping[str, str | None], owner: Owner, what: str, where: str, setting: str) -> None:
    """Raise SinkError if *what*, whose properties are *found*, is not *owner*'s; *setting* says where it is."""
    ours = owner.properties
    other = next((name for name, value in ours.items() if found.get(name) != value), None)
    if other is None:
        return
    way_out = f"Give this one another {setting}, or move the table away, so that it is loaded anew under another name"
    if "sidecar.log" not in found:
        said = "was not written by Sidecar"
    elif other == "sidecar.log":
        said = f'mirrors another change log (of table "{found.get("sidecar.table")}")'
    elif other == "sidecar.sink":
        said = f'was written by the sink "{found.get("sidecar.sink")}"'
    elif other == "sidecar.key":
        said = f"was written by the key {found.get(other)}, and now the key is {ours[other]}"
    else:
        said = f"was written as {found.get(other)}, and now the sink asks for {ours[other]}"
    raise SinkError(f"{where}: the {what} {said}. {way_out}")
