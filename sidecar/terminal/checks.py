"""`sidecar check`: what the connector finds in each table, and what Sidecar finds in its own surroundings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.connector import Finding
from sidecar.errors import SettingsError, StateDamaged

if TYPE_CHECKING:
    from sidecar.config import SinkSettings
    from sidecar.project import Sidecar


def findings(sc: Sidecar) -> list[Finding]:
    """Return everything that is wrong, or may go wrong; whole tables may be read for it."""
    found = [*_surroundings(sc)]
    for tracked in sc.tracked.values():
        try:
            settled = sc.settled(tracked)
        except StateDamaged as error:
            found.append(Finding("error", tracked.name, str(error)))
            settled = tracked
        found += [_at(f, tracked.name) for f in sc.connector.check(settled)]
    return found


def report(sc: Sidecar, found: Sequence[Finding]) -> Iterator[str]:
    """Yield lines for a person, grouped by table; advice stands on lines of its own, to be copied."""
    places = list(dict.fromkeys([f.where for f in found]))
    for where in [p for p in places if p not in sc.tracked] + [t for t in sc.tracked if t in places]:
        yield where
        for finding in (f for f in found if f.where == where):
            yield f"  {finding.level}: {finding.message}"
            yield from (f"    {line}" for line in finding.advice.splitlines())
        yield ""
    fine = [name for name in sc.tracked if name not in places]
    if fine:
        yield f"nothing to say about: {', '.join(fine)}"
    errors, warnings = (sum(f.level == level for f in found) for level in ("error", "warning"))
    yield f"{len(sc.tracked)} tables, {_count(errors, 'error')}, {_count(warnings, 'warning')}"


def _surroundings(sc: Sidecar) -> Iterator[Finding]:
    settings = sc.settings
    yield from _writable("state", settings.state.path)
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
        if not any(name in tracked.sinks for tracked in sc.tracked.values()):
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


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
