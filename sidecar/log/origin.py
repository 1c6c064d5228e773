"""Which database a state folder was made from. What has been read of one says nothing about another: rows of that one
that are stamped before the position would never be delivered.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sidecar.connector import SourceConnector
from sidecar.errors import SettingsError, StateDamaged
from sidecar.log import files

log_ = logging.getLogger("sidecar")

ORIGIN = "source"


def check(connector: SourceConnector, state: Path) -> None:
    """Let the folder *state*, whose lock is held, be of the database that *connector* reads; SettingsError if it is of
    another, which is still there. One that is gone is taken to have been renamed, or moved.
    """
    here, path = connector.identity(), state / ORIGIN
    known, scheme = _read(path)
    if here is None or (here, connector.scheme) == (known, scheme):
        return
    elsewhere = (
        f"Positions in the one say nothing about the other: name another [state] path. If it is the same database all "
        f"the same, or a copy that is to be followed from here on, delete {path}"
    )
    if scheme not in (None, connector.scheme):
        raise SettingsError(
            f'{state}: was made from a {scheme} source, "{known}", and [source] names a {connector.scheme} one now, '
            f'"{here}". {elsewhere}'
        )
    if known is not None and known != here:
        if connector.stands(known):
            raise SettingsError(
                f'{state}: was made from the database "{known}", which is still there, and [source] names "{here}" '
                f"now. {elsewhere}"
            )
        log_.warning('source: no other database is known as "%s" any more; "%s" is taken for it', known, here)
    files.write_durably(path, lambda aside: _write(aside, f"{here}\n{connector.scheme}"))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _read(path: Path) -> tuple[str | None, str | None]:
    """Return which database *path* says, and by which kind of source; versions before this one said no kind."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as error:
        raise StateDamaged(f"{path}: not readable: {error}. It says which database this state is of") from error
    known, _, scheme = text.rpartition("\n")
    return (known, scheme) if known else (scheme, None)
