"""Backfills as people ask for them and look at them; what does them is in `jobs.py`.

All of it works beside a process that runs the loop, and without one: requests are files, and the state is only read.
"""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from sidecar import codec
from sidecar.backfill import WHOLE, parts
from sidecar.backfilling.purge import refuse_hidden
from sidecar.backfilling.requests import Ended, Kind, Request, Requests
from sidecar.clock import SECOND
from sidecar.errors import SettingsError, StateHeld, counted
from sidecar.model import ALL, Among, Job, Page, Position, Scalar, Scope, Tracked
from sidecar.polls import quarantine

if TYPE_CHECKING:
    from sidecar.project import Sidecar

State: TypeAlias = Literal["waiting", "running", "done", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """One backfill: what it is of, how far it has come, and when it should be done. Times are microseconds UTC.

    `expected` is about how many rows it will read, where the source knows; `eta` is in seconds.
    """

    table: str
    id: str
    kind: Kind
    scope: str
    state: State
    asked: int
    began: int | None = None
    ended: int | None = None
    read: int = 0
    written: int = 0
    expected: int | None = None
    eta: float | None = None


def request(
    sc: Sidecar,
    tracked: Tracked,
    *,
    where: str | None = None,
    keys: Iterable[object] | None = None,
    purge: bool = False,
    empty: bool = False,
    quarantined: bool = False,
) -> Request | None:
    """Ask for a backfill, durably, and return the request; None where no row is set aside that could be read again."""
    if quarantined and (where is not None or keys is not None):
        # Of what a condition does not select nobody could tell, at the end, whether it is still to be set aside.
        raise SettingsError(
            f'table "{tracked.name}": --quarantined says which rows: all that are set aside. Leave out '
            f"{'--where' if keys is None else '--keys'}; or ask for these rows without --quarantined"
        )
    if purge and where is not None:
        raise SettingsError(
            f'table "{tracked.name}": a purge needs to know which keys it is about, and a condition cannot be asked of '
            "the log; leave out --where, or name the keys (--keys)"
        )
    if empty and (not purge or keys is not None):
        raise SettingsError(
            f'table "{tracked.name}": --empty is about a purge of the whole table: say it with --purge, without --keys'
        )
    if purge:
        refuse_hidden(sc.connector, tracked)
    if not sc.connector.loads_by_key:
        raise SettingsError(
            f'table "{tracked.name}": this kind of source cannot be read by key, so there are no backfills of it; '
            f"to read everything again: sidecar watermark reset {tracked.name}"
        )
    if (where is not None or keys is not None or quarantined) and not sc.connector.takes_scopes:
        raise SettingsError(f'table "{tracked.name}": this kind of source can only be backfilled as a whole')
    kind: Kind = "requested"
    if where is not None and not where.strip():
        # A variable of a shell that is not set, as likely as all rows.
        raise SettingsError(f'table "{tracked.name}": the condition is empty; for all rows, leave out --where')
    scope = Scope(where=where and where.strip())
    if quarantined:
        kind, found = "quarantined", tuple(dict.fromkeys(quarantine.keys(sc.log(tracked.name), tracked.key)))
        if not found:
            return None
        scope = Scope(where=scope.where, among=Among(tracked.key, found))
    elif keys is not None:
        scope = Scope(where=scope.where, among=Among(tracked.key, _spelled(sc, tracked, keys)))
    if scope != ALL:
        # Here somebody is waiting for the answer; later, what the source does not understand would hold up the table.
        for part in parts(scope):
            sc.connector.read(Page(sc.settled(tracked), WHOLE, {}, None, 1, scope=part))
    requests = Requests(sc.settings.state.path)
    return requests.ask(tracked.name, sc.clock.now(), kind=kind, scope=scope, purge=purge, empty=empty)


def _spelled(sc: Sidecar, tracked: Tracked, keys: Iterable[object]) -> tuple[Position, ...]:
    settled = sc.settled(tracked)
    return tuple(dict.fromkeys(sc.connector.spelled(settled, positions(settled, keys))))


def positions(tracked: Tracked, keys: Iterable[object]) -> tuple[Position, ...]:
    """Return *keys* as positions: each a line of comma-separated values, a tuple or list of them, or its one value.

    SettingsError names the first one that is no key of the table.
    """
    if isinstance(keys, str) or not isinstance(keys, Iterable):
        raise SettingsError(f'table "{tracked.name}": keys={keys!r}: give a list of keys, [{keys!r}]')
    split = [_values(key) for key in keys]
    if not split:
        raise SettingsError(f'table "{tracked.name}": no keys are given')
    for values in split:
        if len(values) != len(tracked.key):
            raise SettingsError(
                f'table "{tracked.name}": {",".join(map(str, values))!r} is no key of it: its key is '
                f"({', '.join(tracked.key)}), so a key has {_commas(len(tracked.key))}"
            )
    columns = [_typed(tracked, name, [values[at] for values in split]) for at, name in enumerate(tracked.key)]
    return tuple(dict.fromkeys(zip(*columns, strict=True)))


def _commas(values: int) -> str:
    return "1 value" if values == 1 else f"{values} values, with a comma in between"


def _values(key: object) -> list[object]:
    if isinstance(key, str):
        return list(next(csv.reader([key]), ())) or [""]
    return list(key) if isinstance(key, (list, tuple)) else [key]


def keys_in(given: Sequence[str]) -> list[str]:
    """Return the keys that *given* names: itself, and of each `@file` the lines of that."""
    found: list[str] = []
    for key in given:
        if not key.startswith("@"):
            found.append(key)
            continue
        try:
            # Not `splitlines`: a key may hold what Unicode calls the end of a line.
            lines = Path(key[1:]).read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--keys {key}: the file cannot be read: {error}") from None
        found += [line for line in lines if line.strip()]
    return found


def _typed(tracked: Tracked, name: str, values: list[object]) -> list[Scalar]:
    column = tracked.table.column(name)
    assert column is not None
    delivered = next((c.arrow for c in tracked.columns if c.name == name), column.arrow)
    if column.arrow == delivered and (texts := [v for v in values if isinstance(v, str)]) == values:
        # A million, each by itself, take minutes; but what is wrong with one of them, only each by itself says.
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            if pa.types.is_signed_integer(column.arrow):
                return codec.plain(pa.array(texts).cast(column.arrow))
    found = []
    for value in values:
        try:
            if value is None:
                raise pa.ArrowInvalid("no key is NULL")
            found.append(codec.plain(_key_part(value, column.arrow, delivered))[0])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OverflowError, ValueError):
            kind = column.type or delivered
            raise SettingsError(
                f'table "{tracked.name}": {value!r} is no value of its key column "{name}" ({kind})'
            ) from None
    return found


