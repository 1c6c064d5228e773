"""Command lines in processes of their own that need not start from nothing: forks of one that has imported Sidecar.

A Python that starts, and imports all that a command does, takes a second; a fork some hundredths of that. What each
process has then is its own all the same: its memory, its locks, its end.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        *("tests.fault.harness", "sidecar.cli", "sidecar.terminal.console", "sidecar.runner", "sidecar.project"),
        *("sidecar.terminal.checks", "sidecar.terminal.show", "sidecar.terminal.cli_position"),
        *("connectors.sqlite", "connectors.postgres", "sqlite_utils", "connectorx", "rocksdict", "numpy.ma"),
    ]
)


def run(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> int | None:
    """Run `sidecar` with *arguments* in *folder*, its output to two files; return its exit code.

    One that is still under way after three minutes is killed, and None returned.
    """
    process = server.Process(target=_command, args=(arguments, folder, dict(environment), out, err))
    process.start()
    process.join(180)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    process.close()
    return code


def crash_at(point: str) -> None:
    """Do what SIDECAR_CRASH_AT does, in a process in which the module that reads it was imported before it began."""
    from sidecar import faults

    name, _, count = point.partition(":")
    assert name in faults.POINTS
    faults._left[name] = int(count or 1)


def _command(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    _redirect(Path(os.devnull), os.O_RDONLY, 0)
    _redirect(out, os.O_WRONLY | os.O_CREAT, 1)
    _redirect(err, os.O_WRONLY | os.O_CREAT, 2)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  of the process
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if point := environment.get("SIDECAR_CRASH_AT"):
        crash_at(point)
    from sidecar.cli import execute

    try:
        code = execute(arguments)
    finally:
        # Of a process that was forked, Python leaves these out.
        atexit._run_exitfuncs()
    sys.exit(code)


def _redirect(path: Path, flags: int, handle: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, handle)
    os.close(opened)
