"""Values that their column's type cannot hold: an error, a NULL, or the whole row set aside.

A row set aside is written, exactly, to a file in the state folder that carries the number of the segment it would have
stood in. The file comes first; the segment, which may be empty, is the commit, and remembers the row as delivered: so a
crash in between leaves a file without its segment, which is swept up and written anew, and a row is set aside once.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from sidecar import faults
from sidecar.changelog import ChangeLog
from sidecar.clock import iso
from sidecar.cursor import Flags
from sidecar.errors import SettingsError, counted
from sidecar.log.files import make_folder, write_durably
from sidecar.model import ALL, BAD, Position, Scalar, Scope, Tracked, Watermark
from sidecar.polls.rows import Rows, shape

log_ = logging.getLogger("sidecar")

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class _Bad:
    """A row with values that do not fit: why, by column, and the row itself, as `codec.bad` wrote it."""

    reasons: Mapping[str, str]
    row: Mapping[str, Any]


def sorted_out(found: Rows) -> tuple[Rows, Rows | None]:
    """Return the rows of *found* that are delivered, and those that are set aside (None: none are).

    SettingsError for the first bad one, unless the table's `on_bad_value` says otherwise.
    """
    if BAD not in found.data.column_names or found.data.column(BAD).null_count == len(found):
        return found, None
    tracked = found.tracked
    is_bad: Flags = pc.is_valid(found.data.column(BAD)).to_numpy()
    odd = found.take(is_bad)
    if tracked.on_bad_value == "error":
        first = next(_bad(odd))
        name = next(iter(first.reasons))
        raise SettingsError(
            f'table "{tracked.name}": {_said(tracked, name, first)} (first key: {_key(tracked, first)}). Nothing is '
            'converted silently: correct the value; or let on_bad_value = "null" or "quarantine" deliver NULL in its '
            "place, or set the row aside; or leave the column out (columns = …)"
        )
    if tracked.on_bad_value == "null":
        _warn(tracked, odd)
        return found, None
    return found.take(~is_bad), odd


def still_out(log: ChangeLog, aside: Rows | None, mark: Watermark) -> Rows | None:
    """Return the rows *aside* that are to be set aside: not those that are already, by *mark*, and that are met again
    only because the table's columns are others now, or its position was moved. A row is the same if it is in all
    columns that it still has.
    """
    if aside is None or mark.shape == shape(aside.data):
        return aside
    # Once a load of the whole table is over, what was set aside before it is no more (`clear`).
    after = mark.job.began if mark.job is not None and mark.job.closed is not None else 0
    met = [(bad, _key_of(bad.row, aside.tracked.key)) for bad in _bad(aside)]
    held = _newest(log, aside.tracked.key, {key for _, key in met}, after, mark.offset)
    is_held = [key in held and _is_same(held[key], bad.row) for bad, key in met]
    return None if all(is_held) else aside.take(~np.array(is_held, dtype=bool))


def _newest(
    log: ChangeLog, key: Sequence[str], wanted: Set[Position], after: int, last: int
) -> dict[Position, Mapping[str, Any]]:
    """Return, by key, the newest of the rows with a *wanted* key that have been set aside after segment *after*, up to
    *last*: what is written beyond may be of a segment that never was.
    """
    found: dict[Position, Mapping[str, Any]] = {}
    for path in sorted(folder(log).glob("*.jsonl")):
        if not path.stem.isdigit() or not after < int(path.stem) <= last:
            continue
        with path.open(encoding="utf-8") as file:
            for row in (json.loads(line)["row"] for line in file):
                if row.keys() >= {*key} and (at := _key_of(row, key)) in wanted:
                    found[at] = row
    return found


def _is_same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return all(value == before.get(name) for name, value in now.items())


def set_aside(log: ChangeLog, offset: int, aside: Rows | None, at: int) -> None:
    """Write the rows *aside* that belong to segment *offset*, which is still to be written, to a file of its number."""
    path = folder(log) / f"{offset:020d}.jsonl"
    if aside is None:
        # Another try at this segment may have met them, and have failed to write it.
        path.unlink(missing_ok=True)
        return
    make_folder(path.parent)

    def write(to: Path) -> None:
        with to.open("w", encoding="utf-8") as file:
            for bad in _bad(aside):
                line = {"offset": offset, "time": iso(at), "bad": bad.reasons, "row": bad.row}
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

    write_durably(path, write)
    causes = "; ".join(
        f'column "{name}" {reason} ({counted(number, "row")}, first key: {_key(aside.tracked, first)})'
        for (name, reason), (number, first) in _causes(aside).items()
    )
    log_.warning(
        'table "%s": %s set aside in %s: %s. Once corrected and stamped anew, rows are delivered',
        log.table, counted(len(aside), "row is", "rows are"), path, causes,
    )  # fmt: skip
    faults.point("rows-set-aside")


def sweep_up(log: ChangeLog, last: int) -> None:
    """Remove files whose segment was never written, and half-written ones; *last* is the last segment there is."""
    for path in folder(log).glob("*.jsonl"):
        if path.stem.isdigit() and int(path.stem) > last:
            path.unlink(missing_ok=True)
    for aside in folder(log).glob(".*.tmp"):
        aside.unlink(missing_ok=True)


def count(log: ChangeLog, last: int) -> int:
    """Return how many rows have been set aside up to segment *last*: those whose files are still there."""
    found = 0
    for path in folder(log).glob("*.jsonl"):
        if path.stem.isdigit() and int(path.stem) <= last:
            with path.open("rb") as file:
                found += sum(1 for _ in file)
    return found


def keys(log: ChangeLog, key: Sequence[str], after: int = 0, until: int | None = None) -> Iterator[Position]:
    """Yield the keys of the rows that were set aside after offset *after*, up to *until*, as positions."""
    for path in sorted(folder(log).glob("*.jsonl")):
        if path.stem.isdigit() and after < int(path.stem) and (until is None or int(path.stem) <= until):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    yield _key_in(line, key)


def clear(log: ChangeLog, key: Sequence[str], scope: Scope, through: int) -> None:
    """Remove the rows of *scope* that were set aside up to offset *through*: they have been read again."""
    read = set(scope.among.values) if scope.among is not None else set()
    for path in folder(log).glob("*.jsonl"):
        if path.stem.isdigit() and int(path.stem) <= through:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            left = [] if scope == ALL else [line for line in lines if _key_in(line, key) not in read]
            if not left:
                path.unlink(missing_ok=True)
            elif len(left) < len(lines):
                text = "".join(left)
                write_durably(path, lambda to, text=text: _write_text(to, text))  # type: ignore[misc]


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _key_in(line: str, key: Sequence[str]) -> Position:
    return _key_of(json.loads(line)["row"], key)


def _key_of(row: Mapping[str, Any], key: Sequence[str]) -> Position:
    return tuple(_plain(row[name]) for name in key)


def _plain(value: Any) -> Scalar:
    """Return a value of `codec.bad`'s notation as the codec takes it."""
    if not isinstance(value, dict):
        return value  # type: ignore[no-any-return]
    return base64.b64decode(value["blob"]) if "blob" in value else float(value["real"])


