"""A mirror as a table of one of Spark's catalogs (Iceberg, Delta, or any other that can MERGE), written through Spark.

The rows that the table holds of a batch's keys are asked for, what becomes of them is decided here as for any mirror,
and one `mergeInto`, or one append where none of them is there, makes it so. No catalog has a word for "and this offset"
in the same commit, so the rows have it: `_commit_version` is the offset of the change as of which a row is as it is. A
change that is not above its key's is one that the table has. What leaves no row behind, or changes none, does so again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar import faults, feed
from sidecar.errors import SettingsError, SinkError
from sidecar.mirrors.delta_columns import COLUMNS, Known
from sidecar.mirrors.delta_types import evolved, plain, storable
from sidecar.mirrors.folding import NEVER, TIME, After, Changes, Held
from sidecar.mirrors.mirror_table import Owner, Reached, refuse_another
from sidecar.mirrors.newest import Integers
from sidecar.mirrors.witness import Witness
from sidecar.polls.evolution import conformed
from sidecar.settings.mirrored import identifier, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ACTION = "_sidecar_action"
PUT, ADD, DROP = "put", "add", "drop"
"""What a row of the merge's source does: it replaces the row of its key, comes beside it, or removes it."""

Actions: TypeAlias = npt.NDArray[np.str_]

_CHANGES, _TABLE, _KEYS = "_sidecar_changes", "_sidecar_table", "_sidecar_keys"

_CANNOT_PLAN = "Error occurred during query planning"


@dataclass(frozen=True, slots=True)
class Catalog:
    """Where a sink's tables are: `table`, of which "{table}" is filled in; as `format`, or as the catalog wants."""

    table: str
    format: str | None
    session: Callable[[], SparkSession]


