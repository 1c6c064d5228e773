"""One held connection to PostgreSQL: opened on demand, pinned, read-only, and reopened when it has broken.

What a snapshot is, and what is asked of the server when one is taken, is in `postgres_view.py`.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo, pq

from connectors import postgres_literals as literals
from connectors.postgres_connecting import Attempt, hint, reason
from connectors.postgres_errors import LOGIN, translated
from connectors.postgres_view import PLAIN, Connection, Own, Server, View, server, session_of, take
from sidecar.clock import Clock
from sidecar.connector import Source
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable

Rows: TypeAlias = Sequence[tuple[Any, ...]]
Parameters: TypeAlias = Sequence[object] | Mapping[str, object]

_SOON = 1.0
"""Seconds for which a server is waited for that is to cancel a statement."""

_OWN = Own()

_OLDEST_VERSION = 130000  # the first with pg_current_snapshot()

# What connectorx can be told in its URL and takes to mean what libpq does. `require` encrypts without looking at the
# certificate in both (libpq does look where the user has a root.crt); a stricter mode stays with libpq.
_PLAIN_SSL = ("", "disable", "allow", "prefer", "require")
_HARMLESS = {
    *("host", "hostaddr", "port", "dbname", "user", "password", "sslmode", "connect_timeout", "application_name"),
    *("fallback_application_name", "client_encoding", "passfile", "keepalives", "keepalives_idle", "gssencmode"),
    *("keepalives_interval", "keepalives_count", "tcp_user_timeout", "service"),
    *("target_session_attrs", "load_balance_hosts"),
}

# A value of type money is a whole number of the smallest unit. How many decimals that makes is said by the locale
# alone, and C's are two: a currency with other ones is printed by its own. What this role was given for itself says
# nothing of how others have written.
_MONETARY = """(
    SELECT CASE WHEN source IN ('user', 'database user', 'client')
    OR pg_catalog.scale(1::pg_catalog.money::pg_catalog.numeric) = 2 THEN 'C' ELSE setting END
    FROM pg_catalog.pg_settings WHERE name = 'lc_monetary'
)"""


class Session:
    """The connection, and the snapshot it is in, if any."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._parameters = _parameters(source)
        self._connection: Connection | None = None
        self._attempt: Attempt | None = None
        self._server: Server | None = None
        self._monetary = "C"
        self._name: str | None = None
        self.borrower = f"sidecar-{secrets.token_hex(8)}"
        """The name of connections that connectorx makes; no Python object stands for one of them."""
        self.lends = False
        """Whether there may be such connections now."""
        self.view: View | None = None
        self.exported: str | None = None
        """The open snapshot's name for other connections, once one has asked for it."""

    @property
    def clock(self) -> Clock:
        return self._source.clock

    @property
    def where(self) -> str:
        """The server and database, as a message names them."""
        p = self._parameters
        host = str(p.get("host") or p.get("hostaddr") or "localhost")
        return f"{host}:{p.get('port') or 5432}/{p.get('dbname') or p.get('user') or ''}"

    @property
    def connection(self) -> Connection:
        """The connection, opened if there is none that works; a snapshot dies with the connection it was taken on."""
        held = self._connection
        if held is not None and not held.closed and not held.broken:
            return held
        if self.view is not None:
            raise SourceUnavailable(f"{self.where}: the connection broke in the middle of a snapshot")
        self.close()
        self._connection, self._server = self._connect()
        return self._connection

    @property
    def server(self) -> Server:
        """The server that the connection reached; a new one may reach another, and a pooler may have another by now."""
        _ = self.connection  # opened anew if it has broken, and asked
        assert self._server is not None, "whoever connects asks"
        return self._server

    def rows(self, sql: str, parameters: Parameters = (), table: str | None = None) -> Rows:
        """Return *sql*'s rows, in the open snapshot if there is one."""
        if self.view is not None:
            with self.errors(table):
                return self.connection.execute(sql, parameters or None).fetchall()
        fresh = self._connection is None
        try:
            return self._outside(sql, parameters)
        except psycopg.Error as error:
            if fresh or not self._lost():
                raise translated(error, table, self.where) from None
        with self.errors(table):
            return self._outside(sql, parameters)

    def _outside(self, sql: str, parameters: Parameters) -> Rows:
        return self.connection.execute(sql, parameters or None).fetchall()

    @contextlib.contextmanager
    def snapshot(self, table: str | None = None, *, taken: Callable[[], View] | None = None) -> Iterator[View]:
        """Hold one snapshot; inside another it is that one. It ends with ROLLBACK: there is nothing to commit.

        *taken* takes it in a way of its own.
        """
        if self.view is not None:
            yield self.view
            return
        self.view = self._begin(table, taken or self._view)
        try:
            yield self.view
        finally:
            self.view = self.exported = None
            self._end()

    def export(self) -> str:
        """Return a name under which other connections can take over the open snapshot."""
        if self.exported is None:
            self.exported = self.rows("SELECT pg_catalog.pg_export_snapshot()")[0][0]
        return self.exported

    @contextlib.contextmanager
    def errors(self, table: str | None = None) -> Iterator[None]:
        """Turn the driver's errors into Sidecar's. What the driver said is in the message, so no cause is chained."""
        try:
            yield
        except psycopg.Error as error:
            raise translated(error, table, self.where) from None

    def another(self) -> Connection:
        """Return a connection besides; psycopg.Error if the server does not let the role have one."""
        try:
            self._attempt = Attempt(self._parameters)
            return self._attempt.result()
        finally:
            self._attempt = None

    def cancel(self) -> None:
        """Have the statement under way break off, here and in the connections that connectorx has; from any thread.

        So does a connection that is still being made.
        """
        if (attempt := self._attempt) is not None:
            attempt.break_off()
        held = self._connection
        if held is None or held.closed:
            return
        with contextlib.suppress(psycopg.Error):
            held.cancel_safe(timeout=_SOON)
        if self.lends:
            with contextlib.suppress(psycopg.Error), psycopg.connect(**self._parameters, autocommit=True) as other:  # type: ignore[arg-type]
                other.execute(
                    "SELECT pg_catalog.pg_cancel_backend(pid) FROM pg_catalog.pg_stat_activity"
                    " WHERE usename = session_user AND application_name = %s",
                    (self.borrower,),
                )

    def close(self) -> None:
        held, self._connection = self._connection, None
        _OWN.names.discard(self.borrower)
        _OWN.sessions.discard(self._name or "")
        self.view = self.exported = None
        if held is not None:
            with contextlib.suppress(psycopg.Error):
                held.close()

    def url(self) -> str | None:
        """Return this connection for connectorx, which has a client of its own; None where it would be another one.

        Settings that it does not know may say who may see which rows (`options`), or whom to trust (certificates). Nor
        does it keep to one transaction, which is all that holds settings behind a pooler.
        """
        held = self.connection
        if self._name is None:
            return None
        usual = {str(d.keyword, "ascii"): str(d.compiled or b"", "ascii") for d in pq.Conninfo.get_defaults()}
        usual["sslcertmode"] = "allow"  # libpq fills it in
        given = {k: v for k, v in held.info.get_parameters().items() if v and v != usual.get(k)}
        trusts = given.get("sslmode") == "require" and (Path.home() / ".postgresql" / "root.crt").exists()
        strict = given.get("sslmode", "") not in _PLAIN_SSL or given.get("gssencmode") == "require"
        if given.keys() - _HARMLESS or strict or trusts:
            return None
        info = held.info
        host = info.hostaddr if "hostaddr" in self._parameters else info.host
        place = f"[{host}]" if ":" in host else quote(host, safe="")
        query = {"application_name": self.borrower, "sslmode": "require" if held.pgconn.ssl_in_use else "disable"}
        login = quote(info.user, safe="") + (":" + quote(info.password, safe="") if info.password else "")
        return f"postgresql://{login}@{place}:{info.port}/{quote(info.dbname, safe='')}?{urlencode(query)}"

    def pins(self) -> str:
        """Return one statement that makes a session print and wait as every session of ours does.

        The last of the pins is the promise that nothing is written, kept by the server even outside a snapshot.
        """
        return self._pins(is_local=False)

    def own_pins(self) -> str:
        """Return what a transaction is to begin with: the pins, if they are not the session's.

        Behind a pooler the next transaction may be in another session, and this session serve another client.
        """
        _ = self.connection
        return "" if self._name is not None else self._pins(is_local=True)

    def _pins(self, *, is_local: bool) -> str:
        version = self.connection.info.server_version
        return _pins(self._source, version, literals.setting(self._monetary), is_local=is_local)

    def _connect(self) -> tuple[Connection, Server]:
        try:
            connection = self.another()
        except psycopg.Error as error:
            raise self._refused(error) from None
        version = connection.info.server_version
        if version < _OLDEST_VERSION:
            connection.close()
            raise SettingsError(f"{self.where}: PostgreSQL {version // 10_000} is too old; Sidecar needs 13 or newer")
        try:
            self._name = session_of(connection)
            pins = _pins(self._source, version, _MONETARY, is_local=False)
            told = f"SELECT {_MONETARY}" if self._name is None else pins
            cursor = connection.execute(f"{PLAIN}; {told}; COMMIT")
            cursor.nextset()
            pinned = cursor.fetchone()
            assert pinned is not None
            self._monetary = pinned[0]
            reached = server(connection)
        except psycopg.Error as error:
            connection.close()
            raise translated(error, None, self.where) from None
        if self._name is not None:
            _OWN.sessions.add(self._name)
            _OWN.names.add(self.borrower)
        return connection, reached

    def _refused(self, error: psycopg.Error) -> SidecarError:
        """Return why there is no connection. Its SQLSTATE is not handed on, so the server's words have to do."""
        said = self._clean(reason(error, self._parameters["connect_timeout"]))
        user = self._parameters.get("user") or "the operating system's"
        for words, advice in LOGIN.items():
            if words in said:
                return SettingsError(f"{self.where}: cannot connect as user {user}: {said}. {advice}")
        return SourceUnavailable(f"{self.where}: cannot connect: {said}.{hint(said)}")

    def _clean(self, text: str) -> str:
        secrets = (str(self._parameters.get(k) or "") for k in ("password", "sslpassword"))
        for secret in secrets:
            for form in (secret, quote(secret, safe=""), quote(secret)):
                if len(form) > 2:
                    text = text.replace(form, "***")
        return text

    def _begin(self, table: str | None, take: Callable[[], View]) -> View:
        fresh = self._connection is None
        try:
            return take()
        except psycopg.Error as error:
            # A held connection may have been cut since it was last used; nothing has been read on it yet.
            if fresh or not self._lost():
                self._end()
                raise translated(error, table, self.where) from None
        with self.errors(table):
            return take()

    def _view(self) -> View:
        if self._connection is not None and self._name is None:
            # What a pooler has behind it may have crashed, or be another server since.
            self._server = server(self.connection)
        found = take(self.connection, self.server, self.own_pins(), _OWN)
        if found is None:
            # Promoted while the connection was held: it is another server now.
            self._server = server(self.connection)
            return self._view()
        return found

    def _lost(self) -> bool:
        return self._connection is not None and (self._connection.closed or self._connection.broken)

    def _end(self) -> None:
        held = self._connection
        if held is None or held.closed:
            return
        try:
            held.execute("ROLLBACK")
        except psycopg.Error:
            self.close()


