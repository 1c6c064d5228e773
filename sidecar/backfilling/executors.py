"""Where Spark's executors are not this process: what they must have, and see, as it is here.

A path that a laptop and a cluster both have is two folders, unless somebody has mounted one on both. Reading the other
one fails; writing to it does not, and would be taken for done.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import pickle
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

from sidecar.errors import SettingsError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PACKAGE = "sidecar"
_TASK = "__sidecar_task"


def is_connect(spark: SparkSession | None) -> bool:
    """Return whether *spark* is reached through Spark Connect: its JVM is not to be had from here."""
    return spark is not None and type(spark).__module__.startswith("pyspark.sql.connect.")


def are_here(spark: SparkSession) -> bool:
    """Return whether *spark*'s executors are its driver's process."""
    return not is_connect(spark) and str(spark.sparkContext.master).split("[", 1)[0] == "local"


def check_session(spark: SparkSession | None, file_sinks: Iterable[str]) -> None:
    """Raise SettingsError where *spark* is one of Connect's: *file_sinks* move what they write by a session's JVM."""
    names = ", ".join(file_sinks)
    if names and is_connect(spark):
        raise SettingsError(
            f"sink {names}: writes files that it moves into place by Spark's own file system, and a session of Spark "
            "Connect does not give that out. Hand in another session, or none (sidecar run starts one); or use "
            'a sink with foreach = "…", or of a format with commits of its own'
        )


def counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    """Return *frame*, and what says, once it has been written, in how many files at least; 0 where all is this process.

    A task that has rows writes a file.
    """
    spark = frame.sparkSession
    return (frame, lambda: 0) if is_connect(spark) or are_here(spark) else _counted(frame)


def _counted(frame: DataFrame) -> tuple[DataFrame, Callable[[], int]]:
    from pyspark.sql import Observation, functions

    tasks = Observation()
    numbered = frame.withColumn(_TASK, functions.spark_partition_id())
    seen = numbered.observe(tasks, functions.collect_set(_TASK).alias("filled")).drop(_TASK)
    return seen, lambda: len(tasks.get["filled"] or ())


def carried(work: Callable[[Any], str], order: object) -> Callable[[object], str]:
    """Return a function for an executor that calls *work* with *order*; it raises where another Sidecar is there.

    Two of them may pickle the same thing otherwise, so they are compared before the order is opened.
    """
    here, packed = installed(), pickle.dumps(order)

    def carry(_: object) -> str:
        check_version(here, installed())
        return work(pickle.loads(packed))  # noqa: S301 - from our own driver

    return carry


@functools.cache
def installed() -> str:
    """Return which Sidecar this process has: its version, and a digest of its modules, which tells two checkouts."""
    digest = digest_of(importlib.resources.files(PACKAGE))
    try:
        return f"{version(PACKAGE)} ({digest})"
    except PackageNotFoundError:
        return f"one without a version ({digest})"


def digest_of(package: Traversable) -> str:
    """Return eight digits for what the modules of *package* say, wherever they are, a zip file included."""
    found = hashlib.sha256()
    for name, module in _modules(package, ""):
        found.update(name.encode() + module.read_bytes())
    return found.hexdigest()[:8]


def _modules(folder: Traversable, within: str) -> Iterator[tuple[str, Traversable]]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.name.endswith(".py"):
            yield within + each.name, each
        # A wheel has what is in `discovery` elsewhere than a checkout.
        elif each.is_dir() and each.name not in ("discovery", "__pycache__"):
            yield from _modules(each, f"{within}{each.name}/")


def check_version(driver: str, executor: str) -> None:
    """Raise SettingsError unless both are the same."""
    if driver != executor:
        raise SettingsError(
            f'[backfill] engine = "spark": Sidecar is {driver} here, and {executor} in the Python that Spark\'s '
            "executors run. Install the same one there (spark.pyspark.python, or PYSPARK_PYTHON, says which "
            'Python that is); or let the rows be read here: engine = "local"'
        )
