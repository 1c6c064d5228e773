"""A column that a source has dropped and has again is another one of the same name: which of a mirror's are such.

The source has NULL in it, or a default, for every row that has not been written since; what the mirror holds is the old
column's. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = "sidecar.columns"
"""The table's property that says what is known."""


@dataclass(frozen=True, slots=True)
class Known:
    """The columns that the log of a mirror had when it was last looked at, and those that it had had before that."""

    here: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()

    @classmethod
    def load(cls, text: str | None) -> Known:
        """Return what `dump` has made a text of; nothing is known from None."""
        raw = {"here": [], "gone": []} if text is None else json.loads(text)
        return cls(frozenset(raw["here"]), frozenset(raw["gone"]))

    def dump(self) -> str:
        return json.dumps({"here": sorted(self.here), "gone": sorted(self.gone)})

    def after(self, columns: Iterable[str]) -> tuple[Known, frozenset[str]]:
        """Return what is known once the log has *columns*, and which of these had been gone."""
        here = frozenset(columns)
        return Known(here, (self.gone | self.here) - here), self.gone & here


def emptied(rows: pa.Table, names: Collection[str], over: str | None) -> pa.Table:
    """Return *rows* with NULL in the columns *names*, where nothing stands in the column *over*: there a row is over,
    and stays as it was.
    """
    for at, field in enumerate(rows.schema):
        if field.name in names:
            none = pa.nulls(len(rows), field.type)
            if over is not None:
                none = pc.if_else(pc.is_null(rows.column(over)), none, rows.column(at))
            rows = rows.set_column(at, field, none)
    return rows