class CatalogMirror:
    """One table of a catalog that one sink keeps, under its quoted name `place`. Used by one thread.

    *options* are properties of a table that is made; *witness*: a row that must be there.
    """

    def __init__(
        self, catalog: Catalog, options: Mapping[str, str], owner: Owner, where: str, witness: Witness | None = None
    ) -> None:
        self.place, self.owner, self.where = identifier(catalog.table, owner.table), owner, where
        self._spark, self._format, self._options = catalog.session(), catalog.format, dict(options)
        self._is_open = False
        self._witness = witness

    @property
    def what(self) -> str:
        return f"table {self.place}"

    def exists(self) -> bool:
        """Return whether there is such a table; SinkError if the session has no such catalog, or it cannot say."""
        if self._is_open:
            return True
        try:
            return self._spark.catalog.tableExists(self.place)
        except _failures() as error:
            raise SinkError(
                f"{self.where}: the {self.what} cannot be looked for: {feed.reason(error)}. The session must have the "
                'catalog that its name begins with ([spark] "spark.sql.catalog.…")'
            ) from error

    def open(self, schema: pa.Schema, begins: int) -> None:
        """Open the table, or make it, of the columns *schema*; SinkError if it is not ours.

        SettingsError if its catalog cannot MERGE. *begins* is the sink's affair: rows know their offsets.
        """
        del begins
        if self._is_open:
            return
        if self.exists():
            refuse_another(self._properties(), self.owner, self.what, self.where, "table")
            self._must_merge()
        else:
            self._create(schema)
            try:
                self._must_merge()
            except SettingsError:
                self._spark.sql(f"DROP TABLE {self.place}")
                raise
            faults.point("mirror-created")
        self._is_open = True

    def applied(self, acknowledged: int) -> int:
        """Return *acknowledged*: of what came after it, the rows tell."""
        return acknowledged

    def newest(self, acknowledged: int, version: str) -> int:
        """Return the greatest offset that a row has."""
        (found,) = self._spark.table(self.place).selectExpr(f"max({quoted(version)})").first() or (None,)
        return acknowledged if found is None else max(acknowledged, int(found))

    def committed(self) -> int | None:
        """Return None: rows have offsets, not times."""
        return None

    def schema(self) -> pa.Schema:
        """Return the table's columns."""
        from pyspark.sql.pandas.types import to_arrow_schema

        found = to_arrow_schema(self._spark.table(self.place).schema, timezone="UTC")
        return pa.schema([pa.field(f.name, plain(f.type)) for f in found])

    def _properties(self) -> dict[str, str]:
        return {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {self.place}").collect()}

    def _create(self, schema: pa.Schema) -> None:
        empty = self._spark.createDataFrame([], feed.spark_schema(storable(schema, self.where)))
        writer = empty.writeTo(self.place)
        if self._format is not None:
            writer = writer.using(self._format)
        for name, value in (self._options | self.owner.properties).items():
            writer = writer.tableProperty(name, value)
        writer.create()

    def _must_merge(self) -> None:
        """Raise SettingsError if Spark has no plan for a MERGE into the table, which no other way of asking tells."""
        nothing = f"SELECT * FROM {self.place} WHERE false"
        merge = f"MERGE INTO {self.place} AS t USING ({nothing}) AS s ON false WHEN MATCHED THEN DELETE"
        try:
            plan = "\n".join(row[0] for row in self._spark.sql(f"EXPLAIN {merge}").collect())
        except _failures() as error:
            plan = f"{_CANNOT_PLAN}: {feed.reason(error)}"
        if not plan.startswith(_CANNOT_PLAN):
            return
        said = plan.removeprefix(_CANNOT_PLAN).strip(": \n").splitlines()
        raise SettingsError(
            f"{self.where}: Spark cannot MERGE into the {self.what} ({said[0].rstrip('.') if said else 'no reason'}). "
            'Name a catalog of tables that can be merged into ([spark] "spark.sql.catalog.…": Iceberg or Delta), and '
            'their "format"; or give the sink a "path" instead of "table": a Delta table there needs no catalog'
        )

    # -- a batch -------------------------------------------------------------------------------------------------------

    def apply(self, changes: Changes, rule: Callable[[Changes, Held], After], through: Reached, *, whole: bool) -> None:
        """Make of the rows that *changes* touch what *rule* says, as far as the table does not have it."""
        del through
        schema = self.schema()
        held, versions = self._find(changes, schema, whole=whole)
        changes = changes.above(versions)
        wanted = np.isin(held.codes, changes.codes)
        rows = None if held.rows is None else held.rows.filter(pa.array(wanted))
        held = Held(held.codes[wanted], rows, held.ended)
        self._commit(changes, held, rule(changes, held), schema)

    def load(self, pieces: Iterable[Changes], rule: Callable[[Changes, Held], After], through: Reached) -> None:
        """Do the same, a piece after the other, each in a commit: one that is there already is passed over."""
        for changes in pieces:
            if len(changes):
                self.apply(changes, rule, through, whole=True)

    def _find(self, changes: Changes, schema: pa.Schema, *, whole: bool) -> tuple[Held, Integers]:
        """Return the rows that the table holds of the changes' keys, and each key's greatest offset, by its number.

        Of a history, the rows are the current ones; those that are over tell offsets and times.
        """
        named, key = changes.named, changes.keys.columns
        ends = [named.valid_to] if self.owner.kind == "history" else []
        asked = [*key, named.version, *ends]
        columns = [f"{_TABLE}.{quoted(name)}" for name in asked]
        for name in schema.names if whole else ():
            if name not in asked:
                column = f"{_TABLE}.{quoted(name)}"
                over = f"{_TABLE}.{quoted(ends[0])} IS NOT NULL" if ends else "false"
                columns.append(f"IF({over}, NULL, {column}) AS {quoted(name)}")
        found = self._of_keys(changes).selectExpr(*columns).toArrow()
        found = conformed(found, pa.schema([schema.field(name) for name in found.column_names]))
        if self._witness is not None:
            self._witness.check(found, key, named.version, f"{self.where}: the {self.what}")
        codes = changes.keys.find(found)
        found, codes = found.filter(pa.array(codes >= 0)), codes[codes >= 0]
        versions, ended = (np.full(changes.keys.count, NEVER, dtype=np.int64) for _ in range(2))
        np.maximum.at(versions, codes, pc.fill_null(found.column(named.version), NEVER).to_numpy())
        is_over = np.zeros(len(found), bool)
        if ends:
            times = found.column(named.valid_to).cast(TIME).cast(pa.int64())
            np.maximum.at(ended, codes, pc.fill_null(times, NEVER).to_numpy())
            is_over = times.is_valid().to_numpy()
        rows = found.filter(pa.array(~is_over)) if whole else None
        return Held(codes[~is_over], rows, ended), versions

    def _of_keys(self, changes: Changes) -> DataFrame:
        """Return the rows of the table that have a key of *changes*."""
        from pyspark.sql import functions

        key = changes.keys.columns
        # By names of their own: the key's may be ambiguous beside the table's.
        sought = changes.rows.select(key) if self._witness is None else self._witness.beside(changes.rows.select(key))
        keys = sought.rename_columns([f"k{n}" for n in range(len(key))])
        alike = [f"{_TABLE}.{quoted(name)} <=> {_KEYS}.k{n}" for n, name in enumerate(key)]
        condition = " AND ".join((*alike, *_bounds(sought, _TABLE)))
        table = self._spark.table(self.place).alias(_TABLE)
        few = functions.broadcast(self._frame(keys).distinct()).alias(_KEYS)
        return table.join(few, functions.expr(condition), "left_semi")

    def _commit(self, changes: Changes, held: Held, after: After, schema: pa.Schema) -> None:
        """Put *after* in place of the rows that are gone by it, in one commit, if it changes anything."""
        actions, dropped = _actions(held, after)
        rows = after.rows.append_column(changes.named.version, pa.array(after.versions))
        places = np.full(changes.keys.count, 0, dtype=np.int64)
        places[changes.codes] = np.arange(len(changes))
        keys = changes.rows.select(changes.keys.columns).take(pa.array(places[dropped]))
        rows = pa.concat_tables([conformed(rows, schema), conformed(keys, schema)])
        if not len(rows):
            return
        if self._witness is not None:
            self._witness.forget(changes.keys)
        faults.point("mirror-written")
        if (actions == ADD).all() and not len(dropped):
            self._frame(rows).writeTo(self.place).append()
        else:
            self._merge(rows, np.concatenate([actions, np.full(len(dropped), DROP)]), changes)
        faults.point("mirror-committed")
        if self._witness is not None and len(after.versions):
            newest = int(np.argmax(after.versions))
            key = after.rows.select(changes.keys.columns).slice(newest, 1)
            self._witness.remember(key.combine_chunks(), int(after.versions[newest]))

    def _merge(self, rows: pa.Table, actions: Actions, changes: Changes) -> None:
        from pyspark.sql.functions import expr

        key, action = changes.keys.columns, f"{_CHANGES}.{ACTION}"
        # The table goes by the last part of its name.
        target = self.place[self.place.rindex(".`") + 1 :] if ".`" in self.place else self.place
        on = [f"{target}.{quoted(name)} <=> {_CHANGES}.{quoted(name)}" for name in key]
        replacing = rows.filter(pa.array((actions != ADD).tolist(), pa.bool_())).select(key)
        on += [f"{action} <> '{ADD}'", *_bounds(replacing, target)]
        if self.owner.kind == "history":
            on.append(f"{target}.{quoted(changes.named.valid_to)} IS NULL")
        source = self._frame(rows.append_column(ACTION, pa.array(actions.tolist(), pa.string()))).alias(_CHANGES)
        merge = source.mergeInto(self.place, expr(" AND ".join(on)))
        merge = merge.whenMatched(expr(f"{action} = '{DROP}'")).delete().whenMatched().updateAll()
        merge.whenNotMatched(expr(f"{action} <> '{DROP}'")).insertAll().merge()

    def _frame(self, rows: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(rows, feed.spark_schema(rows.schema))

    # -- columns -------------------------------------------------------------------------------------------------------

    def evolve(self, schema: pa.Schema, own: Sequence[str]) -> None:
        """Make the table able to hold rows of *schema*; *own* of its columns are Sidecar's. SinkError if it cannot be.

        A type grows as far as the catalog lets it.
        """
        before = self.schema()
        after = evolved(before, storable(schema, self.where), own, self.where)
        for field in after.schema if after.is_wider else ():
            if field.name in before.names and before.field(field.name).type != field.type:
                self._widen(before.field(field.name), field)
        if after.added:
            columns = feed.spark_schema(pa.schema(after.added)).toDDL()
            self._spark.sql(f"ALTER TABLE {self.place} ADD COLUMNS ({columns})")
        if after.added or after.is_wider:
            faults.point("mirror-evolved")

    def _widen(self, before: pa.Field, after: pa.Field) -> None:
        type_ = feed.spark_schema(pa.schema([after]))[0].dataType.simpleString()
        try:
            self._spark.sql(f"ALTER TABLE {self.place} ALTER COLUMN {quoted(after.name)} TYPE {type_}")
        except _failures() as error:
            raise SinkError(
                f'{self.where}: column "{after.name}" was {before.type} and is {after.type} now, and the catalog of '
                f"the {self.what} does not widen it: {feed.reason(error)}. Have it widened there; or give the sink "
                "another name and table, which are loaded anew"
            ) from error

    def renew(self, columns: Iterable[str], over: str | None) -> None:
        """Take notice that the log has *columns* by now; one that had gone and is back becomes NULL in the rows held,
        but for those with a value in the column *over*.
        """
        before = Known.load(self._properties().get(COLUMNS))
        after, again = before.after(columns)
        if after == before:
            return
        if gone := sorted(again & set(self.schema().names)):
            nulls = ", ".join(f"{quoted(name)} = NULL" for name in gone)
            rest = "" if over is None else f" WHERE {quoted(over)} IS NULL"
            self._spark.sql(f"UPDATE {self.place} SET {nulls}{rest}")
        # The rows came first: without this notice they are emptied once more, and nothing has come in between.
        text = after.dump().replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(f"ALTER TABLE {self.place} SET TBLPROPERTIES ('{COLUMNS}' = '{text}')")
        faults.point("mirror-evolved")

    def maintain(self, keep: int) -> tuple[int, int]:
        """Do nothing: the upkeep is the catalog's."""
        del keep
        return 0, 0


def _failures() -> tuple[type[Exception], ...]:
    """Return what PySpark raises: its own exceptions, and the JVM's, where it knows none for them."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _actions(held: Held, after: After) -> tuple[Actions, Integers]:
    """Return what each row of *after* does, and the numbers of the keys whose rows are dropped.

    Where a row is gone, the first row of its key that comes takes its place; all others are added.
    """
    gone = held.codes[after.gone]
    first, places = np.unique(after.codes, return_index=True)
    actions = np.full(len(after.codes), ADD)
    actions[places[np.isin(first, gone)]] = PUT
    return actions, gone[~np.isin(gone, first)]


def _bounds(keys: pa.Table, of: str) -> Iterator[str]:
    """Yield what all rows of *keys* have in common, as conditions on the table *of*: it lets files be left out."""
    for name in keys.column_names:
        column = keys.column(name)
        if pa.types.is_integer(column.type) and len(column) and not column.null_count:
            ends = pc.min_max(column)
            yield f"{of}.{quoted(name)} BETWEEN {ends['min'].as_py()} AND {ends['max'].as_py()}"
