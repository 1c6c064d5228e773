"""Files that survive a power cut: written aside, synced, renamed. The rename is the commit."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from sidecar.errors import StateDamaged

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-.")

_LONGEST = 255
_ASIDE = len(".") + len(".tmp")
"""What a file is called longer while it is written."""

_SHORT = "%%"


def filename(name: str, ending: str = "") -> str:
    """Return *name* as one path component, a folder's, or a file's with its *ending*: reversible, and plain for plain
    names.

    Anything that Spark, Hadoop or a shell reads as more than a letter (`=`, `*`, `{`, `/`, a leading `_` or `.`, which
    hide a folder from Spark) stands as `%XX` of its UTF-8.
    """
    head = "".join(c if c in _SAFE and c != "." else _escape(c) for c in name[:1])
    found = head + "".join(c if c in _SAFE or c == "_" else _escape(c) for c in name[1:])
    if len(found) + (len(ending) + _ASIDE if ending else 0) <= _LONGEST:
        return found + ending
    # Three characters a byte are more than a file's name has room for, where a schema and a table are named in Chinese.
    return _SHORT + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=") + ending


def unescaped(found: str) -> str | None:
    """Return the name that `filename` has made *found* of; None if it never made such a one."""
    try:
        name = _lengthened(found) if found.startswith(_SHORT) else unquote(found)
        return name if name and filename(name) == found else None
    except ValueError:  # bytes that are no UTF-8 among them
        return None


def _lengthened(found: str) -> str:
    text = found.removeprefix(_SHORT)
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _escape(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())


def write_durably(path: Path, write: Callable[[Path], None], *, between: Callable[[], None] = lambda: None) -> None:
    """Make *path* hold what *write* writes, or leave it untouched; StateDamaged where the disk refuses."""
    aside = path.with_name(f".{path.name}.tmp")
    try:
        write(aside)
        sync(aside)
        between()
        aside.replace(path)
        sync(path.parent)
    except OSError as error:
        aside.unlink(missing_ok=True)
        reason, is_right = error.strerror or error, isinstance(error, PermissionError)
        hint = "Let this user write there" if is_right else "Is the disk full, or read-only?"
        raise StateDamaged(f"{path}: cannot be written: {reason}. {hint}") from error


def sync(path: Path) -> None:
    """Force *path*, a file or a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create *path* and its parents; StateDamaged where that is refused."""
    if path.is_dir():
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateDamaged(f"{path}: cannot be created: {error.strerror or error}") from error
