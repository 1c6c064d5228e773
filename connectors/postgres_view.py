"""What one snapshot of a PostgreSQL server sees: which transactions are over, when that was, and who was at work then.

A snapshot is one transaction, `REPEATABLE READ READ ONLY`: it needs no right but SELECT and works on a hot standby.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

PLAIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY"
"""For what is asked before the session is pinned: under a default of SERIALIZABLE a standby answers nothing at all."""

# statement_timestamp() is when the server received the statement, so just before it took the snapshot: a transaction
# that this snapshot does not know can only have begun later. On a standby these are the primary's transactions.
#
# A snapshot's xmax is one past the last transaction that is *over*: ids above it may have been given out, and their
# transactions run. age() counts from the next id to be given out, and so says which that is.
#
# With synchronous_commit off, others see what is not on disk yet. A standby is only sent what is.
_VIEW = (
    "SELECT pg_catalog.pg_snapshot_xmin(s)::text, pg_catalog.pg_snapshot_xmax(s)::text,"
    " pg_catalog.age(pg_catalog.pg_snapshot_xmax(s)::xid)::text,"
    " (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8, {position}, {lasting}"
    " FROM pg_catalog.pg_current_snapshot() AS s"
)

# How far the WAL had come: asked after the snapshot was taken, so what the snapshot shows lies before it.
_WRITTEN = "(pg_catalog.pg_current_wal_insert_lsn() - '0/0')::int8"
_REPLAYED_TO = "(pg_catalog.pg_last_wal_replay_lsn() - '0/0')::int8"
_LASTING = "pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn()"

_WAL_PAGE = 8192
_HEADERS = (24, 40)


@dataclass(frozen=True, slots=True)
class Running:
    """The oldest transaction of the other sessions at the time `asked`: when it `began` (None: there is none), and
    `who` that is; and the name of a `prepared` one, which belongs to no session. Microseconds UTC.
    """

    asked: int
    began: int | None
    who: str
    prepared: str | None


@dataclass(frozen=True, slots=True)
class View:
    """What one snapshot is: transactions below `xmin` are over, those from `xmax` on are not; and when it was.

    `next` is the id that had not been given out yet. None runs if it is `xmin`. `known` is the instant up to which the
    snapshot knows what has happened: `now` on a primary; on a standby, which may be far behind, that of the last commit
    it has replayed, by the primary's clock (None: none yet). `running` is what else was seen just before, where the
    role may see it. What the snapshot shows was written before the position `reaches` in the WAL, and on a standby all
    that was written before `covers` is in it (None: not told). `lasting`: no crash can undo what it sees.
    """

    xmin: int
    xmax: int
    next: int
    now: int
    known: int | None
    running: Running | None = None
    covers: int | None = None
    reaches: int | None = None
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Server:
    """Which server a connection reached: its cluster and timeline, as far as it tells, whether it is a standby, whether
    the role sees what other sessions do there, and whether the server tells how far its WAL has come.

    A failover, and a restore by WAL, begin a new timeline; a dump that is read back, a new cluster. What a crash undoes
    leaves no such trace: `crash` is another one after each.
    """

    identity: str
    standby: bool
    sees_sessions: bool
    tells_positions: bool = False
    crash: str = ""

    @property
    def view(self) -> str:
        """The SELECT of what a snapshot is."""
        position, lasting = (_REPLAYED_TO, "true") if self.standby else (_WRITTEN, _LASTING)
        if not self.tells_positions:
            position, lasting = "NULL::int8", "false"
        return _VIEW.format(position=position, lasting=lasting)


@dataclass(frozen=True, slots=True)
class Own:
    """This process's sessions, all of them read-only: by what `session_of` says of them, or by their names."""

    sessions: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


NOBODY = Own()

# The timeline of what is being written now; a standby only knows that of its last restart point, or of the last page
# that it has had to write since.
_SERVER = (
    "SELECT system_identifier::text || '/' || CASE WHEN pg_catalog.pg_is_in_recovery() THEN"
    " pg_catalog.lpad(pg_catalog.to_hex(greatest(timeline_id, min_recovery_end_timeline)), 8, '0') ELSE"
    " pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END,"
    " pg_catalog.pg_is_in_recovery()"
    " FROM pg_catalog.pg_control_system(), pg_catalog.pg_control_checkpoint(), pg_catalog.pg_control_recovery()"
)

# Some of those who offer PostgreSQL write no WAL of their own, or count nothing.
_UNTOLD = (psycopg.errors.InsufficientPrivilege, psycopg.NotSupportedError, psycopg.errors.UndefinedFunction)

_POSITION = (
    f"SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN {_REPLAYED_TO}::text"
    f" ELSE pg_catalog.concat({_WRITTEN}, {_LASTING}) END"
)

# What the server counts is thrown away in a crash, and in no other restart. Before version 15 it takes long to ask.
_STATE = (
    "SELECT pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE'), {}::text",
    "pg_catalog.pg_stat_get_bgwriter_stat_reset_time()",
    "pg_catalog.pg_postmaster_start_time()",
)

# Anyone may see of a session of their own when it began.
_SESSION = (
    "SELECT pid, pg_catalog.concat(pid, ' ', (extract(epoch FROM backend_start) * 1000000)::int8)"
    " FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())"
)

