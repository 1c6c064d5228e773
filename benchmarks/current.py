"""How long does it take to tell the table from its log: a first load, then changes, against a window over all of it?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks import workload
from benchmarks.bench import NAMES, Bench, project
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed
from benchmarks.poll_size import change
from sidecar.clock import SystemClock
from sidecar.project import Sidecar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGES = 100_000


def ask(bench: Bench) -> Answer:
    """Return the answer for the first of the sources: whose log it is makes no difference."""
    scheme, changes = bench.sources[0], min(CHANGES, bench.small // 10)
    with contextlib.ExitStack() as stack:
        url, spark = stack.enter_context(bench.copy(scheme, bench.small)), bench.spark
        loaded, based = (
            stack.enter_context(project(stack.enter_context(bench.scratch()), url, sinks=False)) for _ in range(2)
        )
        bench.say("reading the table into two logs, and a base of one")
        for sc in (loaded, based):
            sc.poll()
        based.compact(spark, "orders")
        change(url, workload.spread(bench.small, changes, 0), SystemClock().now())
        for sc in (loaded, based):
            sc.poll()
        window = Contender("window function, by Spark", _timed(lambda: _window(spark, loaded)))
        contenders = [
            window,
            Contender("current, from a first load", _timed(lambda: loaded.current(spark, "orders")), window.name, 1.0),
            Contender("current, from a base", _timed(lambda: based.current(spark, "orders")), window.name, 1.0),
        ]
        frames = _window(spark, loaded), loaded.current(spark, "orders"), based.current(spark, "orders")
        counts = {frame.count() for frame in frames}
        if len(counts) != 1:
            raise RuntimeError(f"they do not agree on how many rows there are: {counts}")
        results = take_turns(contenders, bench.runs, say=bench.say)
    notes = [
        f"The log of {NAMES[scheme]}: a first load, then one poll. All rows, to Spark's noop, in a warm session.",
        "Window: row_number() over the key, newest offset first, of which the first that is no delete stays.",
    ]
    title = f"The table of {bench.small:,} rows and {changes:,} changes since, from its log"
    return Answer("current", title, "s", results, notes)


def _timed(frame: Callable[[], DataFrame]) -> Callable[[], Sample]:
    return lambda: timed(lambda: frame().write.format("noop").mode("overwrite").save())


def _window(spark: SparkSession, sc: Sidecar) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    newest = F.row_number().over(Window.partitionBy("id").orderBy(F.desc("_commit_version")))
    ranked = sc.dataframe(spark, "orders").withColumn("n", newest)
    return ranked.where("n = 1 AND _change_type <> 'delete'").drop(
        *("n", "_change_type", "_commit_version", "_commit_timestamp", "_origin")
    )
