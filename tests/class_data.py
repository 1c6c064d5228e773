"""One class-data archive for the Spark sessions of a whole run of the tests: `make test` starts some thirty JVMs.

The process that hands out the tests has it made aside, as a user's is, and names it to Java at once: a JVM that starts
before it is there, or that is of another make, goes without. `test_fast_start.py` looks at what came of it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sidecar.clock import SystemClock
from sidecar.errors import SettingsError
from sidecar.lake import class_archive, spark
from sidecar.lake.class_archive import Archive

FOLDER = "SIDECAR_TEST_CLASS_DATA"
"""The environment's name for the folder in which it is made."""

JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
"""The environment's name for options of the JVMs that Spark's scripts start; of no other does Java say nothing."""

ONE_COMPILER = "-XX:TieredStopAtLevel=1"
"""What the second one makes of Spark's code pays after minutes; the tests' sessions live for seconds."""

PATIENCE = 400.0
"""Seconds that making it may take, on a machine that runs the tests meanwhile."""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of somebody whose folder for caches is *folder*, and who knows of no other archive."""
    own = {"XDG_CACHE_HOME": str(folder), class_archive.SWITCH: "true", JAVA_OPTIONS: ONE_COMPILER}
    return {**os.environ, **own, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONWARNINGS": "ignore"}


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """Have one made for this process's children; it is gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="sidecar-class-data-"))
    archive = _archive(folder)
    before = os.environ.get(JAVA_OPTIONS)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if archive is not None:
            maker = _maker(folder)
            stack.callback(maker.wait)
            stack.callback(_end, maker)
            os.environ[FOLDER] = str(folder)
            file = shlex.quote(f"-XX:SharedArchiveFile={archive.path}")
            os.environ[JAVA_OPTIONS] = f"{before} -Xshare:auto {file} -Xlog:cds=off -Xlog:cds+dynamic=off"
        try:
            yield
        finally:
            if archive is not None:
                del os.environ[FOLDER]
                os.environ[JAVA_OPTIONS] = str(before)


def made(folder: Path) -> tuple[Path, str, str]:
    """Return a folder for caches with an archive, and what its maker has said and complained of.

    It is the one under way, once it is there; else one that is made now, in *folder*.
    """
    found = Path(os.environ.get(FOLDER, folder))
    clock = SystemClock()
    if found == folder:
        _maker(folder).wait(PATIENCE)
    end = clock.monotonic() + PATIENCE
    while not (said := (found / "said.txt").read_text()) and clock.monotonic() < end:
        clock.sleep(0.2)
    return found, said, (found / "complaints.txt").read_text()


def _archive(folder: Path) -> Archive | None:
    """Return the archive that will be in *folder*; None where that is not as simple as elsewhere."""
    from pyspark.find_spark_home import _find_spark_home

    try:
        java = spark.find_java()
    except SettingsError:
        return None
    found = class_archive.find(java, Path(_find_spark_home(), "jars"), {}, environment(folder))
    # On a Java without an archive of its own it would be two files.
    return found if class_archive.has_base(java) else None


def _maker(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "said.txt").open("wb") as said, (folder / "complaints.txt").open("wb") as complaints:
        return subprocess.Popen(
            [sys.executable, "-m", "sidecar.lake.archive_maker"],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complaints,
            start_new_session=True,
        )


def _end(maker: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(maker.pid, signal.SIGKILL)
