"""What a mirror asks of a table's settings, and of its own; all of it can be said before anything is read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

from sidecar.errors import SettingsError
from sidecar.log.files import filename
from sidecar.model import HISTORY, MARK, Tracked

KindName: TypeAlias = Literal["current", "marked", "history"]

_ELSEWHERE = re.compile(r"(?!file:)\w+://")
_MISTAKEN = re.compile(r"%[0-9A-Fa-f]{2}|[\\\x00-\x1f]")

_UPKEEP = ("compact_every", "vacuum_after")
_ITS_OWN = ("history", "on_delete", *_UPKEEP, "table")


def kind(*, history: bool, on_delete: str) -> KindName:
    """Return which kind of mirror these settings make."""
    if history:
        return "history"
    return "marked" if on_delete == "mark" else "current"


def contradiction(mode: str, format_: str, said: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a sink of these settings, of which those *said* stand in the file."""
    own = [name for name in _ITS_OWN if name in said]
    if mode != "mirror":
        return f'"{own[0]}" is for mode = "mirror"; a sink that appends has no use for it' if own else None
    if "table" in own:
        if "path" in said:
            return 'a mirror is a Delta table at a "path", or a "table" of one of Spark\'s catalogs; keep one of them'
        if upkeep := [name for name in _UPKEEP if name in own]:
            return f'"{upkeep[0]}" is for a mirror with a "path"; the upkeep of a "table" is its catalog\'s affair'
        if wrong := _template(said["table"], said.get("tables")):
            return wrong
    elif format_ != "delta":
        return f'mode = "mirror" keeps a Delta table: write format = "delta" (it is "{format_}")'
    if said.get("history") and said.get("on_delete") == "mark":
        return 'with "history", deleted rows stay anyway, with the time in _valid_to; leave "on_delete" out'
    return None


def shared_places(mirrors: Iterable[tuple[str, str | None, str | None, tuple[str, ...] | None]]) -> Iterator[str]:
    """Yield what is wrong where two of *mirrors* (section, path, table, tables) keep one table; None: all tables."""
    for (one, *ours, some), (other, *theirs, others) in itertools.combinations(mirrors, 2):
        if ours == theirs and (some is None or others is None or set(some) & set(others)):
            setting = "path" if theirs[1] is None else "table"
            yield f"[{other}] {setting}: [{one}] keeps its mirrors there; give this one another"


def own_names(kind: str, prefix: str) -> tuple[str, ...]:
    """Return the names of the columns that a mirror of *kind* has beside the source's."""
    names: dict[str, tuple[str, ...]] = {"history": HISTORY, "marked": MARK}
    return tuple(prefix + name for name in names.get(kind, ()))


def place(path: str, table: str) -> str:
    """Return where the mirror of *table* is, of a sink with this *path*: as any sink's folder, but `~20` for a blank.

    delta-rs takes `%20` in a path for a blank, in some of its steps, and so cannot find what it has written there;
    SettingsError for a path in which there is such a thing.
    """
    if (found := _MISTAKEN.search(path)) and not _ELSEWHERE.match(path):
        raise SettingsError(
            f'path "{path}": delta-rs takes {found[0]!r} in it for something else, and does not find what it has '
            "written there. Give the mirror a path without that"
        )
    return f"{path.rstrip('/')}/{filename(table).replace('%', '~')}"


def quoted(name: str) -> str:
    """Return *name* as Spark's SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _template(table: str, tables: tuple[str, ...] | None) -> str | None:
    """Return what is wrong with the name *table* for the mirrors of *tables* (None: all) in a catalog."""
    if not all(part.strip("` ") for part in table.split(".")):
        return f'table = "{table}": is no name; write it as "catalog.schema.{{table}}"'
    if "{table}" not in table and (tables is None or len(tables) != 1):
        return f'table = "{table}": is one name for many tables; write "{{table}}" in it, for the name of each'
    return None


def identifier(table: str, name: str) -> str:
    """Return the quoted name, in a catalog, of the mirror of the table *name*, where the setting is *table*.

    What stands for "{table}" is a part of its own: most catalogs know no dot in one.
    """
    flat = name.replace(".", "_")
    return ".".join(quoted(part.strip().strip("`").replace("{table}", flat)) for part in table.split("."))


def check(tracked: Tracked, sink: str, kind: str) -> None:
    """Raise SettingsError if *tracked* cannot go to the mirror *sink* of *kind*."""
    where, names = f'sink "{sink}", table "{tracked.name}"', [c.name for c in tracked.columns]
    twins: dict[str, str] = {}
    for name in names:
        if twins.setdefault(name.casefold(), name) != name:
            raise SettingsError(
                f'{where}: columns "{twins[name.casefold()]}" and "{name}" differ only in case, and a Delta table '
                "takes them for one; leave one out (columns = …)"
            )
    refuse_clashes(names, own_names(kind, tracked.metadata_prefix), where)


def refuse_clashes(names: Iterable[str], own: Iterable[str], where: str) -> None:
    """Raise SettingsError where one of a source's columns is called as one that the mirror adds."""
    folded = {name.casefold(): name for name in names}
    for name in own:
        if (found := folded.get(name.casefold())) is not None:
            raise SettingsError(
                f'{where}: the source has a column "{found}", and the mirror is to have "{name}" of its own. Set '
                'metadata_prefix under [defaults] to what no column of the source begins with, such as "_sidecar_"'
            )
