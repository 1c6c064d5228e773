"""What the command line prints: status and changes, for people and for programs."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sidecar import cursor
from sidecar.clock import SECOND, iso
from sidecar.config import TableSettings
from sidecar.errors import counted
from sidecar.horizon import LONG_HOLD, kind_of
from sidecar.polls import evolution
from sidecar.settings.names import matches
from sidecar.terminal.show_backfills import ago, progress
from sidecar.terminal.tables import Cell, Table

if TYPE_CHECKING:
    from sidecar.changelog import ChangeLog, SchemaVersion
    from sidecar.config import Settings
    from sidecar.model import Tracked, Watermark
    from sidecar.polls.evolution import Change
    from sidecar.running.standing import TableStatus

_BREAKS = re.compile("[\x85\u2028\u2029]")
"""At these, Python and others end a line. JSON escapes the rest of them by itself."""


def status(tables: Sequence[TableStatus], settings: Settings, now: int) -> list[dict[str, Any]]:
    """Return a JSON object a table. The source is not asked, so this works while it is away."""
    return [
        {
            "table": t.table,
            "followed": _is_asked_for(settings, t.table),
            "watermark": None if t.greatest is None else cursor.show(t.greatest, t.kind, t.unit),
            "polled": None if t.polled is None else iso(t.polled),
            "lag_s": None if t.polled is None else round(max(0, now - t.polled) / SECOND, 1),
            "offset": t.offset,
            "sinks": {
                name: _standing(t, t.positions.get(name, 0))
                for name in settings.sinks
                if name in t.positions or _takes(settings, name, t)
            },
            "queries": {name: _standing(t, at) for name, at in sorted(t.queries.items())},
            "polling": t.in_progress,
            "held_by": None if t.hold is None else t.hold.by,
            "held_s": None if t.hold is None else _held_for(t),
            "late": t.late,
            "quarantined": t.quarantined,
            "loading": t.loading,
            "backfill": None if t.backfill is None else {"id": t.backfill.id, "progress": progress(t.backfill)},
            "error": t.error,
        }
        for t in tables
    ]


def _held_for(table: TableStatus) -> float | None:
    """Return for how many seconds the horizon had been held at the last poll; None: for longer than is known."""
    if table.hold is None or table.hold.since is None or table.polled is None:
        return None
    return round(max(0, table.polled - table.hold.since) / SECOND, 1)


def _held(row: Mapping[str, Any]) -> str:
    """Return who holds the horizon back, if that is worth a word: in a busy database something always runs."""
    if row["loading"] or row["held_by"] is None or (row["held_s"] is not None and row["held_s"] * SECOND <= LONG_HOLD):
        return ""
    how_long = "since before the first poll" if row["held_s"] is None else f"for {ago(row['held_s'])}"
    return f"ok, held back {how_long} by {row['held_by']}"


def _standing(table: TableStatus, at: int) -> dict[str, int]:
    return {"offset": at, "behind": max(0, table.offset - at)}


def _takes(settings: Settings, sink: str, table: TableStatus) -> bool:
    own = next((t for key, t in settings.tables.items() if _is_named(table.table, key)), TableSettings())
    asked, tables = own.sinks or settings.defaults.sinks, settings.sinks[sink].tables
    return (asked is None or sink in asked) and (tables is None or any(matches(table.table, p) for p in tables))


def _is_asked_for(settings: Settings, table: str) -> bool:
    """Return whether *settings* have *table* followed, if it is there and can be."""
    include, exclude = settings.source.include, settings.source.exclude
    if any(_is_named(table.casefold(), key.casefold()) for key in settings.tables):
        return True
    if include is None and not exclude:
        return False
    is_let_in = include is None or any(matches(table, pattern) for pattern in include)
    return is_let_in and not any(matches(table, pattern) for pattern in exclude)


def _is_named(table: str, key: str) -> bool:
    return key in (table, f"public.{table}") or table.endswith(f".{key}")


def status_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return what `status` found as a table for people."""
    found = []
    for row in rows:
        readers = [*row["sinks"].items(), *((f"query {name}", at) for name, at in row["queries"].items())]
        sinks = [f"{n} {s['offset']}" + (f" ({s['behind']} behind)" if s["behind"] else "") for n, s in readers]
        well = "poll under way" if row["polling"] else "ok" if row["polled"] else "not polled yet"
        if row["loading"]:
            well = "first load" + (f" {row['backfill']['progress']}" if row["backfill"] else "")
        elif row["backfill"]:
            well = f"backfill {row['backfill']['progress']}"
        if row["late"]:
            well += f", {counted(row['late'], 'row')} came later than lookback"
        if row["quarantined"]:
            well += f", {counted(row['quarantined'], 'row')} set aside"
        state = (_held(row) or well) if row["followed"] else "not followed any more"
        if row["error"]:
            state = "error" if well == "ok" else f"error, {well.removeprefix('ok, ')}"
        polled = "-" if row["lag_s"] is None else f"{ago(row['lag_s'])} ago"
        found.append(
            [row["table"], row["watermark"] or "-", polled, str(row["offset"]), ", ".join(sinks) or "-", state]
        )
    return Table(("table", "watermark", "polled", "offset", "sinks", "state"), found, prose=True)


