"""What can be told before anything is read, or given to sinks: whether what they had is still where they have put it,
whether there is such a format, and whether a table is left out that is meant to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import followed
from sidecar.connector import Finding
from sidecar.log.files import filename
from sidecar.settings import formats, mirrored
from sidecar.sinks import FILE_FORMATS

if TYPE_CHECKING:
    from sidecar.config import Settings, SinkSettings
    from sidecar.model import Tracked
    from sidecar.project import Sidecar
    from sidecar.state import WatermarkStore


def doubts(sc: Sidecar, tables: Iterable[Tracked]) -> Iterator[Finding]:
    """Yield what is to be said of the settings of *sc*, its sinks and their *tables* before anything is done."""
    yield from followed.doubts(sc.settings, sc.connector)
    for name, sink in sc.settings.sinks.items():
        if (doubt := formats.doubt(sink.format)) is not None:
            yield Finding("warning", f"sink {name}", f'sink "{name}": {doubt}')
    if sc.settings.sinks:
        yield from lost(sc.settings, tables, sc.store)


def lost(settings: Settings, tables: Iterable[Tracked], store: WatermarkStore) -> Iterator[Finding]:
    """Yield what is to be said of each table and sink that has been given its changes, and has nothing at its place.

    Only places on this machine's disks are looked at.
    """
    for tracked in tables:
        for name in tracked.sinks:
            given = store.position(tracked.name, name).acknowledged
            place = _place(settings.sinks[name], tracked.name) if given else None
            if place is not None and _is_gone(place):
                yield _found(name, settings.sinks[name], tracked.name, place, given)


def _is_gone(place: Path) -> bool:
    try:
        return not place.exists()
    except OSError:  # who may not look there says nothing
        return False


def _place(sink: SinkSettings, table: str) -> Path | None:
    # "hdfs:/lake" is as good as any to Hadoop.
    if sink.path is None or not sink.path.startswith("/"):
        return None
    if sink.mode == "mirror":
        return Path(mirrored.place(sink.path, table))
    return Path(sink.path, filename(table)) if sink.format in FILE_FORMATS else None


def _found(name: str, sink: SinkSettings, table: str, place: Path, given: int) -> Finding:
    is_mirror = sink.mode == "mirror"
    what = "It cannot go on without that" if is_mirror else "Only what comes after that will be there"
    return Finding(
        "error" if is_mirror else "warning",
        table,
        f'sink "{name}", table "{table}": has been given the changes up to offset {given}, and {place} is not there. '
        f"{what}. If its path was changed, move the folder there, or put the path back; to begin anew at the new "
        "place, give the sink another name as well",
    )
