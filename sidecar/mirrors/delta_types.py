"""What a mirror's table can hold of Arrow's types, and how it takes in columns that have changed.

Delta's types are Spark's, and so those of a table of any of its catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from sidecar.errors import SinkError
from sidecar.polls import evolution
from sidecar.settings.words import sink_of_its_own

_PLAIN = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")),
)


@dataclass(frozen=True, slots=True)
class Evolved:
    """A table's new columns: those to be `added`, and whether what it holds must be rewritten as wider types."""

    schema: pa.Schema
    added: tuple[pa.Field, ...]
    is_wider: bool


def storable(schema: pa.Schema, where: str) -> pa.Schema:
    """Return *schema* as a mirror's table has it, all columns nullable; SinkError names a column that it can't."""
    seen: dict[str, str] = {}
    for name in schema.names:
        twin = seen.setdefault(name.casefold(), name)
        if twin != name or schema.names.count(name) > 1:
            raise SinkError(
                f'{where}: columns "{twin}" and "{name}" differ only in case, and a mirror takes them for one. '
                "Rename one by a transform, or leave it out (columns = …)"
            )
    return pa.schema([pa.field(f.name, _storable(f.type, f'{where}, column "{f.name}"')) for f in schema])


def evolved(held: pa.Schema, new: pa.Schema, own: Iterable[str], where: str) -> Evolved:
    """Return what becomes of a table of the columns *held* that is to take rows of the columns *new*.

    *own* are columns that Sidecar adds to a source's. SinkError names a column that fits neither way, and both types.
    """
    added, wider = [], dict[str, pa.DataType]()
    for change in evolution.changes(held, new):
        if change.before is None or change.column in own:
            twin = next((n for n in held.names if n.casefold() == change.column.casefold()), None)
            if twin is not None:
                raise SinkError(
                    f'{where}: column "{change.column}" is new, and the table has "{twin}" already, which it '
                    "takes for the same. Rename it by a transform, or leave it out (columns = …)"
                )
            added.append(new.field(change.column))
        elif change.after is not None and evolution.widens(change.before, change.after):
            wider[change.column] = change.after
        elif change.after is not None and not evolution.widens(change.after, change.before):
            raise SinkError(
                f'{where}: column "{change.column}" was {change.before} and is {change.after} now, which is not a '
                "wider type: the rows that are there cannot be kept as that. The sink goes on with its other tables; "
                f"give this one {sink_of_its_own()}; and have it read anew (sidecar watermark reset TABLE). Or let a "
                "transform cast the column"
            )
    kept = [pa.field(f.name, wider.get(f.name, f.type)) for f in held]
    return Evolved(pa.schema([*kept, *added]), tuple(added), bool(wider))


def plain(type_: pa.DataType) -> pa.DataType:
    """Return *type_* without what differs between two libraries' spelling of the same type."""
    kind = pa.types
    if kind.is_dictionary(type_):
        return plain(type_.value_type)
    if kind.is_large_string(type_) or type_ == pa.string_view():
        type_ = pa.string()
    elif kind.is_large_binary(type_) or kind.is_fixed_size_binary(type_) or type_ == pa.binary_view():
        type_ = pa.binary()
    elif kind.is_timestamp(type_):
        type_ = pa.timestamp("us", "UTC" if type_.tz else None)
    elif kind.is_decimal(type_) and type_.precision <= 38:
        type_ = pa.decimal128(type_.precision, type_.scale)
    elif kind.is_list(type_) or kind.is_large_list(type_):
        type_ = pa.list_(plain(type_.value_type))
    elif kind.is_map(type_):
        type_ = pa.map_(plain(type_.key_type), plain(type_.item_type))
    elif kind.is_struct(type_):
        type_ = pa.struct([pa.field(f.name, plain(f.type)) for f in type_.fields])
    return type_


def _storable(type_: pa.DataType, where: str) -> pa.DataType:
    found = plain(type_)
    inner = [found.field(n).type for n in range(found.num_fields)]
    if pa.types.is_decimal128(found) or found in _PLAIN:
        return found
    if not (pa.types.is_list(found) or pa.types.is_map(found) or pa.types.is_struct(found)) or not inner:
        raise SinkError(f"{where}: a mirror has no type for {type_}. Cast it by a transform")
    for part in inner:
        _storable(part, where)
    return found
