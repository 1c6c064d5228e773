"""Small records beside a log's segments, such as the log's identity. Only who writes the log writes them."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.log import storage

_IDENTITY = "_log.json"
_one_at_a_time = threading.Lock()


def identity(log: ChangeLog) -> str:
    """Return what tells *log* from any other, of the same table, too: its offsets mean nothing beside another's.

    A log gets it when it is first asked for, and keeps it.
    """
    with _one_at_a_time:
        found = read(log, _IDENTITY)
        if found is None:
            found = {"id": uuid.uuid4().hex}
            write(log, _IDENTITY, found)
    try:
        return str(found["id"])
    except (KeyError, TypeError) as error:
        raise StateDamaged(f"{log.at / _IDENTITY}: says no id. Restore it from a copy.") from error


def read(log: ChangeLog, name: str) -> Any:
    """Return what the record *name* says, None if there is none; StateUnavailable where a store gives no answer."""
    path = log.at / name
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateDamaged(f"{path}: not readable: {error}. Restore it from a copy.") from error


def write(log: ChangeLog, name: str, value: Any) -> None:
    """Make the record *name* say *value*, durably."""
    path = log.at / name
    storage.make_folder(path.parent)
    storage.write_text(path, json.dumps(value))
