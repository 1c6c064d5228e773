"""A log that is elsewhere than in its state's folder, on another disk or in S3, keeps every promise: G1 to G4 there."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from sidecar.log.files import filename
from tests import stores
from tests.fault.harness import KILLED, Project, SQLiteSource, Writer, clean, holds, now, wait_for
from tests.stores import KEY, SECRET, Store

CRASHES = ("segment-written", "segment-renamed:2", "watermark-saved:3")


@dataclass(frozen=True)
class Elsewhere:
    """A place for logs: what is said of it in the settings, and where pyarrow finds the files."""

    settings: str
    files: pyarrow.fs.FileSystem
    root: str

    def names(self, below: str = "") -> list[str]:
        selector = pyarrow.fs.FileSelector(f"{self.root}/{below}".rstrip("/"), recursive=True, allow_not_found=True)
        return sorted(i.path.removeprefix(f"{self.root}/") for i in self.files.get_file_info(selector) if i.is_file)


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with stores.store("elsewhere") as found:
        yield found


@pytest.fixture(params=["another disk", "S3"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Elsewhere]:
    """Both: a folder on another disk, named by a URI, and one of a bucket."""
    if request.param == "S3":
        s3: Store = request.getfixturevalue("s3")
        # Each test has a folder of its own.
        folder = f"{s3.url}/{filename(tmp_path.name)}"
        yield Elsewhere(in_s3(s3, folder), s3.files(), folder.removeprefix("s3://"))
    else:
        with stores.second_disk(tmp_path) as disk:
            yield Elsewhere(f'log = "{disk.as_uri()}"\n', pyarrow.fs.LocalFileSystem(), str(disk))


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SQLiteSource]:
    found = SQLiteSource(tmp_path / "source" / "source.db")
    yield found
    found.close()


def in_s3(s3: Store, url: str) -> str:
    options = {**s3.options, "access_key": KEY, "secret_key": SECRET}
    said = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    return f"log = {json.dumps(url)}\noptions = {{ {said} }}\n"


def test_kills_lost_state_and_retention_cost_a_log_elsewhere_nothing(
    source: SQLiteSource, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    project, writer = Project(tmp_path / "project", source.url, log_settings=elsewhere.settings), Writer(source, seed=1)
    writer.write(60)
    clean(project.run())
    for crash in CRASHES:
        writer.write(40)
        assert project.run(crash=crash).code == KILLED, "the point was not reached"
    clean(project.run())
    holds(source, project)
    # Nothing was written aside there, and the log is nowhere else.
    assert not [
        name for name in elsewhere.names() if not name.endswith((".parquet", "_common_metadata", "_owner.json"))
    ]
    assert not (project.path / "log").exists()

    shutil.rmtree(project.database)
    writer.write(20)
    clean(project.run())
    holds(source, project)

    project.keep()
    project.retention = "1us"
    project.write_settings()
    assert project.run(crash="floor-written").code == KILLED
    clean(project.run())
    holds(source, project)
    left = [name for name in elsewhere.names("t") if name.endswith(".parquet")]
    assert len(left) == 1, "all but the newest segment are gone"

    project.retention = None
    project.write_settings()
    source.execute("ALTER TABLE t ADD COLUMN more integer")
    source.execute(f"UPDATE t SET v = v + 1000000, updated_at = '{now()}'")
    assert project.run(crash="schema-written").code == KILLED
    shutil.rmtree(project.path)
    clean(project.run())
    holds(source, project)

    # Anything that reads Parquet reads it as it is.
    log = project.log()
    newest = f"{elsewhere.root}/t/{log.last():020d}.parquet"
    assert pq.read_table(newest, filesystem=elsewhere.files).to_pylist() == list(log.rows(log.last() - 1))


def test_a_second_state_is_kept_from_writing_the_same_log_and_may_read_it(
    source: SQLiteSource, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    Writer(source, seed=2).write(30)
    first = Project(tmp_path / "first", source.url, log_settings=elsewhere.settings)
    second = Project(tmp_path / "second", source.url, log_settings=elsewhere.settings)
    clean(first.run())
    before = elsewhere.names()
    refused = second.run()
    assert refused.code == 4
    assert str(first.path) in refused.said
    assert str(second.path) in refused.said
    assert SECRET not in refused.said
    assert elsewhere.names() == before
    changes = second.run("changes", "t", "--format", "jsonl")
    assert changes.code == 0
    assert len(changes.said.splitlines()) == len(first.changes("t"))

    # A state folder that has been moved is the same one; one that is gone for good is taken over from.
    first.path.rename(tmp_path / "moved")
    first.state = tmp_path / "moved"
    first.write_settings()
    clean(first.run())
    elsewhere.files.delete_file(f"{elsewhere.root}/_owner.json")
    clean(second.run())
    holds(source, second)
    assert first.run().code == 4


def test_a_store_that_goes_away_costs_nothing_but_time(source: SQLiteSource, tmp_path: Path) -> None:
    with stores.store("comes-back") as s3:
        project = Project(tmp_path / "project", source.url, log_settings=in_s3(s3, s3.url))
        writer = Writer(source, seed=3)
        writer.write(40)
        clean(project.run())
        s3.stop()
        writer.write(40)
        away = project.run()
        assert away.code == 3
        assert f"{s3.url}" in away.said
        assert "cannot be reached" in away.said
        assert "Traceback" not in away.said
        assert SECRET not in away.said
        s3.start()
        clean(project.run())
        holds(source, project)


def test_a_loop_outlives_a_store_that_goes_away(source: SQLiteSource, tmp_path: Path) -> None:
    with stores.store("loop") as s3:
        project = Project(tmp_path / "project", source.url, log_settings=in_s3(s3, s3.url))
        writer = Writer(source, seed=4)
        writer.write(20)
        with project.running("run", "--interval", "0.2s") as running:
            wait_for(lambda: folds(source, project))
            s3.stop()
            writer.write(20)
            wait_for(lambda: "cannot be reached" in running.said.read_text())
            s3.start()
            writer.write(20)
            wait_for(lambda: folds(source, project))
            os.kill(running.process.pid, signal.SIGTERM)
            assert running.ended().code == 0
        holds(source, project)


def folds(source: SQLiteSource, project: Project) -> bool:
    """Return whether the logs have all that is in the source."""
    found = [{row["id"]: row["v"] for row in project.changes(table)} for table in ("t", "u")]
    return found == [{key: v for key, (v, _) in source.content(table).items()} for table in ("t", "u")]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ('log = "s3://nowhere/x"', 2, "NO_SUCH_BUCKET"),
        ('log = "hdfs://host/x"', 2, "mount it as a folder"),
        ('log = "ftp://host/x"', 2, "nothing that a log can be in"),
    ],
)
def test_a_place_that_is_none_is_said_to_be_none(
    source: SQLiteSource, tmp_path: Path, s3: Store, settings: str, code: int, said: str
) -> None:
    more = "\n" if "s3:" not in settings else "\n" + in_s3(s3, "s3://x").partition("\n")[2]
    outcome = Project(tmp_path / "project", source.url, log_settings=settings + more).run()
    assert (outcome.code, "Traceback" in outcome.said) == (code, False), outcome
    assert said in outcome.said
    assert SECRET not in outcome.said
