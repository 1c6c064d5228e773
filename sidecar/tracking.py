"""Settings held against one of the source's tables: how it is followed, with every name and default resolved.

All of it happens before a row is read or anything is written, because a database may take a misspelt name for a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sidecar import cursor
from sidecar.config import Defaults, TableSettings
from sidecar.errors import SettingsError
from sidecar.log.arrow_types import unheld
from sidecar.model import METADATA, Column, Refresh, Table, Tracked, Wishes
from sidecar.settings.names import Names, collecting
from sidecar.settings.words import listed, section

_AS_SAID = (
    *("deleted_when", "not_deleted", "timezone", "lookback", "max_hold", "page_size"),
    *("schema_change", "backfill_added", "on_bad_value"),
    *("auto_backfill", "backfill_version", "consistent"),
)
CASE_SENSITIVE = "spark.sql.caseSensitive"


def track(
    table: Table, own: TableSettings, defaults: Defaults, typed: Callable[[Table, Wishes], Table] | None = None
) -> Tracked:
    """Return how *table* is followed; SettingsError names a column that is not there, and the nearest ones.

    *typed* gives its columns the types that the settings ask for (`SourceConnector.typed`).
    """
    names = Names(table)
    problems: list[str] = []
    merged = _merged(own, defaults)
    key: tuple[str, ...] = ()
    updated_at, created_at, deleted_at = "", None, None
    delivered: tuple[Column, ...] = table.columns
    with collecting(problems):
        key = _key(names, merged.get("primary_key"))
    with collecting(problems):
        updated_at = _updated_at(names, merged.get("updated_at"))
    with collecting(problems):
        created_at = _optional(names, "created_at", own, defaults)
    with collecting(problems):
        deleted_at = _deleted_at(names, own, defaults)
    with collecting(problems):
        delivered = _delivered(names, merged.get("columns"), key)
    with collecting(problems):
        _no_clash(table, delivered, defaults.metadata_prefix)
    wishes = Wishes()
    with collecting(problems):
        wishes = _wishes(names, own, defaults, key, tuple(c for c in (updated_at, created_at, deleted_at) if c))
        if typed is not None:
            table = typed(table, wishes)
        delivered = tuple(c for c in table.columns if c.name in {d.name for d in delivered})
        _no_nested(table, key)
        _all_held(table, delivered)
    refresh_on: tuple[Refresh, ...] = ()
    with collecting(problems):
        refresh_on = tuple(
            Refresh(r.table, tuple((names.must(own, "refresh_on"), theirs) for own, theirs in r.on.items()))
            for r in own.refresh_on or ()
        )
    unit = None
    with collecting(problems):
        unit = _unit(names, updated_at, own, merged) if updated_at else None
    if problems:
        raise SettingsError("\n".join(problems))
    return Tracked(
        table=table,
        key=key,
        updated_at=updated_at,
        created_at=created_at,
        deleted_at=deleted_at,
        columns=delivered,
        unit=unit,
        key_is_unique=table.key_holds and bool(table.primary_key) and set(table.primary_key) <= set(key),
        metadata_prefix=defaults.metadata_prefix,
        tolerance=merged.get("created_at_tolerance", 0),
        wishes=wishes,
        refresh_on=refresh_on,
        # Who says how much is read at once means it.
        chunk_size=merged.get("chunk_size", merged.get("page_size")),
        **{k: merged[k] for k in _AS_SAID if k in merged},
    )


def stamps(table: Table) -> list[str]:
    """Return the columns of *table* that could be its updated_at, the likeliest first."""
    likely = ("updat", "modif", "chang", "mtime", "touch", "version")
    found = [c.name for c in table.columns if _is_time(c.arrow) or any(w in c.name.lower() for w in likely)]
    able = [name for name in found if _can_be_cursor(table, name)]
    return sorted(able, key=lambda name: not any(w in name.lower() for w in likely))


def _merged(own: TableSettings, defaults: Defaults) -> dict[str, Any]:
    said = {name: getattr(own, name) for name in own.model_fields_set}
    general = {name: getattr(defaults, name) for name in defaults.model_fields_set}
    return {**general, **said}


def _key(names: Names, asked: Sequence[str] | None) -> tuple[str, ...]:
    if asked is not None:
        return tuple(names.must(name, "primary_key") for name in asked)
    if not names.table.primary_key:
        kind = "a view has no primary key" if names.table.kind == "view" else "it has no primary key"
        example = f'[{section("tables", names.table.name)}] primary_key = ["…"]'
        raise SettingsError(f"{names.where} {kind}; name the columns that are unique together: {example}")
    return names.table.primary_key


def _updated_at(names: Names, asked: str | None) -> str:
    found = names.get("updated_at") if asked is None else names.must(asked, "updated_at")
    if found is None:
        able = stamps(names.table)
        hint = f"candidates are {listed(able)}" if able else "none of its columns looks like one"
        raise SettingsError(
            f'{names.where} there is no column "updated_at" to poll by; {hint}. Name the column that moves forward on '
            f'every write, [{section("tables", names.table.name)}] updated_at = "…", or exclude the table'
        )
    names.kind(found, "updated_at")
    return found


def _optional(names: Names, setting: str, own: TableSettings, defaults: Defaults) -> str | None:
    """Return a column that need not be there, unless the table's own settings name it."""
    asked = getattr(own, setting)
    if asked is False:
        return None
    if asked is not None:
        found = names.must(asked, setting)
        names.kind(found, setting)
        return found
    general = getattr(defaults, setting)
    known = None if general is False else names.get(general or setting)
    return known if known is not None and _can_be_cursor(names.table, known) else None


