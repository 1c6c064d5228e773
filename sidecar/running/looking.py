"""The state as somebody sees it who only looks: a runner may be writing it, and this user may have no right to.

rocksdict writes a small file of its own beside whatever it opens, even to read. So it is shown a folder of links, which
is gone again once all files are open: RocksDB opens what there is at once, and what it holds open cannot be taken away.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sidecar.errors import StateDamaged
from sidecar.state import MemoryWatermarkStore, RocksDBWatermarkStore, WatermarkStore

ATTEMPTS = 50
"""How often a database is opened whose files come and go meanwhile; each time takes some milliseconds."""

_NEEDED = ("CURRENT", "MANIFEST-", "IDENTITY")


def look_at(path: Path) -> WatermarkStore:
    """Return the database at *path* as it is now, to be read, without a write there; an empty one if there is none.

    StateDamaged where it cannot be read, or not by this user.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            if not (path / "CURRENT").exists():
                return MemoryWatermarkStore()
            before = _files(path)
            with _linked(before) as folder:
                return RocksDBWatermarkStore(path, seen_at=folder)
        except PermissionError as error:
            raise StateDamaged(_forbidden(path)) from error
        except StateDamaged as error:
            if any(not os.access(file, os.R_OK, effective_ids=True) for file in before if file.exists()):
                raise StateDamaged(_forbidden(path)) from error
            # A runner has written a file, and removed one, since they were listed.
            if attempt == ATTEMPTS or _files(path) == before:
                raise
    raise AssertionError("the last attempt returns or raises")


def _forbidden(path: Path) -> str:
    return f"{path}: this user may not read what is there. Its owner can let you: chmod -R go+rX {path.parent}"


def _files(path: Path) -> list[Path]:
    """Return what RocksDB reads of the folder *path*."""
    return sorted(f for f in path.absolute().iterdir() if f.suffix in (".sst", ".log") or f.name.startswith(_NEEDED))


@contextlib.contextmanager
def _linked(files: list[Path]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sidecar-") as name:
        for file in files:
            Path(name, file.name).symlink_to(file)
        yield Path(name)
