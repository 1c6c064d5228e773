"""One writer a state folder: an advisory lock that the operating system drops with its process, however it ends.

RocksDB's own lock is a record lock, which vanishes when its owner opens and closes the file; and its message names
nobody. This one is a `flock` on a file that nothing else touches, and its text says who holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys
from pathlib import Path
from types import TracebackType

from sidecar.clock import Clock, iso
from sidecar.errors import StateDamaged, StateHeld
from sidecar.log.files import make_folder


class StateLock:
    """Hold *folder* for this process; StateHeld, naming the holder and the folder, if another one has it."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        make_folder(folder)
        try:
            self._handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StateDamaged(f"{folder}: this user cannot write there: {error.strerror or error}") from error
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._handle, 1000, 0).decode(errors="replace").strip() or "another process"
            os.close(self._handle)
            raise StateHeld(
                f"{folder}: held by {holder}. Two runners on one state would deliver twice; wait for it, or stop it."
            ) from error
        text = f"process {os.getpid()} on {socket.gethostname()} ({Path(sys.argv[0]).name}, since {iso(clock.now())})"
        # A full disk must not keep anybody from reading what the state says; the name is a courtesy.
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, text.encode(), 0)

    def close(self) -> None:
        """Let go."""
        os.close(self._handle)

    def __enter__(self) -> StateLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
