"""The matrix of types in docs/types.md, as a real server and the connector say it is: `make types-matrix` writes it.
SQLite's half is in `types_matrix_sqlite.py`.

Each type has a column of its own, holding its extremes. A row of the matrix is what the catalog calls the type, what it
arrives as in Arrow and in Spark, and the extremes as they were read.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.postgres import PostgresConnector
from sidecar.connector import Source
from sidecar.model import Page, Wishes
from sidecar.testing.contract import tracked
from tests.servers import Database, any_server, fresh_database, make

PAGE = Path(__file__).parents[1] / "docs" / "types.md"


@dataclass(frozen=True)
class Half:
    """One source's part of the page, between two comments."""

    name: str

    def table(self, head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
        """Return *lines* under *head* in Markdown."""
        found = [head, ("---",) * len(head), *lines]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in found)

    def replaced(self, page: str, found: str) -> str:
        """Return *page* with *found* as this part."""
        begin, end = f"<!-- {self.name}: made by `make types-matrix` -->", f"<!-- {self.name}: end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        return f"{before}{begin}\n\n{found}\n\n{end}{after}"


HALF: Half = Half("postgresql")


@dataclass(frozen=True)
class Case:
    """A type, texts of values at its edges, and what there is to say; NULL where this server cannot make one."""

    type: str
    values: tuple[str, ...]
    note: str = ""


_DIGITS = "1234567890123456789012345678.1234567891"

