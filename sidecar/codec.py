"""Values, keys and watermarks as bytes: typed, lossless, versioned.

JSON keeps integers, strings, booleans and null apart by itself; bytes and floats are wrapped, so that `1`, `1.0`, `"1"`
and `b"1"` never meet, and no separator can stand inside a key. Timestamps are integers (microseconds) before they
come here.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.model import Hold, Horizon, Job, PassMark, Position, Progress, Scalar, Span, Watermark

FORMAT = 4


def pack(values: Sequence[Scalar]) -> str:
    """Return *values* as one line of JSON; `unpack` gives back equal values of equal types."""
    return json.dumps(wrapped(values), separators=(",", ":"), ensure_ascii=True)


def unpack(text: str) -> Position:
    """Return what `pack` was given."""
    return unwrapped(json.loads(text))


def wrapped(values: Sequence[Scalar]) -> list[object]:
    """Return *values* as they may stand in a JSON document; `unwrapped` gives back equal values of equal types."""
    return [_wrap(v) for v in values]


def unwrapped(values: Iterable[object]) -> Position:
    """Return what `wrapped` was given."""
    return tuple(_unwrap(v) for v in values)


def bad(reasons: Mapping[str, str], row: Mapping[str, object]) -> str:
    """Return what a page's `sidecar:bad` says of a row: by column, why its value does not fit, and the whole row.

    Texts, integers, booleans and NULL stand for themselves; a float is `{"real": …}` in Python's own, exact notation,
    bytes are `{"blob": …}` in base64, and what else a source has brings such an object along.
    """

    def exact(value: object) -> object:
        if isinstance(value, bytes):
            return {"blob": base64.b64encode(value).decode()}
        return {"real": repr(value)} if isinstance(value, float) else value

    return json.dumps(
        {"bad": dict(reasons), "row": {name: exact(value) for name, value in row.items()}}, separators=(",", ":")
    )


def plain(column: pa.ChunkedArray | pa.Array) -> list[Scalar]:
    """Return a column's values as the codec takes them: temporal values as integers, decimals as strings.

    So are those inside lists, structs and maps, which take part in fingerprints and never in a key or a position.
    """
    type_ = column.type
    if pa.types.is_timestamp(type_) or pa.types.is_time64(type_) or pa.types.is_duration(type_):
        column = pc.cast(column, pa.int64())
    elif pa.types.is_date32(type_) or pa.types.is_time32(type_):
        column = pc.cast(column, pa.int32())
    elif pa.types.is_decimal(type_):
        column = pc.cast(column, pa.string())
    elif pa.types.is_nested(type_):
        column = pc.cast(column, _plain_type(type_))
    values: list[Scalar] = column.to_pylist()
    return values


def array(values: Sequence[Scalar], type_: pa.DataType) -> pa.Array:
    """Return the values that `plain` made of a column of *type_* as a column of it again."""
    if pa.types.is_date32(type_) or pa.types.is_time32(type_):
        return pa.array(values, pa.int32()).cast(type_)
    return pa.array(values).cast(type_)


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_plain_type(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in type_])
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    return pa.string() if pa.types.is_decimal(type_) else type_


def rows(table: pa.Table, names: Sequence[str]) -> Iterable[tuple[Scalar, ...]]:
    """Return the named columns of *table*, row by row, as the codec takes them."""
    return zip(*(plain(table.column(n)) for n in names), strict=True)


def position(last: pa.Table, names: Sequence[str]) -> Position:
    """Return the position after a page, from a table that holds its last row."""
    return next(iter(rows(last, names)))


def dump_watermark(mark: Watermark) -> str:
    """Return *mark* as JSON, with the format's version in it."""
    return json.dumps(
        {
            "format": FORMAT,
            "settings": mark.settings,
            "offset": mark.offset,
            "marks": {name: _dump_mark(m) for name, m in mark.marks.items()},
            "since": mark.since,
            "memory": mark.memory,
            "polled": mark.polled,
            "kind": mark.kind,
            "unit": mark.unit,
            "era": mark.era,
            "doubt": mark.doubt,
            "hold": _dump_hold(mark.hold),
            "late": mark.late,
            "shape": mark.shape,
            "job": mark.job and _dump_job(mark.job),
            "finished": mark.finished,
            "version": mark.version,
            "born": mark.born,
            "reached": mark.reached,
            "width": mark.width,
            "progress": mark.progress and _dump_progress(mark.progress),
        },
        separators=(",", ":"),
    )


