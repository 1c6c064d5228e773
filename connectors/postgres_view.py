"""What one snapshot of a PostgreSQL server sees: which transactions are over, when that was, and who was at work then.

A snapshot is one transaction, `REPEATABLE READ READ ONLY`: it needs no right but SELECT and works on a hot standby.
"""

from __future__ import annotations

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
VIEW = (
    "SELECT pg_catalog.pg_snapshot_xmin(s)::text, pg_catalog.pg_snapshot_xmax(s)::text,"
    " pg_catalog.age(pg_catalog.pg_snapshot_xmax(s)::xid)::text,"
    " (extract(epoch FROM pg_catalog.statement_timestamp()) * 1000000)::int8, CASE WHEN pg_catalog.pg_is_in_recovery()"
    " OR pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn() THEN 1 ELSE 0 END"
    " FROM pg_catalog.pg_current_snapshot() AS s"
)


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
    role may see it. `lasting`: no crash can undo what it sees.
    """

    xmin: int
    xmax: int
    next: int
    now: int
    known: int | None
    running: Running | None = None
    lasting: bool = True


@dataclass(frozen=True, slots=True)
class Server:
    """Which server a connection reached: its cluster and timeline, as far as it tells, whether it is a standby, and
    whether the role sees what other sessions do there.

    A failover, and a restore by WAL, begin a new timeline; a dump that is read back, a new cluster. What a crash undoes
    leaves no such trace: `crash` is another one after each.
    """

    identity: str
    standby: bool
    sees_sessions: bool
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Own:
    """This process's sessions, all of them read-only: by what `session_of` says of them, or by their names."""

    sessions: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)


NOBODY = Own()

# The timeline of what is being written now; a standby only knows that of its last restart point.
_SERVER = (
    "SELECT system_identifier::text || '/' || CASE WHEN pg_catalog.pg_is_in_recovery() THEN"
    " pg_catalog.lpad(pg_catalog.to_hex(timeline_id), 8, '0') ELSE"
    " pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END,"
    " pg_catalog.pg_is_in_recovery()"
    " FROM pg_catalog.pg_control_system(), pg_catalog.pg_control_checkpoint()"
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
    " pg_catalog.pg_is_in_recovery()"
)


def server(connection: Connection) -> Server:
    """Return which server *connection* reached."""
    try:
        row = connection.execute(_SERVER).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # Not every provider lets everyone ask.
        row = connection.execute("SELECT '', pg_catalog.pg_is_in_recovery()").fetchone()
    select, since_crash, since_start = _STATE
    state = connection.execute(select.format(since_crash if connection.info.server_version >= 150000 else since_start))
    told = state.fetchone()
    assert row is not None
    assert told is not None
    (identity, standby), (sees, crash) = row, told
    return Server(identity, standby, sees and not standby, crash)


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
    running = replayed = None
    if reached.sees_sessions:
        seen = connection.execute(_RUNNING, (list(own.sessions), list(own.names))).fetchone()
        assert seen is not None
        *what, hidden = seen
        running = None if hidden else Running(*what)
    if reached.standby:
        last = connection.execute(_REPLAYED).fetchone()
        assert last is not None
        replayed, standby = last
        if not standby:
            return None
    cursor = connection.execute("; ".join(part for part in (BEGIN, pins, VIEW) if part))
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    assert row is not None
    xmin, xmax, given, now, lasting = map(int, row)
    known = replayed if reached.standby else now
    return View(xmin, xmax, xmax + given, now, known, running, lasting=bool(lasting))