CASES = (
    Case("boolean", ("true", "false")),
    Case("smallint", ("-32768", "32767")),
    Case("integer", ("-2147483648", "2147483647")),
    Case("bigint", ("-9223372036854775808", "9223372036854775807")),
    Case("oid", ("0", "4294967295")),
    Case("real", ("-0.5", "-Infinity", "NaN"), "bit for bit"),
    Case("double precision", ("5e-324", "Infinity", "NaN"), "bit for bit"),
    Case("numeric(38,10)", (_DIGITS,), "NaN: see `infinity`"),
    Case("numeric(12,2)", ("-0.01", "9999999999.99"), "NaN and infinity: see `infinity`"),
    Case("numeric", ("1e-20", "NaN"), "or as `numeric` says"),
    Case("numeric(50,2)", ("1e40",), "or as `numeric` says"),
    Case("numeric(5,-2)", ("12345",), "rounded by the server; or as `numeric` says"),
    Case("bytea", ("\\x00ff27",)),
    Case("date", ("0001-01-01", "9999-12-31"), "beyond these: see `infinity`"),
    Case("timestamp", ("0001-01-01 00:00", "9999-12-31 23:59:59.999999"), "beyond these: see `infinity`"),
    Case("timestamptz", ("0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"), "beyond these: see `infinity`"),
    Case("time", ("24:00", "10:00:00.000001")),
    Case("timetz", ("10:00:00.000001+02",)),
    Case("interval", ("1 mon 2 days 03:04:05.000006",), "months, days and microseconds stay apart"),
    Case("text", ("o'clock \\N",)),
    Case("varchar(9)", ("größe",)),
    Case("char(5)", ("ab",), "with its blanks"),
    Case('"char"', ("a",)),
    Case("name", ("a name",)),
    Case("citext", ("As Written",)),
    Case("uuid", ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",)),
    Case("mood", ("b'ad",), "an enum"),
    Case("json", ('{"k": 9007199254740993,  "k": 1.0}',), 'digit for digit; or `json = "variant"`'),
    Case("jsonb", ('{"k": 9007199254740993}',), 'digit for digit; or `json = "variant"`'),
    Case("jsonpath", ("$.k",)),
    Case("xml", (), "as the server prints it"),
    Case("inet", ("192.168.0.1", "10.0.0.0/8"), "as `::text`, the mask included"),
    Case("cidr", ("10.0.0.0/8",)),
    Case("macaddr", ("08:00:2b:01:02:03",)),
    Case("macaddr8", ("08:00:2b:01:02:03:04:05",)),
    Case("bit(3)", ("101",)),
    Case("varbit", ("", "10")),
    Case(
        "money",
        ("-1234.5",),
        "dollars and points; of a currency without two decimals, as the database's locale prints it",
    ),
    Case("int4range", ("[1,5)", "empty")),
    Case("int4multirange", ("{[1,3),[5,9)}",)),
    Case("tstzrange", ("[2024-05-01 10:00+00,)",)),
    Case("point", ("(1.1,2)",), "so are line, lseg, box, path, polygon and circle"),
    Case("tsvector", ("a b",)),
    Case("tsquery", ("a & b",)),
    Case("ltree", ("top.sub",)),
    Case("lquery", ("top.*",)),
    Case("pg_lsn", ("16/B374D848",)),
    Case("regclass", ("pg_class",), "qualified where the role's search_path does not lead to it"),
    Case("int2vector", ("1 2 3",)),
    Case("int4[]", ("{1,NULL}", "{}"), "any element; other dimensions or bounds: see `arrays`"),
    Case("text[][]", ('{{a,"b,c"},{NULL,""}}',), "as many dimensions as are declared"),
    Case("numeric(9,2)[]", ("{1.5,NULL}",)),
    Case("timestamptz[]", ('{"2024-05-01 10:00:00.000001+00"}',)),
    Case("item", ('("a, b",1.5)', "(,)"), "a composite of what text, price numeric(9,2)"),
    Case("item[]", ('{"(a,1)",NULL}',)),
    Case("price", ("1.5",), "a domain over numeric(9,2): what it is made of"),
    Case("hstore", ("k=>v, n=>NULL",)),
)

SETUP = (
    *(f"CREATE EXTENSION {name}" for name in ("hstore", "citext", "ltree")),
    "CREATE TYPE mood AS ENUM ('ok', 'b''ad')",
    "CREATE DOMAIN price AS numeric(9,2)",
    "CREATE TYPE item AS (what text, price numeric(9,2))",
)


def spark_name(type_: pa.DataType, *, variant: bool = False) -> str:
    """Return what Spark calls the type that *type_* becomes in a DataFrame."""
    from sidecar.feed import spark_schema

    if variant:
        return "VARIANT"
    found: str = spark_schema(pa.schema([("c", type_)])).fields[0].dataType.simpleString()
    return found.upper() if not pa.types.is_struct(type_) and "struct" not in found else found


def shown(value: Any) -> str:
    """Return a value as the page shows it."""
    if isinstance(value, dt.datetime):
        text = value.isoformat(" ").replace("+00:00", "Z")
    elif isinstance(value, bytes):
        text = "base64 " + base64.b64encode(value).decode()
    elif isinstance(value, Decimal):
        text = format(value, "f")
    elif isinstance(value, list):
        text = "[" + ", ".join(map(shown, value)) + "]"
    elif isinstance(value, dict):
        text = "{" + ", ".join(f"{k}: {shown(v)}" for k, v in value.items()) + "}"
    elif isinstance(value, str):
        text = '"' + value.replace("\0", "\\0") + '"'
    else:
        text = "NULL" if value is None else str(value)
    return text


def rows(database: Database) -> Iterator[tuple[str, ...]]:
    """Yield the matrix: type, Arrow, Spark, values as read, notes."""
    admin = database.connect()
    columns = ", ".join(f"c{n} {case.type}" for n, case in enumerate(CASES))
    make(admin, *SETUP, f"CREATE TABLE zoo (id int PRIMARY KEY, {columns}, updated_at timestamptz DEFAULT now())")
    for key in range(max(len(case.values) for case in CASES)):
        filled = {f"c{n}": case for n, case in enumerate(CASES) if key < len(case.values)}
        places = ", ".join(f"%s::text::{case.type}" for case in filled.values())
        query = f"INSERT INTO zoo (id, {', '.join(filled)}) VALUES ({key}, {places})"
        admin.execute(query.encode(), [case.values[key] for case in filled.values()])
    connector = PostgresConnector(Source(database.reader_url))
    try:
        table = connector.typed(connector.describe("zoo"), Wishes())
        followed = tracked(connector, "zoo")
        found = connector.read(Page(followed, followed.passes[0], {}, None, 100)).sort_by("id")
    finally:
        connector.close()
    for n, case in enumerate(CASES):
        column = table.column(f"c{n}")
        assert column is not None
        read = found.column(column.name).to_pylist(maps_as_pydicts="strict")[: len(case.values)]
        values = "<br>".join(f"`{shown(value)}`" for value in read)
        yield f"`{case.type}`", f"`{column.arrow}`", f"`{spark_name(column.arrow)}`", values, case.note


def matrix(database: Database) -> str:
    """Return the PostgreSQL part of docs/types.md."""
    head = ("PostgreSQL", "Arrow", "Spark", "its edges, as they arrive", "")
    return HALF.table(head, rows(database))


if __name__ == "__main__":
    from tests import types_matrix_sqlite

    with any_server() as server, fresh_database(server) as database:
        page = HALF.replaced(PAGE.read_text(), matrix(database))
    PAGE.write_text(types_matrix_sqlite.HALF.replaced(page, types_matrix_sqlite.matrix()))
