"""G1 on PostgreSQL: what a snapshot says of transactions that are still to commit."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import sidecar
from connectors.postgres import PostgresConnector
from sidecar.clock import SECOND, SystemClock
from sidecar.connector import Source
from sidecar.model import Hold, Horizon, Memory
from sidecar.runner import Runner
from sidecar.terminal import show
from sidecar.testing.contract import tracked
from tests.cases.harness import Project
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


def look_beside_a_prepared_transaction(pg: Database, connector: PostgresConnector) -> tuple[Horizon, Horizon]:
    """Return what *connector* sees before there is one, and while there is."""
    before = look(connector)
    with pg.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        writer.execute("PREPARE TRANSACTION 'waiting'")
        during = look(connector, before.memory)
        writer.execute("ROLLBACK PREPARED 'waiting'")
    return before, during


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


def test_what_was_seen_by_a_clock_that_is_set_back_since_closes_nothing(
    pg: Database, connector: PostgresConnector
) -> None:
    before = look(connector)
    assert before.memory is not None
    history = before.memory["history"]
    assert isinstance(history, list)
    ahead = {**before.memory, "history": [[time + 3600 * SECOND, following] for time, following in history]}
    with pg.connect() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        assert look(connector, ahead).settled is None


def test_a_prepared_transaction_holds_the_horizon(pg: Database, connector: PostgresConnector) -> None:
    before, during = look_beside_a_prepared_transaction(pg, connector)
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


@pytest.fixture
def monitor(pg: Database, connector: PostgresConnector) -> Iterator[PostgresConnector]:
    """A connector of a role that sees what other sessions do."""
    del connector
    found = PostgresConnector(Source(pg.url))
    yield found
    found.close()


def test_a_role_that_sees_sessions_knows_of_a_transaction_that_has_not_written_yet(
    pg: Database, connector: PostgresConnector, monitor: PostgresConnector
) -> None:
    """It has no number, and will stamp its rows with its beginning: numbers alone would need lookback to cover that."""
    quiet = look(monitor)
    assert quiet.hold is None
    with pg.connect(application_name="invoicing") as writer:
        writer.execute("BEGIN")
        (began,) = writer.execute("SELECT (extract(epoch FROM now()) * 1000000)::int8").fetchone() or (None,)
        (pid,) = writer.execute("SELECT pg_backend_pid()").fetchone() or (None,)
        during = look(monitor)
        assert during.settled == began
        assert during.hold == Hold(began, f"session {pid} of {pg.server.user}, invoicing, idle in transaction")
        blind = look(connector)
        assert blind.settled == blind.now
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        assert look(monitor, during.memory).settled == began
        blind = look(connector)
        assert (blind.settled, blind.hold and blind.hold.since) == (None, None)
        assert blind.hold is not None
        assert blind.hold.by.endswith("; a role with pg_read_all_stats sees whose")
        writer.execute("ROLLBACK")
    after = look(monitor, during.memory)
    assert after.hold is None
    assert after.settled is not None
    assert quiet.now < after.settled <= after.now


def test_a_prepared_transaction_is_found_where_sessions_are_seen(pg: Database, monitor: PostgresConnector) -> None:
    before, during = look_beside_a_prepared_transaction(pg, monitor)
    assert before.settled is not None
    assert during.settled == before.settled
    assert during.hold == Hold(before.settled, 'the prepared transaction "waiting"')


def test_a_transaction_that_writes_late_and_is_prepared_holds_the_horizon_at_its_beginning(
    pg: Database, monitor: PostgresConnector
) -> None:
    with pg.connect() as writer:
        writer.execute("BEGIN")
        (began,) = writer.execute("SELECT (extract(epoch FROM now()) * 1000000)::int8").fetchone() or (None,)
        before = look(monitor, look(monitor).memory)
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        writer.execute("PREPARE TRANSACTION 'late'")
        during = look(monitor, before.memory)
        writer.execute("ROLLBACK PREPARED 'late'")
    assert before.settled == during.settled == began


def test_a_hold_is_named_in_the_log_and_in_status_and_given_up_where_that_is_asked_for(
    pg: Database, connector: PostgresConnector, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del connector
    project = Project(tmp_path, pg.url, {"t": {"lookback": "0s"}})
    with pg.connect() as admin, pg.connect(application_name="invoicing") as writer:
        admin.execute("INSERT INTO t VALUES (1, now(), now())")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (2, now(), now())")
        admin.execute("INSERT INTO t VALUES (3, now(), now())")
        with sidecar.open(project.path) as sc:
            runner = Runner(sc, long_hold=0)
            assert runner.poll()["t"].rows == 2
            runner.poll()
        assert caplog.text.count("held_by=") == 1
        assert "what was stamped since may still appear" in caplog.text
        (status,) = json.loads(project.cli("status", "--json").out)
        assert "invoicing, idle in transaction" in status["held_by"]
        assert 0 <= status["held_s"] < 60
        assert "held back" not in project.cli("status").out
        shown = io.StringIO()
        Console(file=shown, width=200).print(show.status_table([status | {"held_s": 90.0}, status | {"held_s": None}]))
        assert "ok, held back for 1.5 min by session" in shown.getvalue()
        assert "ok, held back since before the first poll by session" in shown.getvalue()
        project.tables = {"t": {"lookback": "0s", "max_hold": "1ms"}}
        project.write()
        with sidecar.open(project.path) as sc:
            for _ in range(2):
                SystemClock().sleep(0.01)
                assert Runner(sc, long_hold=0).poll()["t"].rows == 0
        assert "max_hold is over" in caplog.text
        writer.execute("COMMIT")
    # That is the risk: it was stamped before what has been closed meanwhile.
    assert project.poll()["t"] == []
    (status,) = json.loads(project.cli("status", "--json").out)
    assert (status["held_by"], status["held_s"]) == (None, None)


def test_a_session_that_hides_what_it_does_is_seen_by_its_number(pg: Database, monitor: PostgresConnector) -> None:
    before = look(monitor)
    with pg.connect() as writer:
        writer.execute("SET track_activities = off")
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (1, now(), now())")
        during = look(monitor, before.memory)
        writer.execute("COMMIT")
    assert during.settled is not None
    assert during.settled <= before.now


def test_a_copy_of_this_process_holds_no_horizon_and_another_client_s_does(
    pg: Database, connector: PostgresConnector, monitor: PostgresConnector
) -> None:
    quiet = look(monitor)
    with connector.copying():
        during = look(monitor, quiet.memory)
        assert during.hold is None
        assert during.settled is not None
        assert during.settled > quiet.now
        with pg.connect() as other:
            other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            (began,) = other.execute("SELECT (extract(epoch FROM now()) * 1000000)::int8").fetchone() or (None,)
            assert look(monitor, during.memory).settled == began
