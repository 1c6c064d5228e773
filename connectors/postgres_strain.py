"""How hard a PostgreSQL server is at work: how far its replicas are behind, and how long somebody waits for a lock."""

from __future__ import annotations

from connectors.postgres_session import Session
from sidecar.model import Strain

# A role that may not see what replicas do sees that they are there, without a state. One that has caught up measures
# no lag once nothing is written any more; one that never replays, such as a backup, has no place.
_LAG = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN
  CASE WHEN pg_catalog.pg_last_wal_replay_lsn() >= pg_catalog.pg_last_wal_receive_lsn() THEN 0
    WHEN pg_catalog.pg_last_wal_receive_lsn() IS NOT NULL THEN greatest(0,
      extract(epoch FROM pg_catalog.clock_timestamp() - pg_catalog.pg_last_xact_replay_timestamp())) END
ELSE (
  SELECT CASE WHEN bool_and(state IS NOT NULL) THEN
    max(CASE WHEN replay_lag IS NOT NULL THEN extract(epoch FROM replay_lag) WHEN state = 'streaming' THEN 0 END) END
  FROM pg_catalog.pg_stat_replication WHERE state IS NULL OR replay_lsn IS NOT NULL
) END::float8
"""

# Locks on rows are waits for transactions, which belong to no database: it is the one that waits that does.
_WAIT = """
SELECT CASE WHEN count(*) = 0 THEN 0 ELSE
  max(extract(epoch FROM pg_catalog.clock_timestamp() - {since})) END::float8
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE NOT l.granted AND a.datname = pg_catalog.current_database()
"""
# Who reads a table keeps it only from those who want it for themselves: to alter it, say. Our connections are known by
# their names; those of another Sidecar of the same role give way as well, which does no harm.
_HELD_UP = """
SELECT max(extract(epoch FROM pg_catalog.clock_timestamp() - {since}))::float8
FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
WHERE NOT l.granted AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'
AND a.datname = pg_catalog.current_database() AND EXISTS (
  SELECT FROM pg_catalog.pg_locks AS h JOIN pg_catalog.pg_stat_activity AS o ON o.pid = h.pid
  WHERE h.granted AND h.locktype = 'relation' AND (h.database, h.relation) = (l.database, l.relation)
  AND o.usename = current_user
  AND (o.application_name LIKE 'sidecar%' OR o.application_name = pg_catalog.current_setting('application_name'))
)
"""
# A wait that has just begun carries no time yet; before version 14 none does.
_SINCE = "coalesce(l.waitstart, pg_catalog.clock_timestamp())"
_SINCE_13 = "a.query_start"


def strain(session: Session) -> Strain:
    """Return how hard the server is at work, as far as the role may see it. Not for a session that holds a snapshot:
    there, the server would go on telling what it was at the first time of asking.
    """
    assert session.view is None, "a session of its own"
    since = _SINCE if session.connection.info.server_version >= 140000 else _SINCE_13
    lag = session.rows(_LAG)[0][0]
    waits = (session.rows(query.format(since=since))[0][0] for query in (_WAIT, _HELD_UP))
    return Strain(lag, *(None if wait is None else max(0.0, wait) for wait in waits))
