"""What PostgreSQL's catalog says: which tables there are for this role, and what one of them is."""

from __future__ import annotations

import dataclasses
import difflib
import re

from connectors.postgres_session import Rows, Session
from connectors.postgres_types import Choice, Kind, arrow_type
from sidecar.errors import SettingsError, counted
from sidecar.model import Column, Table
from sidecar.sql import quoted

# Partitions are read through their parent. What an extension made for itself is no table of the user's.
_TABLES = """
SELECT n.nspname::text, c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT')
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
    WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname <> 'public', 1, 2
"""

# A row has a version (xmin) that means something where a heap of this server holds it, in each partition too; the role
# may see it if it may read the table as a whole. A materialized view's rows get a new one at every refresh, changed or
# not: their content tells them apart better.
#
# A parent's key says nothing about what inherits from it, partitions apart.
_FIND = """
SELECT c.oid, n.nspname::text, c.relname::text,
  c.relkind IN ('r', 'p') AND pg_catalog.has_column_privilege(c.oid, 'xmin', 'SELECT') AND NOT EXISTS (
    WITH RECURSIVE tree(oid) AS (
      SELECT c.oid UNION SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
    SELECT FROM tree JOIN pg_catalog.pg_class x ON x.oid = tree.oid LEFT JOIN pg_catalog.pg_am m ON m.oid = x.relam
    WHERE x.relkind = 'f' OR x.relkind = 'r' AND m.amname <> 'heap'),
  pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT'),
  c.relkind IN ('r', 'p'),
  c.relkind = 'p' OR NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
  c.relkind = 'p' OR c.relhassubclass
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND c.relname = %s AND {}
ORDER BY n.nspname <> 'public', pg_catalog.array_position(pg_catalog.current_schemas(false), n.nspname) LIMIT 1
"""
_IN_SCHEMA = "n.nspname = %s"
_ON_PATH = "(n.nspname = 'public' OR n.nspname = ANY (pg_catalog.current_schemas(false)))"

# A domain is what it is made of. A NOT NULL that is not validated says nothing about the rows there are.
_COLUMNS = """
SELECT a.attname::text, pg_catalog.format_type(t.oid, b.typmod), t.typname::text, tn.nspname = 'pg_catalog', b.typmod,
  a.attnotnull AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = a.attrelid
    AND k.contype = 'n' AND NOT k.convalidated AND k.conkey = ARRAY[a.attnum]),
  pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
  (SELECT k.place FROM pg_catalog.pg_index i, pg_catalog.unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
    WHERE i.indrelid = a.attrelid AND i.indisprimary AND k.attnum = a.attnum AND k.place <= i.indnkeyatts),
  t.typtype = 'c' OR t.typcategory = 'A' OR t.typname = 'hstore', a.atttypid, a.atttypmod, a.attndims, a.attnum, t.oid,
  t.typtype IN ('e', 'r', 'm') AND t.oid <> a.atttypid
FROM pg_catalog.pg_attribute a
CROSS JOIN LATERAL (
  WITH RECURSIVE base(oid, typmod, depth) AS (
    SELECT a.atttypid, a.atttypmod, 0
    UNION ALL
    SELECT d.typbasetype, d.typtypmod, depth + 1
    FROM base JOIN pg_catalog.pg_type d ON d.oid = base.oid WHERE d.typtype = 'd')
  SELECT oid, typmod FROM base ORDER BY depth DESC LIMIT 1) b
JOIN pg_catalog.pg_type t ON t.oid = b.oid JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""

# An extension's type may be in an order that `>` does not mean here: that operator has another name (hstore), or is in
# a schema off the search_path, and another type's stands in for it (text's for citext).
_UNORDERED = """
SELECT t.oid FROM pg_catalog.pg_type t WHERE t.oid = ANY (%s::oid[]) AND t.typtype = 'b' AND t.typcategory <> 'A'
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_opclass c
    JOIN pg_catalog.pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_catalog.pg_amop o ON o.amopfamily = c.opcfamily AND o.amopstrategy = 5
      AND o.amoplefttype = t.oid AND o.amoprighttype = t.oid
    JOIN pg_catalog.pg_operator p ON p.oid = o.amopopr
    WHERE c.opcdefault AND c.opcintype = t.oid AND p.oprname = '>' AND pg_catalog.pg_operator_is_visible(p.oid))
