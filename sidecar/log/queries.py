"""How far streaming queries have come in a log: a file each beside it, by which retention keeps what they have not had.

A query is a process of its own and cannot open RocksDB, so its file is all that is known of it. It lies in a folder of
its own, so that no query takes the place of a sink of the same name.
"""

from __future__ import annotations

import json

from sidecar.changelog import ChangeLog
from sidecar.errors import SettingsError, StateDamaged
from sidecar.log import storage
from sidecar.log.files import filename
from sidecar.log.storage import AnyPath


def positions(log: ChangeLog) -> dict[str, int]:
    """Return how far each named query has come in *log*, by name; StateDamaged if a file cannot be read."""
    found = {}
    for name, path in sorted(storage.names(_folder(log)), key=lambda there: there[0]):
        if name.startswith(".") or not name.endswith(".json"):
            continue
        try:
            raw = json.loads(path.read_text())
            found[str(raw["query"])] = int(raw["acknowledged"])
        except FileNotFoundError:
            continue  # forgotten a moment ago
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateDamaged(
                f"{path}: not a readable position: {error}. Remove the file, and start its query: it writes it anew."
            ) from error
    return found


def save(log: ChangeLog, query: str, offset: int, run: str = "") -> None:
    """Record that *query* has had everything up to *offset*; *run* tells the process that says so from any other."""
    storage.make_folder(_folder(log))
    text = json.dumps({"query": query, "acknowledged": offset, "run": run})
    storage.write_text(_path(log, query), text)


def holder(log: ChangeLog, query: str) -> str | None:
    """Return the `run` that has recorded where *query* stands; None if nobody has, or nobody who said."""
    try:
        return json.loads(_path(log, query).read_text()).get("run") or None
    except (FileNotFoundError, ValueError, AttributeError):
        return None  # `save` writes it anew


def forget(log: ChangeLog, query: str) -> None:
    """Forget *query*, so that it holds *log* no longer; SettingsError if there is none of that name."""
    try:
        _path(log, query).unlink()
    except FileNotFoundError:
        known = ", ".join(positions(log)) or "none"
        raise SettingsError(f'table "{log.table}": there is no query "{query}"; there are: {known}') from None


def _path(log: ChangeLog, query: str) -> AnyPath:
    return _folder(log) / filename(query, ".json")


def _folder(log: ChangeLog) -> AnyPath:
    return log.at / "_positions" / "queries"
