"""The table as of any offset is the fold of its log by key, whatever bases there are and whatever is gone.

Logs are appended as the writer does it: polls with changes of any keys, chunks of backfills that share none, columns
that come, go and come again, resets, bases, and retention up to a base.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sidecar import clock
from sidecar.changelog import ChangeLog
from sidecar.errors import LogTruncated
from sidecar.lake import compaction, current
from sidecar.log import bases
from sidecar.model import DELETE, INSERT, KEY, UPDATE, Job, PassMark, Watermark
from sidecar.polls.deliveries import NOTHING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("SIDECAR_SOAK"))
KEYS = 8

Row = dict[str, Any]


def columns(names: tuple[str, ...], prefix: str = "_", total: pa.DataType | None = None) -> pa.Schema:
    """Return a log's columns: the key `(id, "the `part`.no")`, and *names*, `total` of its own type."""
    metadata = (
        *(("change_type", pa.string()), ("commit_version", pa.int64())),
        *(("commit_timestamp", pa.timestamp("us", "UTC")), ("origin", pa.string())),
    )
    key = (("id", pa.int64()), ("the `part`.no", pa.string()))
    return pa.schema(
        [
            *(pa.field(prefix + name, type_, nullable=False) for name, type_ in metadata),
            *(pa.field(name, type_, metadata=KEY) for name, type_ in key),
            *(pa.field(n, total or pa.int32() if n == "total" else pa.string()) for n in names),
        ]
    )


@dataclass
class World:
    """A log, what it is to tell as of each offset, and its columns now."""

    log: ChangeLog
    names: tuple[str, ...] = ("total", "note")
    prefix: str = "_"
    total: pa.DataType = field(default_factory=pa.int32)
    mark: Watermark = field(default_factory=lambda: Watermark("id by u"))
    rows: dict[tuple[int, str], Row] = field(default_factory=dict)
    told: dict[int, list[Row]] = field(default_factory=lambda: {0: []})
    jobs: int = 0

    @property
    def schema(self) -> pa.Schema:
        return columns(self.names, self.prefix, self.total)

    def append(self, changes: dict[tuple[int, str], tuple[str, int]], *, moved: bool = False) -> None:
        offset = self.log.last() + 1
        self.mark = dataclasses.replace(self.mark, offset=offset, marks={} if moved else {"updated": PassMark(offset)})
        origin = "poll" if self.mark.job is None else "backfill"
        written, schema = [], self.schema
        for (id_, part), (kind, value) in changes.items():
            row = {"id": id_, "the `part`.no": part, **{n: value if n == "total" else str(value) for n in self.names}}
            written.append([kind, offset, offset, origin, *row.values()])
            if kind == DELETE:
                self.rows.pop((id_, part), None)
            else:
                self.rows[id_, part] = row
        values = [list(v) for v in zip(*written, strict=True)] or [[] for _ in schema]
        data = pa.table([pa.array(v, f.type) for v, f in zip(values, schema, strict=True)], schema=schema)
        self.log.append(offset, data, self.mark, NOTHING, committed=offset * 10, origin=origin, moved=moved)
        self.told[offset] = [dict(row) for row in self.rows.values()]

    def altered(self, names: tuple[str, ...]) -> None:
        """Let the table have the columns *names* from now on."""
        self.names = names
        for row in self.rows.values():
            kept = {n: row.get(n) for n in ("id", "the `part`.no", *names)}
            row.clear()
            row.update(kept)

    def backfill(self, chunks: list[dict[tuple[int, str], tuple[str, int]]], between: list[Any]) -> None:
        """Write *chunks* of one backfill, polls *between* them."""
        self.jobs += 1
        job = Job(f"job-{self.jobs}", self.mark.offset, self.jobs)
        seen: set[tuple[int, str]] = set()
        for n, chunk in enumerate(chunks):
            self.mark = dataclasses.replace(self.mark, job=job)
            fresh = {k: (INSERT, v) for k, (_, v) in chunk.items() if k not in seen}
            seen |= fresh.keys()
            self.append(fresh)
            if n < len(between):
                self.mark = dataclasses.replace(self.mark, job=None)
                self.append(between[n])
        self.mark = dataclasses.replace(self.mark, job=None)

    def based(self) -> None:
        """Write a base as of now, without Spark."""
        made = current.plan(self.log, None, lambda: self.schema)
        folder = bases.aside(self.log, made.offset)
        folder.mkdir()
        rows = pa.Table.from_pylist(self.told[made.offset], made.schema)
        pq.write_table(rows.replace_schema_metadata(None), folder / "part-0.parquet")
        bases.settled(self.log, made.offset, made.offset * 10, made.schema)


