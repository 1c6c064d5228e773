"""A cluster: another master's URL, and nothing else. Masters, workers and executors are processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import sidecar
from sidecar.backfilling import executors
from sidecar.lake import spark as sidecar_spark
from tests import class_data
from tests.conftest import SQLiteFile
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
RUN = ("-c", "from sidecar.cli import main; main()", "run", "--once")
ROWS = 3_000
QUICK = f'[spark]\n"spark.executor.extraJavaOptions" = {json.dumps(os.environ[class_data.JAVA_OPTIONS])}\n'


DYING = {"SIDECAR_CRASH_AT": "chunk-read:10"}
"""Each Python that reads for an executor dies in the middle of a turn, a chunk lying there; another begins it anew."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a standalone cluster on this machine: a master, and two workers of one core, whose Pythons die."""
    import pyspark

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    found = environment() | DYING | {"SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_DAEMON_MEMORY": "256m"}
    # Small: three daemons that hardly do anything.
    found |= {"SPARK_DAEMON_JAVA_OPTS": f"{os.environ[class_data.JAVA_OPTIONS]} -XX:+UseSerialGC"}
    deploy = "org.apache.spark.deploy"
    worker = ["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", "0", master]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((tmp_path / "daemons.txt").open("w"))
        own = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        for arguments in ([f"{deploy}.master.Master", *own], *[[f"{deploy}.worker.Worker", *worker]] * 2):
            process = subprocess.Popen([program, *arguments], env=found, stdout=log, stderr=log, cwd=tmp_path)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        _wait(lambda: (tmp_path / "daemons.txt").read_text().count("Successfully registered with master") == 2)
        yield master


def environment() -> dict[str, str]:
    home = str(sidecar_spark._home(sidecar_spark.find_java()))
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1"}


