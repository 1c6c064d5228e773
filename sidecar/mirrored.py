"""What a mirror asks of a table's settings, and of its own; all of it can be said before anything is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from sidecar.errors import SettingsError
from sidecar.files import filename
from sidecar.model import HISTORY, MARK, Tracked

KindName: TypeAlias = Literal["current", "marked", "history"]

_ITS_OWN = ("history", "on_delete", "compact_every", "vacuum_after")


def kind(*, history: bool, on_delete: str) -> KindName:
    """Return which kind of mirror these settings make."""
    if history:
        return "history"
    return "marked" if on_delete == "mark" else "current"


def contradiction(mode: str, format_: str, said: Iterable[str], *, history: bool, on_delete: str) -> str | None:
    """Return what is wrong with a sink of these settings, of which the names *said* stand in the file."""
    own = [name for name in _ITS_OWN if name in said]
    if mode != "mirror":
        return f'"{own[0]}" is for mode = "mirror"; a sink that appends has no use for it' if own else None
    if format_ != "delta":
        return f'mode = "mirror" keeps a Delta table: write format = "delta" (it is "{format_}")'
    if history and on_delete == "mark":
        return 'with "history", deleted rows stay anyway, with the time in _valid_to; leave "on_delete" out'
    return None


def shared_places(mirrors: Iterable[tuple[str, str | None, tuple[str, ...] | None]]) -> Iterator[str]:
    """Yield what is wrong where two of *mirrors* (section, path, tables) keep one table; None: all tables."""
    for (one, path, ours), (other, place, theirs) in itertools.combinations(mirrors, 2):
        if path == place and (ours is None or theirs is None or set(ours) & set(theirs)):
            yield f"[{other}] path: [{one}] keeps its mirrors there; give this one another"


def own_names(kind: str, prefix: str) -> tuple[str, ...]:
    """Return the names of the columns that a mirror of *kind* has beside the source's."""
    names: dict[str, tuple[str, ...]] = {"history": HISTORY, "marked": MARK}
    return tuple(prefix + name for name in names.get(kind, ()))


def place(path: str, table: str) -> str:
    """Return where the mirror of *table* is, of a sink with this *path*: as any sink's folder, but `~20` for a blank.

    delta-rs takes `%20` in a path for a blank, in some of its steps, and so cannot find what it has written there.
    """
    return f"{path.rstrip('/')}/{filename(table).replace('%', '~')}"


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
