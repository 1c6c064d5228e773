"""Why there is no connection, in one line; and that nobody has to wait for one."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_connecting import Attempt, hint, reason
from sidecar.connector import Source
from sidecar.errors import SourceUnavailable
from tests.cases.harness import wait_for
from tests.servers import Database

REFUSED = (
    'connection failed: connection to server at "127.0.0.1", port 1 failed: Connection refused\n'
    "\tIs the server running on that host and accepting TCP/IP connections?"
)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes a connection, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (REFUSED, "Connection refused"),
        (
            'connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  password authentication '
            'failed for user "reader"\n',
            'password authentication failed for user "reader"',
        ),
        (
            'connection failed: connection to server at "h" (10.0.0.1), port 5432 failed: FATAL:  no pg_hba.conf entry '
            'for host "x", SSL encryption\nconnection to server at "h" (10.0.0.1), port 5432 failed: FATAL:  no '
            'pg_hba.conf entry for host "x", no encryption',
            'no pg_hba.conf entry for host "x", SSL encryption; no pg_hba.conf entry for host "x", no encryption',
        ),
        (
            'connection is bad: connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory\n'
            "\tIs the server running locally and accepting connections on that socket?",
            "No such file or directory",
        ),
        ("connection timeout expired", "no answer within 10 s"),
        (
            f"{REFUSED}\nMultiple connection attempts failed. All failures were:\n- host: 'a', port: '1', hostaddr: "
            f"'127.0.0.1': {REFUSED}\n- host: 'b', port: '2': connection timeout expired",
            "a:1: Connection refused; b:2: no answer within 10 s",
        ),
        ("- host: 'a', port: '1': connection timeout expired\n" * 2, "a:1: no answer within 10 s"),
        ("connection failed: server closed the connection.\n", "server closed the connection"),
        ("- host: a, port: 1: connection failed: it went: connection is bad.", "a:1: it went: connection is bad"),
    ],
)
def test_what_a_driver_says_in_many_lines_is_read_as_one(said: str, read: str) -> None:
    assert reason(psycopg.OperationalError(said), 10) == read


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("No such file or directory", "this its socket"),
        ("failed to resolve host 'db'", "the name of the server"),
        ("the database system is starting up", "soon"),
        ("sorry, too many clients already", "CONNECTION LIMIT"),
        ("remaining connection slots are reserved", "CONNECTION LIMIT"),
    ],
)
def test_why_a_server_cannot_be_reached_says_what_to_look_at(reason: str, advice: str) -> None:
    assert advice in hint(reason)


def test_nothing_is_said_to_be_looked_at_where_nobody_knows_what() -> None:
    assert hint("server closed the connection") == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:p@127.0.0.1:1/shop", r"^127.0.0.1:1/shop: cannot connect: Connection refused\. Is the server"),
        ("postgresql://u:p@127.0.0.1:{silent}/shop?connect_timeout=1", r"no answer within \d s\. Is the address right"),
    ],
)
def test_a_server_that_is_not_there_is_named_with_what_to_look_at(silent: int, url: str, said: str) -> None:
    connector = PostgresConnector(Source(url.format(silent=silent)))
    with pytest.raises(SourceUnavailable, match=said):
        connector.tables()


def test_a_connection_that_does_not_come_is_broken_off_at_once(silent: int) -> None:
    connector = PostgresConnector(Source(f"postgresql://u:p@127.0.0.1:{silent}/shop"))
    began = time.monotonic()
    timer = threading.Timer(0.3, connector.cancel)
    timer.start()
    with pytest.raises(SourceUnavailable, match="broken off"):
        connector.tables()
    assert time.monotonic() - began < 5


def test_whoever_is_interrupted_waits_no_more_and_nobody_else_does(silent: int) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    attempt = Attempt({"host": "127.0.0.1", "port": silent})
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            attempt.result()
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(SourceUnavailable, match="broken off"):
        attempt.result()


def test_a_connection_that_is_there_stays_and_one_that_comes_too_late_is_closed(pg: Database) -> None:
    at = {"user": pg.reader, "password": pg.reader_password, "dbname": pg.dbname, "application_name": "late"}
    attempt = Attempt({**at, "host": pg.host, "port": pg.port})
    found = attempt.result()
    attempt.break_off()
    assert attempt.result() is found
    assert not found.closed
    found.close()
    sessions = "SELECT FROM pg_stat_activity WHERE application_name = 'late'"
    watcher, let = pg.connect(), threading.Event()
    assert wait_for(lambda: not watcher.execute(sessions).fetchall())
    with socket.create_server(("127.0.0.1", 0)) as server:

        def forward() -> None:
            """Let one connection through, once it is too late for it."""
            with server.accept()[0] as near, socket.create_connection((pg.host, pg.port)) as far:
                let.wait(20)
                back = threading.Thread(target=_copy, args=(far, near), daemon=True)
                back.start()
                _copy(near, far)
                back.join()

        threading.Thread(target=forward, daemon=True).start()
        attempt = Attempt({**at, "host": "127.0.0.1", "port": server.getsockname()[1], "sslmode": "disable"})
        attempt.break_off()
        with pytest.raises(SourceUnavailable, match="broken off"):
            attempt.result()
        (thread,) = [t for t in threading.enumerate() if t.name == "sidecar-connecting"]
        let.set()
        thread.join(20)
        assert wait_for(lambda: not watcher.execute(sessions).fetchall())
        assert attempt._connection is None


def _copy(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