"""

# What the types of some columns are made of. A true array is the array type of its element: int2vector, point and name
# have elements, too. hstore is a name that anybody may use: only the extension's own type prints what it does.
_TYPES = """
WITH RECURSIVE part(type, name, oid, typmod, dims) AS (
  SELECT 0::oid, ''::text COLLATE "C", o, -1, 0 FROM pg_catalog.unnest(%s::oid[]) AS o
  UNION
  SELECT t.oid, made.name, made.oid, made.typmod, made.dims
  FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid CROSS JOIN LATERAL (
    SELECT 'element'::text COLLATE "C", e.oid, -1, 0
    FROM pg_catalog.pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid
    UNION ALL
    SELECT 'base', t.typbasetype, t.typtypmod, t.typndims WHERE t.typtype = 'd'
    UNION ALL
    SELECT (pg_catalog.lpad(a.attnum::text, 5) || a.attname) COLLATE "C", a.atttypid, a.atttypmod, a.attndims::int4
    FROM pg_catalog.pg_attribute a
    WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
  ) AS made(name, oid, typmod, dims))
SELECT part.type, part.name, part.oid, part.typmod, part.dims, t.typname::text, n.nspname = 'pg_catalog',
  t.typtype::text, t.typdelim::text, t.typname = 'hstore' AND EXISTS (SELECT FROM pg_catalog.pg_depend d
    JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid AND e.extname = 'hstore'
    WHERE d.classid = 'pg_catalog.pg_type'::pg_catalog.regclass AND d.objid = t.oid AND d.deptype = 'e'
      AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass)
FROM part JOIN pg_catalog.pg_type t ON t.oid = part.oid JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
ORDER BY 1, 2
"""


def tables(session: Session) -> list[str]:
    """Return the identities of all tables that the role may read something of."""
    return [identity(schema, name) for schema, name in session.rows(_TABLES)]


def identity(schema: str, name: str) -> str:
    """Return a table's one name: bare in schema public, else `schema.name`; parts that would mislead are quoted."""
    part = quoted(name) if set(name) & {".", '"'} else name
    if schema == "public":
        return part
    return (quoted(schema) if set(schema) & {".", '"'} else schema) + "." + part


_PART = re.compile(r'"((?:[^"]|"")*)"|([^."]+)')


def parts(name: str) -> tuple[str, ...]:
    """Return the parts of a table's name, unquoted; none if it cannot be read."""
    found: list[str] = []
    at = 0
    while match := _PART.match(name, at):
        found.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        at = match.end()
        if at == len(name):
            return tuple(found)
        if name[at] != ".":
            break
        at += 1
    return ()


def describe(session: Session, name: str) -> Table:
    """Return the table called *name*, exactly; a bare name means schema public, then the search path."""
    path = parts(name)
    found: Rows = ()
    if len(path) == 1:
        found = session.rows(_FIND.format(_ON_PATH), path, table=name)
    elif len(path) == 2:
        found = session.rows(_FIND.format(_IN_SCHEMA), (path[1], path[0]), table=name)
    if not found:
        raise SettingsError(_unknown(session, name))
    oid, schema, relation, versioned, readable, is_table, key_holds, has_parts = found[0]
    known = identity(schema, relation)
    if not readable:
        raise SettingsError(f'table "{known}": permission denied. {_grants(schema, relation)}')
    columns: list[Column] = []
    key: dict[int, str] = {}
    listed = session.rows(_COLUMNS, (oid,), table=known)
    made = _Types(session, {row[9] for row in listed if row[8]}, known)
    others = [row[13] for row in listed if not row[3]]
    unordered = {row[0] for row in session.rows(_UNORDERED, (others,), table=known)} if others else set()
    # A view is made again whenever it is changed, and shows the same rows.
    home = f"{session.server.identity.split('/')[0]}/{oid}" if is_table else ""
    for (
        column,
        type_,
        base,
        builtin,
        typmod,
        not_null,
        allowed,
        place,
        made_of,
        own,
        own_typmod,
        dims,
        at,
        of,
        hidden,
    ) in listed:
        if place is not None:
            key[place] = column
            if not allowed:
                raise SettingsError(
                    f'table "{known}": permission denied for column "{column}", a part of the primary key. '
                    f"GRANT SELECT ({quoted(column)}) ON {quoted(schema)}.{quoted(relation)} TO the role."
                )
        if allowed:
            kind = made.kind(own, own_typmod, dims) if made_of else Kind(base, builtin, typmod)
            if of in unordered or hidden:
                kind = dataclasses.replace(kind, ordered=of not in unordered, hidden=hidden)
            born = home and f"{home}/{at}"
            columns.append(Column(column, type_, arrow_type(kind, Choice()), not not_null, kind, born=born))
    primary_key = tuple(key[place] for place in sorted(key))
    path = (schema, relation)
    return Table(
        known, path, tuple(columns), primary_key, "table" if versioned else "view", key_holds, has_parts and versioned
    )