def _wait(until: object, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not until():  # type: ignore[operator]
        assert time.monotonic() < end, "it takes too long"
        subprocess.run(["sleep", "0.1"], check=True)


def fill(pg: Database) -> None:
    make(
        pg.connect(),
        "CREATE TABLE t (id bigint PRIMARY KEY, v int, updated_at timestamptz DEFAULT now())",
        f"INSERT INTO t SELECT n, n FROM generate_series(1, {ROWS}) n",
        "CREATE INDEX ON t (updated_at, id)",
        "ANALYZE t",
    )


def project(folder: Path, url: str, more: str = "") -> Path:
    (folder / "hook.py").write_text(
        # Where Python functions run: in executors, each with folders of its own.
        "def deliver(frame, batch):\n"
        "    import os\n"
        "    from pyspark.sql import functions as f\n"
        "    where = f.udf(lambda _: os.environ.get('SPARK_EXECUTOR_DIRS'), 'string', useArrow=False)\n"
        "    at = frame.select(where('_commit_version').alias('at')).where('at IS NOT NULL')\n"
        "    print(batch.table, at.count(), at.distinct().count() in (1, 2))\n"
    )
    path = folder / "sidecar.toml"
    path.write_text(
        f'[source]\nurl = {json.dumps(url)}\n[state]\npath = "state"\n[tables.t]\nchunk_size = 100\n'
        f'[sinks.lake]\npath = "lake"\n[sinks.hook]\nforeach = "hook:deliver"\n{more}'
    )
    return path


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    found = environment()
    # As for anybody: Sidecar finds Java, and addresses, by itself.
    del found["JAVA_HOME"], found["SPARK_LOCAL_IP"]
    command = [sys.executable, *RUN, "-c", str(path), *arguments]
    return subprocess.run(command, env=found, capture_output=True, text=True, timeout=800, check=False, cwd=path.parent)


def held(path: Path) -> list[int]:
    return sorted(pq.read_table(path.parent / "lake" / "t").column("id").to_pylist())


def test_a_run_on_a_standalone_cluster_is_a_run_with_its_url_whoever_dies_there(
    pg: Database, cluster: str, tmp_path: Path
) -> None:
    fill(pg)
    path = project(tmp_path, pg.reader_url, f'[backfill]\nengine = "spark"\n{QUICK}')
    done = run(path, "--master", cluster)
    assert (done.returncode, done.stdout) == (0, f"t {ROWS} True\n"), done
    assert "backfill=done" in done.stderr
    strange = [line for line in done.stderr.splitlines() if not re.search(" info: (table=|starting Spark$)", line)]
    assert strange == []
    assert held(path) == [*range(1, ROWS + 1)]
    with sidecar.open(path, read_only=True) as sc:
        logged = [int(str(row["id"])) for row in sc.log("t").rows()]
    assert sorted(logged) == [*range(1, ROWS + 1)]
    assert list((tmp_path / "state" / "log" / "t").glob("_staging/**/*")) == []
    executors_said = "".join(path.read_text() for path in (tmp_path / "work").glob("app-*/*/stderr"))
    assert "Python worker exited unexpectedly (crashed)" in executors_said
    assert "sidecar" in (tmp_path / "daemons.txt").read_text(), "an application's name, at the master"


@pytest.mark.soak
def test_two_executors_of_a_local_cluster_read_and_write(pg: Database, tmp_path: Path) -> None:
    fill(pg)
    path = project(tmp_path, pg.reader_url, '[backfill]\nengine = "spark"\n')
    done = run(path, "--master", "local-cluster[2,1,1024]")
    assert (done.returncode, done.stdout) == (0, f"t {ROWS} True\n"), done
    assert held(path) == [*range(1, ROWS + 1)]


def test_a_master_that_the_command_names_goes_before_the_settings(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    from sidecar.terminal.cli_parts import opened

    path = project(tmp_path, sqlite_db.url, '[spark]\nmaster = "local[1]"\n"spark.driver.memory" = "2g"\n')
    with opened(path, read_only=True, master="spark://there:7077") as sc:
        assert sc.settings.spark.master == "spark://there:7077"
        assert sc.settings.spark.conf == {"spark.driver.memory": "2g"}
        assert sc.settings.folder == tmp_path
    with opened(path, read_only=True) as sc:
        assert sc.settings.spark.master == "local[1]"


def test_executors_with_another_sidecar_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    work = executors.carried(str, {"an": "order"})
    assert work(0) == "{'an': 'order'}"
    monkeypatch.setattr(executors, "installed", lambda: "0.0.1")
    with pytest.raises(sidecar.SettingsError, match=r"Sidecar is .* here, and 0\.0\.1 in the Python that Spark's"):
        work(0)


def test_two_checkouts_of_one_version_are_not_the_same_sidecar(tmp_path: Path) -> None:
    here = Path(sidecar.__file__).parent
    there = tmp_path / "sidecar"
    shutil.copytree(here, there, ignore=shutil.ignore_patterns("discovery", "__pycache__"))
    assert f"({executors.digest_of(there)})" in executors.installed(), "as a wheel has it"
    zipped = zipfile.Path(shutil.make_archive(str(tmp_path / "zip"), "zip", tmp_path, "sidecar"), "sidecar/")
    assert executors.digest_of(zipped) == executors.digest_of(there)
    with (there / "backfilling" / "turns.py").open("a") as file:
        file.write("# changed\n")
    assert executors.digest_of(there) != executors.digest_of(here)


def test_files_that_executors_write_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(100).repartition(3)
    same, none = executors.counted(frame)
    assert (same is frame, none()) == (True, 0), "in this process nothing can be lost"
    counted, filled = executors._counted(frame)
    counted.write.parquet(str(tmp_path / "out"))
    assert filled() == len(list((tmp_path / "out").glob("part-*"))) == 3
    counted, filled = executors._counted(spark.range(100).where("id < 0"))
    counted.write.parquet(str(tmp_path / "none"))
    assert filled() == 0


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_a_session_of_connect_is_refused_by_what_moves_files() -> None:
    from pyspark.sql.connect.session import SparkSession as Connected

    there: Any = Connected.__new__(Connected)
    with pytest.raises(sidecar.SettingsError, match="sink lake, csv: writes files"):
        executors.check_session(there, ["lake", "csv"])
    executors.check_session(there, [])
    executors.check_session(None, ["lake"])
