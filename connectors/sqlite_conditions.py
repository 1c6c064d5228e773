"""Conditions that somebody wrote, to name a part of a table: each is tried before rows are asked for by it."""

from __future__ import annotations

import sqlite3

from connectors.sqlite_query import check_quotes
from sidecar.errors import SettingsError
from sidecar.model import Page
from sidecar.sql import alone, quoted


def check(connection: sqlite3.Connection, page: Page) -> None:
    """Raise SettingsError if the scope's condition cannot stand after WHERE, or is more than one condition.

    With parentheses around it and without: what is well-formed in both is all inside of them.
    """
    condition, tracked = page.scope.where, page.tracked
    assert condition is not None
    check_quotes(tracked, condition, f"the condition {condition!r}")
    table = quoted(tracked.name)
    connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
    for form in (condition, alone(condition)):
        try:
            # Explained, it is not run, and needs nothing behind it that an error would show.
            connection.execute(f"EXPLAIN SELECT 1 FROM {table} WHERE\n{form}\n").close()
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
                raise
            raise refused(page, error) from error


def refused(page: Page, error: Exception) -> SettingsError:
    """Return *error* as what it means if it is the scope's condition that the database refuses."""
    said = str(error).rstrip(".")
    return SettingsError(
        f'table "{page.tracked.name}": the condition {page.scope.where!r} is none that the database can test: {said}. '
        "Write what could stand alone after WHERE in a SELECT from this table."
    )
