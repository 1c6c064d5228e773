"""One writer a log that is elsewhere than in its state folder: who it is stands beside the log.

The state's lock keeps two processes of one state folder apart. Two state folders that name the same log, perhaps on two
machines, have no lock in common; so the first of them writes down who it is, and another is refused.

A store has no "write this if nothing is there". So who finds no owner first writes a claim, a file of its own name, and
then looks whose claims there are: of two that claim at once, whoever looks last sees the other one's, and nobody goes
on who has seen another's. Both may be refused then. That both are let in is not possible, however slow either is, where
a listing tells what has been written before it; stores and disks do that.
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

_CLAIM = "_claim-"


class Claim:
    """The claim of the folder *state*, whose lock is held, to be the one that writes the logs under *root*."""

    def __init__(self, root: AnyPath, state: Path) -> None:
        self._root, self._state, self._owner = root, state, ""
        self._here = f"{state.absolute()} on {socket.gethostname()}"

    def make(self, clock: Clock) -> None:
        """Be the writer from now on; StateHeld if another one is."""
        storage.make_folder(self._root)
        if self._root == self._state / "log":
            return
        mine, path = _own(self._state), self._root / OWNER
        held = _read(path)
        if held is None:
            held = _claimed(self._root, path, {"id": mine, "state": self._here, "since": iso(clock.now())})
        # A state folder that was lost and begins anew at its old place is still the one.
        if held.get("id") != mine and held.get("state") != self._here:
            raise StateHeld(
                f"{self._root}: is written by the state folder {held.get('state')} since {held.get('since')}; this one "
                f"is {self._here}. Two writers would deliver twice: let [state] log name another place, or only read "
                f"there (open_project with read_only=True). If the other one is gone for good, delete {path} and run "
                "again: the state is rebuilt"
            )
        self._owner = held.get("id", "")

    def check(self) -> None:
        """Raise StateHeld if another one has become the writer since."""
        path = self._root / OWNER
        if not self._owner or ((found := _read(path)) is not None and found.get("id") == self._owner):
            return
        who = "nobody" if found is None else f"the state folder {found.get('state')} since {found.get('since')}"
        raise StateHeld(
            f"{self._root}: is written by {who} by now, as {path.name} there says; this one is {self._here}, and has "
            "stopped before a change was written. Leave it stopped; or, if it is the only one, run it again"
        )


def _claimed(root: AnyPath, path: AnyPath, said: dict[str, str]) -> dict[str, str]:
    """Return who is the owner, once who has *said* who he is has tried to be; StateHeld if another tries as well."""
    own = root / f"{_CLAIM}{said['id']}.json"
    storage.write_text(own, json.dumps(said))
    try:
        found = ((name, other) for name, other in storage.names(root) if name.startswith(_CLAIM))
        for name, other in found:
            if name != own.name and (rival := _read(other)) is not None:
                raise StateHeld(
                    f"{root}: {rival.get('state')} claims it in the same moment, since {rival.get('since')}; this one "
                    f"is {said['state']}. Run one of them again; if the other one is gone for good, delete {other}"
                )
        # Another one may have come and gone before the claim was there to be seen.
        if _read(path) is None:
            storage.write_text(path, json.dumps(said))
        return _read(path) or {}
    finally:
        own.unlink(missing_ok=True)


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
