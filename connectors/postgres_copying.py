"""One snapshot for several connections: who exports it holds it, the others take it over while that one lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg

from connectors.postgres_literals import setting
from connectors.postgres_session import Session
from connectors.postgres_view import BEGIN, VIEW, View
from sidecar.errors import SourceUnavailable

_GONE = ("22023", "55000", "42704")  # no such snapshot; its transaction is over; no such file, in version 18


@contextlib.contextmanager
def joined(session: Session, name: str) -> Iterator[View]:
    """Hold the snapshot that another connection exports as *name*; SourceUnavailable once that one is gone."""
    assert session.view is None, "a snapshot that is held cannot become another one"

    begin = (BEGIN, f"SET TRANSACTION SNAPSHOT {setting(name)}")

    def take() -> View:
        try:
            cursor = session.connection.execute("; ".join(part for part in (*begin, session.own_pins(), VIEW) if part))
        except psycopg.Error as error:
            if error.sqlstate not in _GONE:
                raise
            session.connection.execute("ROLLBACK")
            raise SourceUnavailable(
                f'{session.where}: the snapshot "{name}" is gone, and so is what was to be read in it: the connection '
                "that held it has ended"
            ) from None
        while cursor.nextset():
            pass
        row = cursor.fetchone()
        assert row is not None
        xmin, xmax, given, now, _ = map(int, row)
        # The clock is that of now, which says nothing of the snapshot: nothing is known from it.
        return View(xmin, xmax, xmax + given, now, None)

    with session.snapshot(taken=take) as view:
        yield view
