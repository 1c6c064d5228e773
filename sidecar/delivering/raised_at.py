"""Where in a user's own code something was raised: the file and the line, out of a trace that nobody wants to read."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Collection, Iterator
from pathlib import Path

import sidecar

_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')
"""A frame as Python prints it: what an executor raised comes as text."""


def raised_at(error: BaseException, folder: Path | None, modules: Collection[str]) -> str | None:
    """Return the innermost place in a user's code that *error* went through, as "shapes.py, line 5, in orders".

    A user's are the files under *folder*, what is installed there left out, and those of *modules*.
    """
    files = {file for name in modules if (file := getattr(sys.modules.get(name), "__file__", None))}
    own = [place for place in _frames(error) if _is_own(place[0], folder, files)]
    if not own:
        return None
    file, line, name = own[-1]
    path = Path(file)
    shown = path.relative_to(folder) if folder is not None and path.is_relative_to(folder) else path
    return f"{shown}, line {line}" + ("" if name == "<module>" else f", in {name}")


def _frames(error: BaseException) -> Iterator[tuple[str, int, str]]:
    for frame, line in traceback.walk_tb(error.__traceback__):
        yield frame.f_code.co_filename, line, frame.f_code.co_name
    for file, number, name in _FRAME.findall(str(error)):
        yield file, int(number), name


def _is_own(file: str, folder: Path | None, files: Collection[str]) -> bool:
    if file in files:
        return True
    path = Path(file)
    is_installed = "site-packages" in path.parts or path.is_relative_to(Path(sidecar.__file__).parent)
    return folder is not None and path.is_relative_to(folder) and not is_installed
