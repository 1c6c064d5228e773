"""Requests for backfills: a small file each, beside the log, so that any process can make one at any time.

`<state>/backfills/<table>/<id>.json` waits; `<id>.running.json` is under way; `done/<id>.json` has ended, and says how.
Each step is a rename. Whoever takes a running request's file away cancels it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from sidecar import codec, faults
from sidecar.clock import SECOND, Clock
from sidecar.errors import StateDamaged
from sidecar.log.files import filename, make_folder, unescaped, write_durably
from sidecar.model import ALL, Among, Scope

Kind: TypeAlias = Literal["automatic", "requested", "refresh", "quarantined"]
Ending: TypeAlias = Literal["done", "cancelled", "refused"]

_WAITING, _RUNNING = ".json", ".running.json"
_SETTLED = 2 * SECOND
"""So long after a folder's change, the next one is sure to show in its time."""
_KEPT = 20
"""So many ended backfills of a table are remembered."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be backfilled, why, and since when that is wanted (microseconds UTC).

    `purge`: afterwards, delete from the log what the source does not have any more; `empty`: even if that has no rows
    at all. `running`: whether it has begun.
    """

    id: str
    table: str
    at: int
    kind: Kind = "requested"
    scope: Scope = ALL
    purge: bool = False
    empty: bool = False
    running: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """A backfill that has ended: how, when (microseconds UTC) that was and it began, and its rows read and written."""

    request: Request
    ending: Ending
    at: int
    read: int
    written: int
    began: int | None = None