def _deleted_at(names: Names, own: TableSettings, defaults: Defaults) -> str | None:
    found = _optional(names, "deleted_at", own, defaults)
    usual = names.get(defaults.deleted_at or "deleted_at")
    is_said = own.deleted_at is not None or defaults.deleted_at is False or own.deleted_when or defaults.deleted_when
    if found is None and not is_said and usual is not None:
        column = names.table.column(usual)
        assert column is not None
        # Left out without a word, it would turn soft deletes into updates.
        raise SettingsError(
            f'{names.where} "{usual}" says which rows are deleted, but a column of type {column.type or column.arrow} '
            f'holds no time of it; write deleted_when = "{usual}" (a condition), or deleted_at = false'
        )
    return found


def _unit(names: Names, updated_at: str, own: TableSettings, merged: Mapping[str, Any]) -> Any:
    is_number = names.kind(updated_at, "updated_at") in ("number", "real")
    if own.updated_at_unit is not None and not is_number:
        column = names.table.column(updated_at)
        assert column is not None
        raise SettingsError(
            f'{names.where} updated_at_unit = "{own.updated_at_unit}" is for numbers that count time, '
            f'and "{updated_at}" is of type {column.type or column.arrow}; leave it out'
        )
    return merged.get("updated_at_unit") if is_number else None


def _delivered(names: Names, asked: Sequence[str] | None, key: Sequence[str]) -> tuple[Column, ...]:
    if asked is None:
        return names.table.columns
    # Without its key a change says nothing about any row.
    wanted = {names.must(name, "columns") for name in asked} | set(key)
    return tuple(c for c in names.table.columns if c.name in wanted)


_FORMS = {"numeric": "numeric", "infinity": "infinity", "arrays": "arrays", "json": "json_"}


def _wishes(
    names: Names, own: TableSettings, defaults: Defaults, key: tuple[str, ...], cursors: tuple[str, ...]
) -> Wishes:
    general: dict[str, str] = {}
    named: dict[str, Mapping[str, str]] = {}
    for setting, attribute in _FORMS.items():
        said, usual = getattr(own, attribute), getattr(defaults, attribute)
        if isinstance(said, Mapping):
            named[setting] = {names.must(name, setting): form for name, form in said.items()}
            said = None
        if (said or usual) is not None:
            general[setting] = said or usual
    return Wishes(general, named, cursors, key)


def _no_nested(table: Table, key: Sequence[str]) -> None:
    for name in key:
        column = table.column(name)
        if column is not None and pa.types.is_nested(column.arrow):
            raise SettingsError(
                f'table "{table.name}": key column "{name}" is {column.type}, which has no order that a poll could go '
                "by; choose a primary_key of plain columns"
            )


def _all_held(table: Table, delivered: Iterable[Column]) -> None:
    for column in delivered:
        for type_, instead in unheld(column.arrow):
            hint = "" if instead is None else f", {instead}"
            raise SettingsError(
                f'table "{table.name}": column "{column.name}" is {column.arrow}, and the log holds no {type_}. Let '
                f"its connector give it in another type{hint}; or leave the column out (columns = …)"
            )


def _no_clash(table: Table, delivered: Iterable[Column], prefix: str) -> None:
    ours = {(prefix + name).casefold(): prefix + name for name in METADATA}
    for column in delivered:
        if column.name.casefold() in ours:
            raise SettingsError(
                f'table "{table.name}": its column "{column.name}" and the metadata column '
                f'"{ours[column.name.casefold()]}" are one name; choose another metadata_prefix under [defaults]'
            )


def twins(columns: Iterable[Any]) -> tuple[str, str] | None:
    """Return two names that differ only in case, which Spark takes for one unless told otherwise."""
    seen: dict[str, str] = {}
    for column in columns:
        first = seen.setdefault(column.name.casefold(), column.name)
        if first != column.name:
            return first, column.name
    return None


def _structs(type_: Any) -> Iterator[Any]:
    """Yield the structs in a type, as their fields."""
    fields = [type_.field(n) for n in range(type_.num_fields)]
    if pa.types.is_struct(type_):
        yield fields
    for field in fields:
        yield from _structs(field.type)


def no_twins(tracked: Tracked) -> None:
    """Raise SettingsError if Spark would take two of the columns for one."""
    # Said before anything is read: a sink would find out only once the watermark has moved.
    nested = (twins(struct) for column in tracked.columns for struct in _structs(column.arrow))
    found = twins(tracked.columns) or next(filter(None, nested), None)
    if found is not None:
        raise SettingsError(
            f'table "{tracked.name}": columns "{found[0]}" and "{found[1]}" differ only in case, and Spark, '
            f'which writes the sinks, takes them for one; set "{CASE_SENSITIVE}" = true under [spark], or leave one '
            f"out ([{section('tables', tracked.name)}] columns = …)"
        )


def _can_be_cursor(table: Table, name: str) -> bool:
    column = table.column(name)
    assert column is not None
    try:
        cursor.kind(column.arrow, name)
    except SettingsError:
        return False
    return True


def _is_time(type_: Any) -> bool:
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))
