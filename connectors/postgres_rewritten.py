"""Tables that were written anew after a snapshot was taken, and before it first looked at them.

TRUNCATE, and an ALTER TABLE that rewrites, leave nothing that an older snapshot could see: it finds the table empty, as
it never was. So it is with a table that has taken another one's name. A snapshot that waits for their lock is older
than they are; so once it has a lock of its own, on all that it reads, it is asked whether the files are still those
that its view of the catalog names.
"""

from __future__ import annotations

from connectors.postgres_session import Session
from sidecar.errors import SourceUnavailable
from sidecar.model import Table
from sidecar.sql import quoted

# Functions see the catalog as it is now, and a SELECT as it was. To be parsed, the last one takes the locks.
_TABLE = """
SELECT %(name)s::text WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class AS c
  WHERE c.oid = %(name)s::pg_catalog.regclass AND pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode)
UNION ALL (SELECT '' FROM {} LIMIT 0)
"""

# What partitions and views are made of is locked with them. To be told of locks takes longer than all the rest.
_ALL = """
SELECT c.oid::pg_catalog.regclass::text
FROM pg_catalog.pg_lock_status() AS held JOIN pg_catalog.pg_class AS c ON c.oid = held.relation
WHERE held.pid = pg_catalog.pg_backend_pid() AND held.locktype = 'relation' AND c.relkind IN ('r', 'm')
AND c.oid >= 16384 AND pg_catalog.pg_relation_filenode(c.oid) <> c.relfilenode
UNION ALL SELECT %(name)s::text
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid = %(name)s::pg_catalog.regclass)
UNION ALL (SELECT '' FROM {} LIMIT 0)
"""


def refuse_rewritten(session: Session, table: Table) -> None:
    """Raise SourceUnavailable if the open snapshot is older than *table*, or a part of it, as it stands.

    What a snapshot has once locked stays as it is until its end.
    """
    name = ".".join(map(quoted, table.path))
    is_one = table.kind == "table" and not table.has_parts
    sql = (_TABLE if is_one else _ALL).format(name.replace("%", "%%"))
    found = session.rows(sql, {"name": name}, table=table.name)
    if found:
        raise SourceUnavailable(
            f'table "{table.name}": {found[0][0]} was written anew (by TRUNCATE, ALTER TABLE, VACUUM FULL, or under '
            "another one's name) since this view of the server was taken, which cannot see what is in it; a newer view "
            "does"
        )
