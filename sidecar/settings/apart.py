"""The tables that can be followed although others cannot be, and why these cannot: one that fails holds up no other."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from sidecar import tracking
from sidecar.config import Settings, TableSettings
from sidecar.errors import SettingsError
from sidecar.model import Tracked
from sidecar.settings.names import matches

if TYPE_CHECKING:
    from sidecar.connector import SourceConnector


def resolve_apart(
    settings: Settings, connector: SourceConnector, known: Collection[str]
) -> tuple[list[Tracked], dict[str, SettingsError]]:
    """Return the tables that can be followed, and why each of the others cannot be; *known* have been followed before.

    Errors as of `tracking.resolve` where it is no single table that is wrong, or none is left.
    """
    gone = dict(_gone(settings, connector, known))
    try:
        return tracking.resolve(_without(settings, gone, connector), connector), gone
    except SettingsError as error:
        broken = gone | dict(_broken(settings, connector))
        if broken.keys() == gone.keys():
            raise
        try:
            found = tracking.resolve(_without(settings, broken, connector), connector)
        except SettingsError:
            found = []
        if not found:
            raise error from None
        return found, broken


def _broken(settings: Settings, connector: SourceConnector) -> Iterator[tuple[str, SettingsError]]:
    """Yield the tables that cannot be followed as the settings say, or as they are where `include` lets them in."""
    said: set[str] = set()
    for key, own in settings.tables.items():
        try:
            table = connector.describe(key)
            said.add(table.name)
            tracking.track(table, own, settings.defaults, connector.typed)
        except SettingsError as error:
            yield key, error
    source = settings.source
    for name in sorted(connector.tables()) if source.include is not None or source.exclude else ():
        if name not in said and tracking.is_let_in(name, source):
            try:
                tracking.track(connector.describe(name), TableSettings(), settings.defaults, connector.typed)
            except SettingsError as error:
                yield name, error


def _gone(
    settings: Settings, connector: SourceConnector, known: Collection[str]
) -> Iterator[tuple[str, SettingsError]]:
    """Yield the *known* tables that `include` or `exclude` let in, and that the source has no more."""
    source = settings.source
    if source.include is None and not source.exclude:
        return
    there = set(connector.tables())
    for name in sorted(set(known) - there - settings.tables.keys()):
        if tracking.is_let_in(name, source):
            yield (
                name,
                SettingsError(
                    f'table "{name}": it has been followed, and is not in the source any more: dropped, renamed, or '
                    f'closed to this role. What its log holds stays. If that is meant: [source] exclude = ["{name}"]'
                ),
            )


def _without(settings: Settings, names: Collection[str], connector: SourceConnector) -> Settings:
    """Return *settings* without the tables *names*, in whatever way they came in."""
    if not names:
        return settings
    source, there = settings.source, connector.tables()
    include = source.include
    if include is not None:
        # A pattern that was for tables that are gone is not misspelt.
        include = tuple(
            p for p in include if any(matches(t, p) for t in there) or not any(matches(n, p) for n in names)
        )
    # By all names that they have: without its own section a table must not come in by a pattern, as another one.
    out = {*names, *(t for t in there for n in names if matches(t, n))}
    changed = source.model_copy(update={"include": include, "exclude": (*source.exclude, *sorted(out))})
    if source.include is None and not source.exclude:
        changed = source
    tables = {key: own for key, own in settings.tables.items() if key not in names}
    return settings.model_copy(update={"source": changed, "tables": tables})