def _pins(source: Source, version: int, monetary: str, *, is_local: bool) -> str:
    pins: dict[str, str] = {
        "TimeZone": "UTC",
        "DateStyle": "ISO, YMD",
        "IntervalStyle": "postgres",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "statement_timeout": f"{math.ceil(source.statement_timeout * 1000)}",
        "lock_timeout": f"{math.ceil(source.lock_timeout * 1000)}",
        "idle_in_transaction_session_timeout": "0",
        **({"idle_session_timeout": "0"} if version >= 140000 else {}),
        **({"transaction_timeout": "0"} if version >= 170000 else {}),
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "on",
    }
    settings = {"lc_monetary": monetary, **{k: f"'{v}'" for k, v in pins.items()}}
    return "SELECT " + ", ".join(f"pg_catalog.set_config('{k}', {v}, {is_local})" for k, v in settings.items())


def _parameters(source: Source) -> Mapping[str, object]:
    """Return libpq's parameters; SettingsError, without a word of the URL in it, where it would be misread.

    An unencoded `@`, `/` or `:` in a password splits a URL elsewhere, and every later message would show the pieces.
    """
    advice = (
        "characters such as @ : / ? # % [ ] and blanks in its user, password or database must be percent-encoded "
        "(or give user and password as settings of their own)"
    )
    _, separator, rest = source.url.partition("://")
    authority, _, path = rest.partition("/")
    if not separator or authority.count("@") > 1 or "@" in path.partition("?")[0]:
        raise SettingsError(f"source url: not a PostgreSQL URL that can be read; {advice}")
    try:
        found: dict[str, Any] = dict(conninfo.conninfo_to_dict(f"postgresql://{rest}"))
    except psycopg.Error as error:
        unknown = re.search(r'invalid URI query parameter: "([a-z_]+)"', str(error))
        # Of a "?" in a password, what follows it is no parameter, but a part of a secret.
        if unknown is not None and "?" not in authority and "@" not in path:
            raise SettingsError(f'source url: PostgreSQL knows no parameter "{unknown[1]}"') from None
        raise SettingsError(f"source url: not a PostgreSQL URL that can be read; {advice}") from None
    if not all(p.isdigit() or not p for p in str(found.get("port") or "").split(",")):
        raise SettingsError(f"source url: its port is no number; {advice}")
    if source.user is not None:
        found["user"] = source.user
    if source.password is not None:
        found["password"] = source.password
    found.setdefault("connect_timeout", max(1, math.ceil(source.connect_timeout)))
    found.setdefault("application_name", "sidecar")
    found["client_encoding"] = "UTF8"
    return found
