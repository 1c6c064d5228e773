"""Mirrors of random changes, however these are cut into batches, crashed and repeated: type 1 is the log folded by key,
type 2 is the log folded by time. The folds below are written anew, in plain Python, row by row.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sidecar
from sidecar import faults
from sidecar.clock import EPOCH
from sidecar.mirrors.mirror import KINDS, MirrorSink
from sidecar.sinks import Batch
from tests.conftest import SQLiteFile

Row: TypeAlias = dict[str, Any]

START = 1_714_557_600_000_000
EXAMPLES = 1_500 if os.environ.get("SIDECAR_SOAK") else 50
KEYS = range(5)
POINTS = ("mirror-created", "mirror-written", "mirror-evolved", "mirror-committed")


@dataclass(frozen=True)
class Change:
    kind: str
    origin: str
    key: tuple[int, str]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Segment:
    """Changes of one offset, each key at most once; how many columns the source has by then; when it was taken."""

    offset: int
    at: int
    width: int
    changes: tuple[Change, ...]


def arrow(segments: list[Segment]) -> pa.Table:
    """Return what the feed gives of *segments*: the newest columns, NULL where a row has none."""
    width = max(s.width for s in segments)
    rows = [(s, c) for s in segments for c in s.changes]
    columns = {
        "_change_type": pa.array([c.kind for _, c in rows], pa.string()),
        "_commit_version": pa.array([s.offset for s, _ in rows], pa.int64()),
        "_commit_timestamp": pa.array([s.at for s, _ in rows], pa.timestamp("us", "UTC")),
        "_origin": pa.array([c.origin for _, c in rows], pa.string()),
        "id": pa.array([c.key[0] for _, c in rows], pa.int64()),
        "part": pa.array([c.key[1] for _, c in rows], pa.string()),
    }
    for n in range(width):
        values = [c.values[n] if n < len(c.values) else None for _, c in rows]
        columns[f"v{n}"] = pa.array(values, pa.int64() if n < 2 else pa.string())
    # Spark promises no order.
    return pa.table(columns).take(pa.array(sorted(range(len(rows)), key=lambda n: n * 7919 % 101), pa.int64()))


# -- the folds, in plain Python ----------------------------------------------------------------------------------------


def padded(values: tuple[Any, ...], width: int) -> tuple[Any, ...]:
    return values + (None,) * (width - len(values))


def fold_current(segments: list[Segment], width: int) -> list[Any]:
    rows: dict[Any, Any] = {}
    for segment in segments:
        for change in segment.changes:
            if change.kind == "delete":
                rows.pop(change.key, None)
            else:
                rows[change.key] = (*change.key, *padded(change.values, width))
    return sorted(rows.values(), key=repr)


def fold_marked(segments: list[Segment], width: int) -> list[Any]:
    rows: dict[Any, Any] = {}
    for segment in segments:
        for change in segment.changes:
            values = padded(change.values, width)
            if change.kind == "delete" and values == (None,) * width and change.key in rows:
                values = rows[change.key][2:-1]
            rows[change.key] = (*change.key, *values, segment.at if change.kind == "delete" else None)
    return sorted(rows.values(), key=repr)


def fold_history(segments: list[Segment], width: int) -> list[Any]:
    done: list[Any] = []
    running: dict[Any, tuple[tuple[Any, ...], int]] = {}
    clocks: dict[Any, int] = {}
    for segment in segments:
        for change in segment.changes:
            key, values = change.key, padded(change.values, width)
            now = max(segment.at, clocks.get(key, segment.at))
            before = running.get(key)
            if change.kind == "delete" and before is None:
                continue
            is_again = change.kind != "delete" and change.origin == "backfill"
            if is_again and before is not None and before[0] == values:
                continue
            clocks[key] = now
            if before is not None:
                done.append((*key, *before[0], before[1], now, False))
                del running[key]
            if change.kind != "delete":
                running[key] = values, now
    found = done + [(*key, *values, since, None, True) for key, (values, since) in running.items()]
    return sorted(found, key=repr)


FOLDS = {"current": fold_current, "marked": fold_marked, "history": fold_history}


# -- random changes ----------------------------------------------------------------------------------------------------


@st.composite
def stories(draw: st.DrawFn) -> list[list[Segment]]:
    """Batches of segments of a source that lives: its rows come, change, go, come back, and are backfilled again."""
    alive: dict[Any, tuple[Any, ...]] = {}
    width, now, offset = 1, START, 0
    batches = []
    for _ in range(draw(st.integers(1, 5))):
        batch = []
        for _ in range(draw(st.integers(1, 3))):
            offset += 1
            width = min(3, width + draw(st.sampled_from([0, 0, 0, 1])))
            now += draw(st.sampled_from([1, 1, 1_000, -5, 0]))
            changes = []
            is_backfill = draw(st.booleans())
            for number in draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4)):
                key = (number // 2, "ab"[number % 2])
                what = draw(st.sampled_from(["write", "write", "delete", "bare"]))
                if is_backfill:
                    # What the source has, or what a poll has missed.
                    if key not in alive or what == "write":
                        alive[key] = tuple(draw(st.sampled_from([None, 1, 2])) for _ in range(min(2, width)))
                    changes.append(Change("insert", "backfill", key, alive[key]))
                elif what == "write":
                    kind = "update_postimage" if key in alive else "insert"
                    alive[key] = tuple(draw(st.sampled_from([None, 1, 2])) for _ in range(min(2, width)))
                    if width == 3:
                        alive[key] = (*alive[key], draw(st.sampled_from(["x", None])))
                    changes.append(Change(kind, "poll", key, alive[key]))
                else:
                    values = alive.pop(key, ()) if what == "delete" else ()
                    alive.pop(key, None)
                    changes.append(Change("delete", "poll", key, values))
            batch.append(Segment(offset, now, width, tuple(changes)))
        batches.append(batch)
    return batches


class Killed(BaseException):
    """The process is gone."""


@settings(max_examples=EXAMPLES)
@given(story=stories(), data=st.data())
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_mirror_is_the_log_folded_however_it_is_cut_crashed_and_repeated(
    kind: str, story: list[list[Segment]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = MirrorSink("lake", path=folder, kind=kind)
        seen: list[Segment] = []
        for segments in story:
            batch = Batch("t", segments[0].offset, segments[-1].offset, key=("id", "part"), log="a log")
            point = data.draw(st.sampled_from([None, None, *POINTS]))
            if point is not None:
                killed_at(point, sink, segments, batch)
                sink = MirrorSink("lake", path=folder, kind=kind)
            sink.apply(arrow(segments), batch, "_commit_version")
            if data.draw(st.integers(0, 3)) == 0:
                sink.apply(arrow(segments), batch, "_commit_version")
            if data.draw(st.integers(0, 5)) == 0:
                sink._tables["t"].maintain(0)
            seen += segments
            width = max(s.width for s in seen)
            assert held(sink, width) == FOLDS[kind](seen, width)


def killed_at(point: str, sink: MirrorSink, segments: list[Segment], batch: Batch) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "point", die)
        with contextlib.suppress(Killed):
            sink.apply(arrow(segments), batch, "_commit_version")


def held(sink: MirrorSink, width: int) -> list[Any]:
    """Return the mirror's rows as a reader with no knowledge of Sidecar gets them."""
    from deltalake import DeltaTable

    table = pa.table(DeltaTable(f"{sink.path}/t").to_pyarrow_table())
    assert table.column_names[2 : 2 + width] == [f"v{n}" for n in range(width)] or width > 1
    names = ["id", "part", *(f"v{n}" for n in range(width)), *(n for n in table.column_names if n[0] == "_")]
    return sorted((tuple(plain(row[n]) for n in names) for row in table.to_pylist()), key=repr)


