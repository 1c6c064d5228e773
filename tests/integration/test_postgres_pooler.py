"""Behind a pooler a session serves other clients as well: Sidecar leaves nothing in it, and relies on nothing in it."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from connectors import postgres_session
from connectors.postgres import PostgresConnector
from connectors.postgres_session import _OWN
from connectors.postgres_view import server
from sidecar.connector import Source
from sidecar.testing.contract import scan, tracked, values
from tests.servers import Database

SETTINGS = {"TimeZone": "Asia/Kolkata", "DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601", "bytea_output": "escape"}
COLUMNS = ("id", "b", "i", "d", "updated_at")


def received(source: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        if not (some := source.recv(count - len(found))):
            raise ConnectionError
        found += some
    return found


def passed_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while some := source.recv(1 << 16):
            target.sendall(some)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


def greeted(server: socket.socket, client: socket.socket) -> None:
    """Pass on all that the server says, with a process id in it that is none of its own, as poolers do."""
    with contextlib.suppress(OSError):
        kind = b""
        while kind != b"Z":
            kind, size = received(server, 1), received(server, 4)
            body = received(server, struct.unpack("!i", size)[0] - 4)
            client.sendall(kind + size + (struct.pack("!i", 4242) + body[4:] if kind == b"K" else body))
    passed_on(server, client)


ALIAS = "orders"
"""What the pooler calls the database."""


def opened(client: socket.socket, server: socket.socket, database: str) -> None:
    """Pass on all that the client says, with the database's own name in its first message."""
    with contextlib.suppress(OSError):
        (size,) = struct.unpack("!i", received(client, 4))
        told = received(client, size - 4).replace(f"database\0{ALIAS}\0".encode(), f"database\0{database}\0".encode())
        server.sendall(struct.pack("!i", len(told) + 4) + told)
    passed_on(client, server)


@pytest.fixture
def pooled(pg: Database) -> Iterator[str]:
    """The reader's URL through something that looks like a pooler."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection((pg.server.host, pg.server.port))
            threading.Thread(target=opened, args=(client, server, pg.dbname), daemon=True).start()
            threading.Thread(target=greeted, args=(server, client), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    place, port = f"{pg.server.host}:{pg.server.port}", listener.getsockname()[1]
    assert place in pg.reader_url
    yield pg.reader_url.replace(place, f"127.0.0.1:{port}") + "?sslmode=disable&gssencmode=disable"
    listener.close()


def test_nothing_is_left_in_a_session_that_serves_others_and_values_are_the_same(pg: Database, pooled: str) -> None:
    with pg.connect() as admin:
        admin.execute(
            "CREATE TABLE t (id int PRIMARY KEY, b bytea, i interval, d date, updated_at timestamptz);"
            " INSERT INTO t VALUES (1, '\\x00ff', '1 day 2 h', '2024-05-01', '2024-05-01 10:00+00')"
        )
        for name, value in SETTINGS.items():
            admin.execute(f"ALTER ROLE \"{pg.reader}\" SET {name} = '{value}'".encode())
    direct, behind = PostgresConnector(Source(pg.reader_url)), PostgresConnector(Source(pooled))
    try:
        with direct.copying() as shared:
            assert shared is not None
            expected = values(scan(direct, tracked(direct, "t")), *COLUMNS)
            with behind.join(shared):
                assert values(scan(behind, tracked(behind, "t")), *COLUMNS) == expected
        assert values(scan(behind, tracked(behind, "t")), *COLUMNS) == expected
        assert behind._session.url() is None
        assert len(_OWN.sessions) == 1
        names = [*SETTINGS, "default_transaction_read_only", "statement_timeout", "lock_timeout"]
        told = [behind._session.rows(f"SELECT pg_catalog.current_setting('{name}')")[0][0] for name in names]
        assert told == [*SETTINGS.values(), "off", "0", "0"]
    finally:
        direct.close()
        behind.close()
    assert not _OWN.sessions


def test_a_database_is_the_same_by_the_name_that_a_pooler_has_for_it(pg: Database, pooled: str) -> None:
    assert pooled.count(f"/{pg.dbname}?") == 1
    behind = PostgresConnector(Source(pooled.replace(f"/{pg.dbname}?", f"/{ALIAS}?")))
    try:
        assert behind.identity() == pg.dbname
    finally:
        behind.close()


def test_a_server_that_takes_over_behind_a_pooler_is_noticed_though_the_connection_stays(
    pg: Database, pooled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pg.connect().execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
    connector = PostgresConnector(Source(pooled))
    followed = tracked(connector, "t")
    with connector.snapshot():
        before = connector.horizon(followed, None)
    monkeypatch.setattr(postgres_session, "server", lambda held: dataclasses.replace(server(held), identity="other/1"))
    with connector.snapshot():
        after = connector.horizon(followed, before.memory)
    connector.close()
    assert before.era != after.era
    assert after.covers is None, "its positions say nothing of those before"