def folder(log: ChangeLog) -> Path:
    """Return where the rows of *log*'s table that were set aside are."""
    return log.state / "quarantine" / log.at.name


def _bad(rows: Rows) -> Iterator[_Bad]:
    for text in rows.data.column(BAD).to_pylist():
        raw = json.loads(text)
        yield _Bad(raw["bad"], raw["row"])


def _warn(tracked: Tracked, odd: Rows) -> None:
    for (name, _), (number, first) in _causes(odd).items():
        log_.warning(
            'table "%s": %s (first key: %s); delivered as NULL: %d of this page',
            tracked.name, _said(tracked, name, first), _key(tracked, first), number,
        )  # fmt: skip


def _causes(odd: Rows) -> dict[tuple[str, str], tuple[int, _Bad]]:
    """Return, by column and reason, how many rows are bad for that, and the first one that is."""
    found: dict[tuple[str, str], tuple[int, _Bad]] = {}
    for bad in _bad(odd):
        for cause in bad.reasons.items():
            number, first = found.get(cause, (0, bad))
            found[cause] = number + 1, first
    return found


def _said(tracked: Tracked, name: str, bad: _Bad) -> str:
    column = tracked.table.column(name)
    declared = f"declared {column.type}" if column is not None and column.type else "declared without a type"
    said, value = f'column "{name}" ({declared}) {bad.reasons[name]}', _value(bad.row.get(name))
    return f"{said}: {value}" if value else said


def _key(tracked: Tracked, bad: _Bad) -> str:
    return ", ".join(f"{name}={_value(bad.row.get(name))}" for name in tracked.key)


def _value(value: Any) -> str:
    """Return a value as messages show it: never much of it, and nothing of text that is none."""
    if isinstance(value, dict):
        shown = "" if "text" in value else str(next(iter(value.values()), ""))
    else:
        shown = repr(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