# A type that is made of others changes with them, however deep they lie; those below 16384 are the server's own, and
# never change. ANY, where a join would do: planned as a scan of all types, that takes five times as long.
_OUTLINE = """
WITH RECURSIVE own(oid) AS (SELECT %s::pg_catalog.regclass::oid), part(type) AS (
  SELECT atttypid FROM pg_catalog.pg_attribute WHERE attrelid = (SELECT oid FROM own) AND attnum > 0
  AND atttypid >= 16384
  UNION
  SELECT made.type FROM part JOIN pg_catalog.pg_type AS t ON t.oid = part.type CROSS JOIN LATERAL (
    VALUES (t.typelem), (t.typbasetype)
    UNION ALL
    SELECT atttypid FROM pg_catalog.pg_attribute WHERE t.typtype = 'c' AND attrelid = t.typrelid AND attnum > 0
  ) AS made(type) WHERE made.type >= 16384)
SELECT pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(
  '/', attrelid, attnum, attname, atttypid, atttypmod, attndims, attnotnull, attisdropped, attacl), ','
  ORDER BY attrelid, attnum) ||
  (SELECT relhassubclass::text FROM pg_catalog.pg_class WHERE oid = (SELECT oid FROM own)))
FROM pg_catalog.pg_attribute WHERE attnum > 0 AND attrelid IN (
  SELECT oid FROM own UNION
  SELECT typrelid FROM pg_catalog.pg_type WHERE oid = ANY (ARRAY(SELECT type FROM part)) AND typtype = 'c')
"""


def outline(session: Session, table: Table) -> str | None:
    """Return what changes whenever a column of *table* comes, goes, or becomes another: cheaper than to describe it."""
    found = session.rows(_OUTLINE, (".".join(map(quoted, table.path)),), table=table.name)
    return None if found[0][0] is None else str(found[0][0])


class _Types:
    """The types that some are made of, asked for only where there are any that are made of others."""

    def __init__(self, session: Session, wanted: set[int], table: str) -> None:
        rows = session.rows(_TYPES, (sorted(wanted),), table=table) if wanted else ()
        self._parts: dict[int, list[tuple[str, int, int, int]]] = {}
        self._about: dict[int, tuple[str, bool, str, str, bool]] = {}
        for type_, name, part, typmod, dims, *about in rows:
            self._parts.setdefault(type_, []).append((name, part, typmod, dims))
            self._about[part] = tuple(about)

    def kind(self, oid: int, typmod: int, dims: int) -> Kind:
        """Return what the type *oid* is, with the modifier and the number of dimensions that a column declares."""
        name, builtin, letter, delimiter, is_hstore = self._about[oid]
        parts = self._parts.get(oid, [])
        if letter == "d":
            _, base, base_typmod, base_dims = parts[0]
            return self.kind(base, base_typmod, dims or base_dims)
        if is_hstore:
            return Kind(name, builtin, shape="map")
        if letter == "c" and parts:
            fields = tuple((part[5:], self.kind(of, mod, deep)) for part, of, mod, deep in parts)
            return Kind(name, builtin, shape="record", parts=fields)
        if parts and parts[0][0] == "element":
            element = self.kind(parts[0][1], typmod, 0)
            delimiter = self._about[parts[0][1]][3]
            return Kind(name, builtin, typmod, "array", (("element", element),), max(1, dims), delimiter)
        return Kind(name, builtin, typmod)


def unreadable(session: Session, table: Table) -> list[str]:
    """Return the columns of *table* that the role may not read."""
    return [row[0] for row in session.rows(_COLUMNS, (_oid(session, table),), table=table.name) if not row[6]]


FILTERED = (
    "row-level security is on for this role: rows that no policy shows it are not delivered, without a word of it; one "
    "that is shown later, under an old stamp, is missed; and nothing is purged, for one that is hidden looks deleted",
    "To have all rows: ALTER ROLE … BYPASSRLS, or a policy FOR SELECT TO the role USING (true).",
)
"""What `is_filtered` means, and what to do about it."""


