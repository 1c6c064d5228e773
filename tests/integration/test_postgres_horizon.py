"""G1 on PostgreSQL: what a snapshot says of transactions that are still to commit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres import PostgresConnector
from sidecar.connector import Source
from sidecar.model import Horizon, Memory
from sidecar.testing.contract import tracked
from tests.servers import Database


@pytest.fixture
def connector(pg: Database) -> Iterator[PostgresConnector]:
    with pg.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    found = PostgresConnector(Source(pg.reader_url))
    yield found
    found.close()


def look(connector: PostgresConnector, memory: Memory = None) -> Horizon:
    with connector.snapshot():
        return connector.horizon(tracked(connector, "t"), memory)


def test_a_transaction_newer_than_all_that_are_over_holds_the_horizon(
    pg: Database, connector: PostgresConnector
) -> None:
    """A snapshot's xmax is one past the last transaction that is over, so `xmin == xmax` while a newer one runs."""
    before = look(connector)
    with pg.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        during = look(connector, before.memory)
        later = look(connector, during.memory)
        assert connector.pulse() is None
        writer.execute("COMMIT")
    after = look(connector, later.memory)
    assert before.settled == before.now
    assert during.settled == later.settled == before.now
    assert after.settled == after.now


def test_a_running_transaction_of_unknown_age_closes_nothing(pg: Database, connector: PostgresConnector) -> None:
    with pg.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        assert look(connector).settled is None


def test_a_prepared_transaction_holds_the_horizon(pg: Database, connector: PostgresConnector) -> None:
    before = look(connector)
    with pg.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        writer.execute("PREPARE TRANSACTION 'waiting'")
        during = look(connector, before.memory)
        writer.execute("ROLLBACK PREPARED 'waiting'")
    assert during.settled == before.now


def test_a_savepoint_inside_an_older_transaction_does_not_hide_it(pg: Database, connector: PostgresConnector) -> None:
    before = look(connector)
    with pg.connect() as writer, pg.connect() as other:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        writer.execute("SAVEPOINT inner_one")
        writer.execute("INSERT INTO t VALUES (2, now(), now())")
        writer.execute("RELEASE inner_one")
        other.execute("INSERT INTO t VALUES (3, now(), now())")
        assert look(connector, before.memory).settled == before.now
        writer.execute("COMMIT")


def test_a_server_that_went_back_by_a_copy_of_its_disk_begins_a_new_era(connector: PostgresConnector) -> None:
    before = look(connector)
    assert before.memory is not None
    again = look(connector, before.memory)
    assert again.era == before.era
    history = before.memory["history"]
    assert isinstance(history, list)
    ahead = {**before.memory, "history": [[time, following + 1_000] for time, following in history]}
    restored = look(connector, ahead)
    assert restored.era != before.era
    # Once, not at every poll from then on.
    assert look(connector, restored.memory).era == restored.era
    elsewhere = look(connector, {**before.memory, "server": "7000000000000000000/00000001"})
    assert elsewhere.era == before.era
    assert elsewhere.memory == {**before.memory, "history": [[elsewhere.now, history[-1][1]]]}
