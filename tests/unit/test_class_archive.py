"""The class-data archive: one of its own for all that it depends on, never used unless it is whole, and swept up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sidecar.clock import SECOND, FakeClock, SystemClock
from sidecar.lake import archive_maker, class_archive
from sidecar.lake.class_archive import RETRY, UNUSED, Archive


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, Path]:
    """A Java, some jars, and an environment's folder for caches."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("launcher")
    library = tmp_path / "jdk" / "lib" / "server" / "libjvm.so"
    library.parent.mkdir(parents=True)
    library.write_text("machine")
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "spark-core.jar").write_text("core")
    return {"java": java, "jars": jars, "library": library, "cache": tmp_path / "cache"}


def found(machine: dict[str, Path], config: dict[str, str] | None = None, **environment: str) -> Archive | None:
    environment = {"XDG_CACHE_HOME": str(machine["cache"]), **environment}
    return class_archive.find(machine["java"], machine["jars"], config or {}, environment)


def there(machine: dict[str, Path], config: dict[str, str] | None = None, **environment: str) -> Archive:
    archive = found(machine, config, **environment)
    assert archive is not None
    return archive


def commit(archive: Archive, content: bytes = b"classes") -> None:
    archive.folder.mkdir(parents=True, exist_ok=True)
    made = archive.folder / "made"
    made.write_bytes(content)
    archive.commit(made)


def test_another_java_spark_or_class_path_is_another_archive(machine: dict[str, Path]) -> None:
    keys = [there(machine).key]
    assert there(machine).key == keys[0]
    keys.append(there(machine, {"spark.driver.extraClassPath": "driver.jar"}).key)
    keys.append(there(machine, HADOOP_CONF_DIR="/etc/hadoop").key)
    machine["library"].write_text("a newer machine")
    keys.append(there(machine).key)
    (machine["jars"] / "spark-core.jar").write_text("patched")
    keys.append(there(machine).key)
    (machine["jars"] / "more.jar").write_text("")
    keys.append(there(machine).key)
    assert len(set(keys)) == len(keys)


def test_who_shares_class_data_themselves_or_wants_none_is_left_alone(machine: dict[str, Path]) -> None:
    options = "spark.driver.extraJavaOptions"
    assert found(machine, {options: "-XX:SharedArchiveFile=/mine.jsa"}) is None
    assert found(machine, {options: "-Xshare:off"}) is None
    assert found(machine, JDK_JAVA_OPTIONS="-XX:AOTCache=/mine.aot") is None
    assert found(machine, SPARK_SUBMIT_OPTS="-XX:SharedArchiveFile=/mine.jsa") is None
    assert found(machine, SIDECAR_FAST_START="false") is None
    assert found(machine, {options: "-Xmx2g -Dshare=x"}) is not None
    assert found({**machine, "jars": machine["jars"] / "none"}) is None


def test_only_a_whole_archive_is_used(machine: dict[str, Path]) -> None:
    archive = there(machine)
    assert archive.options() == ""
    commit(archive)
    assert f"-XX:SharedArchiveFile={archive.path}" in archive.options()
    assert "-Xlog:cds=off" in archive.options()
    archive.path.write_bytes(b"class")
    assert archive.options() == "", "a disk that was full, or a machine that went down"
    commit(archive)
    archive.note.write_text("{")
    assert archive.options() == ""
    commit(archive)
    archive.note.unlink()
    assert archive.options() == "", "the note is the commit"


def test_one_that_is_damaged_is_made_anew(machine: dict[str, Path]) -> None:
    archive, clock = there(machine), FakeClock(SystemClock().now())
    archive.folder.mkdir(parents=True)
    for damaged in (archive.path, archive.base):
        archive.base.write_bytes(b"Java's own")
        commit(archive)
        assert "-XX:+VerifySharedSpaces" in archive.options(), "Java passes over one whose checksum is another"
        assert not archive.is_wanted(clock)
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-1] + b"?")
        assert archive.options(), "what is looked at before each start is only how long it is"
        assert archive.is_wanted(clock)


def test_one_that_stands_on_another_is_used_with_it_or_not_at_all(machine: dict[str, Path]) -> None:
    archive = there(machine)
    assert not class_archive.has_base(machine["java"])
    archive.folder.mkdir(parents=True)
    archive.base.write_text("Java's own")
    commit(archive)
    archive.sweep(SystemClock())
    assert f"-XX:SharedArchiveFile={archive.base}:{archive.path}" in archive.options()
    archive.base.unlink()
    assert archive.options() == ""


def test_one_that_is_missing_is_wanted_and_one_that_has_failed_again_a_day_later(machine: dict[str, Path]) -> None:
    archive, clock = there(machine), FakeClock(SystemClock().now())
    assert archive.is_wanted(clock)
    archive.fail("no room")
    assert not archive.is_wanted(clock)
    clock.advance(RETRY / SECOND + 60)
    assert archive.is_wanted(clock)
    commit(archive)
    assert not archive.is_wanted(clock)


def test_two_processes_do_not_make_it_at_once(machine: dict[str, Path]) -> None:
    archive = there(machine)
    archive.folder.mkdir(parents=True)
    with archive_maker._alone(archive.folder) as first:
        assert first
        assert archive_maker.make(archive, SystemClock()) == "another process makes one"
    assert archive.is_wanted(SystemClock())


def test_what_cannot_be_made_is_not_tried_again_at_each_run(machine: dict[str, Path]) -> None:
    archive, clock = there(machine), SystemClock()
    assert archive.is_wanted(clock)
    assert "Permission denied" in str(archive_maker.make(archive, clock)), "what is to be Java cannot be started"
    assert not archive.is_wanted(clock)
    assert [p.name for p in archive.folder.iterdir() if p.name.startswith("making-")] == []


def test_where_nothing_can_be_written_there_is_none(machine: dict[str, Path]) -> None:
    machine["cache"].write_text("a file where the folder should be")
    archive = there(machine)
    assert archive.options() == ""
    assert not archive.is_wanted(SystemClock())


def test_a_new_archive_takes_the_place_of_the_old_one_and_unused_ones_go(machine: dict[str, Path]) -> None:
    clock = SystemClock()
    old, other = there(machine), there(machine, {"spark.driver.extraClassPath": "driver.jar"})
    commit(old)
    commit(other)
    (machine["jars"] / "spark-core.jar").write_text("patched")
    new = there(machine)
    (new.folder / "spark-0123.jsa").write_text("half made")
    (new.folder / "making-x").mkdir()
    (new.folder / "making-x" / "made.jsa").write_text("half made")
    commit(new)
    new.sweep(clock)
    left = {new.path, new.note, other.path, other.note}
    assert set(new.folder.iterdir()) == left
    long_ago = (clock.now() - UNUSED) / SECOND - 60
    os.utime(other.note, (long_ago, long_ago))
    new.sweep(clock)
    assert set(new.folder.iterdir()) == {new.path, new.note}
    assert json.loads(new.note.read_text())["jars"] == str(machine["jars"])
