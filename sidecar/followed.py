"""Settings held against the source: which of its tables are followed, to which sinks they go, and why others cannot be.

All of it happens before a row is read or anything is written, because a database may take a misspelt name for a text.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sidecar.config import Settings, TableSettings
from sidecar.connector import Finding
from sidecar.errors import SettingsError, SidecarError
from sidecar.model import Table, Tracked
from sidecar.settings import mirrored
from sidecar.settings.names import Names, matches, setting_apart
from sidecar.settings.words import did_you_mean, nearest, section
from sidecar.tracking import CASE_SENSITIVE, no_twins, track

if TYPE_CHECKING:
    from sidecar.connector import SourceConnector

_LIKE = 0.8
"""A typo leaves so much of a name; less of it is another name."""


def resolve(settings: Settings, connector: SourceConnector) -> list[Tracked]:
    """Return the tables to follow, in the file's order, then those that include/exclude add, by name.

    One SettingsError names everything that stands in the way, one problem a line.
    """
    tracked, broken = resolve_apart(settings, connector)
    if broken:
        raise together(broken)
    return tracked


def together(broken: Mapping[str, SettingsError]) -> SettingsError:
    """Return one error that says all of *broken*, one a line."""
    # What is wrong with the source is said of each table, and once is enough.
    return SettingsError("\n".join(dict.fromkeys(map(str, broken.values()))))


def resolve_apart(
    settings: Settings, connector: SourceConnector, known: Collection[str] = ()
) -> tuple[list[Tracked], dict[str, SettingsError]]:
    """Return the tables that can be followed, and by name why each of the others cannot be; *known* have been followed
    before.

    SettingsError if no table is asked for at all, or if only what concerns no single table is wrong.
    """
    broken: dict[str, SettingsError] = {}
    found: dict[str, tuple[Table, TableSettings]] = {}
    keys: dict[str, str] = {}
    for key, own in settings.tables.items():
        with setting_apart(broken, key):
            table = connector.describe(key)
            if table.name in found:
                first = f"[{section('tables', keys[table.name])}]"
                raise SettingsError(
                    f"[{section('tables', key)}] and {first} are the same table, {table.name}; keep one"
                )
            found[table.name], keys[table.name] = (table, own), key
    for name in _matched(settings, connector, {*known} - {*found}, broken):
        with setting_apart(broken, name):
            if name not in found:
                found[name] = (connector.describe(name), TableSettings())
    tracked: list[Tracked] = []
    for table, own in found.values():
        with setting_apart(broken, table.name):
            tracked.append(_followed(table, own, settings, connector))
    while orphans := _orphans(tracked, broken):
        tracked = [t for t in tracked if t.name not in orphans]
    if not broken and (problems := list(_unused(settings, [table for table, _ in found.values()]))):
        raise SettingsError("\n".join(problems))
    return tracked, broken


def _matched(
    settings: Settings, connector: SourceConnector, known: Collection[str], broken: dict[str, SettingsError]
) -> list[str]:
    """Return the source's tables that include and exclude let through; exclude alone means: all but these.

    *known* ones that are not there any more, and patterns that match none, go to *broken*.
    """
    include, exclude = settings.source.include, settings.source.exclude
    if include is None and not exclude:
        if not settings.tables:
            raise SettingsError(
                f"{settings.path}: no tables to follow: neither a [tables.NAME] section nor [source] include; "
                "`sidecar init URL` looks at the database and writes both for it"
            )
        return []
    names = sorted(connector.tables())
    for pattern in include or ():
        if not any(matches(name, pattern) for name in (*names, *known)):
            hint = did_you_mean(pattern, names)
            broken[pattern] = SettingsError(f'[source] include: no table matches "{pattern}"{hint}')

    def is_let_in(name: str) -> bool:
        asked = include is None or any(matches(name, pattern) for pattern in include)
        return asked and not any(matches(name, pattern) for pattern in exclude)

    for name in filter(is_let_in, sorted(set(known) - {*names} - settings.tables.keys())):
        broken[name] = SettingsError(
            f'table "{name}": it has been followed, and is not in the source any more: dropped, renamed, or closed to '
            f'this role. What its log holds stays. If that is meant: [source] exclude = ["{name}"]'
        )
    found = [name for name in names if is_let_in(name)]
    if names and not (found or broken or settings.tables):
        raise SettingsError(
            f"{settings.path}: [source] include and exclude leave none of the {len(names)} tables to be followed"
        )
    return found


def doubts(settings: Settings, connector: SourceConnector) -> Iterator[Finding]:
    """Yield what is to be said of what exclude names, and does not leave out."""
    names: list[str] = []
    with contextlib.suppress(SidecarError):  # whoever reads the source meets it as well
        names += sorted(connector.tables()) if settings.source.exclude else ()
    for pattern in settings.source.exclude:
        for key in settings.tables:
            if matches(key, pattern):
                yield Finding(
                    "warning",
                    "source",
                    f'[source] exclude: "{pattern}" leaves "{key}" out, and [{section("tables", key)}] has it followed '
                    "all the same: take the section away, or the name",
                )
        near = None if any(matches(name, pattern) for name in names) else nearest(pattern, names, like=_LIKE)
        if near is not None:
            yield Finding(
                "warning",
                "source",
                f'[source] exclude: no table matches "{pattern}"; did you mean "{near}"? That one is not left out',
            )


def _followed(table: Table, own: TableSettings, settings: Settings, connector: SourceConnector) -> Tracked:
    """Return how *table* is followed, and to which sinks it goes; SettingsError where it cannot be."""
    known = _with_sinks(track(table, own, settings.defaults, connector.typed), own, settings)
    if known.sinks and settings.spark.conf.get(CASE_SENSITIVE) != "true":
        no_twins(known)
    for name in known.sinks:
        if settings.sinks[name].mode == "mirror":
            mirrored.check(known, name, settings.sinks[name].kind)
    return known


def _with_sinks(tracked: Tracked, own: TableSettings, settings: Settings) -> Tracked:
    asked = own.sinks or settings.defaults.sinks
    sinks = tuple(
        name
        for name, sink in settings.sinks.items()
        if (asked is None or name in asked)
        and (sink.tables is None or any(matches(tracked.name, pattern) for pattern in sink.tables))
    )
    return dataclasses.replace(tracked, sinks=sinks)


def _check_parents(child: Tracked, tables: Sequence[Tracked]) -> None:
    """Raise SettingsError unless each parent is followed, and delivers the columns that are compared."""
    for refresh in child.refresh_on:
        where = f'table "{child.name}": refresh_on: table "{refresh.parent}"'
        parent = next((t for t in tables if t.name == refresh.parent), None)
        if parent is None:
            hint = did_you_mean(refresh.parent, [t.name for t in tables])
            raise SettingsError(f"{where} is not followed{hint}; add [{section('tables', refresh.parent)}]")
        delivered = [c.name for c in parent.columns]
        for _, theirs in refresh.on:
            if theirs not in delivered:
                raise SettingsError(f'{where} delivers no column "{theirs}"{did_you_mean(theirs, delivered)}')


def _orphans(tracked: Sequence[Tracked], broken: dict[str, SettingsError]) -> set[str]:
    """Return those whose parents are not followed, or not enough of them; why goes to *broken*."""
    found = set()
    for known in tracked:
        try:
            _check_parents(known, tracked)
        except SettingsError as error:
            broken[known.name] = error
            found.add(known.name)
    return found


def _unused(settings: Settings, tables: Sequence[Table]) -> Iterator[str]:
    """Yield what was written for tables, but meets none: a misspelt name, most likely."""
    names = [table.name for table in tables]
    for sink, at in settings.sinks.items():
        for pattern in at.tables or ():
            if not any(matches(name, pattern) for name in names):
                where = f"[{section('sinks', sink)}] tables"
                yield f'{where}: "{pattern}" is none of the tables followed{did_you_mean(pattern, names)}'
    for setting in ("created_at", "deleted_at"):
        name = getattr(settings.defaults, setting)
        if name and tables and not any(Names(table).get(name) for table in tables):
            columns = sorted({c.name for table in tables for c in table.columns})
            yield f'[defaults] {setting}: no table has a column "{name}"{did_you_mean(name, columns)}'
