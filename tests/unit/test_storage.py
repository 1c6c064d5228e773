"""A log's folder is on a disk or in an object store, and what is beside the log does not ask which."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from sidecar import config, feed
from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import LogTruncated, SettingsError, StateDamaged, StateUnavailable
from sidecar.lake.datasource import SidecarDataSource
from sidecar.log import consumers, owner, queries, recovery, retention, storage
from sidecar.log.storage import StorePath, locate
from sidecar.polls.deliveries import NOTHING
from sidecar.state import ConsumerPosition, MemoryWatermarkStore
from tests import stores
from tests.stores import KEY, SECRET, Store
from tests.unit.test_changelog import changes, fill, mark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = {"access_key": KEY, "secret_key": SECRET}


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    with stores.store("storage") as found:
        yield found


@pytest.fixture
def root(s3: Store, tmp_path: Path) -> StorePath:
    """A folder of its own in S3."""
    found = locate(f"s3://storage/{tmp_path.name}/log", {**s3.options, **KEYS})
    assert isinstance(found, StorePath)
    return found


# -- what names a place ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "path"), [("/mnt/log", "/mnt/log"), ("file:///mnt/my%20log", "/mnt/my log"), ("file://localhost/x", "/x")]
)
def test_a_path_and_a_file_uri_are_folders_of_this_machine(place: str, path: str) -> None:
    assert locate(place) == Path(path)


@pytest.mark.parametrize(
    ("place", "key", "kind"),
    [
        ("s3://bucket", "bucket", "S3FileSystem"),
        ("s3://bucket/a/b/", "bucket/a/b", "S3FileSystem"),
        ("s3a://bucket/a%20b", "bucket/a%20b", "S3FileSystem"),
        ("gs://bucket/a", "bucket/a", "GcsFileSystem"),
        ("abfss://box@account.dfs.core.windows.net/a", "box/a", "AzureFileSystem"),
    ],
)
def test_an_address_is_a_key_of_the_store_that_its_scheme_names(
    place: str, key: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    given = {"account_key": "c2VjcmV0"} if kind.startswith("Azure") else {"anonymous": "true"}
    found = locate(place, given)
    assert isinstance(found, StorePath)
    assert found._key == key
    assert type(found.filesystem).__name__ == kind
    assert ((found / "t").name, (found / "t").parent) == ("t", found)


@pytest.mark.parametrize(
    ("place", "options", "said"),
    [
        ("ftp://host/x", {}, '"ftp://" is nothing that a log can be in'),
        ("hdfs://host/x", {}, "seen before it is whole"),
        ("s3:///x", {}, "names no bucket"),
        ("file://host/x", {}, "names another machine"),
        ("s3://key:secret@bucket/x", {}, "belongs into options"),
        ("s3://bucket/x?region=eu", {}, "belongs into options"),
        ("s3://bucket/x", {"regoin": "eu"}, 'has no option "regoin"; did you mean "region"?'),
        ("s3://bucket/x", {"access_key": "a"}, "access_key and secret_key together"),
        ("log", {"region": "eu"}, "takes no options"),
    ],
)
def test_what_is_no_place_is_an_error_of_the_settings_that_says_why(
    tmp_path: Path, place: str, options: dict[str, str], said: str
) -> None:
    listed = ", ".join(f'{name} = "{value}"' for name, value in options.items())
    path = tmp_path / "sidecar.toml"
    path.write_text(f'[source]\nurl = "sqlite:///x.db"\n[state]\nlog = "{place}"\noptions = {{ {listed} }}\n')
    with pytest.raises(SettingsError) as found:
        config.load(path)
    assert "[state] log: " in str(found.value)
    assert said in str(found.value)


def test_secrets_of_the_options_are_known_and_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET", SECRET)
    path = tmp_path / "sidecar.toml"
    path.write_text(
        '[source]\nurl = "sqlite:///x.db"\n[state]\nlog = "s3://bucket/log"\n'
        f'options = {{ access_key = "{KEY}", secret_key = "${{S3_SECRET}}", region = "eu-north-1" }}\n'
    )
    settings = config.load(path)
    assert settings.log == locate("s3://bucket/log", {**KEYS, "region": "eu-north-1"})
    assert settings.secrets.scrub(f"a {SECRET} b {KEY} c eu-north-1") == "a *** b *** c eu-north-1"
    assert SECRET not in f"{settings.log!r} {settings.log}"


def test_the_log_is_in_the_state_folder_unless_it_is_said_to_be_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.toml"
    path.write_text('[source]\nurl = "sqlite:///x.db"\n')
    assert config.load(path).log == tmp_path / ".sidecar" / "log"
    path.write_text('[source]\nurl = "sqlite:///x.db"\n[state]\nlog = "elsewhere"\n')
    assert config.load(path).log == tmp_path / "elsewhere"


# -- a log in a store --------------------------------------------------------------------------------------------------


def test_a_log_in_a_store_reads_as_one_on_a_disk(root: StorePath, s3: Store, tmp_path: Path) -> None:
    log = ChangeLog(root, "t")
    assert (log.list(), log.last(), log.schema(), log.get(1), log.metadata(1)) == ([], 0, None, None, None)
    fill(log, 3)
    other = pickle.loads(pickle.dumps(ChangeLog(root, "t")))
    assert [s.offset for s in other.list(1)] == [2, 3]
    assert other.get(2) == changes(2)
    assert other.schema() == changes(1).schema
    assert [r["_commit_version"] for r in other.rows(1)] == [2] * 3 + [3] * 3
    assert other.columns(1) == (changes(1).schema, None)
    assert other.get(4) is None
    on_disk = fill(ChangeLog(tmp_path, "t"), 3)
    assert other.metadata(2) == on_disk.metadata(2)
    assert [storage.size(s.file) for s in other.list()] == [storage.size(s.file) for s in on_disk.list()]
    assert s3.names(tmp_path.name) == [f"{tmp_path.name}/log/t/{n:020d}.parquet" for n in (1, 2, 3)]
    assert storage.folders(root) == ["t"]
    with pytest.raises(SettingsError, match="needs a log that is in a folder of this machine"):
        _ = other.folder


def test_positions_and_what_retention_drops_are_filed_in_the_store(root: StorePath, tmp_path: Path) -> None:
    log, store = fill(ChangeLog(root, "t", tmp_path), 4), MemoryWatermarkStore()
    recovery.recover(log, store)
    consumers.intend(log, store, "lake", 2)
    consumers.acknowledge(log, store, "lake", 3)
    assert retention.drop_old(log, store, ["lake"], before=10**9) == 3
    reader, rebuilt = ChangeLog(root, "t", tmp_path), MemoryWatermarkStore()
    assert (reader.floor(), [s.offset for s in reader.list(3)]) == (3, [4])
    with pytest.raises(LogTruncated):
        reader.list(1)
    consumers.recover(reader, rebuilt)
    recovery.recover(reader, rebuilt)
    assert rebuilt.position("t", "lake") == ConsumerPosition(3)
    assert rebuilt.watermark("t") == mark(4)
    fill(log, 1, start=5)
    assert (log.last(), log.floor(), ChangeLog(root, "t").last()) == (5, 3, 5)


def test_a_writer_lists_a_store_once(root: StorePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, store = fill(ChangeLog(root, "t", tmp_path), 2), MemoryWatermarkStore()
    recovery.recover(log, store)
    listed: list[StorePath] = []
    original = StorePath.listed

    def listing(path: StorePath) -> Iterator[tuple[StorePath, bool]]:
        listed.append(path)
        return original(path)

    monkeypatch.setattr(StorePath, "listed", listing)
    for offset in (3, 4, 5):
        fill(log, 1, start=offset)
        assert (log.last(), log.floor(), len(log.list()), log.columns(1)[1]) == (offset, 0, offset, None)
    assert len(listed) <= 1

    opened: list[StorePath] = []
    open_ = StorePath.open

    def opening(path: StorePath) -> object:
        opened.append(path)
        return open_(path)

    monkeypatch.setattr(StorePath, "open", opening)
    assert [log.metadata(1) for _ in range(3)] == [log.metadata(1)] * 3
    assert len(opened) == 1
    listed.clear()
    assert (retention.drop_old(log, store, [], before=0), listed) == (0, []), "nothing is old enough"


def test_a_foreign_segment_is_never_written_over(root: StorePath) -> None:
    mine, foreign = fill(ChangeLog(root, "t"), 1), ChangeLog(root, "t")
    fill(foreign, 1, start=2)
    with pytest.raises(StateDamaged, match="two of them write this log"):
        mine.append(2, changes(9), mark(2), NOTHING, committed=1, origin="poll")
    assert ChangeLog(root, "t").get(2) == changes(2)


def test_a_write_without_an_answer_is_taken_up_and_not_made_twice(root: StorePath, tmp_path: Path) -> None:
    log, store = fill(ChangeLog(root, "t", tmp_path), 2), MemoryWatermarkStore()
    recovery.recover(log, store)
    # It reached the store; the answer was lost.
    fill(ChangeLog(root, "t"), 1, start=3)
    log.in_doubt = True
    with pytest.raises(StateUnavailable, match="has been written, as is known only now"):
        log.append(3, changes(9), mark(3), NOTHING, committed=1, origin="poll")
    recovery.settle(log, store)
    assert store.watermark("t") == mark(3)
    assert not log.in_doubt
    fill(log, 1, start=4)
    assert [r["_commit_version"] for r in log.rows(2)] == [3] * 3 + [4] * 3


def test_a_store_that_is_away_leaves_the_writer_in_doubt_and_is_gone_on_with(tmp_path: Path) -> None:
    with stores.store("away") as s3:
        log, store = ChangeLog(locate(s3.url, {**s3.options, **KEYS}), "t", tmp_path), MemoryWatermarkStore()
        fill(log, 2)
        recovery.recover(log, store)
        s3.stop()
        with pytest.raises(StateUnavailable, match=r"s3://away/logs/t/0*3\.parquet: the store cannot be reached") as e:
            fill(log, 1, start=3)
        assert SECRET not in str(e.value)
        with pytest.raises(StateUnavailable):
            ChangeLog(locate(s3.url, {**s3.options, **KEYS}), "t").get(1)
        s3.start()
        recovery.settle(log, store)
        fill(log, 1, start=3)
        assert log.last() == 3


def test_a_segment_that_is_damaged_in_the_store_is_damaged_and_not_away(root: StorePath) -> None:
    log = fill(ChangeLog(root, "t"), 2)
    (root / "t" / f"{2:020d}.parquet").put(b"PAR1 this is none")
    with pytest.raises(StateDamaged, match="not a readable segment"):
        log.get(2)
    with pytest.raises(StateDamaged, match="not a readable segment"):
        log.metadata(2)


def test_a_bucket_that_is_not_there_is_a_matter_of_the_settings(s3: Store) -> None:
    log = ChangeLog(locate("s3://nowhere/log", {**s3.options, **KEYS}), "t")
    with pytest.raises(SettingsError, match=r"s3://nowhere/log/t/0*1\.parquet: the store refuses: .*NO_SUCH_BUCKET"):
        fill(log, 1)


# -- to Spark ----------------------------------------------------------------------------------------------------------


def test_spark_gets_a_log_in_a_store_as_it_gets_one_on_a_disk(
    spark: SparkSession, root: StorePath, tmp_path: Path
) -> None:
    frames = []
    for place in (root, tmp_path):
        log = fill(ChangeLog(place, "t"), 2)
        more = pa.table(
            {
                "_commit_version": pa.array([3, 3], pa.int64()),
                "id": pa.array([7, 8], pa.int64()),
                "at": pa.array([0, None], pa.timestamp("us", tz="UTC")),
                "local": pa.array([1, None], pa.timestamp("us")),
                "total": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
                "tags": pa.array([["a", None], None], pa.list_(pa.string())),
                "raw": pa.array([b"\0\xff", None], pa.binary()),
            }
        )
        log.append(3, more, mark(3), NOTHING, committed=3, origin="poll")
        frames.append(feed.dataframe(spark, log, 1))
    stored, on_disk = frames
    assert stored.schema == on_disk.schema
    assert sorted(map(str, stored.collect())) == sorted(map(str, on_disk.collect()))
    assert stored.count() == 5
    plan = stored._jdf.queryExecution().toString()
    assert "sidecar_segments" in plan
    assert SECRET not in plan
    assert KEY not in plan


def test_the_data_source_reads_a_log_in_a_store_and_notes_there_how_far_a_query_has_come(
    s3: Store, root: StorePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    fill(ChangeLog(root, "t"), 4)
    source = SidecarDataSource({"path": str(root), "table": "t", "since": "1", "consumer": "live"})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    read = [b for task in stream.partitions(start, end) for b in stream.read(task)]
    assert pa.Table.from_batches(read).column("_commit_version").to_pylist() == [2] * 3 + [3] * 3 + [4] * 3
    stream.commit(end)
    assert queries.positions(ChangeLog(root, "t")) == {"live": 4}

    batch = SidecarDataSource({"path": str(root), "table": "t", "until": "2"})
    reader = batch.reader(batch.schema())
    read = [b for task in reader.partitions() for b in reader.read(task)]
    assert pa.Table.from_batches(read).column("_commit_version").to_pylist() == [1] * 3 + [2] * 3


def test_the_data_source_takes_a_log_that_is_in_another_folder(tmp_path: Path, clock: FakeClock) -> None:
    owner.Claim(tmp_path / "elsewhere", tmp_path).make(clock)
    fill(ChangeLog(tmp_path / "elsewhere", "t"), 1)
    for place in (str(tmp_path / "elsewhere"), (tmp_path / "elsewhere").as_uri()):
        assert SidecarDataSource({"path": place, "table": "t"}).schema().names == changes(1).column_names
    with pytest.raises(SettingsError, match="or log where that is given"):
        SidecarDataSource({"path": str(tmp_path / "t"), "table": "t"}).schema()
