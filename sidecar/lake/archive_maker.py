"""Makes the class-data archive: `python -m sidecar.lake.archive_maker`, in an image, or by itself after a first run.

A session of its own does what Sidecar has Spark do; as it ends, Java writes down the classes that it has loaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import feed
from sidecar.clock import Clock, SystemClock
from sidecar.lake import class_archive, spark
from sidecar.lake.class_archive import Archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 600.0
"""How long Java may take to write the archive; ten on a machine that does nothing else."""

ROOM = 1 << 30
"""Bytes that must be free: an archive has 200 MB, and the work beside it some."""


def make(archive: Archive, clock: Clock) -> str | None:
    """Make *archive*; return None, or in a few words why it was not made. What is half made is never used."""
    with _alone(archive.folder) as alone:
        if not alone:
            return "another process makes one"
        if archive.is_sound():
            return None
        archive.sweep(clock)
        if shutil.disk_usage(archive.folder).free < ROOM:
            return f"{archive.folder} has less than {ROOM >> 20} MB left"
        folder = Path(tempfile.mkdtemp(prefix="making-", dir=archive.folder))
        try:
            made = folder / "made.jsa"
            try:
                _dump(archive, made, folder)
                reason = None if made.exists() else "Java has written none"
            except Exception as error:
                # Or each run would have it tried again, for as long as Java may take.
                reason = feed.reason(error)
            if reason is not None:
                archive.fail(reason)
                return reason
            archive.commit(made)
            archive.sweep(clock)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return None


def _dump(archive: Archive, made: Path, folder: Path) -> None:
    base = _base(archive)
    # The archive is of no collector, and of no compiler: what costs least here.
    lean = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    options = f"{base} {lean} {shlex.quote(f'-XX:ArchiveClassesAtExit={made}')} -Xlog:cds=off -Xlog:cds+dynamic=off"
    config = {"spark.driver.extraJavaOptions": options.strip(), "spark.driver.extraClassPath": archive.extra}
    session = spark.session("sidecar-archive", "local[2]", {k: v for k, v in config.items() if v}, fast_start=False)
    gateway = session.sparkContext._gateway
    assert gateway is not None, "a session of this process has one"
    java: subprocess.Popen[bytes] = gateway.proc
    try:
        work(session, folder)
        spark.close(session)
        gateway.shutdown()
        assert java.stdin is not None, "Spark watches for its end"
        java.stdin.close()
        java.wait(SECONDS)
    finally:
        if java.poll() is None:
            java.kill()
            java.wait()


def work(session: SparkSession, folder: Path) -> None:
    """Do a little of all that Sidecar has Spark do."""
    import pyarrow as pa
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    rows = pa.table({"id": [1, 2, 3], "text": ["a", "b", '{"c": 1}'], "_commit_version": [1, 1, 2]})
    frame = session.createDataFrame(rows)
    frame.write.mode("overwrite").parquet(str(folder / "rows"))
    read = session.read.schema(frame.schema).parquet(str(folder / "rows"))
    read.write.mode("overwrite").parquet(str(folder / "again"))
    last = Window.partitionBy("id").orderBy(f.desc("_commit_version"))
    newest = read.withColumn("n", f.row_number().over(last)).where("n = 1").drop("n")
    newest.join(read.select("id").distinct(), "id", "left_anti").toArrow()
    read.groupBy("text").count().orderBy("text").toArrow()
    read.where("id BETWEEN 1 AND 2").isEmpty()
    read.select(f.try_parse_json("text")).collect()
    session.createDataFrame([], frame.schema).coalesce(1).write.mode("overwrite").parquet(str(folder / "none"))
    session.range(1).select(f.udf(str, "string", useArrow=False)("id")).collect()


def _base(archive: Archive) -> str:
    """Return the Java option for the archive of Java's own classes, made here where Java came without one."""
    if class_archive.has_base(archive.java):
        return ""
    option = f"-XX:SharedArchiveFile={archive.base}"
    command = [str(archive.java), "-Xshare:dump", option]
    subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, cwd=archive.folder)
    return shlex.quote(option) if archive.base.exists() else ""


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Say whether no other process makes an archive in *folder*; none does while this goes on."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(handle)


def _stand_back() -> None:
    os.nice(19)
    # Where Linux shares processors between sessions first, being nice within one's own does not help others.
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("19")


def main(arguments: list[str]) -> int:
    """Make the archive that is ordered, or the one for this machine's Spark; return the exit code."""
    import pyspark  # noqa: F401
    from pyspark.find_spark_home import _find_spark_home

    clock = SystemClock()
    if arguments:
        _stand_back()
    order = json.loads(arguments[0]) if arguments else {}
    archive = class_archive.find(
        Path(order["java"]) if order else spark.find_java(),
        Path(_find_spark_home(), "jars"),
        {"spark.driver.extraClassPath": order.get("extra", "")},
        os.environ,
    )
    if archive is None or not (archive.is_sound() or archive.is_wanted(clock)):
        print("no archive is to be made here: there is no folder for it, or it is switched off, or has failed today")
        return 1
    reason = make(archive, clock)
    print(f"{archive.path}: {reason or 'made'}")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
