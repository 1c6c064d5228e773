"""One writer a log that is elsewhere than in its state folder: who it is stands beside the log.

The state's lock keeps two processes of one state folder apart. Two state folders that name the same log, perhaps on two
machines, have no lock in common; so the first of them writes down who it is, and another is refused.
"""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path

from sidecar.clock import Clock, iso
from sidecar.errors import StateDamaged, StateHeld
from sidecar.log import files, storage
from sidecar.log.storage import AnyPath

OWNER = "_owner.json"


def claim(root: AnyPath, state: Path, clock: Clock) -> None:
    """Let the folder *state*, whose lock is held, be the writer of the logs under *root*; StateHeld if another one is.

    Two that claim it for the first time in the very same moment may both succeed.
    """
    if root == state / "log":
        return
    here = f"{state.absolute()} on {socket.gethostname()}"
    mine, path = _own(state), root / OWNER
    storage.make_folder(root)
    if (held := _read(path)) is None:
        storage.write_text(path, json.dumps({"id": mine, "state": here, "since": iso(clock.now())}))
        held = _read(path) or {}
    # A state folder that was lost and begins anew at its old place is still the one.
    if held.get("id") == mine or held.get("state") == here:
        return
    raise StateHeld(
        f"{root}: is written by the state folder {held.get('state')} since {held.get('since')}; this one is {here}. "
        "Two writers would deliver twice: let [state] log name another place, or only read there (open_project with "
        f"read_only=True). If the other one is gone for good, delete {path} and run again: the state is rebuilt"
    )


def _own(state: Path) -> str:
    """Return what *state* is known by, wherever it is moved to."""
    path = state / "identity"
    if not path.exists():
        text = secrets.token_hex(16)
        files.write_durably(path, lambda aside: _write(aside, text))
    return path.read_text().strip()


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _read(path: AnyPath) -> dict[str, str] | None:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateDamaged(f"{path}: not readable: {error}. It says who writes this log; restore it") from error
    if not isinstance(found, dict):
        raise StateDamaged(f"{path}: does not say who writes this log; restore it")
    return found
