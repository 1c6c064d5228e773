"""What the tests of PostgreSQL as a source share: one who writes, and a connector that may only read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from sidecar.connector import Source
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
