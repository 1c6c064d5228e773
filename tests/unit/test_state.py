"""Both stores are one dictionary to whoever asks, and a damaged one never answers as if it were empty."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import sidecar
from sidecar.changelog import ChangeLog
from sidecar.clock import FakeClock
from sidecar.errors import StateDamaged
from sidecar.log import consumers, recovery
from sidecar.model import PassMark, Watermark
from sidecar.polls.deliveries import NOTHING
from sidecar.state import ConsumerPosition, MemoryWatermarkStore, RocksDBWatermarkStore, WatermarkStore
from tests.unit.records import Known, keys, known, lasting, records
from tests.unit.test_changelog import fill, mark

TABLES = st.sampled_from(("t", "t2", "", "größe", "a\x00b", "public.t", 'q"', "t" * 300))
KEYS = st.integers(0, 15)
VALUES = st.none() | st.tuples(st.integers(0, 2), st.sampled_from((0, 1, 2, 2**63 - 1)))
MARKS = st.builds(
    Watermark,
    settings=st.text(max_size=5),
    offset=st.integers(0, 2**60),
    marks=st.fixed_dictionaries({"updated": st.builds(PassMark, closed=st.none() | st.integers(-1, 3))}),
)
NAMES = st.sampled_from(("lake", "", "a/b", "größe", '["'))
POSITIONS = st.builds(ConsumerPosition, st.integers(0, 2**62), st.none() | st.integers(0, 2**62))


class BothStores(RuleBasedStateMachine):
    """Whatever is done to both, both say the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.path = Path(self.folder.name) / "db"
        self.memory: WatermarkStore = MemoryWatermarkStore()
        self.closed: dict[str, int] = {}

    @initialize()
    def create(self) -> None:
        self.rocks: WatermarkStore = RocksDBWatermarkStore(self.path, create=True)

    @rule(table=TABLES, watermark=MARKS, remembered=st.dictionaries(KEYS, VALUES), forget_all=st.booleans())
    def save(self, table: str, watermark: Watermark, remembered: Known, forget_all: bool) -> None:
        closed = watermark.closed()["updated"]
        self.closed[table] = max(self.closed.get(table, -1), -1 if closed is None else closed)
        for store in (self.memory, self.rocks):
            store.save(table, watermark, records(remembered), forget_all=forget_all)

    @rule(table=TABLES, name=NAMES, position=POSITIONS)
    def save_position(self, table: str, name: str, position: ConsumerPosition) -> None:
        for store in (self.memory, self.rocks):
            store.save_position(table, name, position)
            assert store.position(table, name) == position

    @rule(table=TABLES, text=st.none() | st.text(max_size=20))
    def note(self, table: str, text: str | None) -> None:
        for store in (self.memory, self.rocks):
            store.note(table, text)

    @rule(table=TABLES, asked=st.lists(KEYS))
    def recall(self, table: str, asked: list[int]) -> None:
        both = [known(store.recall(table, keys(*set(asked)))) for store in (self.memory, self.rocks)]
        self.compare(table, *both)

    def compare(self, table: str, memory: Known, rocks: Known) -> None:
        """The database may forget later than it could what no poll can meet again."""
        assert memory.items() <= rocks.items()
        for key in rocks.keys() - memory.keys():
            found = rocks[key]
            assert found is not None
            assert found[1] <= self.closed.get(table, -1)

    @rule()
    def open_anew(self) -> None:
        self.rocks.close()
        self.rocks = RocksDBWatermarkStore(self.path)

    @rule()
    def look_from_outside(self) -> None:
        other = RocksDBWatermarkStore(self.path, read_only=True)
        assert other.positions() == self.memory.positions()
        other.close()

    @invariant()
    def both_say_the_same(self) -> None:
        if not hasattr(self, "rocks"):
            return
        assert self.memory.positions() == self.rocks.positions()
        assert self.memory.notes() == self.rocks.notes()
        for table in ("t", "t2", "", "größe", "a\x00b", "public.t", 'q"', "t" * 300):
            assert self.memory.watermark(table) == self.rocks.watermark(table)
            self.compare(table, known(self.memory.remembered(table)), known(self.rocks.remembered(table)))

    def teardown(self) -> None:
        if hasattr(self, "rocks"):
            self.rocks.close()
        self.folder.cleanup()


TestBothStores = BothStores.TestCase
TestBothStores.settings = settings(
    max_examples=15, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
)


