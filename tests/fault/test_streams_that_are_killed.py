"""A streaming query that is killed, again and again, delivers every change once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sidecar
from sidecar.clock import SystemClock
from sidecar.log import queries
from tests.fault import stream_query
from tests.fault.harness import seed
from tests.integration.logs import ids, log_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

clock = SystemClock()


def batches(folder: Path) -> int:
    """How many batches the file sink has committed."""
    return sum(path.name.partition(".")[0].isdigit() for path in folder.glob("_spark_metadata/[0-9]*"))


@pytest.mark.parametrize(
    ("kills", "segments"),
    [
        pytest.param(2, 30, marks=pytest.mark.timeout(900)),
        pytest.param(20, 200, marks=[pytest.mark.soak, pytest.mark.timeout(3000)]),
    ],
)
def test_a_stream_killed_and_restarted_delivers_every_change_once(
    spark: SparkSession, tmp_path: Path, kills: int, segments: int
) -> None:
    chance = random.Random(seed())
    state, out, checkpoint = tmp_path / "state", tmp_path / "out", tmp_path / "checkpoint"
    log = ids(log_in(state), segments // 2)
    for _ in range(kills):
        query = subprocess.Popen(
            [sys.executable, stream_query.__file__, state, out, checkpoint],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
        try:
            wanted = batches(out) + chance.randint(1, segments // kills)
            ids(log, min(segments // kills // 2, segments - log.last()))
            while batches(out) < min(wanted, log.last()):
                assert query.poll() is None
                clock.sleep(0.01)
            clock.sleep(chance.random() * 0.4)
        finally:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
    ids(log, segments - log.last())
    sidecar.register(spark)
    source = spark.readStream.format("sidecar").option("path", str(state)).option("table", "t")
    source = source.option("consumer", "lake")
    writer = source.load().writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(out)).awaitTermination()

    expected = sorted((row["_commit_version"], row["id"]) for row in log.rows())
    columns = ("_commit_version", "id")
    # Through the sink's own list: files of a batch that was cut short lie beside those that count.
    assert sorted(tuple(r) for r in spark.read.parquet(str(out)).select(*columns).collect()) == expected
    beside = spark.read.format("sidecar").option("path", str(state)).option("table", "t").load()
    assert sorted(tuple(r) for r in beside.select(*columns).collect()) == expected
    assert 0 < queries.positions(log)["lake"] <= segments
