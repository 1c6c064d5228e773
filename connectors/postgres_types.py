"""PostgreSQL's types in Arrow and Spark, and how a column of each travels.

`FORMS` is the table: the server's name of a type → its expression in a SELECT, what it is in Arrow, and in Spark. All
else is the text that the server prints. Arrays, composites, hstores and domains are made of these. The expression, and
the way its answer becomes the final type (`postgres_values.py`), are the same for both readers of `postgres_read.py`;
that is what makes their rows identical. What a reader gets wrong in its binary form travels as the server's own text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from connectors.postgres_literals import holds, is_time
from sidecar.errors import SettingsError
from sidecar.model import Column, Table, Wishes


@dataclass(frozen=True, slots=True)
class Form:
    """How a type arrives. `{}` in `select` is the column; `csv` is what a CSV reader asks instead, and gets as text."""

    select: str
    arrow: pa.DataType
    spark: str
    csv: str | None = None


_AS_TEXT = Form("{}::text", pa.string(), "STRING")
# Both readers hand these over as the server prints them, and a cast would harm one of them: `::text` strips the blanks
# that belong to a character(n).
_VERBATIM = Form("{}", pa.string(), "STRING")

FORMS: Mapping[str, Form] = {
    "bool": Form("{}", pa.bool_(), "BOOLEAN"),
    "int2": Form("{}", pa.int16(), "SMALLINT"),
    "int4": Form("{}", pa.int32(), "INT"),
    "int8": Form("{}", pa.int64(), "BIGINT"),
    "oid": Form("{}::int8", pa.int64(), "BIGINT"),
    "float4": Form("{}", pa.float32(), "FLOAT"),
    "float8": Form("{}", pa.float64(), "DOUBLE"),
    "numeric": _AS_TEXT,  # and then a decimal, or as the setting `numeric` says
    "bytea": Form("{}", pa.binary(), "BINARY", csv="pg_catalog.encode({}, 'hex')"),
    "date": Form("{}", pa.date32(), "DATE"),
    "timestamp": Form("{}", pa.timestamp("us"), "TIMESTAMP_NTZ"),
    "timestamptz": Form("{}", pa.timestamp("us", "UTC"), "TIMESTAMP"),
    "text": _VERBATIM,
    "varchar": _VERBATIM,
    "bpchar": _VERBATIM,
    "uuid": _VERBATIM,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as the catalog has it, domains resolved to what they are made of.

    `parts` are an array's element, a record's fields by name, or nothing; `depth` is the number of an array's
    dimensions, and `delimiter` what stands between its elements. `ordered`: `>` means the order of an index of it.
    `hidden`: behind a domain that the operators of its like (enums, ranges) do not see through.
    """

    name: str
    builtin: bool = True
    typmod: int = -1
    shape: Literal["scalar", "array", "record", "map"] = "scalar"
    parts: tuple[tuple[str, Kind], ...] = ()
    depth: int = 0
    delimiter: str = ","
    ordered: bool = True
    hidden: bool = False

    def leaves(self) -> Iterator[Kind]:
        """Yield the scalars that it is made of."""
        if self.shape == "scalar":
            yield self
        for _, part in self.parts:
            yield from part.leaves()

    @property
    def has_array(self) -> bool:
        return self.shape == "array" or any(part.has_array for _, part in self.parts)

    @property
    def form(self) -> Form:
        return FORMS.get(self.name, _AS_TEXT) if self.builtin and self.shape == "scalar" else _AS_TEXT

    @property
    def decimal(self) -> pa.DataType | None:
        """The decimal that holds every finite value of this numeric; None where there is none, or it is no numeric."""
        if not self.is_numeric or self.typmod < 4:
            return None
        precision = (self.typmod - 4) >> 16 & 0xFFFF
        scale = ((self.typmod - 4) & 0x7FF ^ 1024) - 1024
        return pa.decimal128(precision, scale) if precision <= 38 and 0 <= scale <= precision else None

    @property
    def is_open(self) -> bool:
        """Whether it is a numeric whose digits no decimal is sure to hold."""
        return self.is_numeric and self.decimal is None

    @property
    def is_numeric(self) -> bool:
        return self.builtin and self.name == "numeric"

    @property
    def is_float(self) -> bool:
        return bool(pa.types.is_floating(self.form.arrow))

    @property
    def is_json(self) -> bool:
        return self.builtin and self.name in ("json", "jsonb")


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings that say how one column arrives."""

    numeric: str = "string"
    infinity: str = "error"
    arrays: str = "list"
    json: str = "string"


def choice(wishes: Wishes, name: str) -> Choice:
    """Return what *wishes* say of column *name*, the defaults filled in."""
    settings = {f.name: wishes.of(f.name, name) for f in dataclasses.fields(Choice)}
    if name in wishes.key and wishes.named.get("numeric", {}).get(name) is None and settings["numeric"] == "double":
        settings["numeric"] = None  # a rounded key would not find its row again
    return Choice(**{setting: value for setting, value in settings.items() if value is not None})


_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def arrow_type(kind: Kind, how: Choice) -> pa.DataType:
    """Return the type that a column of *kind* arrives in."""
    if how.arrays == "string" and kind.has_array:
        return pa.string()
    found = _arrow(kind, how)
    if how.infinity == "keep as string" and any(_lacks_infinity(leaf, how) for leaf in kind.leaves()):
        return pa.string()
    return found


def _arrow(kind: Kind, how: Choice) -> pa.DataType:
    if kind.shape == "map":
        return pa.map_(pa.string(), pa.string())
    if kind.shape == "record":
        return pa.struct([pa.field(name, _arrow(part, how)) for name, part in kind.parts])
    if kind.shape == "array":
        found = _arrow(kind.parts[0][1], how)
        for _ in range(kind.depth):
            found = pa.list_(found)
        return found
    if kind.is_open:
        if how.numeric == "double":
            return pa.float64()
        match = _DECIMAL.fullmatch(how.numeric)
        return pa.decimal128(int(match[1]), int(match[2])) if match else pa.string()
    return kind.decimal or kind.form.arrow


def _lacks_infinity(kind: Kind, how: Choice) -> bool:
    """Return whether NaN or an infinity of *kind* has no place in the type that it arrives in."""
    type_ = _arrow(kind, how)
    return bool(is_time(type_) or pa.types.is_decimal(type_))


def kind_of(column: Column) -> Kind:
    """Return what the catalog said of *column*."""
    assert isinstance(column.detail, Kind), f"{column.name}: was not described by this connector"
    return column.detail


def named(column: Column) -> str:
    """Return the cast that a literal for *column* takes: a name that stands for an oid is compared as that. Beside a
    composite the server gives a literal no type by itself.
    """
    kind = kind_of(column)
    if kind.shape == "record":
        return f"::{column.type}"
    return f"::pg_catalog.{kind.name}" if kind.builtin and kind.name.startswith("reg") else ""


def typed(table: Table, wishes: Wishes) -> Table:
    """Return *table* with each column in the type that *wishes* ask for; SettingsError where they cannot be met."""
    problems = [text for setting, told in wishes.named.items() for text in _unmet(table, wishes, setting, told)]
    problems += _unordered(table, wishes.key)
    if problems:
        raise SettingsError("\n".join(problems))
    columns = []
    for column in table.columns:
        how = choice(wishes, column.name)
        kind = kind_of(column)
        variant = how.json == "variant" and kind.is_json
        type_ = arrow_type(kind, how)
        if column.name in wishes.key and pa.types.is_nested(type_):
            # What keys are compared, sorted and joined by takes no values of several parts; the server takes its text.
            type_ = pa.string()
        columns.append(dataclasses.replace(column, arrow=type_, variant=variant))
    return dataclasses.replace(table, columns=tuple(columns))


def _unordered(table: Table, key: Sequence[str]) -> Iterator[str]:
    for name in key:
        column = table.column(name)
        if column is not None and not kind_of(column).ordered:
            yield (
                f'table "{table.name}": key column "{name}" is {column.type}, and the role\'s search_path leads to no '
                "operator > that means the order of its index, so that pages of rows would overlap or leave rows out. "
                "If the type is an extension's in a schema of its own: ALTER ROLE … SET search_path = …, with that "
                "schema; else choose another primary_key"
            )


# What a setting is about, and which columns have it.
_ABOUT: Mapping[str, tuple[str, Callable[[Kind], bool]]] = {
    "numeric": ("numerics that no decimal is sure to hold", lambda kind: any(leaf.is_open for leaf in kind.leaves())),
    "infinity": (
        "numerics, floating-point numbers, dates and timestamps",
        lambda kind: any(leaf.is_float or leaf.is_numeric or is_time(leaf.form.arrow) for leaf in kind.leaves()),
    ),
    "arrays": ("arrays", lambda kind: kind.has_array),
    "json": ("json and jsonb", lambda kind: kind.is_json),
}


def _unmet(table: Table, wishes: Wishes, setting: str, told: Mapping[str, str]) -> Iterator[str]:
    if setting not in _ABOUT:
        yield f'table "{table.name}": PostgreSQL has no setting "{setting}"'
        return
    what, test = _ABOUT[setting]
    able = [c.name for c in table.columns if test(kind_of(c)) and c.name not in wishes.cursors]
    has = f"here: {', '.join(able)}" if able else "of which this table has none"
    for name, value in told.items():
        column = table.column(name)
        assert column is not None, f"{table.name}: {name} was resolved against the table"
        where = f'table "{table.name}": {setting} = {{ {name} = "{value}" }}'
        kind = kind_of(column)
        if name in wishes.cursors:
            yield f'{where}: "{name}" is a cursor column, and always arrives as {column.type}; leave it out'
        elif not test(kind):
            yield f'{where}: "{name}" is {column.type}; the setting is for {what}, {has}'
        elif setting == "arrays" and value == "list" and name in wishes.key:
            yield f'{where}: "{name}" is a part of the key, and arrives as the server\'s text; leave it out'
        elif setting == "numeric" and value == "double" and name in wishes.key:
            yield f'{where}: "{name}" is a part of the key, and rounded it would not find its row again; leave it out'
        elif value == "keep as string" and not any(_lacks_infinity(k, choice(wishes, name)) for k in kind.leaves()):
            yield f'{where}: "{name}" holds NaN and infinities as it is; leave it out, or say "null"'


@dataclass(frozen=True, slots=True)
class Wire:
    """How one output column travels: its expression, the CSV reader's expression and type, and the final type.

    `kind` says how text becomes that type, where more is to be done than a cast; `infinity` what becomes of a value
    that the type cannot hold.
    """

    name: str
    expression: str
    final: pa.DataType
    csv: pa.DataType
    csv_expression: str | None = None
    kind: Kind | None = None
    infinity: str = "error"


def wire(column: Column, reference: str, infinity: str, *, careful: bool) -> Wire:
    """Return how *column*, in SQL *reference*, is selected; *careful* makes NULL what no final type can hold."""
    final, kind = column.arrow, kind_of(column)
    form = kind.form
    if careful and is_time(final):
        return Wire(column.name, f"CASE WHEN {holds(final, reference)} THEN {reference} END", final, final)
    if final != form.arrow or kind.is_numeric:
        return Wire(column.name, _AS_TEXT.select.format(reference), final, pa.string(), None, kind, infinity)
    if form.csv is not None:
        return Wire(column.name, form.select.format(reference), final, pa.string(), form.csv.format(reference))
    odd = kind if kind.is_float else None
    return Wire(column.name, form.select.format(reference), final, final, None, odd, infinity)
