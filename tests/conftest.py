"""Fixtures for all tests: real databases, a real Spark, a fake clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import hypothesis
import pytest

from sidecar.clock import FakeClock
from tests import class_data
from tests.servers import Database, NoServer, Server, any_server, fresh_database, icu_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A slow machine is not a failure; what failed is printed in a form that can be pasted into the test.
hypothesis.settings.register_profile("sidecar", deadline=None, print_blob=True)
hypothesis.settings.load_profile("sidecar")

# Of sessions that live for seconds: nothing is to be made for the next ones, nor taken from what a developer's have.
os.environ.setdefault("SIDECAR_FAST_START", "false")
os.environ.setdefault(class_data.JAVA_OPTIONS, class_data.ONE_COMPILER)

# The files that take longest, those first for which no Spark is needed: its archive is under way meanwhile.
HEAVIEST = (
    *("fault/test_backfill_points.py", "property/test_promise.py", "integration/test_docs_spark.py"),
    *("integration/test_cluster.py", "unit/test_spark_session.py", "integration/test_spark_backfill.py"),
    *("fault/test_sinks_that_are_killed.py", "integration/test_fast_start.py", "integration/test_pipelines.py"),
)
FOLDER = Path(__file__).parent

MEMORY = Path("/dev/shm")
ROOM = 1 << 30
"""Bytes, several times what the folders of a whole run come to."""

MARKS = {"pg": "postgres", "pg_server": "postgres", "pg_icu": "postgres", "pg_icu_server": "postgres", "spark": "spark"}


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Iterator[None]:
    """Where processes are about to share the tests, have them share what Java needs to start sooner, too."""
    shared = config.getoption("numprocesses", None) and not config.getoption("collectonly")
    with contextlib.ExitStack() as stack:
        if shared:
            stack.enter_context(class_data.under_way())
            stack.enter_context(_in_memory(config))
        return (yield)


@contextlib.contextmanager
def _in_memory(config: pytest.Config) -> Iterator[None]:
    """Keep the tests' folders in memory, where there is room for them; they are gone at the end.

    State and logs sync whatever they write, for which many tests would wait longer than for all else. No test looks at
    what a machine that goes down has left: that processes are killed, memory outlives.
    """
    usable = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if config.option.basetemp or not usable or shutil.disk_usage(MEMORY).free < ROOM:
        yield
        return
    for left in MEMORY.glob("sidecar-tests-*-*"):
        # A run that was killed has not removed its own.
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"sidecar-tests-{os.getpid()}-", dir=MEMORY))
    config.option.basetemp = str(folder / "tests")
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they ask for, and leave out the long ones unless they are asked for.

    The heaviest files come first, then those that need Spark: of two processes that take file by file, neither is then
    left at the end with one that takes minutes.
    """
    asked = bool(os.environ.get("SIDECAR_SOAK")) or "soak" in str(config.getoption("markexpr"))
    for item in items:
        for name in getattr(item, "fixturenames", ()):
            if name in MARKS:
                item.add_marker(MARKS[name])
        if item.get_closest_marker("soak") and not asked:
            item.add_marker(pytest.mark.skip(reason="takes minutes: set SIDECAR_SOAK=1, or say -m soak"))
    weights = {FOLDER / file: number for number, file in enumerate(HEAVIEST)}
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: weights.get(item.path, len(weights) + (item.path not in with_spark)))


Command: TypeAlias = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """What runs a command of `sidecar` in this process, and returns its exit code, what it printed, and its errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        from sidecar.cli import execute

        capfd.readouterr()
        code = execute(arguments)
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until it is told to move."""
    return FakeClock()


@dataclass(frozen=True)
class SQLiteFile:
    """A SQLite database in a folder of its own, and the autocommit connection that writes to it."""

    path: Path
    connection: sqlite3.Connection

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"


@pytest.fixture
def sqlite_db(tmp_path: Path) -> Iterator[SQLiteFile]:
    """An empty SQLite database, in rollback mode, and its writer."""
    folder = tmp_path / "source"
    folder.mkdir()
    path = folder / "source.db"
    connection = sqlite3.connect(path, isolation_level=None)
    # Makes the file: an empty one exists only from the first write on.
    connection.execute("PRAGMA user_version = 1")
    try:
        yield SQLiteFile(path, connection)
    finally:
        connection.close()


@pytest.fixture(scope="session")
def pg_server() -> Iterator[Server]:
    """One PostgreSQL for all tests; see `tests.servers.any_server` for where it comes from."""
    try:
        manager = any_server()
        server = manager.__enter__()
    except NoServer as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"PostgreSQL tests: {error}")
    try:
        yield server
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture
def pg(pg_server: Server) -> Iterator[Database]:
    """An empty PostgreSQL database, dropped afterwards."""
    with fresh_database(pg_server) as database:
        yield database


@pytest.fixture(scope="session")
def pg_icu_server() -> Iterator[Server]:
    """One PostgreSQL whose default collation is ICU's en-US."""
    try:
        manager = icu_server()
        server = manager.__enter__()
    except NoServer as error:
        pytest.skip(f"ICU collation tests: {error}")
    try:
        yield server
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture
def pg_icu(pg_icu_server: Server) -> Iterator[Database]:
    """An empty PostgreSQL database that sorts text by ICU's en-US, dropped afterwards."""
    with fresh_database(pg_icu_server) as database:
        yield database


@pytest.fixture(scope="session")
def catalogs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """The same session, with catalogs whose tables can be merged into; see `tests.row_catalog`."""
    from tests import row_catalog

    row_catalog.install(spark, tmp_path_factory.mktemp("classes"))
    return spark


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One lean Spark session for all tests, as Sidecar itself starts it."""
    from sidecar.lake.spark import close, session

    running = session("sidecar-tests")
    try:
        yield running
    finally:
        close(running)
