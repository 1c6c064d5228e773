"""Keys that divide a table into parts of as many rows, whatever gaps and crowds its keys have.

Neither the greatest key nor the planner's statistics tell: the one knows nothing of gaps, the other of no composite key
and of no collation. A sample of the table's pages, ordered by the server itself, does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from connectors import postgres_literals as literals
from connectors import postgres_values as values_
from connectors.postgres_query import Statements, column
from connectors.postgres_read import Reader, Unparsed
from connectors.postgres_session import Session
from connectors.postgres_types import choice, wire
from sidecar import codec
from sidecar.model import ALL, Page, Position

_PAGES = 2000
_PAGES_A_PART = 50
"""Rows of a page have keys in common, or next to each other: it is pages that make a sample."""

# The pages of the table with its partitions and children; None where one of them cannot be sampled.
_SIZE = """
WITH RECURSIVE tree(oid) AS (
  SELECT %s::regclass::oid UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
SELECT CASE WHEN pg_catalog.bool_and(c.relkind IN ('r', 'p', 'm'))
    AND pg_catalog.bool_and(m.amname = 'heap') FILTER (WHERE c.relkind <> 'p')
  THEN (pg_catalog.sum(pg_catalog.pg_relation_size(c.oid)) FILTER (WHERE c.relkind <> 'p')
    / pg_catalog.current_setting('block_size')::int8)::int8 END
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam
"""


def split(session: Session, reader: Reader, page: Page, parts: int) -> Sequence[Position]:
    """Return the keys at which *page*'s pass divides into about *parts* parts of as many rows."""
    if parts < 2 or page.scope != ALL:
        return ()
    tracked = page.tracked
    with session.snapshot(tracked.name) as view:
        statements = Statements(page, view.xmax)
        pages = session.rows(_SIZE, (statements.source,), table=tracked.name)[0][0]
        if not pages:
            return ()
        wanted = max(_PAGES, _PAGES_A_PART * parts)
        sample = f"TABLESAMPLE SYSTEM ({100 * wanted / pages:.6f})" if pages > wanted else ""
        return _quantiles(reader, statements, sample, parts)


def _quantiles(reader: Reader, statements: Statements, sample: str, parts: int) -> Sequence[Position]:
    tracked = statements.tracked
    described = [column(tracked, name) for name in tracked.key]
    listed = ", ".join(f"{statements.name(c.name)} AS k{n}" for n, c in enumerate(described))
    order = ", ".join(f"k{n}" for n in range(len(described)))
    whole = [f"{statements.name(c.name)} IS NOT NULL" for c in described if c.nullable]
    where = " AND ".join([statements.condition(), *whole])
    wires = [
        wire(c, f"placed.k{n}", choice(tracked.wishes, c.name).infinity, careful=False) for n, c in enumerate(described)
    ]
    shown = ", ".join(f"{w.csv_expression or w.expression} AS c{n}" for n, w in enumerate(wires))
    select = (
        f"SELECT {shown} FROM (SELECT *, pg_catalog.row_number() OVER (ORDER BY {order}) AS place,"
        f" pg_catalog.count(*) OVER () AS total FROM"
        f" (SELECT {listed} FROM {statements.source} {sample} WHERE {where}) AS sampled) AS placed"
        f" WHERE place < total AND place * {parts} / total > (place - 1) * {parts} / total ORDER BY place"
    )
    try:
        raw = reader.copied(statements, select, wires)
        if any(literals.is_time(c.type) and literals.beyond(c) for c in raw.columns if len(raw)):
            return ()
        columns = [values_.final(c, w)[0] for c, w in zip(raw.columns, wires, strict=True)]
    except (Unparsed, values_.Misfit):
        # The read of the rows meets that key as well, and names it.
        return ()
    found = pa.table(columns, names=list(tracked.key))
    return list(dict.fromkeys(codec.rows(found, tracked.key)))
