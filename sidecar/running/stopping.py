"""What is under way breaks off once somebody asks to stop: a statement may have minutes to go."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

EVERY = 0.25
"""Seconds between two looks, and between two attempts: a statement may begin in just the moment of one."""


@contextlib.contextmanager
def breaking_off(stop: threading.Event, cancel: Callable[[], None]) -> Iterator[None]:
    """Inside, have *cancel* called by another thread once *stop* is set, and again until the end."""
    over, calling = threading.Event(), threading.Lock()

    def watch() -> None:
        while not over.is_set() and not stop.wait(EVERY):
            pass
        while not over.is_set():
            with calling:
                if not over.is_set():
                    cancel()
            over.wait(EVERY)

    threading.Thread(target=watch, name="sidecar-stopping", daemon=True).start()
    try:
        yield
    finally:
        over.set()
        with calling:
            pass  # no call reaches beyond the end