# Of the permissive policies that apply, one is enough; of the restrictive ones, each counts.
_FILTERED = """
WITH own(shows, permits) AS (
  SELECT pg_catalog.pg_get_expr(p.polqual, p.polrelid) = 'true', p.polpermissive FROM pg_catalog.pg_policy AS p
  WHERE p.polrelid = %(table)s::pg_catalog.regclass AND p.polcmd IN ('*', 'r') AND EXISTS (
    SELECT FROM pg_catalog.unnest(p.polroles) AS role WHERE role = 0 OR pg_catalog.pg_has_role(role, 'USAGE')))
SELECT pg_catalog.row_security_active(%(table)s::pg_catalog.regclass) AND (
  NOT EXISTS (SELECT FROM own WHERE permits AND shows)
  OR EXISTS (SELECT FROM own WHERE NOT permits AND shows IS NOT TRUE))
"""


def is_filtered(session: Session, table: Table) -> bool:
    """Return whether policies decide which rows of *table* the role is shown; `USING (true)` decides nothing."""
    name = ".".join(map(quoted, table.path))
    return bool(session.rows(_FILTERED, {"table": name}, table=table.name)[0][0])


def loosely_collated(session: Session, table: Table) -> dict[str, str]:
    """Return the columns of *table* under a collation that takes texts of other characters for equal, and that."""
    sql = (
        "SELECT a.attname::text, c.oid::pg_catalog.regcollation::text FROM pg_catalog.pg_attribute AS a"
        " JOIN pg_catalog.pg_collation AS c ON c.oid = a.attcollation"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT c.collisdeterministic"
    )
    return dict(session.rows(sql, (_oid(session, table),), table=table.name))


def is_subscribed(session: Session, table: Table) -> bool:
    """Return whether a subscription of logical replication fills *table*, or one of its partitions."""
    sql = (
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_subscription_rel WHERE srrelid = %s OR srrelid IN"
        " (SELECT relid FROM pg_catalog.pg_partition_tree(%s)))"
    )
    oid = _oid(session, table)
    return bool(session.rows(sql, (oid, oid), table=table.name)[0][0])


def kind(session: Session, table: Table) -> str:
    """Return the catalog's letter for what *table* is: r, p, v, m or f."""
    sql = "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = %s"
    return str(session.rows(sql, (_oid(session, table),), table=table.name)[0][0])


def size(session: Session, table: Table) -> int:
    """Return the bytes of *table*'s rows, partitions included."""
    sql = (
        "WITH RECURSIVE tree(oid) AS (SELECT %s::oid UNION"
        " SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)"
        " SELECT coalesce(sum(pg_catalog.pg_relation_size(oid)), 0)::int8 FROM tree"
    )
    return int(session.rows(sql, (_oid(session, table),), table=table.name)[0][0])


def own_setting(session: Session, name: str) -> bool:
    """Return whether the role has been given a value of its own for the setting *name*."""
    sql = (
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_db_role_setting AS s JOIN pg_catalog.pg_roles AS r"
        " ON r.oid = s.setrole, pg_catalog.unnest(s.setconfig) AS told WHERE r.rolname = session_user"
        " AND pg_catalog.split_part(told, '=', 1) = %s AND s.setdatabase IN (0,"
        " (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())))"
    )
    return bool(session.rows(sql, (name,))[0][0])


def _oid(session: Session, table: Table) -> int:
    schema, name = table.path
    found = session.rows(_FIND.format(_IN_SCHEMA), (name, schema), table=table.name)
    if not found:
        raise SettingsError(_unknown(session, table.name))
    return int(found[0][0])


def _unknown(session: Session, name: str) -> str:
    known = tables(session)
    folded = [k for k in known if parts(k)[-1].lower() == (parts(name) or (name,))[-1].lower()]
    nearest = dict.fromkeys([*folded, *difflib.get_close_matches(name, known, n=3, cutoff=0.5)])
    if nearest:
        return f'table "{name}": not found (names are exact, case included); nearest: {", ".join(nearest)}'
    return f'table "{name}": not found among the {counted(len(known), "table")} that the role may read'


def _grants(schema: str, name: str) -> str:
    return f"GRANT USAGE ON SCHEMA {quoted(schema)} and GRANT SELECT ON {quoted(schema)}.{quoted(name)} to the role."
