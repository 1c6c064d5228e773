"""A connection to PostgreSQL that is being made: it can be broken off, and says in one line why it did not come to be.

libpq cannot be interrupted while it looks up a name, and psycopg waits for a server in the thread that asks. So it asks
in a thread of its own, which is left to itself once nobody waits for it any more.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import Any

import psycopg

from connectors.postgres_view import Connection
from sidecar.errors import SourceUnavailable

_PREFIXES = re.compile(
    r"^(?:connection (?:failed|is bad): )?"
    r'(?:connection to server (?:at "[^"]*"(?: \([^)]*\))?, port \d+|on socket "[^"]*") failed: )?(?:FATAL:\s+)?'
)
_HOST = re.compile(r"^- host: '?([^',]*)'?, port: '?(\d+)'?.*?: (?=connection )")

_CROWDED = (
    "A run holds one connection, and while it reads existing rows up to two more for each of [backfill] parallelism: "
    "let the role have as many (ALTER ROLE … CONNECTION LIMIT), or lower it."
)
_HINTS = {
    "refused": "Is the server running there, and is this its port?",
    "No such file": "Is the server running on this machine, and is this its socket?",
    "resolve": "Is the name of the server right?",
    "no answer": "Is the address right, and does a firewall let this machine through? ([source] connect_timeout)",
    "starting up": "It will be there soon.",
    "too many": _CROWDED,
    "connection slots": _CROWDED,
}


class Attempt:
    """One attempt to connect with libpq's *parameters*, under way once this is made."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        self._parameters: dict[str, Any] = dict(parameters)
        self._over, self._deciding = threading.Event(), threading.Lock()
        self._connection: Connection | None = None
        self._error: BaseException | None = None
        self._is_off = False
        threading.Thread(target=self._run, name="sidecar-connecting", daemon=True).start()

    def result(self) -> Connection:
        """Wait for the connection, and return it; psycopg.Error if there is none, SourceUnavailable if broken off."""
        try:
            self._over.wait()
        except BaseException:
            self.break_off()
            raise
        if self._is_off:
            raise SourceUnavailable("connecting was broken off")
        if self._error is not None:
            raise self._error
        assert self._connection is not None, "it is over"
        return self._connection

    def break_off(self) -> None:
        """Have whoever waits told that there is no connection; from any thread. One that is there already stays."""
        with self._deciding:
            if not self._over.is_set():
                self._is_off = True
                self._over.set()

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            connection = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=None)
        except BaseException as error:
            self._error = error
        with self._deciding:
            if not self._is_off:
                self._connection = connection
                self._over.set()
                return
        if connection is not None:
            connection.close()


def reason(error: psycopg.Error, timeout: object) -> str:
    """Return in one line why there is no connection, of each host where there are several; *timeout* in seconds."""
    text = str(error).replace("connection timeout expired", f"connection failed: no answer within {timeout} s")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("Is the server running")]
    if hosts := [line for line in lines if line.startswith("- host:")]:
        found = [(_HOST.match(line), line) for line in hosts]
        lines = [
            line if at is None else f"{at[1]}:{at[2]}: {_PREFIXES.sub('', line[at.end() :])}" for at, line in found
        ]
    return "; ".join(dict.fromkeys(_PREFIXES.sub("", line) for line in lines)).rstrip(".")


def hint(reason: str) -> str:
    """Return what to look at where a server cannot be reached for *reason*, or nothing."""
    return next((f" {text}" for words, text in _HINTS.items() if words in reason), "")
