"""An error of Sidecar's in a Python process of Spark's: Spark is told what it says, and not how it came about.

PySpark hands the trace of an error on with it, and puts it first, unless SPARK_HIDE_TRACEBACK is set in that process. A
user who misspelled a table would read ten lines of ours before the one that is meant for him. The next work of the
process may be a function of the user's own, whose trace he needs: so the variable is set as the error leaves, and gone
once PySpark, which has looked at it by then, asks the error for its text.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sidecar.errors import SidecarError

HIDE = "SPARK_HIDE_TRACEBACK"


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Let a SidecarError that is raised inside, in a process of Spark's, arrive with its text alone."""
    try:
        yield
    except SidecarError as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") != "PYTHON_WORKER" or HIDE in os.environ:
            raise
        os.environ[HIDE] = "1"
        raise _told(error) from None


def _told(error: SidecarError) -> SidecarError:
    """Return *error* as one that takes the variable back when it is asked for its text."""
    kind = type(error)

    def text(self: SidecarError) -> str:
        os.environ.pop(HIDE, None)
        return kind.__str__(self)

    names = {"__str__": text, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    found: SidecarError = type(kind.__name__, (kind,), names)(*error.args)
    return found
