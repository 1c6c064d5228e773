"""Looking at a state that one may only read, and that somebody else is writing."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sidecar
from sidecar.cli import execute
from sidecar.errors import SettingsError, StateDamaged
from sidecar.model import Watermark
from sidecar.polls.deliveries import NOTHING
from sidecar.running.looking import look_at
from sidecar.state import ConsumerPosition, RocksDBWatermarkStore
from tests.conftest import SQLiteFile

NOBODY = 65534


@pytest.fixture
def shop(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, open to all for reading, with settings and a state; the working directory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        db = sqlite_db.connection
        db.executescript(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL);"
            "INSERT INTO orders VALUES (1, '2024-05-01T10:00:00Z'), (2, '2024-05-01T11:00:00Z');"
        )
        db.close()
        shutil.copy(sqlite_db.path, folder / "shop.db")
        monkeypatch.chdir(folder)
        Path("sidecar.toml").write_text('[source]\nurl = "sqlite:///shop.db"\n[tables.orders]\n')
        with sidecar.open("sidecar.toml") as sc:
            sc.poll()
        yield folder


@contextlib.contextmanager
def somebody_else(folder: Path, *, may_read: bool = True) -> Iterator[None]:
    """Be one who may write nothing in *folder*: another user, or, where tests are not root, oneself without rights."""
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod((0o555 if path.is_dir() else 0o444) if may_read or path.suffix != ".sst" else 0o000)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(NOBODY)
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


COMMANDS = [
    ("status", "--json"), ("changes", "orders"), ("backfill", "--list"), ("schema", "orders"),
    ("watermark", "show", "orders"), ("check",),
]  # fmt: skip


def test_who_may_only_read_sees_what_the_owner_sees(shop: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def said() -> list[str]:
        capfd.readouterr()
        codes = [execute(command) for command in COMMANDS]
        sys.stdout.flush()
        assert set(codes) == {0}
        return [line for line in capfd.readouterr().out.splitlines() if "lag_s" not in line]

    owner = said()
    held = sorted(p.name for p in Path(".sidecar").rglob("*"))
    with somebody_else(shop):
        assert said() == owner
        with sidecar.open("sidecar.toml", read_only=True) as sc:
            assert [status.offset for status in sc.status()] == [1]
    assert sorted(p.name for p in Path(".sidecar").rglob("*")) == held


def test_what_writes_is_refused_by_name_in_a_project_that_is_open_for_reading(shop: Path) -> None:
    def held() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in Path(".sidecar").rglob("*")}

    before = held()
    with sidecar.open("sidecar.toml", read_only=True) as sc:
        assert [status.offset for status in sc.status()] == [1]
        writes: dict[str, Callable[[], object]] = {
            "poll": sc.poll,
            "request_backfill": lambda: sc.request_backfill("orders"),
            "cancel_backfill": lambda: sc.cancel_backfill("orders"),
            "set_watermark": lambda: sc.set_watermark("orders", "2024-05-01T10:00:00Z"),
            "reset_watermark": lambda: sc.reset_watermark("orders"),
            "accept_schema": lambda: sc.accept_schema("orders"),
        }
        for name, write in writes.items():
            with pytest.raises(SettingsError, match=rf"^{name} writes to the state, .*open it without read_only"):
                write()
    assert held() == before


def test_a_backfill_is_asked_for_and_cancelled_while_another_process_holds_the_state(shop: Path) -> None:
    with sidecar.open("sidecar.toml") as sc:
        _ = sc.store
        with sidecar.open("sidecar.toml") as other:
            assert other.request_backfill("orders") is not None
            assert len(other.cancel_backfill("orders")) == 1


def test_who_may_not_even_read_is_told_so(shop: Path) -> None:
    with somebody_else(shop, may_read=False), pytest.raises(StateDamaged, match="may not read what is there"):
        look_at(Path(".sidecar/db"))


def test_a_look_succeeds_while_files_come_and_go(tmp_path: Path) -> None:
    store, over = RocksDBWatermarkStore(tmp_path / "db", create=True), threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            store.save("t", Watermark("t", offset=number), NOTHING)
            store.save_position("t", "sink", ConsumerPosition(number))
            for family in store._families.values():
                family.flush()
                family.compact_range(None, None)
            over.wait(0.05)  # as disks take to sync: in memory, all files would be others within any look

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = []
        for _ in range(15):
            other = look_at(tmp_path / "db")
            mark = other.watermark("t")
            seen.append(0 if mark is None else mark.offset)
            other.close()
    finally:
        over.set()
        writer.join()
        store.close()
    assert seen == sorted(seen)
    assert seen[-1] > 0
    assert not list(Path(tempfile.gettempdir()).glob("sidecar-*/CURRENT"))
