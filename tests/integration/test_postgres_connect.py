"""A server that takes a connection and says nothing: waited for no longer than allowed, and let go when asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from connectors.postgres import PostgresConnector
from sidecar.clock import SystemClock
from sidecar.connector import Source
from sidecar.errors import SourceUnavailable


@pytest.fixture
def mute() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"postgresql://somebody:secret@127.0.0.1:{listener.getsockname()[1]}/db"


def test_a_connection_that_is_being_opened_breaks_off_when_asked(mute: str) -> None:
    connector, clock = PostgresConnector(Source(mute, connect_timeout=60)), SystemClock()
    asked = threading.Timer(0.2, connector.cancel)
    asked.start()
    began = clock.monotonic()
    with pytest.raises(SourceUnavailable, match="broken off before there was a connection"):
        connector.tables()
    assert clock.monotonic() - began < 30
    asked.join()
    connector.close()


def test_a_mute_server_is_waited_for_no_longer_than_allowed(mute: str) -> None:
    connector = PostgresConnector(Source(mute, connect_timeout=2))
    with pytest.raises(SourceUnavailable, match="timeout expired") as told:
        connector.tables()
    assert "secret" not in str(told.value)
    connector.close()
