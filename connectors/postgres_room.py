"""Whether the server has a connection for connectorx, which tries for half a minute where it gets none, and cannot be
told otherwise.
"""

from __future__ import annotations

import contextlib
import threading

import psycopg

from connectors.postgres_session import Session


class Room:
    """What sessions of this process have found that there is room for, and may take up at any time."""

    def __init__(self) -> None:
        self._sessions: set[Session] = set()
        self._deciding = threading.Lock()

    def is_had_by(self, session: Session) -> bool:
        """Return whether *session* may have a connection besides, until it leaves: as many as all of them may come to
        have are made at once, and closed.
        """
        with self._deciding, contextlib.ExitStack() as tried:
            if session in self._sessions:
                return True
            try:
                for _ in range(1 + len(self._sessions)):
                    tried.callback(session.another().close)
            except psycopg.Error:
                return False
            self._sessions.add(session)
            return True

    def left_by(self, session: Session) -> None:
        """Let the others have what *session* had."""
        self._sessions.discard(session)


ROOM = Room()
