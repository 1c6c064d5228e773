"""Tables whose file is another one than before: written anew, or emptied.

TRUNCATE, and an ALTER TABLE that rewrites, leave nothing that an older snapshot could see: it finds the table empty, as
it never was. So it is with a table that has taken another one's name. A snapshot that waits for their lock is older
than they are; so once it has a lock of its own, on all that it reads, it is asked whether the files are still those
that its view of the catalog names.

And what TRUNCATE takes away, or a load after it brings under stamps from before, no poll meets. That is said.
"""

from __future__ import annotations

import logging
import shlex

from connectors.postgres_query import FAR
from connectors.postgres_session import Session
from connectors.postgres_view import View
from sidecar.errors import SourceUnavailable
from sidecar.model import Page, Table
from sidecar.sql import quoted

log = logging.getLogger("sidecar")

# Functions see the catalog as it is now, and a SELECT as it was. A table's row in the catalog is written again for few
# reasons but another file.
_ABOUT = """
coalesce(pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode, true), pg_catalog.concat(c.oid, '/', c.xmin),
coalesce(c.relfilenode <> c.oid AND pg_catalog.age(c.xmin) BETWEEN 0 AND pg_catalog.age(%(since)s::xid), false)
"""

# To be parsed, the SELECT of nothing takes the lock.
_TABLE = f"""
SELECT c.oid::pg_catalog.regclass::text, {_ABOUT} FROM pg_catalog.pg_class AS c
WHERE c.oid = %(name)s::pg_catalog.regclass AND (SELECT true FROM {{}} LIMIT 0) IS NULL
"""

# What partitions and views are made of is locked with them. To be told of locks takes longer than all the rest.
_ALL = f"""
SELECT c.oid::pg_catalog.regclass::text, {_ABOUT}
FROM pg_catalog.pg_lock_status() AS held JOIN pg_catalog.pg_class AS c ON c.oid = held.relation
WHERE held.pid = pg_catalog.pg_backend_pid() AND held.locktype = 'relation' AND c.relkind IN ('r', 'm')
AND c.oid >= 16384
UNION ALL SELECT %(name)s::text, true, '', false FROM pg_catalog.pg_class AS c
WHERE c.oid = %(name)s::pg_catalog.regclass AND (SELECT true FROM {{}} LIMIT 0) IS NULL
"""

# A table that is new has lost nothing.
_IS_TOLD = """
SELECT pg_catalog.has_table_privilege(made.attrelid, 'SELECT')
AND pg_catalog.age(made.xmin) NOT BETWEEN 0 AND pg_catalog.age(%s::xid)
FROM pg_catalog.pg_attribute AS made WHERE made.attrelid = %s::pg_catalog.regclass AND made.attnum = -1
"""

# A row from before says that the file was only put in order (VACUUM FULL). It stands among the first.
_HAS_OLDER = """
SELECT bool_or(pg_catalog.age(found.xmin) NOT BETWEEN 0 AND pg_catalog.age(%s::xid))
FROM (SELECT xmin FROM ONLY {} LIMIT 1000) AS found
"""


class Files:
    """What is asked of a table's files before its first row is read in a view."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._asked: dict[str, View] = {}
        self._told: set[tuple[str, str]] = set()

    def look(self, page: Page, view: View) -> None:
        """Raise SourceUnavailable if *view* is older than *page*'s table, or a part of it, as it stands; and say which
        parts have lost the rows that the poll before had seen.

        What a view has once locked stays as it is until its end.
        """
        table = page.tracked.table
        if self._asked.get(table.name) is view:
            return
        name = ".".join(map(quoted, table.path))
        is_one = table.kind == "table" and not table.has_parts
        is_near = page.since is not None and 0 <= view.next - page.since < FAR
        since = page.since % 2**32 if is_near and page.since is not None else None
        found = self._session.rows(
            (_TABLE if is_one else _ALL).format(name.replace("%", "%%")),
            {"name": name, "since": None if since is None else str(since)},
            table=table.name,
        )
        unseen = [part for part, is_seen, _, _ in found if not is_seen]
        is_there = bool(found) if is_one else name in {part for part, _, _, _ in found}
        if unseen or not is_there:
            raise SourceUnavailable(
                f'table "{table.name}": {(*unseen, name)[0]} was written anew (by TRUNCATE, ALTER TABLE, VACUUM FULL; '
                "or another one has its name now) since this view of the server was taken, which cannot see what is in "
                "it; a newer view does"
            )
        for part, _, mark, is_anew in found:
            if is_anew and (table.name, mark) not in self._told and self._has_lost(table, part, str(since)):
                self._told.add((table.name, mark))
                log.warning(
                    'table "%s": %s was emptied (TRUNCATE), or written anew by an ALTER TABLE, since the last poll. '
                    "What it holds now is delivered if it is stamped above what polls have closed; for the rest of it, "
                    "and for deletes of what is gone: sidecar backfill %s --purge",
                    table.name, part, shlex.quote(table.name),
                )  # fmt: skip
        self._asked[table.name] = view

    def forget(self) -> None:
        """Let go of the view: it is over."""
        self._asked.clear()

    def _has_lost(self, table: Table, part: str, since: str) -> bool:
        """Return whether *part*, of which something was written anew, has lost all rows from before *since*."""
        told = self._session.rows(_IS_TOLD, (since, part), table=table.name)
        if not told or not told[0][0]:
            return False
        rows = self._session.rows(_HAS_OLDER.format(part.replace("%", "%%")), (since,), table=table.name)
        return not rows[0][0]
