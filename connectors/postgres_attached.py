"""Tables that have become parts of a followed one, partitions or heirs, with rows that were written before.

A row's version says when it was written, not since when it is a part: of what is attached, versions say nothing. A
table that was made after the last view holds none from before it, nor does an empty one: the usual new partition costs
nothing. When a table was made is told by its system columns in the catalog, whose rows are never written again.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres_query import FAR
from connectors.postgres_session import Session
from connectors.postgres_view import View
from sidecar.model import Memory, Table
from sidecar.sql import quoted

_FOUND = """
WITH RECURSIVE tree(oid, since) AS (
  SELECT %s::pg_catalog.regclass::oid, NULL::xid UNION ALL
  SELECT i.inhrelid, i.xmin FROM tree JOIN pg_catalog.pg_inherits AS i ON i.inhparent = tree.oid)
SELECT DISTINCT pg_catalog.concat(tree.oid, '/', tree.since), tree.oid::pg_catalog.regclass::text
FROM tree JOIN pg_catalog.pg_class AS c ON c.oid = tree.oid
JOIN pg_catalog.pg_attribute AS made ON made.attrelid = tree.oid AND made.attnum = -1
WHERE pg_catalog.age(tree.since) BETWEEN 0 AND pg_catalog.age(%s::xid)
AND pg_catalog.age(made.xmin) NOT BETWEEN 0 AND pg_catalog.age(%s::xid)
AND (c.relkind = 'p' OR pg_catalog.pg_relation_size(c.oid) > 0) ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Attached:
    """How often such parts were found so far, those that the next look may find again, and in words what is new."""

    times: int = 0
    noted: Sequence[str] = ()
    said: str = ""


NOTHING = Attached()


def attached(session: Session, table: Table, view: View, memory: Memory) -> Attached:
    """Return what has become a part of *table* since the view that *memory* is of."""
    held: Any = memory or {}
    times, last = int(held.get("attached", 0)), held.get("xmin")
    if not table.has_parts or last is None or not 0 <= view.next - last < FAR:
        return Attached(times)
    name = ".".join(map(quoted, table.path))
    since = str(last % 2**32)
    found = session.rows(_FOUND, (name, since, since), table=table.name)
    fresh = {noted: part for noted, part in found if noted not in held.get("noted", ())}
    return Attached(times + bool(fresh), [noted for noted, _ in found], _said(table, fresh))


def _said(table: Table, parts: Mapping[str, str]) -> str:
    if not parts:
        return ""
    # By number: a name may have quotes of its own, which a shell would take away.
    oids = ", ".join(noted.partition("/")[0] for noted in parts)
    return (
        f"{', '.join(parts.values())} became a part of it, with rows that were written before. Those stamped above "
        "what polls have closed are read, and compared with the log; the others are delivered by: "
        f'sidecar backfill {shlex.quote(table.name)} --where "tableoid IN ({oids})"'
    )