# To be read before the snapshot is taken: of a transaction that ends in between, one of the two must know; one that
# begins in between has a later clock. The prepared ones are looked up last: what is prepared meanwhile was still a
# session. Vacuum and senders of WAL write no rows, nor do another database's sessions, nor this process's own, which
# are read-only: a copy would hold the polls' horizon for as long as its snapshot. Process ids come again; together with
# the instant at which the session began, they name one session of one server.
#
# The functions behind pg_stat_activity and pg_prepared_xacts: to plan what the views join to them takes longer than all
# the rest.
#
# A session with track_activities off does not say what it does: then the numbers have to do.
_RUNNING = """\
SELECT (extract(epoch FROM one.asked) * 1000000)::int8, oldest.began, oldest.who, (
    SELECT gid FROM pg_catalog.pg_prepared_xact() WHERE dbid = one.here ORDER BY prepared LIMIT 1
), EXISTS (
    SELECT FROM pg_catalog.pg_stat_get_activity(NULL)
    WHERE datid = one.here AND pid <> pg_catalog.pg_backend_pid()
    AND backend_type NOT IN ('autovacuum worker', 'walsender')
    AND (state = 'disabled' OR backend_xid IS NOT NULL AND xact_start IS NULL)
) FROM (
    SELECT pg_catalog.clock_timestamp() AS asked,
    (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) AS here OFFSET 0
) AS one LEFT JOIN LATERAL (
    SELECT (extract(epoch FROM xact_start) * 1000000)::int8 AS began, pg_catalog.concat(
        'session ', pid, ' of ', pg_catalog.pg_get_userbyid(usesysid),
        CASE WHEN application_name <> '' THEN ', ' || application_name END, ', ', state
    ) AS who
    FROM pg_catalog.pg_stat_get_activity(NULL)
    WHERE datid = one.here AND pid <> pg_catalog.pg_backend_pid()
    AND backend_type NOT IN ('autovacuum worker', 'walsender') AND xact_start IS NOT NULL
    AND pg_catalog.concat(pid, ' ', (extract(epoch FROM backend_start) * 1000000)::int8) <> ALL (%s)
    AND coalesce(application_name, '') <> ALL (%s)
    ORDER BY xact_start LIMIT 1
) AS oldest ON true"""


# What has not been replayed was written after this. To be read before the snapshot is taken, for the same reason.
_REPLAYED = (
    "SELECT (extract(epoch FROM pg_catalog.pg_last_xact_replay_timestamp()) * 1000000)::int8,"
    " pg_catalog.pg_is_in_recovery(), {position}"
)


def server(connection: Connection) -> Server:
    """Return which server *connection* reached."""
    try:
        row = connection.execute(_SERVER).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # Not every provider lets everyone ask.
        row = connection.execute("SELECT '', pg_catalog.pg_is_in_recovery()").fetchone()
    select, since_crash, since_start = _STATE
    since = since_crash if connection.info.server_version >= 150000 else since_start
    try:
        state = connection.execute(select.format(since)).fetchone()
    except _UNTOLD:
        state = connection.execute(select.format(since_start)).fetchone()
    assert row is not None
    assert state is not None
    (identity, standby), (sees, crash) = row, state
    try:
        tells = connection.execute(_POSITION).fetchone() is not None
    except _UNTOLD:
        tells = False
    return Server(identity, standby, sees and not standby, tells, crash)


def session_of(connection: Connection) -> str | None:
    """Return what names *connection*'s session among all of its server; None behind a pooler, which gives a process id
    of its own, and whose sessions serve others as well.
    """
    cursor = connection.execute(f"{PLAIN}; {_SESSION}; COMMIT")
    cursor.nextset()
    row = cursor.fetchone()
    return row[1] if row is not None and row[0] == connection.info.backend_pid else None


def take(connection: Connection, reached: Server, pins: str = "", own: Own = NOBODY) -> View | None:
    """Begin a transaction on *connection*, and return what its snapshot is; None if *reached* is a standby no more.

    *pins* is a SELECT of settings that are to hold in it. Nothing that *own* sessions do is waited for.
    """
    running = replayed = covers = None
    if reached.sees_sessions:
        seen = connection.execute(_RUNNING, (list(own.sessions), list(own.names))).fetchone()
        assert seen is not None
        *what, hidden = seen
        running = None if hidden else Running(*what)
    if reached.standby:
        position = _REPLAYED_TO if reached.tells_positions else "NULL::int8"
        last = connection.execute(_REPLAYED.format(position=position)).fetchone()
        assert last is not None
        replayed, standby, covers = last
        if not standby:
            return None
    cursor = connection.execute("; ".join(part for part in (BEGIN, pins, reached.view) if part))
    found = told(cursor)
    known = replayed if reached.standby else found.now
    return dataclasses.replace(found, known=known, running=running, covers=covers)


def told(cursor: psycopg.Cursor[tuple[Any, ...]]) -> View:
    """Return what the last of *cursor*'s answers, that to `Server.view`, says of its snapshot."""
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    xmin, xmax, given, now, position, lasting = row
    reaches = None if position is None else _end(position)
    return View(int(xmin), int(xmax), int(xmax) + int(given), now, None, reaches=reaches, lasting=lasting)


def _end(position: int) -> int:
    """Return where the last record before *position* ends at the latest: what is written next begins behind the header
    of its page, and a standby that has replayed all stands before it.
    """
    within = position % _WAL_PAGE
    return position - within if within in _HEADERS else position
