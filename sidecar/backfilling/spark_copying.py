"""Backfills that are read by Spark's executors, and merged here like any other.

The connector that leads holds the view of the source here. Each reader takes a span, and has it read a turn at a time:
one Spark job of one task, after which its chunks lie in files beside the log (`turns.py`). What is to be merged is
fetched from there when it is its turn. So

  - no more connections read than `parallelism` says, however large the cluster;
  - no task waits for the merge: sinks, whose jobs may run on the same executors, have their turn between two turns;
  - what a failed attempt has left behind is never looked at, as only the attempt that Spark takes for done names files;
  - the files are bounded: for each reader, those of the turn under way and of the one before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import queue
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.backfill import Chunk
from sidecar.backfilling import executors, turns
from sidecar.backfilling.copying import Copying, Failed, Ready, Work, chunk_of, failing, first
from sidecar.backfilling.turns import Order, Staged, Turn
from sidecar.clock import Clock, SystemClock
from sidecar.connector import Source, SourceConnector
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable
from sidecar.log import storage
from sidecar.log.storage import AnyPath
from sidecar.model import Page
from sidecar.settings.scrub import Secrets, in_url

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log_ = logging.getLogger("sidecar")

CHUNKS, SIZE, SECONDS = 8, 64 << 20, 4.0
"""When a turn ends. A longer one would let sinks wait, and a shorter one would be spent on connecting."""


@dataclass(frozen=True, slots=True)
class Abroad:
    """What reading elsewhere takes: the source, the session (once it is needed), and a table's folder for chunks."""

    source: Source
    session: Callable[[], SparkSession]
    staging: Callable[[str], AnyPath]


class SparkCopying(Copying):
    """One phase of copying, read by Spark's executors where there is something to share out among them.

    A source that shares no views is read here, and so is a phase in which each table is one span: by one connection.
    """

    def __init__(
        self, connect: Callable[[], SourceConnector], clock: Clock, readers: int, abroad: Abroad, *, shared: bool
    ) -> None:
        super().__init__(connect, clock, readers, shared=shared)
        self._abroad = abroad
        self._spark: SparkSession | None = None
        self._id = f"sidecar-copy-{secrets.token_hex(8)}"
        self._folders: dict[str, AnyPath] = {}

    def begin(self, works: Sequence[Work]) -> None:
        spans = Counter(work.job for work in works)
        if self._name is None or max(spans.values(), default=0) < 2:
            super().begin(works)
            return
        with failing(works[0].page.tracked.name):
            self._spark = self._abroad.session()
        for work in works:
            self._works.put(work)
            name = work.page.tracked.name
            if name not in self._folders:
                self._folders[name] = self._abroad.staging(name) / self._id
                with failing(name):
                    storage.make_folder(self._folders[name])
        readers = min(self._readers, len(works))
        # Files, not rows: while they are merged, the next turn is under way.
        self._chunks = queue.Queue(readers * CHUNKS)
        self._start([functools.partial(self._turns, self._spark)] * readers)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            while self._spark is not None and thread.is_alive():
                # Again and again: a job may begin in just this moment.
                _cancel(self._spark, self._id)
                thread.join(0.2)
        super().close()
        for folder in self._folders.values():
            # What cannot be removed now is swept up at the next start.
            with contextlib.suppress(OSError, SidecarError):
                storage.remove_all(folder)
                if isinstance(folder, Path):
                    folder.parent.rmdir()

    def _turns(self, spark: SparkSession) -> Iterator[Ready]:
        _tag(spark, self._id)
        limits: dict[str, int] = {}
        while (work := self._next_work()) is not None:
            name = work.page.tracked.name
            page: Page | None = dataclasses.replace(work.page, limit=first(work, limits.get(name)))
            while page is not None and not self._stop.is_set() and name not in self._left:
                turn = self._turn(spark, work, page)
                for staged in turn.staged:
                    limits[name] = staged.page.limit
                    yield functools.partial(_fetch, work, staged)
                if turn.error is not None:
                    failed = Failed(name, turn.error)
                    if not failed.is_its_own:
                        raise failed
                    self.leave(name)
                    yield failed
                page = turn.page

    def _turn(self, spark: SparkSession, work: Work, page: Page) -> Turn:
        # The clock here may be a test's.
        source = dataclasses.replace(self._abroad.source, clock=SystemClock())
        folder = self._folders[page.tracked.name]
        order = Order(source, self._name or "", work, page, folder, CHUNKS, SIZE, SECONDS)
        try:
            answer = _ask(spark, order)
        except Exception as error:
            raise Failed(page.tracked.name, _reason(error, order)) from None
        return turns.read_back(answer, order)


def _ask(spark: SparkSession, order: Order) -> str:
    """Have *order* carried out by one of Spark's executors."""
    from pyspark.sql.functions import udf

    take = executors.carried(turns.take, order)
    # For Arrow, which the rows go by and this one text need not, Spark would ask for pandas.
    column = udf(take, "string", useArrow=False).asNondeterministic()("id")
    answer: str = spark.range(0, 1, 1, 1).select(column).collect()[0][0]
    return answer


def _fetch(work: Work, staged: Staged) -> Chunk:
    with failing(staged.page.tracked.name):
        return chunk_of(work, staged.page, turns.load(staged.path))


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the context of *spark*; None where it is reached through Spark Connect."""
    from pyspark.errors import PySparkException

    try:
        return spark.sparkContext
    except PySparkException:
        return None


def _tag(spark: SparkSession, tag: str) -> None:
    """Let the jobs that this thread starts be known by *tag*."""
    context = _context(spark)
    if context is None:
        spark.addTag(tag)
    else:
        # A session's tags reach what SQL runs in the JVM, and not what Python collects.
        context.addJobTag(tag)


def _cancel(spark: SparkSession, tag: str) -> None:
    # A session that has been stopped meanwhile has no jobs.
    with contextlib.suppress(Exception):
        context = _context(spark)
        if context is None:
            spark.interruptTag(tag)
        else:
            context.cancelJobsWithTag(tag)


def _reason(error: Exception, order: Order) -> SidecarError:
    """Return what a user can do about *error*, which is none of the source's."""
    source = order.source
    text = Secrets([*in_url(source.url), *([source.password] if source.password else [])]).scrub(str(error))
    log_.debug("Spark failed to read a turn: %s", text)
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", text)
    if missing is not None:
        return SettingsError(
            f'[backfill] engine = "spark": Spark\'s executors have no Python package "{missing[1]}". Install sidecar, '
            "as it is here, in the Python that they run (spark.pyspark.python, or PYSPARK_PYTHON); or let the rows be "
            'read here: engine = "local"'
        )
    other = re.search(r"SettingsError: (.*)", text)
    if other is not None:
        return SettingsError(other[1])
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    if "from the Python worker" in lines[0]:
        said = lines[-1]
    else:
        # What Java says stands below what Python says of calling it.
        said = next((line for line in lines[1:] if line.startswith(":")), lines[0]).lstrip(": ")
    return SourceUnavailable(f'table "{order.page.tracked.name}": Spark could not read it: {said[:500].rstrip(".")}.')
