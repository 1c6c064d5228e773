"""Opening a connection, which takes `connect_timeout` where a server does not answer: somebody may ask to stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import psycopg

from connectors.postgres_view import Connection


class Opening:
    """One connection that is being opened, on a thread of its own: what looks up names cannot be interrupted."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._found: Connection | BaseException | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()

    def result(self) -> Connection | None:
        """Return the connection, or None once it has been broken off; psycopg.Error if there is none."""
        threading.Thread(target=self._run, name="sidecar-connect", daemon=True).start()
        try:
            self._is_over.wait()
        except BaseException:
            self.break_off()
            raise
        if isinstance(self._found, BaseException):
            raise self._found
        return self._found

    def break_off(self) -> None:
        """Let it be waited for no longer, from any thread; what is opened all the same is closed."""
        with self._lock:
            self._is_over.set()

    def _run(self) -> None:
        found: Connection | BaseException
        try:
            found = self._connect()
        except BaseException as error:
            found = error
        with self._lock:
            if not self._is_over.is_set():
                self._found = found
                self._is_over.set()
                return
        if not isinstance(found, BaseException):
            with contextlib.suppress(psycopg.Error):
                found.close()
