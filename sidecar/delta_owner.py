"""Whose a mirror's table is: it says so itself, and one that is somebody else's is refused and left alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.errors import SinkError


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose table it is: the log that it mirrors, the sink that writes it, and in which way."""

    log: str
    sink: str
    table: str
    key: tuple[str, ...]
    kind: str

    @property
    def app(self) -> str:
        """The name under which the table's log holds the last offset that it has."""
        return f"sidecar/{self.log}/{self.sink}/{self.table}"

    @property
    def stamp(self) -> str:
        """The name under which it holds when that offset was committed to the log, in microseconds UTC."""
        return f"{self.app}/committed"

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


def must_be_empty(place: str, where: str) -> None:
    """Raise SinkError if there are files at *place*, where a table is to be made."""
    folder = Path(place)
    if "://" not in place and folder.is_dir() and any(p.name != "_delta_log" for p in folder.iterdir()):
        raise SinkError(
            f"{where}: {place} is no Delta table, and not empty either. Give the sink another path, or move away what "
            "is there"
        )


def must_be_ours(place: str, found: Mapping[str, str | None], owner: Owner, where: str) -> None:
    """Raise SinkError if the table at *place*, whose properties are *found*, is not the *owner*'s."""
    ours = owner.properties
    other = next((name for name, value in ours.items() if found.get(name) != value), None)
    if other is None:
        return
    way_out = "Give this one another path, or move the table away, so that it is loaded anew under another name"
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
    raise SinkError(f"{where}: the Delta table at {place} {said}. {way_out}")
