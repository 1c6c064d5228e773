"""The process in which connectorx reads a SQLite file: started, asked, ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import selectors
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from sidecar.clock import Clock

_PROGRAM = Path(__file__).with_name("sqlite_child.py")
_LOOK = 0.1
"""Seconds between two looks at the clock."""

_PIPE = 1 << 20

_ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 24),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Memory that has held one answer holds the next: to be given new pages by the kernel, again and again, takes a fifth
of all that the process does. Other allocators than glibc's know nothing of it."""


class Apart:
    """One such process for the file at *path*. What goes wrong in it ends it: the file is then read otherwise.

    A second SQLite library must not be in a process that has the file open by the first (`sqlite_file.py`); in another
    process it is another program that reads, like any.
    """

    def __init__(self, path: Path, clock: Clock, timeout: float) -> None:
        # By no other form of URL connectorx opens a file to read only, and makes none.
        self._url = "sqlite://" + quote(f"{path.as_uri()}?mode=ro", safe="")
        self._clock, self._timeout = clock, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = self._is_over = False
        self._ending = threading.Lock()

    def is_ready(self) -> bool:
        """Return whether it can be asked; begin to start it, if it has not been started."""
        if self._is_over:
            return False
        if self._process is None:
            self._start()
        elif not self._is_ready and self._has_answered(0):
            self._is_ready = self._answer() is not None
        return self._is_ready

    def ask(self, sql: str) -> None:
        """Have it read what *sql* selects; one thing at a time."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([self._url, sql]).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.close()

    def answer(self) -> pa.Table | None:
        """Return what it was asked for, once that has been read; None if it could not be."""
        answer = self._answer()
        return pa.ipc.open_stream(answer).read_all() if answer else None

    def close(self) -> None:
        """End it, whatever it does; from any thread. It is not started again."""
        self._is_over, self._is_ready = True, False
        with self._ending:
            if self._process is None:
                return
            self._process.kill()
            self._process.wait()

    def release(self) -> None:
        """End it and let go of its pipes; for the thread that asks."""
        self.close()
        for pipe in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def _start(self) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ALLOCATION},
            )
        except OSError:
            self._is_over = True
            return
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # more than this user may have
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, _PIPE)  # type: ignore[arg-type]

    def _has_answered(self, timeout: float) -> bool:
        """Return whether there is something to read, or will be none any more; wait *timeout* seconds for that."""
        assert self._process is not None
        assert self._process.stdout is not None
        # `select` itself knows no file beyond the process's first 1,024.
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            return bool(selector.select(timeout))

    def _answer(self) -> pa.Buffer | None:
        """Return the next answer; None once the process is no more, or takes too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        until = self._clock.monotonic() + self._timeout
        while not self._has_answered(_LOOK):
            if self._clock.monotonic() > until:
                self.close()
                return None
        head = self._process.stdout.read(8)
        # Arrow's memory is used again, where Python's is taken from the system anew for each.
        answer = pa.allocate_buffer(int.from_bytes(head, "little"))
        if len(head) < 8 or self._process.stdout.readinto(answer) < answer.size:  # type: ignore[attr-defined]
            self.close()
            return None
        return answer