def status_errors(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong by what `status` found, a line each; what is wrong with several tables alike, once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for text in (row["error"] or "").splitlines():
            found.setdefault(text, []).append(row["table"])
    return [f"error: {_of_tables(text, names)}{text}" for text, names in found.items()]


def _of_tables(text: str, names: Sequence[str]) -> str:
    if len(names) > 1:
        return f"tables {', '.join(names)}: "
    return "" if f'"{names[0]}"' in text else f'table "{names[0]}": '


def changes(log: ChangeLog, since: int, limit: int | None) -> Iterator[dict[str, Any]]:
    """Yield the changes after offset *since* as JSON objects, in log order, at most *limit*."""
    segments = log.list(since)
    found = itertools.chain.from_iterable(
        objects(changes) for s in segments if (changes := log.get(s.offset)) is not None
    )
    return itertools.islice(found, limit)


def newest(log: ChangeLog, count: int) -> tuple[Iterator[dict[str, Any]], bool]:
    """Yield the last *count* changes in log order, and whether there are older ones."""
    found: list[dict[str, Any]] = []
    segments = log.list(log.floor())
    while segments and len(found) <= count:
        changes = log.get(segments.pop().offset)
        found = [*(objects(changes) if changes is not None else ()), *found]
    return iter(found[-count:]), len(found) > count


def changes_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return changes as a table for people."""
    # A table's columns may change on the way.
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table(names, [[_text(row.get(name)) for name in names] for row in rows])


def objects(changes: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the rows as JSON takes them: decimals as strings, times in ISO 8601, bytes in base64, maps as objects."""
    columns = [_column(column) for column in changes.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(changes.column_names, values, strict=True))


def line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON, whatever a reader takes for the end of a line."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _BREAKS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def schema(version: SchemaVersion) -> dict[str, Any]:
    """Return one version of a table's columns as a JSON object."""
    return {
        "version": version.version,
        "first_offset": version.first,
        "committed": iso(version.committed),
        "columns": {field.name: str(field.type) for field in version.schema},
        "readable_since": version.since,
    }


def schemas_table(versions: Sequence[SchemaVersion], pending: Sequence[Change], *, waits: bool) -> Table:
    """Return the versions of a table's columns for people, the newest first: what each brought, against its elder.

    Before them, what is *pending*: with the next poll, or once it is accepted, if that *waits* for it.
    """
    found: list[list[Cell]] = []
    if pending:
        found.append(["-", "-", "waits for --accept" if waits else "with the next poll", tuple(map(str, pending))])
    for at, version in enumerate(versions):
        older = versions[at + 1].schema if at + 1 < len(versions) else None
        if older is None:
            told = [f"{f.name} {f.type}" for f in version.schema]
        else:
            told = [str(change) for change in evolution.changes(older, version.schema)]
            if version.since == version.first:
                told.append(f"Older changes cannot be read as this: until={version.first - 1}")
        found.append([str(version.version), str(version.first), iso(version.committed), tuple(told)])
    return Table(("version", "from offset", "time", "columns"), found, prose=True)


def watermark(tracked: Tracked, mark: Watermark | None) -> list[str]:
    """Return where each pass of *tracked* stands, a line each."""
    if mark is None:
        return [f"{tracked.name}: not polled yet"]
    found = [f"{tracked.name}: offset {mark.offset}, polled {'-' if mark.polled is None else iso(mark.polled)}"]
    for scan in tracked.passes:
        at = mark.marks.get(scan.name)
        if scan.cursor is None or at is None:
            continue
        unit = tracked.unit
        kind = kind_of(tracked, scan)
        seen = at.greatest[-1][1] if at.greatest else None
        closed, greatest = cursor.show(at.closed, kind, unit), cursor.show(seen, kind, unit)
        found.append(f"  {scan.name} by {scan.cursor}: closed up to {closed}, greatest seen {greatest}")
    if mark.progress is not None:
        found.append(f"  a poll is under way, in its pass {mark.progress.scan}")
    return found


def watermark_json(mark: Watermark | None) -> str:
    """Return the watermark as it is, in JSON."""
    return json.dumps(None if mark is None else asdict(mark), ensure_ascii=False)


def _column(column: pa.ChunkedArray) -> list[Any]:
    type_ = column.type
    if pa.types.is_timestamp(type_):
        # Arrow's own text, because Python's datetime ends at the year 9999.
        zone = "UTC" if type_.tz else None
        text = pc.cast(pc.cast(column, pa.timestamp(type_.unit, zone)), pa.string())
        text = pc.replace_substring(text, " ", "T", max_replacements=1)
        return _values(pc.replace_substring_regex(text, r"\.0+(Z?)$", r"\1"))
    if pa.types.is_date(type_) or pa.types.is_time(type_):
        return _values(pc.cast(column, pa.string()))
    if pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_boolean(type_):
        return _values(column)
    return [_json(value) for value in column.to_pylist(maps_as_pydicts="strict")]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _json(value: Any) -> Any:  # noqa: PLR0911  one line a type
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): _json(v) for k, v in value.items()}
    return value


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