def load_watermark(text: str | bytes) -> Watermark:
    """Return the watermark that `dump_watermark` wrote; ValueError for a format this version does not know."""
    found = _loaded(text)
    if found.progress is not None:
        return _loaded.__wrapped__(text)
    # A connector may write into the memory that it is given: what is stored stays what it was.
    return found if found.memory is None else dataclasses.replace(found, memory=copy.deepcopy(found.memory))


# A poll asks for its watermark several times, and for the one that the poll before it has left.
@functools.lru_cache(maxsize=64)
def _loaded(text: str | bytes) -> Watermark:
    raw = json.loads(text)
    if raw.get("format") != FORMAT:
        raise ValueError(f"watermark of format {raw.get('format')!r}; this version knows {FORMAT}")
    return Watermark(
        settings=raw["settings"],
        offset=raw["offset"],
        marks={name: _load_mark(m) for name, m in raw["marks"].items()},
        since=raw["since"],
        memory=raw["memory"],
        polled=raw["polled"],
        kind=raw["kind"],
        unit=raw["unit"],
        era=raw["era"],
        doubt=raw["doubt"],
        hold=raw["hold"] and Hold(*raw["hold"]),
        late=raw["late"],
        shape=tuple(raw["shape"]),
        job=raw["job"] and _load_job(raw["job"]),
        finished=raw["finished"],
        version=raw["version"],
        born=raw.get("born", {}),
        reached=raw.get("reached"),
        width=raw.get("width"),
        progress=raw["progress"] and _load_progress(raw["progress"]),
    )


def _dump_mark(mark: PassMark) -> list[object]:
    return [mark.closed, mark.greatest, mark.due]


def _load_mark(raw: list[object]) -> PassMark:
    closed, greatest, due = raw
    assert closed is None or isinstance(closed, int)
    assert due is None or isinstance(due, int)
    assert isinstance(greatest, list)
    return PassMark(closed, tuple((when, value) for when, value in greatest), due)


def _dump_progress(progress: Progress) -> dict[str, object]:
    horizon = progress.horizon
    seen = (horizon.now, horizon.settled, horizon.floor, horizon.memory, horizon.era)
    return {
        "horizon": [*seen, _dump_hold(horizon.hold)],
        "closing": {name: _dump_mark(m) for name, m in progress.closing.items()},
        "scan": progress.scan,
        "after": _dump_position(progress.after),
        "shape": progress.shape,
        "silent": progress.silent,
    }


def _load_progress(raw: dict[str, object]) -> Progress:
    closing, horizon, scan = raw["closing"], raw["horizon"], raw["scan"]
    assert isinstance(closing, dict)
    assert isinstance(horizon, list)
    marks = {name: _load_mark(m) for name, m in closing.items()}
    now, settled, floor, memory, era, hold = horizon
    view = Horizon(now, settled, floor, memory, era, hold and Hold(*hold))
    shape = raw["shape"]
    assert isinstance(shape, list)
    after, silent = _load_position(raw["after"]), bool(raw["silent"])
    return Progress(view, marks, scan, after, tuple(shape), silent)  # type: ignore[arg-type]


def _dump_job(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "began": job.began,
        "at": job.at,
        "spans": [[_dump_position(s.after), _dump_position(s.until), s.done] for s in job.spans],
        "part": job.part,
        "closed": job.closed,
        "since": job.since,
        "read": job.read,
        "written": job.written,
        "expected": job.expected,
        "version": job.version,
        "settles": job.settles,
    }


def _load_job(raw: dict[str, Any]) -> Job:
    spans = (Span(_load_position(after), _load_position(until), done) for after, until, done in raw.pop("spans"))
    return Job(spans=tuple(spans), **raw)


def _dump_hold(hold: Hold | None) -> object:
    return None if hold is None else [hold.since, hold.by]


def _dump_position(position: Position | None) -> object:
    return None if position is None else wrapped(position)


def _load_position(raw: object) -> Position | None:
    return None if raw is None else unwrapped(raw)  # type: ignore[arg-type]


def _wrap(value: Scalar) -> object:
    if isinstance(value, bytes):
        return {"b": base64.b64encode(value).decode()}
    if isinstance(value, float):
        return {"f": value.hex()}
    return value


def _unwrap(value: object) -> Scalar:
    if isinstance(value, dict):
        if "b" in value:
            return base64.b64decode(value["b"])
        return float.fromhex(value["f"])
    return value  # type: ignore[return-value]