def _key_part(value: object, own: pa.DataType, delivered: pa.DataType) -> pa.Array:
    """Return *value*, of type *own* or as it is *delivered*, as *own*; ArrowInvalid if no row can have it."""
    try:
        found = _read(value, own).cast(own)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError):
        found = _read(value, delivered).cast(delivered).cast(own)
    back = found.cast(delivered)
    if not pa.types.is_string(own) and back.cast(own) != found:
        raise pa.ArrowInvalid("it is delivered as another value")
    return found


def _read(value: object, type_: pa.DataType) -> pa.Array:
    if isinstance(value, str) and pa.types.is_binary(type_) and value.startswith("\\x"):
        return pa.array([bytes.fromhex(value[2:])])
    return pa.array([value]).cast(type_) if isinstance(value, str) else pa.array([value])


def statuses(sc: Sidecar, table: str | None = None) -> list[BackfillStatus]:
    """Return the backfills of *table*, or of all tables: those that have ended, the one under way, those that wait."""
    requests, found = Requests(sc.settings.state.path), []
    for name in sorted(requests.tables()) if table is None else [table]:
        found += [_ended(e) for e in requests.ended(name)]
        found += [_open(r, _job(sc, r), sc.clock.now()) for r in requests.open(name)]
    return found


def _job(sc: Sidecar, r: Request) -> Job | None:
    """Return how far *r* has come; None if it has not begun."""
    mark = sc.store.watermark(r.table)
    return mark.job if mark is not None and mark.job is not None and mark.job.id == r.id else None


def cancel(sc: Sidecar, table: str, id_: str | None = None) -> list[str]:
    """Cancel the backfills of *table* that have not ended, or the one called *id_*; return their ids.

    One under way stops after the chunk at hand; what it has delivered stays in the log. SettingsError where only one is
    open that has not begun, and that the settings would ask for again.
    """
    requests = Requests(sc.settings.state.path)
    asked = [r for r in requests.open(table) if id_ in (None, r.id)]
    found = [r for r in asked if r.running or r.kind != "automatic"]
    if asked and not found:
        raise SettingsError(
            f'table "{table}": this backfill has not begun, and the settings ask for it: say auto_backfill = false to '
            "follow a new table without its existing rows, or put backfill_version back; or cancel it once it runs"
        )
    # The one under way last: that it has ended must not be forgotten before it is noticed.
    for r in reversed(found):
        job = None
        with contextlib.suppress(StateHeld):  # how far it has come is then for the other process to know
            job = _job(sc, r)
        done = {} if job is None else {"began": job.at, "read": job.read, "written": job.written}
        requests.end(r, "cancelled", sc.clock.now(), **done)
    return [r.id for r in reversed(found)]


def _ended(ended: Ended) -> BackfillStatus:
    r = ended.request
    return BackfillStatus(
        r.table, r.id, r.kind, described(r), ended.ending, r.at, ended.began, ended.at, ended.read, ended.written
    )


def _open(r: Request, job: Job | None, now: int) -> BackfillStatus:
    if job is None:
        return BackfillStatus(r.table, r.id, r.kind, described(r), "waiting", r.at)
    eta = None
    if job.expected is not None and job.read and now > job.at:
        eta = max(0, job.expected - job.read) * (now - job.at) / job.read / SECOND
    return BackfillStatus(
        r.table, r.id, r.kind, described(r), "running", r.at, job.at, None, job.read, job.written, job.expected, eta
    )


def described(r: Request) -> str:
    """Return in words what *r* is of."""
    parts = []
    if r.scope == ALL:
        parts.append("all rows")
    if r.scope.among is not None:
        count = len(r.scope.among.values)
        parts.append(f"{counted(count, 'value')} of ({', '.join(r.scope.among.columns)})")
    if r.scope.where is not None:
        parts.append(f"where {r.scope.where}")
    return ", ".join(parts) + (", then purge" if r.purge else "") + (", though it be empty" if r.empty else "")
