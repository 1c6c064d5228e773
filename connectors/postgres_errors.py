"""What PostgreSQL says when it refuses, as the failure that a user can act on."""

from __future__ import annotations

import psycopg

from sidecar.errors import SettingsError, SidecarError, SourceUnavailable

LOGIN = {
    "authentication failed": "Check user and password.",
    "no password supplied": "Give a password.",
    "no pg_hba.conf entry": "The server's pg_hba.conf must let this user in from here.",
    "is not permitted to log in": "Give the role LOGIN.",
    "permission denied for database": "GRANT CONNECT ON DATABASE to the role.",
    "does not support SSL": "Check sslmode and the certificates.",
    "certificate": "Check sslmode and the certificates.",
    "does not exist": "Check the names of user and database.",
    "invalid connection option": "Check the URL's parameters.",
    "invalid sslmode": "Check the URL's parameters.",
}

HINTS = {
    "57014": "For statement_timeout, raise it or lower page_size; on a standby, raise max_standby_streaming_delay.",
    "40001": "On a standby, raise max_standby_streaming_delay or switch hot_standby_feedback on; or lower page_size.",
    "55P03": "Something holds the table locked.",
    "42501": "GRANT SELECT on it to the role; where row_security is off and policies apply: BYPASSRLS.",
    "25P02": "An earlier statement of this snapshot failed.",
}


def translated(error: psycopg.Error, table: str | None, where: str) -> SidecarError:
    """Return *error* as the failure that a user can act on: it may pass by itself, or a person must mend it."""
    state = error.sqlstate or ""
    place = f'table "{table}"' if table else where
    said = " ".join((error.diag.message_primary or str(error)).split())
    text = f"{place}: {said}" + (f" (SQLSTATE {state})" if state else "")
    passing = not state or state[:2] in ("08", "53", "57", "58", "40", "25", "XX")
    if passing or state == "55P03":
        return SourceUnavailable(f"{text}. {HINTS.get(state, '')}".rstrip(". ") + ".")
    return SettingsError(f"{text}. {HINTS[state]}" if state in HINTS else text)
