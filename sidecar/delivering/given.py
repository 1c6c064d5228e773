"""How far a folder of files has been given a table's log, written down beside the files.

A state that was restored from a backup is whole in itself: log and positions agree. Only what they had been written to
before that knows more. So each batch leaves there which log it was of, its last offset, and when that was committed;
and the first batch of a process is held against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sidecar.delivering.folder import Folder
from sidecar.errors import SinkError
from sidecar.log import log_records
from sidecar.log.files import filename

if TYPE_CHECKING:
    from sidecar.changelog import ChangeLog

_GIVEN_UP = "_given_up.json"
_WAY_OUT = "Give the sink another name and path: that one begins anew"


@dataclass(frozen=True, slots=True)
class Given:
    """The identity of a log, the last of its offsets that a folder has, and when that was committed, if it is known."""

    log: str
    last: int
    committed: int | None = None


def read(folder: Folder, sink: str) -> Given | None:
    """Return what *sink* has written down in *folder*; None if nothing."""
    found = folder.record(_name(sink))
    return None if found is None else Given(str(found["log"]), int(found["last"]), found["committed"])


def write(folder: Folder, sink: str, given: Given) -> None:
    """Write down that *folder* has from *sink* what *given* says."""
    said = {"log": given.log, "last": given.last, "committed": given.committed}
    folder.write(_name(sink), json.dumps(said))


def reached(given: Given, identity: str, log: ChangeLog, acknowledged: int) -> int:
    """Return up to which offset a folder has *log*, of which *acknowledged* says its sink's position; SinkError if it
    is an older copy of what was *given*, or the folder is one, or they have nothing to do with each other.
    """
    if given.log != identity:
        raise SinkError(f"the files are of another change log: the state was deleted, or is another one. {_WAY_OUT}")
    here = log.metadata(given.last) if log.floor() < given.last <= log.last() else None
    if given.last > log.last() or (here is not None and given.committed not in (None, here.committed)):
        why = "has something else there than it had" if here else f"by now ends at offset {log.last()}"
        raise SinkError(
            f"the files have changes up to offset {given.last} of a log that {why}: it was restored from an older "
            f"copy. What was in it after that is in the files, and the log tells it otherwise. {_WAY_OUT}"
        )
    if given.last < acknowledged:
        raise SinkError(
            f"the files have changes up to offset {given.last}, and the sink has been given those up to "
            f"{acknowledged}: they are an older copy. Put the newest one back. Or: {_WAY_OUT[0].lower()}{_WAY_OUT[1:]}"
        )
    return given.last


def give_up(log: ChangeLog, positions: Mapping[str, int], through: int) -> None:
    """Write down that *log* begins anew behind *through*, and what sinks had of it, by their *positions* until now."""
    had = {sink: truly_had(log, sink, position) for sink, position in positions.items()}
    log_records.write(log, _GIVEN_UP, {"through": through, "had": had})


def truly_had(log: ChangeLog, sink: str, acknowledged: int) -> int:
    """Return what *sink* has had of *log*, where that is less than *acknowledged*, for the rest was given up."""
    found = log_records.read(log, _GIVEN_UP)
    if found is None or found["through"] != acknowledged:
        return acknowledged
    return int(found["had"].get(sink, acknowledged))


def _name(sink: str) -> str:
    return f"_sidecar_given-{filename(sink)}.json"
