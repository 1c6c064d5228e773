"""What does a batch of the stream cost beside one of Spark's own file stream over the same segments?"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sidecar
from benchmarks.bench import NAMES, Bench, project
from benchmarks.measure import Answer, Contender, Sample, take_turns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEGMENTS = 30
SIZES = (1_000, 50_000)
"""Rows of a segment, one of which makes a batch: what a poll finds, and a full page."""
AIM = 1.2
FIRST = 3
"""The first batches of a query start its workers: they are no figure of a batch's."""


def ask(bench: Bench) -> list[Answer]:
    """Return an answer for each size of segments."""
    return [_ask(bench, size) for size in dict.fromkeys(min(size, bench.small // SEGMENTS) for size in SIZES)]


def _ask(bench: Bench, size: int) -> Answer:
    scheme = bench.sources[0]
    with bench.scratch() as folder:
        url = bench.source(scheme, bench.small)
        with project(folder, url, table=f"chunk_size = {size}\npage_size = {size}", sinks=False) as sc:
            sc.poll()
            log = sc.log("orders")
        sidecar.register(bench.spark)
        last = min(SEGMENTS, log.last())
        files, schema = folder / "files", bench.spark.read.parquet(str(log.folder)).schema
        files.mkdir()
        for segment in log.list(0, last):
            # As Spark's own stream has to be fed: a folder of nothing else.
            (files / segment.path.name).hardlink_to(segment.path)
        spark = bench.spark
        ours = spark.readStream.format("sidecar").option("path", str(folder / "state")).option("table", "orders")
        ours = ours.option("maxSegmentsPerTrigger", "1").option("until", str(last))
        theirs = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1")
        runs = itertools.count()
        contenders = [
            Contender("Spark's file stream", _run(lambda: theirs.parquet(str(files)), folder, runs, last)),
            Contender('format("sidecar")', _run(ours.load, folder, runs, last), "Spark's file stream", AIM),
        ]
        results = take_turns(contenders, bench.runs, say=bench.say)
    notes = [
        f"{last} segments, one a batch, of {size:,} rows of {NAMES[scheme]}'s orders; to noop. The median of a query's "
        f"batches but the first {FIRST}: planning, reading, and Spark's two checkpoint files.",
    ]
    return Answer(f"stream_{size}", f"A batch of a stream, of {size:,} rows", "s", results, notes)


def _run(load: Callable[[], DataFrame], folder: Path, runs: itertools.count[int], last: int) -> Callable[[], Sample]:
    def run() -> Sample:
        writer = (
            load().writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint-{next(runs)}"))
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        found: Sequence[Any] = [p for p in query.recentProgress if p.numInputRows]
        if len(found) != last:
            raise RuntimeError(f"{len(found)} batches of {last} segments")
        found = found[FIRST:] or found
        parts = {name for p in found for name in p.durationMs} - {"triggerExecution"}
        spans = {name: statistics.median(p.durationMs.get(name, 0) for p in found) / 1000 for name in sorted(parts)}
        return Sample(statistics.median(p.durationMs["triggerExecution"] for p in found) / 1000, spans)

    return run
