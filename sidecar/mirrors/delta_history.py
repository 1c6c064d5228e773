"""Who has changed a mirror's Delta table: what others have committed beside the mirror, read from the table's log.

A restored version, a DELETE, a row of somebody else's: the table's log then holds an offset that its rows do not. What
changes no row (files joined, old ones removed, properties) is anybody's to do, and says so: `dataChange` is false.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from sidecar.errors import SinkError

MARK = "sidecarMirror"
"""What a commit of the mirror's own carries, beside Delta's words: whose it is."""

_Part: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of a table: who made it, what he called it, and the files that `came` and `went` by it."""

    version: int
    digest: bytes
    is_ours: bool
    is_change: bool
    """Whether it has changed rows, and not only the files that they are in."""
    operation: str
    when: int | None = None
    came: frozenset[_Part] = frozenset()
    went: frozenset[_Part] = frozenset()

    def __str__(self) -> str:
        """Return it in words."""
        at = "" if self.when is None else f", {_iso(self.when)}"
        return f"version {self.version} ({self.operation}{at})"


def read(files: Any, version: int, app: str) -> Commit | None:
    """Return *version* of the table whose files are *files*; None where its log does not have it, or not any more.

    *app* is whom a commit of the mirror's own is by.
    """
    try:
        with files.open_input_file(f"_delta_log/{version:020d}.json") as file:
            return parsed(version, bytes(file.read()), app)
    except FileNotFoundError:
        return None


def parsed(version: int, text: bytes, app: str) -> Commit:
    """Return what the commit *text* says."""
    came, went, info, is_ours, is_change = set[_Part](), set[_Part](), dict[str, Any](), False, False
    for line in text.splitlines():
        action = json.loads(line) if line.strip() else {}
        for found, parts in ((action.get("add"), came), (action.get("remove"), went)):
            if found is not None:
                parts.add((found["path"], json.dumps(found.get("deletionVector"), sort_keys=True)))
                is_change |= bool(found.get("dataChange", True))
        info = action.get("commitInfo") or info
        is_ours |= (action.get("txn") or {}).get("appId") == app
    is_ours |= info.get(MARK) == app
    operation, when = str(info.get("operation", "by an unknown writer")), info.get("timestamp")
    digest = hashlib.sha256(text).digest()
    return Commit(version, digest, is_ours, is_change, operation, when, frozenset(came), frozenset(went))


def foreign(commits: Iterable[Commit]) -> Commit | None:
    """Return the first of *commits*, in order, by which others have changed the rows; None if there is none, or all of
    it has been taken back since.
    """
    came, went, first = set[_Part](), set[_Part](), None
    for commit in commits:
        # What is joined while all is well is where a way back may lead to.
        if first is None and (commit.is_ours or not commit.is_change):
            continue
        back, again = commit.went & came, commit.came & went
        came = (came - back) | (commit.came - again)
        went = (went - again) | (commit.went - back)
        first = (first or commit) if came or went else None
    return first


class Watch:
    """Sees to it that the rows of a table, whose files are *files*, are changed by *app* alone, the mirror's own name.

    *what* the table is called, and *where* it is, an error says.
    """

    def __init__(self, files: Any, app: str, what: str, where: str) -> None:
        self._files, self._app, self._what, self._where = files, app, what, where
        self._last: Commit | None = None

    def check(self, newest: int) -> bool:
        """Look at what was committed up to the version *newest* since the last time; SinkError if others have changed
        rows by it, and have not taken that back, or if the table has another past by now.

        False where the table is to be opened, and watched, anew: its log does not have any more what it ended with.
        """
        if self._last is None:
            known = self._since_ours(newest)
        else:
            found = [read(self._files, n, self._app) for n in range(self._last.version, newest + 1)]
            if found[0] is None and found[-1] is not None:
                # Of a table that was idle for long, the next checkpoint takes it away.
                self._last = None
                return False
            known = [commit for commit in found if commit is not None]
            if len(known) < len(found) or known[0] != self._last:
                raise SinkError(
                    f"{self._where}: the {self._what} was replaced, or put back to an older copy, while the sink was "
                    "at work. It is looked at anew when the batch is tried again, at the next run"
                )
            known = known[1:]
        if (other := foreign(known)) is not None:
            raise SinkError(
                f"{self._where}: the rows of the {self._what} were changed by somebody else: {other}. A mirror is to "
                f"be what the source is, so take that back (DeltaTable(…).restore({other.version - 1}), if that is the "
                "only change); or give the sink another name and path: that one begins anew"
            )
        self._last = known[-1] if known else self._last
        return True

    def _since_ours(self, newest: int) -> list[Commit]:
        """Return the commits up to *newest* from the last one of ours on, as far as the table's log has them."""
        found: list[Commit] = []
        for version in range(newest, -1, -1):
            commit = read(self._files, version, self._app)
            if commit is None:
                break
            found.append(commit)
            if commit.is_ours:
                break
        return found[::-1]


def _iso(milliseconds: int) -> str:
    at = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
