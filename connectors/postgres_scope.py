"""A part of a table, as PostgreSQL is asked for it: rows among some values, and rows for which a condition holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import psycopg
import pyarrow as pa

from connectors import postgres_literals as literals
from connectors.postgres_errors import translated
from connectors.postgres_session import Session
from connectors.postgres_types import kind_of, named
from sidecar import sql
from sidecar.errors import SettingsError
from sidecar.model import Among, Column, Scalar

_NO_PARAMETER = "08P01"  # the condition has a $1

_INTEGER = re.compile(r"\s*[-+]?\d+\s*")


def among(some: Among, columns: Sequence[Column], name: Callable[[str], str]) -> str:
    """Return the condition that a row's *columns* are one of the values, by their own rules of equality.

    No cast stands around a column, so its index serves. One column has a list; several have a table of values, which is
    joined: as a list of row values they would be a chain of ORs, planned for as long as it is.
    """
    if len(columns) == 1:
        return f"{name(columns[0].name)} IN ({', '.join(_member(columns[0], value) for (value,) in some.values)})"
    rows = (", ".join(typed(c, v) for c, v in zip(columns, value, strict=True)) for value in some.values)
    names = ", ".join(name(c.name) for c in columns)
    return f"({names}) IN (VALUES {', '.join(f'({row})' for row in rows)})"


def _member(column: Column, value: Scalar) -> str:
    """Return *value* as a literal that compares with *column*; the value may come from a column of another type."""
    if literals.is_time(column.arrow) and isinstance(value, int):
        return literals.literal(column.arrow, value)
    if _is_integer(column):
        if isinstance(value, int):
            return literals.literal(column.arrow, value)
        if isinstance(value, str) and not _INTEGER.fullmatch(value):
            return f"{literals.setting(value)}::numeric"
    if isinstance(value, bytes | bool | float):
        return literals.literal(pa.string(), value)
    return literals.setting(value) + named(column)


def typed(column: Column, value: Scalar) -> str:
    """Return the same where nothing else gives it a type: the column's own, without a length that would cut it off."""
    found = _member(column, value)
    if found.rpartition("'")[2].startswith("::"):
        return found
    kind = kind_of(column)
    return f"{found}::" + (f"pg_catalog.{sql.quoted(kind.name)}" if kind.builtin else column.type)


def _is_integer(column: Column) -> bool:
    # The server has no operator between an oid and a bigint.
    return bool(pa.types.is_signed_integer(column.arrow)) and kind_of(column).name != "oid"


def check_condition(session: Session, table: str, source: str, condition: str) -> None:
    """Raise SettingsError if *condition* cannot stand after WHERE, or is more than one condition.

    With parentheses around it and without: what is well-formed in both is all inside of them. And it is prepared, which
    the server refuses to do with more than one statement. The snapshot that is open survives an error.
    """
    for form in (condition, sql.alone(condition)):
        # Explained, it is not run, and needs nothing behind it that an error would show.
        select = f"EXPLAIN SELECT FROM {source} WHERE\n{form}\n"
        try:
            with session.connection.transaction(), session.connection.cursor(binary=True) as cursor:
                cursor.execute(select)
        except psycopg.Error as error:
            raise refused(error, session, table, condition) from None
        except ValueError as error:
            raise SettingsError(f'table "{table}": the condition {condition!r} is no text for SQL: {error}') from None


def refused(error: psycopg.Error, session: Session, table: str, condition: str) -> Exception:
    """Return *error* as what it means if it is the condition that the server refuses."""
    found = translated(error, table, session.where)
    if not isinstance(found, SettingsError) and error.sqlstate != _NO_PARAMETER:
        return found
    hint = f" {error.diag.message_hint}" if error.diag.message_hint else ""
    said = str(found).removeprefix(f'table "{table}": ').rstrip(".")
    return SettingsError(
        f'table "{table}": the condition {condition!r} is none that the database can test: {said}.{hint} Write what '
        "could stand alone after WHERE in a SELECT from this table."
    )
