"""What the commands share: the project that they open, the names that they are given, and how they print."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from sidecar.errors import SettingsError

if TYPE_CHECKING:
    from sidecar.project import Sidecar
    from sidecar.settings.scrub import Secrets

Config: TypeAlias = Annotated[Path, typer.Option("-c", "--config", help="The settings file.", show_default=True)]
TableName: TypeAlias = Annotated[str, typer.Argument(metavar="TABLE", help="A followed table, as in the settings.")]
SETTINGS = Path("sidecar.toml")

_EXITS = {
    0: "done",
    1: "unexpected, or a check that found something",
    2: "settings or usage",
    3: "source or log out of reach, try again",
    4: "another process holds the state",
    5: "the state cannot be read or written",
    6: "a sink failed",
    130: "interrupted",
}

ARCHIVED_AFTER = 60.0
"""Seconds into a run that goes on after which the archive is made: its first load has had the machine until then."""

_secrets: Secrets | None = None


def known_secrets() -> Secrets:
    """Return the secrets of this run, as far as they are known yet."""
    global _secrets  # noqa: PLW0603  one process is one command
    if _secrets is None:
        from sidecar.settings.scrub import Secrets

        _secrets = Secrets()
    return _secrets


def exits(*codes: int) -> str:
    """Return what a command's exit *codes* mean, for its help."""
    return "Exit codes: " + " · ".join(f"{code} {_EXITS[code]}" for code in codes)


@contextlib.contextmanager
def opened(
    config: Path, *, read_only: bool = False, master: str | None = None, dated: bool = False
) -> Iterator[Sidecar]:
    """Open the project; from here on its secrets are masked in all that is logged or reported.

    *master* is in place of the one that the settings say. *dated*: what is logged is read by somebody later.
    """
    from sidecar.config import load
    from sidecar.project import Sidecar
    from sidecar.terminal.console import set_up_logging

    settings = load(config)
    if master is not None:
        settings = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": master})})
    known_secrets().absorb(settings.secrets)
    set_up_logging(known_secrets(), dated=dated)
    with Sidecar(settings, read_only=read_only) as sc:
        yield sc


def followed(sc: Sidecar, table: str) -> str:
    """Return the followed table that *table* names."""
    tables, broken = sc.followable()
    if table in broken:
        raise broken[table]
    return _named(table, list(tables), "is not followed; followed are")


def logged(sc: Sidecar, table: str) -> str:
    """Return the table with a change log that *table* names; the source is not asked."""
    names = _logged(sc)
    if not names:
        raise SettingsError(f'table "{table}": nothing has been polled yet: sidecar run')
    return _named(table, names, "has no change log yet; there are")


def _logged(sc: Sidecar) -> list[str]:
    from sidecar.changelog import tables
    from sidecar.log.files import unescaped

    return [name for folder in tables(sc.root) if (name := unescaped(folder)) is not None]


def held(sc: Sidecar, table: str) -> str:
    """Return the followed table that *table* names; the source is not asked where a log or backfills know the name."""
    from sidecar.backfilling.requests import Requests

    names = {*_logged(sc), *Requests(sc.settings.state.path).tables()}
    return table if table in names else followed(sc, table)


def _named(table: str, names: Sequence[str], otherwise: str) -> str:
    if table in names:
        return table
    near = [n for n in names if n.casefold() == table.casefold()] or [n for n in names if n.endswith("." + table)]
    if len(near) == 1:
        return near[0]
    raise SettingsError(f'table "{table}" {otherwise}: {", ".join(near or names) or "none"}')


@contextlib.contextmanager
def stopping() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C or SIGTERM sets; asked a second time, the command stops at once."""
    stop = threading.Event()

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print("Stopping once what is under way is done; again to stop at once.", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def archiving(stop: threading.Event | None = None) -> Iterator[None]:
    """Have Spark's class-data archive made if a session was started meanwhile and found none: soon, or at the end.

    Not once *stop* is set: who stops a program wants nothing of it to go on.
    """

    def make() -> None:
        # A run that has not needed Spark has not imported what starts it.
        if "sidecar.lake.spark" not in sys.modules or (stop is not None and stop.is_set()):
            return
        from sidecar.clock import SystemClock
        from sidecar.lake import spark

        wanted = spark.archive()
        if wanted is not None and wanted.is_wanted(SystemClock()):
            wanted.make_aside()

    later = threading.Timer(ARCHIVED_AFTER, make)
    later.daemon = True
    later.start()
    try:
        yield
        # One that is being made already is not made twice: the second maker finds the folder held.
        make()
    finally:
        later.cancel()