def plain(value: Any) -> Any:
    return (value - EPOCH) // timedelta(microseconds=1) if hasattr(value, "tzinfo") else value


def test_the_folds_agree_where_nothing_is_special() -> None:
    segments = [Segment(1, 5, 1, (Change("insert", "poll", (1, "a"), (7,)),))]
    answers: Mapping[str, list[Any]] = {k: f(segments, 1) for k, f in FOLDS.items()}
    assert answers == {"current": [(1, "a", 7)], "marked": [(1, "a", 7, None)], "history": [(1, "a", 7, 5, None, True)]}


# -- a source that lives -----------------------------------------------------------------------------------------------

SOURCE = """CREATE TABLE t (id INTEGER, part TEXT, v0 INTEGER, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    deleted_at TEXT, PRIMARY KEY (id, part))"""
NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"
SINKS = """
[sinks.now]
format = "delta"
mode = "mirror"
path = "now"
[sinks.past]
format = "delta"
mode = "mirror"
history = true
path = "past"
"""


@pytest.mark.parametrize("seed", range(40 if os.environ.get("SIDECAR_SOAK") else 2))
def test_after_each_run_both_mirrors_are_what_the_source_is_and_was(
    sqlite_db: SQLiteFile, tmp_path: Path, seed: int
) -> None:
    dice, path = random.Random(seed), tmp_path / "sidecar.toml"
    path.write_text(f'[source]\nurl = "{sqlite_db.url}"\n[tables.t]\nchunk_size = 3\n{SINKS}')
    execute = sqlite_db.connection.execute
    execute(SOURCE)
    columns = ["id", "part", "v0", "created_at", "updated_at", "deleted_at"]
    for step in range(10):
        for _ in range(dice.randrange(4)):
            key = dice.randrange(5), dice.choice("ab")
            if dice.random() < 0.7:
                execute(
                    f"INSERT INTO t (id, part, v0, created_at, updated_at) VALUES (?, ?, ?, {NOW}, {NOW}) ON CONFLICT "
                    f"DO UPDATE SET v0 = excluded.v0, updated_at = {NOW}, deleted_at = NULL",
                    (*key, dice.randrange(3)),
                )
            else:
                execute(f"UPDATE t SET deleted_at = {NOW}, updated_at = {NOW} WHERE id = ? AND part = ?", key)
        if step == 4:
            execute("ALTER TABLE t ADD COLUMN v1 INTEGER")
            columns.append("v1")
        with sidecar.open(path) as sc:
            if (what := dice.randrange(5)) == 0:
                sc.request_backfill("t")
            elif what == 1 and sc.watermark("t") is not None:
                sc.reset_watermark("t")
            assert sc.run(once=True) == 0
            log = list(sc.log("t").rows())
        alive = execute(f"SELECT {', '.join(columns)} FROM t WHERE deleted_at IS NULL").fetchall()
        if not log:
            continue
        assert content(tmp_path / "now", columns) == sorted(alive, key=repr)
        assert content(tmp_path / "past", columns, "_is_current") == sorted(alive, key=repr)
        past = [*columns, "_valid_from", "_valid_to", "_is_current"]
        assert content(tmp_path / "past", past) == fold_log(log, columns)


def content(place: Path, columns: list[str], where: str | None = None) -> list[Any]:
    from deltalake import DeltaTable

    rows = pa.table(DeltaTable(f"{place}/t").to_pyarrow_table()).to_pylist()
    return sorted((tuple(plain(r.get(n)) for n in columns) for r in rows if where is None or r[where]), key=repr)


def fold_log(log: list[Row], columns: list[str]) -> list[Any]:
    """Fold the rows of a log by time, all of its columns as the newest segment has them."""
    done, running, clocks = [], dict[Any, tuple[tuple[Any, ...], Any]](), dict[Any, Any]()
    for row in log:
        key, values = (row["id"], row["part"]), tuple(row.get(n) for n in columns)
        is_delete = row["_change_type"] == "delete"
        if is_delete and key not in running:
            continue
        if key in running and not is_delete and row["_origin"] == "backfill" and running[key][0] == values:
            continue
        now = clocks[key] = max(plain(row["_commit_timestamp"]), clocks.get(key, 0))
        if key in running:
            before, since = running.pop(key)
            done.append((*before, since, now, False))
        if not is_delete:
            running[key] = values, now
    return sorted(done + [(*values, since, None, True) for values, since in running.values()], key=repr)
