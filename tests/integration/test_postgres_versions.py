"""What identifies a row's version: xmin, widened, across open transactions, savepoints and frozen rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from sidecar.connector import Source
from sidecar.model import VERSION, Page
from sidecar.testing.contract import tracked
from tests.servers import Database

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def admin(pg: Database) -> Connection:
    found = pg.connect()
    found.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    return found


@pytest.fixture
def connector(pg: Database, admin: Connection) -> Iterator[PostgresConnector]:
    found = PostgresConnector(Source(pg.reader_url))
    yield found
    found.close()


def look(connector: PostgresConnector, since: int | None = None) -> tuple[dict[int, int], int]:
    """Return the rows' versions by key, and the floor."""
    followed = tracked(connector, "t")
    with connector.snapshot():
        horizon = connector.horizon(followed, None)
        rows = connector.read(Page(followed, followed.passes[0], {}, None, 100, since))
    assert horizon.floor is not None
    return dict(zip(rows.column("id").to_pylist(), rows.column(VERSION).to_pylist(), strict=True)), horizon.floor


def insert(connection: Connection, *keys: int) -> None:
    for key in keys:
        connection.execute("INSERT INTO t VALUES (%s, now(), now())", (key,))


def test_a_version_is_its_transaction_in_64_bits(admin: Connection, connector: PostgresConnector) -> None:
    insert(admin, 1)
    with admin.transaction():
        insert(admin, 2)
        written = admin.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
    versions, floor = look(connector)
    assert written is not None
    assert versions[2] == written[0]
    assert versions[1] == written[0] - 1
    assert versions[2] < floor


def test_what_may_appear_later_is_at_or_above_the_floor_savepoints_too(
    pg: Database, admin: Connection, connector: PostgresConnector
) -> None:
    insert(admin, 1)
    writer = pg.connect()
    writer.execute("BEGIN")
    insert(writer, 10)
    for key in (11, 12):
        writer.execute("SAVEPOINT s")
        insert(writer, key)
        writer.execute("RELEASE s")
    insert(admin, 2)
    before, floor = look(connector)
    assert set(before) == {1, 2}
    assert before[1] < floor <= before[2]
    writer.execute("COMMIT")
    after, _ = look(connector, since=floor)
    assert set(after) == {2, 10, 11, 12}
    assert all(version >= floor for version in after.values())
    assert after[2] == before[2]


def test_frozen_rows_keep_their_version_and_locks_make_none(
    pg: Database, admin: Connection, connector: PostgresConnector
) -> None:
    insert(admin, 1, 2)
    before, floor = look(connector)
    with admin.transaction():
        admin.execute("SELECT * FROM t FOR UPDATE")
    admin.execute("VACUUM (FREEZE, FULL) t")
    after, _ = look(connector)
    assert after == before
    assert look(connector, since=floor)[0] == {}
    admin.execute("UPDATE t SET created_at = now() WHERE id = 2")
    assert set(look(connector, since=floor)[0]) == {2}


@pytest.mark.parametrize("since", [-(2**40), 2**50])
def test_a_floor_too_far_away_to_compare_filters_nothing(
    admin: Connection, connector: PostgresConnector, since: int
) -> None:
    """Of another server, or older than 2^31 transactions: 32 bits of age would say anything."""
    insert(admin, 1, 2)
    assert set(look(connector, since=since)[0]) == {1, 2}


def test_views_have_no_versions(admin: Connection, connector: PostgresConnector) -> None:
    insert(admin, 1)
    admin.execute("CREATE VIEW v AS SELECT * FROM t")
    followed = dataclasses.replace(tracked(connector, "v"), key=("id",))
    with connector.snapshot():
        assert connector.horizon(followed, None).floor is None
        rows = connector.read(Page(followed, followed.passes[0], {}, None, 100, 3))
    assert VERSION not in rows.column_names
    assert len(rows) == 1


def test_a_pulse_stands_still_only_while_nothing_is_written(
    pg: Database, admin: Connection, connector: PostgresConnector
) -> None:
    insert(admin, 1)
    pulse = connector.pulse()
    assert pulse is not None
    look(connector)
    assert connector.pulse() == pulse
    writer = pg.connect()
    writer.execute("BEGIN")
    insert(writer, 2)
    assert connector.pulse() is None
    writer.execute("ROLLBACK")
    assert connector.pulse() not in (None, pulse)


def test_a_view_has_no_pulse(admin: Connection, connector: PostgresConnector) -> None:
    admin.execute("CREATE VIEW v AS SELECT * FROM t WHERE updated_at < now()")
    connector.describe("v")
    assert connector.pulse() is None