def test_records_that_are_lost_are_named_before_they_read_as_nothing(tmp_path: Path) -> None:
    store = RocksDBWatermarkStore(tmp_path / "db", create=True)
    store.save("t", mark(1), lasting(1, 2, 3))
    store._write([("records", key, None) for key, _ in store._scan("records", b"")])
    store.close()
    store = RocksDBWatermarkStore(tmp_path / "db")
    store.verify()
    with pytest.raises(StateDamaged, match="block 0 is not what its header says"):
        store.recall("t", keys(1))
    store._write([("recent", key, None) for key, _ in store._scan("recent", b"")])
    store.close()
    store = RocksDBWatermarkStore(tmp_path / "db")
    with pytest.raises(StateDamaged, match='what is remembered of table "t" is not complete'):
        store.verify()
    store.close()


def test_a_watermark_and_records_of_two_ages_are_named(tmp_path: Path) -> None:
    store = RocksDBWatermarkStore(tmp_path / "db", create=True)
    store.save("t", mark(1), NOTHING)
    ((key, older),) = store._scan("watermarks", b"")
    store.save("t", mark(2), NOTHING)
    store.verify()
    for part in (("watermarks", key, older), ("", b"sum t", None)):
        store._write([part])
        with pytest.raises(StateDamaged, match='what is remembered of table "t" is not complete'):
            store.verify()
        store.save("t", mark(2), NOTHING)
        store.verify()
    store.close()


def test_what_could_not_be_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RocksDBWatermarkStore(tmp_path / "db", create=True)
    store.save("t", mark(1), lasting(1, 2))

    def full(writes: object, *, lazy: bool) -> None:
        raise StateDamaged("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_write", full)
        with pytest.raises(StateDamaged):
            store.save("t", mark(2), lasting(2, 3, content=9))
    assert known(store.recall("t", keys(1, 2, 3))) == known(lasting(1, 2))
    store.save("t", mark(2), lasting(2, content=9))
    store.verify()
    store.close()


def content(store: WatermarkStore) -> tuple[Any, ...]:
    return (store.watermark("t"), known(store.remembered("t")), store.positions())


def replicate(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def written(path: Path, log: ChangeLog) -> tuple[Any, ...]:
    """Fill a database as the log and the position files would, in several files, and return its content."""
    RocksDBWatermarkStore(path, create=True).close()
    for _ in range(3):
        # Each opening flushes what the last one wrote into a table file.
        store = RocksDBWatermarkStore(path)
        known = store.watermark("t")
        for watermark, remembered, _ in log.replay(known.offset if known else 0):
            store.save("t", watermark, remembered)
            if watermark.offset % 4 == 0:
                break
        consumers.acknowledge(log, store, "lake", watermark.offset)
        store.close()
    store = RocksDBWatermarkStore(path)
    found = content(store)
    store.close()
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ChangeLog, tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("state")
    log = fill(ChangeLog(folder / "log", "t"), 12)
    return folder / "db", log, written(folder / "db", log)


NAMED = ("StateDamaged",)


def outcome(path: Path, log: ChangeLog) -> tuple[Any, ...]:
    """Return what the database holds once it is brought up to the log, or that it is named as damaged."""
    try:
        store = RocksDBWatermarkStore(path)
        try:
            recovery.recover(log, store)
            consumers.recover(log, store)
            return content(store)
        finally:
            store.close()
    except StateDamaged as error:
        message = str(error)
    assert str(path) in message
    return NAMED


def test_a_bit_that_flips_anywhere_is_named_or_mended_from_the_log_and_never_reads_as_nothing(
    database: tuple[Path, ChangeLog, tuple[Any, ...]], tmp_path: Path
) -> None:
    path, log, expected = database
    names = sorted(p.name for p in path.iterdir() if p.stat().st_size and p.name not in ("LOCK", "LOG"))
    assert any(n.endswith(".sst") for n in names)
    seed = random.Random(2024)
    outcomes = {"named": 0, "equal": 0}
    for turn in range(90):
        copy = replicate(path, tmp_path / "db")
        victim = copy / names[turn % len(names)]
        raw = bytearray(victim.read_bytes())
        raw[seed.randrange(len(raw))] ^= 1 << seed.randrange(8)
        victim.write_bytes(raw)
        found = outcome(copy, log)
        assert found in (expected, NAMED), f"{victim.name}, turn {turn}"
        outcomes["named" if found == NAMED else "equal"] += 1
    assert outcomes["named"]
    assert outcomes["equal"]


def test_a_file_that_is_cut_short_is_named_or_mended_from_the_log(
    database: tuple[Path, ChangeLog, tuple[Any, ...]], tmp_path: Path
) -> None:
    path, log, expected = database
    for name in sorted(p.name for p in path.iterdir() if p.stat().st_size and p.name not in ("LOCK", "LOG")):
        for part in (0.0, 0.3, 0.95):
            copy = replicate(path, tmp_path / "db")
            raw = (copy / name).read_bytes()
            (copy / name).write_bytes(raw[: int(len(raw) * part)])
            assert outcome(copy, log) in (expected, NAMED), f"{name} cut to {part}"


def test_a_file_that_is_missing_is_named_or_mended_from_the_log(
    database: tuple[Path, ChangeLog, tuple[Any, ...]], tmp_path: Path
) -> None:
    path, log, expected = database
    for name in sorted(p.name for p in path.iterdir()):
        copy = replicate(path, tmp_path / "db")
        (copy / name).unlink()
        assert outcome(copy, log) in (expected, NAMED), name


def test_a_folder_that_is_no_database_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateDamaged, match="Move this folder away and run again"):
        RocksDBWatermarkStore(tmp_path / "nothing")
    import rocksdict

    foreign = rocksdict.Rdict(str(tmp_path / "foreign"), rocksdict.Options(raw_mode=True))
    foreign[b"identity"] = b"something else"
    foreign.close()
    with pytest.raises(StateDamaged):
        RocksDBWatermarkStore(tmp_path / "foreign")


