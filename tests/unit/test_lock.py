"""One process holds a state folder, and whoever comes second learns which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.clock import FakeClock
from sidecar.errors import StateHeld
from sidecar.running.lock import StateLock

HOLD = """
import sys
from pathlib import Path
from sidecar.clock import SystemClock
from sidecar.running.lock import StateLock
lock = StateLock(Path(sys.argv[1]), SystemClock())
print("held", flush=True)
sys.stdin.read()
"""


def test_the_second_one_is_told_who_holds_what_and_since_when(tmp_path: Path, clock: FakeClock) -> None:
    with StateLock(tmp_path / "state", clock):
        for _ in range(2):
            with pytest.raises(StateHeld) as raised:
                StateLock(tmp_path / "state", clock)
            assert f"{tmp_path / 'state'}: held by process {os.getpid()} on " in str(raised.value)
            assert "since 2024-05-01T10:00:00Z" in str(raised.value)
    with StateLock(tmp_path / "state", clock):
        pass


def test_two_folders_are_two_locks(tmp_path: Path, clock: FakeClock) -> None:
    with StateLock(tmp_path / "a", clock), StateLock(tmp_path / "b", clock):
        pass


def test_a_process_that_is_killed_lets_go(tmp_path: Path, clock: FakeClock) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(StateHeld, match=f"held by process {holder.pid} "):
                StateLock(tmp_path, clock)
        finally:
            holder.kill()
    with StateLock(tmp_path, clock):
        assert f"process {os.getpid()}" in (tmp_path / "lock").read_text()


def test_the_text_of_a_longer_name_does_not_shine_through(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "lock").write_text("x" * 500)
    with StateLock(tmp_path, clock):
        assert "x" not in (tmp_path / "lock").read_text().replace("pytest", "").partition("(")[0].partition(" on ")[0]
        assert len((tmp_path / "lock").read_text()) < 500