class Requests:
    """The requests of one state folder. Any number of processes may make and cancel them; one begins and ends them."""

    kept: ClassVar[int] = 0
    """How many were made by this process, whatever folder they are in."""

    def __init__(self, state: Path, clock: Clock | None = None) -> None:
        self._root, self._clock = state / "backfills", clock
        self._folders: dict[str, str] = {}
        self._listed: dict[str, tuple[int, list[Request]]] = {}
        self._known: dict[str, dict[str, Request]] = {}

    def tables(self) -> set[str]:
        """Return the tables that anything is known of."""
        with contextlib.suppress(FileNotFoundError):
            folders = (folder.name for folder in self._root.iterdir() if folder.is_dir())
            return {name for folder in folders if (name := unescaped(folder)) is not None}
        return set()

    def open(self, table: str) -> list[Request]:
        """Return the requests for *table* that have not ended, the one that runs first, then the oldest."""
        # At each poll, so without Path: it takes longer to make one than to look.
        folder = self._folders.get(table) or self._folders.setdefault(table, str(self._root / filename(table)))
        try:
            changed = os.stat(folder).st_mtime_ns  # noqa: PTH116
            listed = self._listed.get(table)
            if listed is not None and listed[0] == changed:
                return list(listed[1])
            names = [n for n in os.listdir(folder) if n.endswith(_WAITING) and not n.startswith(".")]  # noqa: PTH208
        except FileNotFoundError:
            changed, names = 0, []
        found = self._loaded(table, folder, names)
        if changed and self._clock is not None and self._clock.now() - changed // 1000 > _SETTLED:
            self._listed[table] = changed, found
        return list(found)

    def _loaded(self, table: str, folder: str, names: Sequence[str]) -> list[Request]:
        if not names:
            self._known.pop(table, None)
            return []
        # One of a million values takes seconds to read, and is asked for with every thousand of them.
        found, known, self._known[table] = [], self._known.get(table, {}), {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # begun or ended in this moment
                request = known.get(name) or _load(Path(folder, name))
                self._known[table][name] = request
                found.append(request)
        return sorted(found, key=lambda r: (not r.running, r.id))

    def ended(self, table: str) -> list[Ended]:
        """Return the last backfills of *table* that have ended, oldest first."""
        folder = self._root / filename(table) / "done"
        return [_load_ended(path) for path in sorted(folder.glob("*.json"))]

    def ask(
        self,
        table: str,
        at: int,
        *,
        kind: Kind = "requested",
        scope: Scope = ALL,
        purge: bool = False,
        empty: bool = False,
    ) -> Request:
        """Return the request for *table* that is now durable: one that waits for the same already, or a new one."""
        request = Request(f"{at:016d}-{secrets.token_hex(3)}", table, at, kind, scope, purge, empty)
        for waiting in self.open(table):
            if waiting == dataclasses.replace(request, id=waiting.id, at=waiting.at):
                return waiting
        self.keep(request)
        faults.point("backfill-requested")
        return request

    def begin(self, request: Request) -> bool:
        """Mark *request* as under way; return whether it still stands."""
        if request.running:
            return self.stands(request.id, request.table)
        running = dataclasses.replace(request, running=True)
        try:
            self._path(request).rename(self._path(running))
        except FileNotFoundError:
            return False
        return True

    def stands(self, id_: str, table: str) -> bool:
        """Return whether the request that runs as *id_* has not been cancelled."""
        return (self._root / filename(table) / (id_ + _RUNNING)).exists()

    def ending(self, id_: str, table: str) -> Ending | None:
        """Return how the request *id_* has ended; None, if nobody has ended it."""
        try:
            return _load_ended(self._root / filename(table) / "done" / f"{id_}.json").ending
        except FileNotFoundError:
            return None
        except StateDamaged:
            return "cancelled"  # it is there, which says that it has ended

    def keep(self, request: Request) -> Request:
        """Make *request* durable, also if it has been lost, and return it."""
        path = self._path(request)
        make_folder(path.parent)
        write_durably(path, lambda aside: _write(aside, _dump(request)))
        Requests.kept += 1
        return request

    def end(
        self, request: Request, ending: Ending, at: int, *, began: int | None = None, read: int = 0, written: int = 0
    ) -> None:
        """Note how *request* has ended, and forget the oldest ones that have."""
        folder = self._root / filename(request.table) / "done"
        make_folder(folder)
        text = {**_dump(request), "ending": ending, "began": began, "ended": at, "read": read, "written": written}
        write_durably(folder / f"{request.id}.json", lambda aside: _write(aside, text))
        for running in (False, True):
            self._path(dataclasses.replace(request, running=running)).unlink(missing_ok=True)
        # By when they ended: one that had been asked for long before is not to be forgotten at once.
        for old in sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)[:-_KEPT]:
            old.unlink(missing_ok=True)

    def _path(self, request: Request) -> Path:
        return self._root / filename(request.table) / (request.id + (_RUNNING if request.running else _WAITING))


def _dump(request: Request) -> dict[str, Any]:
    among = request.scope.among
    return {
        "id": request.id,
        "table": request.table,
        "at": request.at,
        "kind": request.kind,
        "where": request.scope.where,
        "columns": among and among.columns,
        "values": among and [codec.wrapped(values) for values in among.values],
        "purge": request.purge,
        "empty": request.empty,
    }


def _load(path: Path) -> Request:
    return _request(_parsed(path), running=path.name.endswith(_RUNNING))


def _load_ended(path: Path) -> Ended:
    raw = _parsed(path)
    request = _request(raw, running=False)
    return Ended(request, raw["ending"], raw["ended"], raw["read"], raw["written"], raw.get("began"))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = raw["id"], raw["table"], raw["at"], raw["kind"], raw["where"], raw["columns"], raw["values"], raw["purge"]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateDamaged(
            f"{path}: not a readable request: {error}. Remove it, and ask for the backfill again."
        ) from error
    return raw


def _request(raw: Mapping[str, Any], *, running: bool) -> Request:
    among = None
    if raw["columns"]:
        among = Among(tuple(raw["columns"]), tuple(map(codec.unwrapped, raw["values"])))
    scope = Scope(raw["where"], among)
    empty = raw.get("empty", False)
    return Request(raw["id"], raw["table"], raw["at"], raw["kind"], scope, raw["purge"], empty, running)


def _write(path: Path, raw: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(raw, ensure_ascii=False), encoding="utf-8")
