"""Why there is no connection, in one line; and that nobody has to wait for one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_connecting import reason
from sidecar.connector import Source
from sidecar.errors import SourceUnavailable

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
    ],
)
def test_what_a_driver_says_in_many_lines_is_read_as_one(said: str, read: str) -> None:
    assert reason(psycopg.OperationalError(said), 10) == read


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
