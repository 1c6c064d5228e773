"""The class-data archive for real: made aside by a run that needed Spark, and what the next session starts from."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import class_data
from tests.conftest import SQLiteFile

pytestmark = pytest.mark.timeout(900)

SESSION = """
import sys
from sidecar.lake.spark import close, session

spark = session(config={"spark.driver.extraJavaOptions": "-Xlog:class+load:file=" + sys.argv[1]})
spark.range(3).write.mode("overwrite").parquet(sys.argv[2])
print(spark.read.parquet(sys.argv[2]).count())
close(spark)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    found = class_data.environment(folder / "cache")
    return subprocess.run(command, cwd=folder, env=found, capture_output=True, text=True, timeout=800, check=False)


def archived(folder: Path) -> int:
    """Start a session; return how many classes came from the archive. Nothing but the answer is said."""
    done = python(folder, "-c", SESSION, str(folder / "loaded.txt"), str(folder / "out"))
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)
    return (folder / "loaded.txt").read_text().count("shared objects file (top)")


def archives(folder: Path) -> list[Path]:
    return list((folder / "cache" / "sidecar").glob("spark-*.jsa"))


def test_a_session_starts_from_the_archive_that_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "aside").mkdir()
    folder, said, complaints = class_data.made(tmp_path / "aside")
    [archive] = (folder / "sidecar").glob("spark-*.jsa")
    assert (said, complaints) == (f"{archive}: made\n", "")
    # It is about to be damaged, and others may need it.
    shutil.copytree(folder / "sidecar", tmp_path / "cache" / "sidecar")
    [archive] = archives(tmp_path)
    assert archived(tmp_path) > 10_000
    names = sorted(path.suffix for path in archive.parent.iterdir())
    assert names == ["", ".jsa", ".json"], "and nothing half made"
    again = python(tmp_path, "-m", "sidecar.lake.archive_maker")
    assert (again.stdout, again.stderr, again.returncode) == (f"{archive}: made\n", "", 0)
    # One that has lost a block on its disk is passed over without a word.
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 5)
        file.write(bytes(1 << 16))
    assert archived(tmp_path) == 0


@pytest.mark.soak
def test_a_run_that_needed_spark_has_it_made_and_goes_on_after_a_kill(sqlite_db: SQLiteFile, tmp_path: Path) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, '2024-05-01T10:00:00Z')")
    (tmp_path / "sidecar.toml").write_text(
        f'[source]\nurl = "{sqlite_db.url}"\n[state]\npath = "state"\n[tables.t]\n[sinks.lake]\npath = "lake"\n'
    )
    run = ("-c", "from sidecar.cli import main; main()", "run", "--once")
    assert python(tmp_path, *run).returncode == 0
    maker = _maker(tmp_path)
    os.kill(maker, signal.SIGKILL)
    assert archived(tmp_path) == 0, "what is half made is not used"
    sqlite_db.connection.execute("INSERT INTO t VALUES (2, '2024-05-01T11:00:00Z')")
    assert python(tmp_path, *run).returncode == 0
    _wait(lambda: bool(archives(tmp_path)) and not list((tmp_path / "cache" / "sidecar").glob("making-*")))
    assert archived(tmp_path) > 10_000


def _maker(folder: Path) -> int:
    """Return the process that makes the archive, once it is at it."""
    making = folder / "cache" / "sidecar"
    _wait(lambda: bool(list(making.glob("making-*"))))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"sidecar.lake.archive_maker" in (process / "cmdline").read_bytes()
                and (process / "cwd").readlink() == making
            ):
                return int(process.name)
        except OSError:
            continue
    raise AssertionError("nobody makes it")


def _wait(until: object, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not until():  # type: ignore[operator]
        assert time.monotonic() < end, "it takes too long"
        subprocess.run(["sleep", "0.2"], check=True)
