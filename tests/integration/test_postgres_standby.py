"""A hot standby is as good a source as its primary: the same rows, versions and horizons, by both readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar.clock import SECOND, SystemClock
from sidecar.connector import Source
from sidecar.model import Page
from sidecar.testing.contract import Follower, tracked
from tests.servers import Database, NoServer
from tests.standby import caught_up, standby_of


@pytest.fixture
def standby(pg: Database) -> Iterator[str]:
    """The reader's URL at a standby of the test's server."""
    try:
        with standby_of(pg) as url:
            yield url
    except NoServer as error:
        pytest.skip(str(error))


def test_a_standby_shows_the_primary_s_transactions(pg: Database, standby: str) -> None:
    primary, writer = pg.connect(), pg.connect()
    primary.execute("CREATE TABLE t (id int PRIMARY KEY, v text, created_at timestamptz, updated_at timestamptz)")
    primary.execute("INSERT INTO t VALUES (1, 'a', now(), now())")
    caught_up(primary, standby)
    there = PostgresConnector(Source(standby))
    here = PostgresConnector(Source(pg.reader_url))
    followed = tracked(there, "t")
    page = Page(followed, followed.passes[0], {}, None, 10)

    with there.snapshot():
        before = there.horizon(followed, None)
    # Its time is that of the last commit it has replayed, not that of its clock.
    assert before.settled is not None
    assert before.settled < before.now
    writer.execute("BEGIN")
    writer.execute("INSERT INTO t VALUES (2, 'late', now(), now())")
    writer.execute("SAVEPOINT s")
    writer.execute("INSERT INTO t VALUES (3, 'late', now(), now())")
    primary.execute("INSERT INTO t VALUES (4, 'b', now(), now())")
    caught_up(primary, standby)
    with there.snapshot():
        during = there.horizon(followed, before.memory)
        seen = there.read(page)
    assert seen.column("id").to_pylist() == [1, 4]
    assert during.settled == before.settled
    assert there.pulse() is None
    writer.execute("COMMIT")
    caught_up(primary, standby)

    with there._session.snapshot() as view:
        after = there.horizon(followed, during.memory)
        statements = Statements(Page(page.tracked, page.scan, {}, None, 10, during.floor), view.xmax)
        by_copy, by_connectorx = there._reader.page(statements), there._reader.bulk(statements)
    assert by_connectorx is not None
    assert by_copy.equals(by_connectorx)
    assert sorted(by_copy.column("id").to_pylist()) == [2, 3, 4]
    assert after.settled is not None
    assert after.hold is None
    assert before.now < after.settled < after.now
    assert there.pulse() is not None
    assert here.read(page).equals(there.read(page))
    assert all("clock" not in f.message for f in there.check(followed))
    there.close()
    here.close()
    # By this alone a session can ask a standby nothing, but for what it says first.
    primary.execute(f"ALTER ROLE \"{pg.reader}\" SET default_transaction_isolation = 'serializable'".encode())
    caught_up(primary, standby)
    strict = PostgresConnector(Source(standby))
    assert strict.read(page).column("id").to_pylist() == [1, 2, 3, 4]
    strict.close()


def test_a_failover_to_a_standby_that_lacked_rows_loses_and_repeats_nothing(
    pg: Database, standby: str, tmp_path: Path
) -> None:
    """Transaction numbers go on from where the standby stood: below, and among, those that have been delivered."""
    primary = pg.connect()
    primary.execute("CREATE TABLE t (id int PRIMARY KEY, v text, created_at timestamptz, updated_at timestamptz)")
    primary.execute("INSERT INTO t SELECT n, 'old', now(), now() FROM generate_series(1, 3) AS n")
    connector = PostgresConnector(Source(pg.reader_url))
    follower = Follower(connector, tracked(connector, "t"), tmp_path)
    assert len(follower.poll()) == 3
    caught_up(primary, standby)
    with psycopg.connect(standby, user=pg.server.user, password=pg.server.password, autocommit=True) as there:
        there.execute("ALTER SYSTEM SET primary_conninfo = ''")
        there.execute("SELECT pg_reload_conf()")
        for _ in range(200):
            if there.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() == (0,):
                break
            SystemClock().sleep(0.05)
        for n in range(20):
            primary.execute("INSERT INTO t VALUES (%s, 'only here', now(), now())", (100 + n,))
        primary.execute("UPDATE t SET v = 'only here', updated_at = now() WHERE id = 1")
        assert len(follower.poll()) == 21
        connector.close()
        there.execute("SELECT pg_promote()")
        there.execute("INSERT INTO t VALUES (4, 'new', now(), now())")
        there.execute("UPDATE t SET v = 'new', updated_at = now() WHERE id = 2")
    follower.connector = PostgresConnector(Source(standby))
    # Key 1 stands again as it was before its last version, which is lost: for the log, that is a change.
    found = {r["id"]: r["v"] for r in follower.poll()}
    assert found == {1: "old", 2: "new", 4: "new"}
    assert follower.poll() == []
    follower.connector.close()
    again = PostgresConnector(Source(standby))
    follower.connector = again
    assert follower.poll() == []
    assert sum(r["id"] == 3 for r in follower.log.rows()) == 1
    again.close()


def test_what_a_standby_has_not_replayed_yet_is_not_closed_however_long_that_takes(
    pg: Database, standby: str, tmp_path: Path
) -> None:
    """Its clock goes on while its replay stands still, and what comes after is stamped from before."""
    primary, writer = pg.connect(), pg.connect()
    primary.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    caught_up(primary, standby)
    there = psycopg.connect(standby, user=pg.server.user, password=pg.server.password, autocommit=True)
    connector = PostgresConnector(Source(standby))
    follower = Follower(connector, dataclasses.replace(tracked(connector, "t"), lookback=SECOND), tmp_path)
    writer.execute("BEGIN")
    writer.execute("SELECT now()")
    primary.execute("INSERT INTO t VALUES (1, now(), now())")
    caught_up(primary, standby)
    there.execute("SELECT pg_wal_replay_pause()")
    writer.execute("INSERT INTO t VALUES (2, now(), now())")
    writer.execute("COMMIT")
    for _ in range(3):
        found = [row["id"] for row in follower.poll()]
        assert found in ([1], [])
        SystemClock().sleep(1.1)
    there.execute("SELECT pg_wal_replay_resume()")
    caught_up(primary, standby)
    assert [row["id"] for row in follower.poll()] == [2]
    there.close()
    connector.close()


def test_a_standby_that_is_promoted_under_a_held_connection_is_a_primary(pg: Database, standby: str) -> None:
    primary = pg.connect()
    primary.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    caught_up(primary, standby)
    connector = PostgresConnector(Source(standby))
    followed = tracked(connector, "t")
    with connector.snapshot():
        before = connector.horizon(followed, None)
    with psycopg.connect(standby, user=pg.server.user, password=pg.server.password, autocommit=True) as there:
        there.execute("SELECT pg_promote()")
    with connector.snapshot():
        after = connector.horizon(followed, before.memory)
    assert after.settled == after.now
    assert after.era != before.era
    connector.close()
