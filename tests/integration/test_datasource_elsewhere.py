"""`format("sidecar")` from a Spark Connect client, and from spark-submit to a cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from sidecar.lake.spark import find_java
from tests.integration.logs import ids, log_in

ROOT = Path(__file__).parents[2]
clock = SystemClock()
pytestmark = [pytest.mark.soak, pytest.mark.spark]  # each starts a Spark of its own, and the cluster three

BOTH = """
import sys
state, out = sys.argv[1:]
options = {"path": state, "table": "t"}
batch = spark.read.format("sidecar").options(**options).load()
print("batch:", batch.count(), batch.columns[-1])
stream = spark.readStream.format("sidecar").options(**options, maxSegmentsPerTrigger="2").load()
query = stream.writeStream.format("parquet").option("checkpointLocation", out + "-checkpoint")
query.trigger(availableNow=True).start(out).awaitTermination()
print("stream:", spark.read.parquet(out).count())
spark.stop()
"""
CLIENT = 'from pyspark.sql import SparkSession\nspark = SparkSession.builder.remote("local[2]").getOrCreate()\n'
SUBMITTED = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()\n"


@pytest.fixture
def environment() -> dict[str, str]:
    """As where Sidecar is installed: found by driver and executors, and Spark's own module for data sources with it."""
    return os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/sidecar/discovery",
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": str(find_java().resolve().parent.parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def ran(command: list[str], environment: Mapping[str, str], folder: Path) -> str:
    answer = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def test_a_connect_client_reads_batches_and_streams(environment: dict[str, str], tmp_path: Path) -> None:
    ids(log_in(tmp_path / "state"), 5)
    script = tmp_path / "client.py"
    script.write_text(CLIENT + BOTH)
    said = ran([sys.executable, str(script), str(tmp_path / "state"), str(tmp_path / "out")], environment, tmp_path)
    assert "batch: 15 id\nstream: 15" in said


def test_a_client_may_register_it_with_a_server_that_has_not_found_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ids(log_in(tmp_path / "state"), 5)
    environment["PYTHONPATH"] = str(ROOT)
    script = tmp_path / "client.py"
    script.write_text(CLIENT + "import sidecar\nsidecar.register(spark)\n" + BOTH)
    said = ran([sys.executable, str(script), str(tmp_path / "state"), str(tmp_path / "out")], environment, tmp_path)
    assert "batch: 15 id\nstream: 15" in said


def test_spark_submit_to_a_cluster_reads_batches_and_streams(environment: dict[str, str], tmp_path: Path) -> None:
    ids(log_in(tmp_path / "state"), 5)
    script = tmp_path / "job.py"
    script.write_text(SUBMITTED + BOTH)
    import pyspark

    binaries = Path(pyspark.__file__).parent / "bin"
    with cluster(binaries, environment, tmp_path) as master:
        submit = [str(binaries / "spark-submit"), "--master", master, "--conf", "spark.driver.host=127.0.0.1"]
        submit += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
        said = ran([*submit, str(script), str(tmp_path / "state"), str(tmp_path / "out")], environment, tmp_path)
    assert "batch: 15 id\nstream: 15" in said


@contextlib.contextmanager
def cluster(binaries: Path, environment: Mapping[str, str], folder: Path) -> Iterator[str]:
    """A master and one worker; the URL of the master."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    url, command = f"spark://127.0.0.1:{port}", [str(binaries / "spark-class")]
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g"]
    worker += ["--webui-port", "0", "--work-dir", str(folder / "work"), url]
    with contextlib.ExitStack() as stack:
        for number, arguments in enumerate((master, worker)):
            log = stack.enter_context((folder / f"cluster-{number}.log").open("w"))
            process = subprocess.Popen([*command, *arguments], env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for _ in range(1_000):
            if "Successfully registered with master" in (folder / "cluster-1.log").read_text():
                break
            clock.sleep(0.1)
        yield url
