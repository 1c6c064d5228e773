"""The connection to PostgreSQL: logging in, failing in plain words, and coming back; never a write, never a secret."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from connectors.postgres_room import Room
from connectors.postgres_session import Session
from connectors.postgres_view import Server
from sidecar.clock import SystemClock
from sidecar.connector import Source
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable
from sidecar.model import Page
from sidecar.testing.contract import Follower, scan, tracked, values
from tests.cases.harness import wait_for
from tests.servers import Database, free_port

Connection = psycopg.Connection[tuple[Any, ...]]
Make = Callable[..., PostgresConnector]

USER, PASSWORD = "sidecar test user@x", "p@ss:w/rd#1%2F?&=+ é'\"\\"
AT = "'2024-05-01 10:00+00', '2024-05-01 10:00+00'"


@pytest.fixture
def admin(pg: Database) -> Connection:
    found = pg.connect()
    found.execute("CREATE TABLE t (id int PRIMARY KEY, created_at timestamptz, updated_at timestamptz)")
    found.execute(f"INSERT INTO t VALUES (1, {AT}), (2, {AT})".encode())
    return found


@pytest.fixture
def make(pg: Database) -> Iterator[Make]:
    opened: list[PostgresConnector] = []

    def connector(url: str | None = None, **settings: Any) -> PostgresConnector:
        opened.append(PostgresConnector(Source(url or pg.reader_url, **settings)))
        return opened[-1]

    yield connector
    for each in opened:
        each.close()


@pytest.fixture
def odd_role(pg: Database, admin: Connection) -> Iterator[None]:
    name = sql.Identifier(USER)
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD)))
    admin.execute(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(pg.dbname), name))
    admin.execute(sql.SQL("GRANT USAGE ON SCHEMA public TO {0}").format(name))
    admin.execute(sql.SQL("GRANT SELECT ON t TO {}").format(name))
    yield
    admin.execute(sql.SQL("DROP OWNED BY {0}").format(name))
    admin.execute(sql.SQL("DROP ROLE {0}").format(name))


def first_page(connector: PostgresConnector, table: str = "t") -> Page:
    followed = tracked(connector, table)
    return Page(followed, followed.passes[0], {}, None, 100)


def ids(connector: PostgresConnector, *, bulk: bool = False) -> list[int]:
    page = first_page(connector)
    with connector._session.snapshot() as view:
        statements = Statements(page, view.xmax)
        rows = connector._reader.bulk(statements) if bulk else connector._reader.page(statements)
    assert rows is not None, "connectorx gave up"
    found: list[int] = rows.column("id").to_pylist()
    return found


def everything_shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.usefixtures("odd_role")
@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("encoded", [False, True])
def test_any_user_and_password_log_in_by_both_readers(pg: Database, make: Make, encoded: bool, bulk: bool) -> None:
    plain = f"{pg.host}:{pg.port}/{pg.dbname}"
    if encoded:
        connector = make(f"postgresql://{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@{plain}")
    else:
        connector = make(f"postgres://{plain}?sslmode=prefer", user=USER, password=PASSWORD)
    assert ids(connector, bulk=bulk) == [1, 2]


@pytest.mark.usefixtures("odd_role")
@pytest.mark.parametrize("wrong", ["Zz9-wrong#pw", "port", "database", "user"])
def test_a_failed_login_names_whom_and_where_and_never_the_password(
    pg: Database, make: Make, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    port = free_port() if wrong == "port" else pg.port
    database = "nowhere" if wrong == "database" else pg.dbname
    user = "nobody@x" if wrong == "user" else USER
    password = wrong if wrong.startswith("Z") else PASSWORD
    connector = make(f"postgresql://{pg.host}:{port}/{database}", user=user, password=password)
    kind = SourceUnavailable if wrong == "port" else SettingsError
    with caplog.at_level(logging.DEBUG), pytest.raises(kind) as caught:
        connector.tables()
    assert f"{pg.host}:{port}/{database}" in str(caught.value)
    assert wrong == "port" or user in str(caught.value) or wrong == "database"
    shown = everything_shown(caught.value) + caplog.text + repr(connector.source)
    pieces = [password, quote(password), quote(password, safe=""), "wrong#pw", "w/rd#1", "rd#1%2F"]
    assert not any(piece in shown for piece in pieces)


def test_too_many_connections_pass_by_themselves(pg: Database, admin: Connection, make: Make) -> None:
    admin.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 0'.encode())
    with pytest.raises(SourceUnavailable, match="too many connections"):
        make().tables()


def test_there_is_room_for_as_many_as_can_come_at_once(pg: Database, admin: Connection) -> None:
    admin.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 3'.encode())
    first, second, room = Session(Source(pg.reader_url)), Session(Source(pg.reader_url)), Room()
    with first.snapshot(), second.snapshot():
        assert [room.is_had_by(each) for each in (first, first, second)] == [True, True, False]
        room.left_by(first)
        assert wait_for(lambda: room.is_had_by(second))
        assert not room.is_had_by(first)
    first.close()
    second.close()


def test_the_socket_of_a_server_serves_both_readers(pg: Database, admin: Connection, make: Make) -> None:
    row = admin.execute("SHOW unix_socket_directories").fetchone()
    assert row is not None
    folder = row[0].split(",")[0].strip()
    if not folder:
        pytest.skip("the server has no socket")
    url = f"postgresql:///{pg.dbname}?host={quote(folder, safe='')}&port={pg.port}"
    connector = make(url, user=pg.reader, password=pg.reader_password)
    assert ids(connector) == ids(connector, bulk=True) == [1, 2]


def test_a_session_prints_alike_whatever_the_role_s_settings_are(pg: Database, admin: Connection, make: Make) -> None:
    admin.execute("ALTER TABLE t ADD iv interval, ADD f float8, ADD by bytea[], ADD ds timestamptz[]")
    admin.execute(
        r"UPDATE t SET iv = '1 day 02:00', f = 0.1, by = '{\\x00ff}', ds = '{2024-05-01 10:00+00}' WHERE id = 1"
    )
    for setting in (
        "TimeZone = 'Asia/Tokyo'",
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = 'sql_standard'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
        "client_encoding = 'LATIN1'",
        "standard_conforming_strings = off",
        "idle_in_transaction_session_timeout = '50ms'",
        "statement_timeout = '200ms'",
    ):
        admin.execute(f'ALTER ROLE "{pg.reader}" SET {setting}'.encode())
    connector = make()
    page = first_page(connector)
    with connector._session.snapshot() as view:
        statements = Statements(page, view.xmax)
        for rows in (connector._reader.page(statements), connector._reader.bulk(statements)):
            assert rows is not None, "connectorx gave up"
            row = rows.to_pylist()[0]
            assert (row["iv"], row["f"], row["by"]) == ("1 day 02:00:00", 0.1, [b"\x00\xff"])
            assert [at.isoformat() for at in row["ds"]] == ["2024-05-01T10:00:00+00:00"]
            assert row["updated_at"].isoformat() == "2024-05-01T10:00:00+00:00"


def test_a_broken_connection_is_replaced_at_the_next_snapshot(admin: Connection, make: Make) -> None:
    connector = make()
    for ask in (connector.tables, connector.pulse, lambda: ids(connector)):
        assert ids(connector) == [1, 2]
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sidecar'")
        ask()
    connector.close()
    assert ids(connector) == [1, 2]


def test_a_connection_that_breaks_inside_a_snapshot_ends_it(admin: Connection, make: Make) -> None:
    connector = make()
    page = first_page(connector)
    with connector.snapshot():
        connector.read(page)
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sidecar'")
        for _ in range(2):
            with pytest.raises(SourceUnavailable, match=r"table \"t\"|connection broke"):
                connector.read(page)
    with connector.snapshot():
        assert len(connector.read(page)) == 2


SLOW = "CREATE VIEW slow AS SELECT t.*, pg_sleep(0.05)::text AS nap FROM t, generate_series(1, 200) n"


@contextlib.contextmanager
def cancelling(pg: Database) -> Iterator[None]:
    """Cancel what the reader runs, once it runs."""

    def cancel() -> None:
        clock = SystemClock()
        with pg.connect() as other:
            running = "application_name = 'sidecar' AND state = 'active' AND wait_event = 'PgSleep'"
            for _ in range(200):
                if other.execute(
                    f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {running}".encode()
                ).rowcount:
                    return
                clock.sleep(0.05)

    thread = threading.Thread(target=cancel)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
def test_a_read_cut_short_is_an_error_not_the_end_of_the_rows(
    pg: Database, admin: Connection, make: Make, how: str
) -> None:
    admin.execute(SLOW)
    connector = make(**({"statement_timeout": 0.3} if how == "timed out" else {}))
    page = first_page(connector, "slow")
    page = Page(page.tracked, page.scan, {}, None, 100_000)
    said = r'table "slow": canceling statement .*57014.*page_size'
    with (
        cancelling(pg) if how == "cancelled" else contextlib.nullcontext(),
        pytest.raises(SourceUnavailable, match=said) as caught,
    ):
        connector.read(page)
    assert caught.value.__cause__ is None
    assert ids(connector) == [1, 2]


def test_a_lock_is_waited_for_no_longer_than_allowed(pg: Database, admin: Connection, make: Make) -> None:
    connector = make(lock_timeout=0.1)
    page = first_page(connector)
    with admin.transaction():
        admin.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceUnavailable, match=r'table "t": .*lock timeout'):
            connector.read(page)
    assert len(connector.read(page)) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE t RENAME TO gone", "does not exist"),
        ("ALTER TABLE t DROP COLUMN created_at", "created_at"),
        ("REVOKE ALL ON t FROM {}", "permission denied"),
    ],
)
def test_what_a_person_must_mend_names_the_table(
    pg: Database, admin: Connection, make: Make, change: str, said: str
) -> None:
    connector = make()
    page = first_page(connector)
    admin.execute(change.format(f'"{pg.reader}"').encode())
    with pytest.raises(SettingsError, match=f'table "t": .*{said}'):
        connector.read(page)
    assert connector.pulse() is not None


def test_nothing_can_be_written_even_by_a_role_that_may(pg: Database, admin: Connection, make: Make) -> None:
    connector = make(pg.url)
    with connector.snapshot(), pytest.raises(SidecarError, match="read-only transaction"):
        connector._session.rows("DELETE FROM t RETURNING id")
    with pytest.raises(SidecarError, match="read-only transaction"):
        connector._session.rows("DELETE FROM t RETURNING id")
    followed = tracked(connector, "t", deleted_when="(SELECT count(*) FROM t) > 1")
    assert values(scan(connector, followed), "id") == [(1,), (2,)]


def test_what_is_known_of_a_server_is_asked_again_of_the_one_that_takes_over(pg: Database) -> None:
    """What a primary shows of its sessions means nothing on a standby: a stale answer would close the table too far."""
    connector = PostgresConnector(Source(pg.reader_url))
    session = connector._session
    known = session.server
    session._server = Server("elsewhere", standby=True, sees_sessions=True)
    session.connection.close()
    assert session.server == known
    connector.close()


def test_a_server_that_tells_nothing_of_its_wal_its_crashes_and_itself_is_polled_all_the_same(
    pg: Database, admin: Connection, tmp_path: Path
) -> None:
    """Providers take such functions from everybody, or have none."""
    for function in ("pg_current_wal_insert_lsn", "pg_stat_get_bgwriter_stat_reset_time", "pg_control_system"):
        admin.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{function}() FROM PUBLIC".encode())
    connector = PostgresConnector(Source(pg.reader_url))
    server = connector._session.server
    assert (server.tells_positions, server.identity, server.crash != "") == (False, "", True)
    follower = Follower(connector, tracked(connector, "t"), tmp_path)
    assert [row["id"] for row in follower.poll()] == [1, 2]
    admin.execute("UPDATE t SET updated_at = now() WHERE id = 2")
    assert [row["id"] for row in follower.poll()] == [2]
    assert follower.poll() == []
    connector.close()
