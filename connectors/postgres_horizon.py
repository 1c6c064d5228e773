"""What PostgreSQL knows of rows still to appear: which transactions run, since when, and who holds the horizon back.

Two ways, and the one nearer to the truth is taken where the role may go it:

  sessions   pg_stat_activity, read just before the snapshot: the oldest transaction of this database, those that have
             begun and not written yet among them. It takes pg_read_all_stats, and a primary.
  numbers    the history `(time, next transaction id)` of earlier snapshots: what is older than this snapshot's xmin is
             over. Any role may, on standbys too; prepared transactions, which have no session, are found by it. Where
             sessions are seen, the time is that of the oldest one's beginning: what gets a number later began later.

A standby is as late as its replay, and what it has not replayed may carry stamps from before: its time is that of the
last commit that it has replayed, however long ago that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from connectors.postgres_attached import NOTHING, Attached
from connectors.postgres_view import Running, Server, View
from sidecar.model import Hold, Horizon, Memory

_KEPT = 64


def horizon(view: View, server: Server, memory: Memory, *, versioned: bool, attached: Attached = NOTHING) -> Horizon:
    """Return the horizon at *view*, given what an earlier poll has handed out; *versioned*: rows have an xmin.

    What was *attached* to the table since makes an era of its own.
    """
    past = _past(memory, view, server)
    kept = {
        "history": [list(entry) for entry in _kept(past.history, view)],
        "server": past.server,
        "restores": past.restores,
        "written": view.reaches,
    }
    # Positions of other timelines say nothing of this one.
    reach = view.covers if past.is_known else None, view.reaches
    if not view.lasting:
        kept["unless"] = server.crash
    settled, hold = _settled(past.history, view, server)
    if not versioned:
        return Horizon(view.now, settled, None, kept, None, hold, "", *reach)
    kept |= {"xmin": view.xmin, "attached": attached.times, "noted": list(attached.noted)}
    era = f"{past.server}#{past.restores}" + (f"+{attached.times}" if attached.times else "")
    return Horizon(view.now, settled, view.xmin, kept, era, hold, attached.said if past.is_known else "", *reach)


def _settled(history: Sequence[tuple[int, int]], view: View, server: Server) -> tuple[int | None, Hold | None]:
    """Return since when every transaction that may still commit has begun, and which one is the oldest."""
    quiet = view.xmin == view.next
    by_number = view.known if quiet else _by_number(history, view)
    running = view.running
    if running is None:
        where = " on the primary" if server.standby else "; a role with pg_read_all_stats sees whose"
        return by_number, None if quiet else Hold(by_number, f"transaction {view.xmin}{where}")
    began = _oldest(running)
    if running.prepared is not None and (by_number is None or by_number < began):
        return by_number, Hold(by_number, f'the prepared transaction "{running.prepared}"')
    return began, Hold(began, running.who) if began < running.asked else None


def _oldest(running: Running) -> int:
    """Return a time before which no transaction began that is in a session, or is still to begin in one."""
    return running.asked if running.began is None else min(running.began, running.asked)


def _by_number(history: Sequence[tuple[int, int]], view: View) -> int | None:
    """Return a time when no transaction had written that still runs, or, where sessions were seen, none had begun.

    If an earlier poll's next id is not above this snapshot's xmin, every transaction that still runs got its id after
    that poll.
    """
    return max((time for time, following in history if following <= view.xmin), default=None)


@dataclass(frozen=True, slots=True)
class _Past:
    """What is remembered of the server: which it is, how often it was seen to go back, and `(time, next id)`.

    `is_known`: it is the one that was asked before, or a standby of it, and has not gone back since.
    """

    server: str
    restores: int
    history: Sequence[tuple[int, int]]
    is_known: bool = True


def _past(memory: Memory, view: View, server: Server) -> _Past:
    """Return what *memory* says that holds for this server.

    Ids and WAL never go back on one server, but for a restored copy of its disk, which keeps cluster and timeline, and
    for a crash that undoes what was seen and not on disk yet, after which they may be past that again. A standby may be
    behind another server that was asked before: that is no restore, but the history is of no use there. It may not know
    of its timeline yet, either.
    """
    held: Any = memory or {}
    history = [(int(time), int(following)) for time, following in held.get("history", [])]
    restores = int(held.get("restores", 0))
    identity = held.get("server", server.identity)
    if identity != server.identity and not (server.standby and _is_later(identity, server.identity)):
        return _Past(server.identity, 0, [], is_known=False)
    crashed = not server.standby and held.get("unless", server.crash) != server.crash
    is_back = view.reaches is not None and view.reaches < int(held.get("written") or 0)
    if crashed or is_back or any(following > view.next for _, following in history):
        return _Past(identity, restores if server.standby else restores + 1, [], is_known=server.standby)
    # A time that has not come yet is one of a clock that has been set back since.
    return _Past(identity, restores, [(time, following) for time, following in history if time <= view.now])


def _is_later(identity: str, other: str) -> bool:
    """Return whether *identity* is a later timeline of the same cluster as *other*."""
    (cluster, _, timeline), (theirs, _, own) = identity.partition("/"), other.partition("/")
    return cluster == theirs and timeline > own


def _kept(history: Sequence[tuple[int, int]], view: View) -> list[tuple[int, int]]:
    """Return the history that a later poll may need: the latest entry at or below xmin, those after it, and this one.

    Leaving out an entry can only make a later answer an earlier time, which closes less: so a long history is thinned.
    Of two entries with the same id the later says more.
    """
    at = view.known if view.running is None else _oldest(view.running)
    seen = [*history] if at is None else [*history, (at, view.next)]
    known = {following: time for time, following in sorted(seen)}
    entries = sorted((time, following) for following, time in known.items())
    settled = [entry for entry in entries if entry[1] <= view.xmin]
    entries = [*settled[-1:], *(entry for entry in entries if entry[1] > view.xmin)]
    while len(entries) > _KEPT:
        entries = [entries[0], *entries[1:-1:2], entries[-1]]
    return entries
