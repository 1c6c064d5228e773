"""A process with a Spark of its own that streams a log into a Parquet folder, a segment a batch, until it is killed."""

from __future__ import annotations

import sys

import sidecar
from sidecar.lake import spark


def main(state: str, out: str, checkpoint: str) -> None:
    """Stream table `t` of the state's folder."""
    # What starts fast: it does not live long.
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    session = spark.session("sidecar-stream", master="local[1]", config=quick)
    sidecar.register(session)
    source = session.readStream.format("sidecar").option("path", state).option("table", "t")
    frame = source.option("maxSegmentsPerTrigger", "1").option("consumer", "lake").load()
    frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(out).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
