"""What has become of a table's columns between two polls, and which of it a reader of both can bear. Pure functions.

Columns may come and go, and a type may grow: whoever reads old and new segments reads the old ones as the wide type,
which Spark does by itself. Any other change makes two tables of one name, and somebody has to decide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class Change:
    """What has become of one column: its types `before` and `after`, None where there was, or is, no such column."""

    column: str
    before: pa.DataType | None
    after: pa.DataType | None

    @property
    def kind(self) -> Literal["added", "dropped", "widened", "changed"]:
        if self.before is None:
            return "added"
        if self.after is None:
            return "dropped"
        return "widened" if widens(self.before, self.after) else "changed"

    def __str__(self) -> str:
        """Return it in words."""
        name = f'column "{self.column}"'
        if self.kind == "added":
            return f"{name} ({self.after}) is new: NULL in older rows"
        if self.kind == "dropped":
            return f"{name} ({self.before}) is gone"
        return f"{name} was {self.before} and is {self.after} now"


def changes(before: pa.Schema, after: pa.Schema) -> list[Change]:
    """Return what differs, column by column, in the order of *after*, what is gone last; other orders are no change."""
    if before.equals(after):
        return []
    found = [
        Change(field.name, _type(before, field.name), field.type)
        for field in after
        if _type(before, field.name) != field.type
    ]
    return [*found, *(Change(f.name, f.type, None) for f in before if _type(after, f.name) is None)]


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether every value of *before* is one of *after*, and a Parquet file of *before* can be read as *after*.

    Spark's rules, of "Parquet type widening" in its vectorized reader: integers and floats of more bits, decimals of
    as many digits on either side of the point.
    """
    if before == after:
        return True
    if before in _INTEGERS and after in _INTEGERS:
        return _INTEGERS.index(before) < _INTEGERS.index(after)
    if pa.types.is_float32(before):
        return bool(pa.types.is_float64(after))
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        grown = after.scale - before.scale
        return bool(grown >= 0 and after.precision - before.precision >= grown)
    return False


def compatible(before: pa.Schema, after: pa.Schema) -> bool:
    """Return whether what was written as *before* can be read as *after*."""
    return all(change.kind != "changed" for change in changes(before, after))


def conformed(data: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return *data* in the columns of *schema*, with which it must be `compatible`: wider, NULL where it has none."""
    there = {*data.column_names}
    columns = [
        pc.cast(data.column(field.name), field.type) if field.name in there else pa.nulls(len(data), field.type)
        for field in schema
    ]
    # Without the fields' nullability: a column that is new may be NOT NULL, and has no values in older rows.
    return pa.table(columns, names=schema.names)


def _type(schema: pa.Schema, name: str) -> pa.DataType | None:
    at = schema.get_field_index(name)
    return None if at < 0 else schema.field(at).type
