"""`sidecar check`: what the connector finds in each table, and what Sidecar finds in its own surroundings."""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.connector import Finding
from sidecar.delivering import places
from sidecar.errors import SettingsError, SidecarError, StateDamaged, counted
from sidecar.polls.changes import change_schema, decision
from sidecar.running import standing

if TYPE_CHECKING:
    from sidecar.config import SinkSettings
    from sidecar.model import Tracked
    from sidecar.project import Sidecar


def findings(sc: Sidecar) -> list[Finding]:
    """Return everything that is wrong, or may go wrong; whole tables may be read for it."""
    tables, broken = sc.followable()
    found = [*_surroundings(sc, tables), *(Finding("error", name, str(error)) for name, error in broken.items())]
    for tracked in tables.values():
        try:
            settled = sc.settled(tracked)
        except StateDamaged as error:
            found.append(Finding("error", tracked.name, str(error)))
            settled = tracked
        found += [Finding("error", tracked.name, text) for text in _stopped(sc, settled)]
        found += [_at(f, tracked.name) for f in sc.connector.check(settled)]
    return found


def _stopped(sc: Sidecar, tracked: Tracked) -> Iterator[str]:
    """Yield why *tracked* does not go on: what its columns have become, and what its last poll or a sink met."""
    log, waits = sc.log(tracked.name), None
    with contextlib.suppress(SidecarError):  # a log that cannot be read is said already, or by the next poll
        waits = decision(tracked, log.changes(change_schema(tracked)))
    note = sc.store.notes().get(tracked.name)
    if waits is not None:
        yield standing.stopped(sc, tracked.name, waits)
    if note is not None and note != waits:
        yield f"failed at the last run, and is tried again by the next one: {note}"


def report(sc: Sidecar, found: Sequence[Finding], width: int | None = None) -> Iterator[str]:
    """Yield lines for a person, grouped by table; advice stands on lines of its own, to be copied.

    *width*: that of the terminal; messages are broken to fit, advice never. None: each is one line.
    """
    tables, _ = sc.followable()
    places = list(dict.fromkeys([f.where for f in found]))
    for where in [p for p in places if p not in tables] + [t for t in tables if t in places]:
        yield where
        for finding in (f for f in found if f.where == where):
            for line in finding.message.splitlines():
                yield from _message(f"{finding.level}: {line}", width)
            yield from (f"    {line}" for line in finding.advice.splitlines())
        yield ""
    fine = [name for name in tables if name not in places]
    if fine:
        yield f"nothing to say about: {', '.join(fine)}"
    errors, warnings = (sum(f.level == level for f in found) for level in ("error", "warning"))
    yield f"{counted(len(tables), 'table')}, {counted(errors, 'error')}, {counted(warnings, 'warning')}"


def _message(text: str, width: int | None) -> list[str]:
    if width is None:
        return [f"  {text}"]
    return textwrap.wrap(
        text, max(width, 40), initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _surroundings(sc: Sidecar, tables: Mapping[str, Tracked]) -> Iterator[Finding]:
    settings = sc.settings
    yield from _writable("state", settings.state.path)
    yield from places.doubts(sc, tables.values())
    if not settings.sinks:
        yield Finding(
            "warning", "sinks", "there are none: changes go to the change log only", "Add a [sinks.NAME] section."
        )
        return
    yield from _java()
    for name, sink in settings.sinks.items():
        where = f"sink {name}"
        if sink.path is not None and "://" not in sink.path:
            yield from _writable(where, Path(sink.path))
        yield from _functions(where, name, sink, settings.folder)
        if not any(name in tracked.sinks for tracked in tables.values()):
            yield Finding("warning", where, "no table goes there", "See its `tables`, and the tables' `sinks`.")


def _java() -> Iterator[Finding]:
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        yield Finding("error", "spark", "pyspark is not installed", "pip install pyspark")
        return
    from sidecar.lake.spark import find_java

    try:
        find_java()
    except SettingsError as error:
        yield Finding("error", "spark", str(error))


def _functions(where: str, name: str, sink: SinkSettings, folder: Path) -> Iterator[Finding]:
    from sidecar.sinks import load_function

    for setting in ("transform", "foreach"):
        spec = getattr(sink, setting)
        if spec is None:
            continue
        try:
            load_function(spec, f"sinks.{name}.{setting}", folder)
        except SettingsError as error:
            yield Finding("error", where, str(error))
        except Exception as error:
            yield Finding("error", where, f'{setting} = "{spec}": importing it fails: {type(error).__name__}: {error}')


def _writable(where: str, path: Path) -> Iterator[Finding]:
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir():
        yield Finding("error", where, f"{path}: {there} is a file, not a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Finding("error", where, f"{path} cannot be written: no right to write in {there}")


def _at(finding: Finding, table: str) -> Finding:
    """Return *finding* under its table; where within it goes into the message."""
    within = finding.where.removeprefix(table).strip(".: ")
    message = f"{within}: {finding.message}" if within and within != finding.where else finding.message
    return Finding(finding.level, table, message, finding.advice)
