"""What the tests of sources share: of PostgreSQL, a writer, and a connector that may only read; of SQLite, another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from connectors.sqlite import SQLiteConnector
from sidecar.clock import FakeClock
from sidecar.connector import Source
from tests.conftest import SQLiteFile
from tests.servers import Database


@pytest.fixture
def admin(pg: Database) -> psycopg.Connection[tuple[Any, ...]]:
    """The superuser's connection, autocommit."""
    return pg.connect()


@pytest.fixture
def connector(pg: Database) -> Iterator[PostgresConnector]:
    """A connector for the role that may only SELECT."""
    found = PostgresConnector(Source(pg.reader_url))
    yield found
    found.close()


@pytest.fixture
def source(sqlite_db: SQLiteFile, clock: FakeClock) -> Iterator[SQLiteConnector]:
    """A connector for the test's SQLite file, by a clock that stands still."""
    connector = SQLiteConnector(Source(sqlite_db.url, clock=clock))
    yield connector
    connector.close()