changes = st.dictionaries(
    st.tuples(st.integers(1, KEYS), st.sampled_from("ab")),
    st.tuples(st.sampled_from([INSERT, UPDATE, DELETE]), st.integers(0, 10**6)),
    max_size=6,
)
steps = st.one_of(
    st.tuples(st.just("poll"), changes),
    st.tuples(st.just("poll"), changes),
    st.tuples(st.just("backfill"), st.tuples(st.lists(changes, min_size=1, max_size=3), st.lists(changes, max_size=2))),
    st.tuples(st.just("columns"), st.sampled_from([("total",), ("total", "note"), ("note", "more", "total")])),
    st.tuples(st.just("wider"), st.none()),
    st.tuples(st.just("prefix"), st.sampled_from(["_", "sc_"])),
    st.tuples(st.just("base"), st.none()),
    st.tuples(st.just("drop"), st.none()),
)


def world_of(folder: Path, taken: list[Any], spark: SparkSession | None = None) -> World:
    """Return a world in which the steps *taken* were taken; bases are written by *spark*, if given."""
    world = World(ChangeLog(folder, "t"))
    log = world.log
    for step, what in taken:
        if step == "poll":
            world.append(what)
        elif step == "backfill":
            world.backfill(*what)
        elif step == "columns" and set(what) != set(world.names):
            world.altered(what)
            world.append({})
        elif step == "wider":
            world.total = pa.int64()
        elif step == "prefix":
            world.prefix = what
            world.append({})
        elif step == "base" and log.last() not in bases.offsets(log):
            if spark is None:
                world.based()
            else:
                compaction.compact(spark, log, log.last(), lambda: world.schema)
        elif step == "drop" and (known := [b for b in bases.offsets(log) if b < log.last()]):
            log.drop(known[-1], world.mark, NOTHING)
            bases.drop(log, [b for b in bases.offsets(log) if b < log.floor()])
    return world


def told(made: current.Plan) -> list[Row]:
    """Return what a plan says, made by Python."""
    newest: dict[tuple[Any, ...], tuple[int, str, Row]] = {}
    for parts in (made.head, made.rest):
        seen = set()
        for part in parts:
            for path in part.paths:
                for row in pq.read_table(path).to_pylist():
                    kind = INSERT if part.kind is None else row[part.kind]
                    version = part.offset if part.version is None else row[part.version]
                    shaped = {n: row.get(n) if n in part.taken else None for n in made.schema.names}
                    key = tuple(row[n] for n in made.key)
                    assert parts is made.rest or key not in seen, "a key stands twice in the head"
                    seen.add(key)
                    if made.rest and parts is made.head and not made.mixed:
                        assert all(version < pq.read_table(p)[r.version][0].as_py() for r in made.rest for p in r.paths
                                   if pq.read_metadata(p).num_rows)  # fmt: skip
                    newest[key] = max(newest.get(key, (-1, "", {})), (version, kind, shaped), key=lambda n: n[0])
    return [row for _, kind, row in newest.values() if kind != DELETE]


def same(found: list[Row], expected: list[Row]) -> bool:
    return sorted(map(repr, found)) == sorted(map(repr, expected))


@settings(max_examples=1000 if SOAK else 40, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=3, max_size=15))
def test_what_a_table_is_made_of_as_of_each_offset_folds_to_what_it_was(
    tmp_path_factory: pytest.TempPathFactory, taken: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    world = world_of(folder, taken)
    log = world.log
    for offset in range(log.floor(), log.last() + 1):
        made = current.plan(log, offset, lambda: world.schema)
        assert made.offset == offset
        assert same(told(made), world.told[offset]), offset
        assert current.plan(log, clock.instant(offset * 10 + 5), lambda: world.schema) == made
    if log.floor():
        with pytest.raises(LogTruncated, match=f"offset {log.floor()}"):
            current.plan(log, log.floor() - 1, lambda: world.schema)
    shutil.rmtree(folder)


@settings(
    max_examples=100 if SOAK else 3,
    suppress_health_check=list(HealthCheck),
    # A smaller example of what fails is not worth minutes of Spark: the test above finds it.
    phases=[Phase.explicit, Phase.generate],
)
@given(st.lists(steps, min_size=5, max_size=15), st.randoms())
def test_spark_folds_the_log_as_python_does(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, taken: list[Any], random: Random
) -> None:
    folder = tmp_path_factory.mktemp("log")
    world = world_of(folder, taken, spark)
    for offset in {world.log.last(), random.randint(world.log.floor(), world.log.last())}:
        frame = current.dataframe(spark, world.log, offset, lambda: world.schema)
        assert same([row.asDict() for row in frame.collect()], world.told[offset]), offset
    shutil.rmtree(folder)
