"""The sinks' own thread: what polls have found goes on while the next poll is made."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sidecar.model import Tracked


class Feeding:
    """Calls *deliver* for one table after another, in the order in which they were asked for, on a thread of its own.

    The thread starts with the first table: a run that finds nothing has none.
    """

    def __init__(self, deliver: Callable[[Tracked], None]) -> None:
        self._deliver = deliver
        self._changed = threading.Condition()
        self._wanted: dict[str, Tracked] = {}
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_over = False
        self._died: BaseException | None = None

    def ask(self, tracked: Tracked) -> None:
        """Have all delivered that *tracked*'s log holds by then. Raises what an earlier delivery has died of."""
        with self._changed:
            self._raise()
            self._wanted[tracked.name] = tracked
            if self._thread is None:
                # A daemon: whoever wants to stop at once need not wait for a batch.
                self._thread = threading.Thread(target=self._run, name="sidecar-sinks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all that was asked for has been delivered, or was tried. Raises what a delivery has died of."""
        with self._changed:
            self._changed.wait_for(lambda: self._died is not None or not (self._wanted or self._is_busy))
            self._raise()

    def close(self) -> None:
        """Wait for the delivery that is under way; begin no other. Raises what a delivery has died of."""
        with self._changed:
            self._is_over = True
            self._wanted.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._raise()

    def _run(self) -> None:
        try:
            while (tracked := self._next()) is not None:
                self._deliver(tracked)
        except BaseException as error:
            with self._changed:
                self._died, self._is_busy = error, False
                self._changed.notify_all()

    def _next(self) -> Tracked | None:
        """Wait for a table to deliver, and return it; None when there will be no more."""
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._wanted or self._is_over)
            if self._is_over:
                return None
            self._is_busy = True
            return self._wanted.pop(next(iter(self._wanted)))

    def _raise(self) -> None:
        if self._died is not None:
            raise self._died