def test_a_watermark_of_a_later_version_is_named(tmp_path: Path) -> None:
    store = RocksDBWatermarkStore(tmp_path / "db", create=True)
    store._write([("watermarks", b"t", b'{"format":5}')])
    with pytest.raises(StateDamaged, match='the watermark of table "t" does not parse: watermark of format 5'):
        store.watermark("t")
    store.close()


def test_a_database_is_closed_for_good(tmp_path: Path) -> None:
    for _ in range(3):
        store = RocksDBWatermarkStore(tmp_path / "db", create=True)
        store.save("t", mark(1), NOTHING)
        store.close()


# -- the folder of a project -------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Settings of a project, whose log has three segments and whose sink has taken two."""
    (tmp_path / "sidecar.toml").write_text('[source]\nurl = "nowhere://"\n[tables.t]\n')
    log = fill(ChangeLog(tmp_path / ".sidecar" / "log", "t"), 3)
    with sidecar.open(tmp_path / "sidecar.toml", clock=FakeClock()) as opened:
        consumers.acknowledge(log, opened.store, "lake", 2)
    return tmp_path / "sidecar.toml"


def as_it_was(project: Path) -> bool:
    with sidecar.open(project, clock=FakeClock()) as opened:
        found = opened.watermark("t")
        return (found, opened.store.position("t", "lake"), len(known(opened.store.remembered("t")))) == (
            mark(3),
            ConsumerPosition(2),
            3,
        )


def test_a_project_is_rebuilt_from_its_log_and_position_files(project: Path) -> None:
    db = project.parent / ".sidecar" / "db"
    assert as_it_was(project)
    shutil.rmtree(db)
    assert as_it_was(project)
    shutil.rmtree(db)
    db.mkdir()
    assert as_it_was(project)
    assert not db.with_name("db.new").exists()


def test_a_database_half_made_by_a_killed_process_is_made_again(project: Path) -> None:
    db = project.parent / ".sidecar" / "db"
    db.rename(db.with_name("db.new"))
    (db.with_name("db.new") / "CURRENT").unlink()
    assert as_it_was(project)


def test_a_database_without_its_first_file_is_refused(project: Path) -> None:
    (project.parent / ".sidecar" / "db" / "CURRENT").unlink()
    with (
        sidecar.open(project, clock=FakeClock()) as opened,
        pytest.raises(StateDamaged, match="CURRENT file is missing"),
    ):
        _ = opened.store
    # The failure lets go of the lock.
    shutil.rmtree(project.parent / ".sidecar" / "db")
    assert as_it_was(project)


def test_a_log_whose_last_segments_are_gone_is_named(project: Path) -> None:
    as_it_was(project)
    (project.parent / ".sidecar" / "log" / "t" / f"{3:020d}.parquet").unlink()
    with sidecar.open(project, clock=FakeClock()) as opened:
        assert opened.watermark("t") == mark(3)
        assert "ends at offset 2, but 3" in str(opened.damaged["t"])
