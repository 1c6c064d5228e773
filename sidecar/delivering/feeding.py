"""The sinks' own threads: what polls have found goes on while the next poll is made."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

LOOK = 0.2
"""Seconds between two looks whether to wait any longer."""


class Feeding:
    """Does one piece of work after another, in the order in which they were asked for, on a thread of its own.

    The thread starts with the first one: a run that finds nothing has none. Nobody waits for it while *is_vain*.
    """

    def __init__(self, is_vain: Callable[[], bool] = lambda: False) -> None:
        self._is_vain = is_vain
        self._changed = threading.Condition()
        self._wanted: dict[str, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._is_busy = self._is_over = False
        self._died: BaseException | None = None

    def ask(self, name: str, work: Callable[[], None]) -> None:
        """Have *work* done, once, however often it is asked for under this *name* before its turn. Raises what an
        earlier one has died of.
        """
        with self._changed:
            self._raise()
            self._wanted[name] = work
            if self._thread is None:
                # A daemon: whoever wants to stop at once need not wait for a batch.
                self._thread = threading.Thread(target=self._run, name="sidecar-sinks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all that was asked for has been done. Raises what it has died of."""
        with self._changed:
            while not self._changed.wait_for(self._has_finished, LOOK) and not self._is_vain():
                pass
            self._raise()

    def close(self, *, waits: bool = True) -> None:
        """Begin nothing else; wait for what is under way, unless told not to. Raises what it has died of."""
        with self._changed:
            self._is_over = True
            self._wanted.clear()
            self._changed.notify_all()
        if not waits:
            return
        while self._thread is not None and self._thread.is_alive() and not self._is_vain():
            self._thread.join(LOOK)
        self._raise()

    def _has_finished(self) -> bool:
        return self._died is not None or not (self._wanted or self._is_busy)

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
        except BaseException as error:
            with self._changed:
                self._died, self._is_busy = error, False
                self._changed.notify_all()

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do, and return it; None when there will be no more."""
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


class Lanes:
    """Two such threads: what Spark takes its time for keeps nothing else waiting. *is_vain* is of the one for Spark."""

    def __init__(self, is_vain: Callable[[], bool] = lambda: False) -> None:
        self.spark, self.others = Feeding(is_vain), Feeding()

    def finish(self) -> None:
        """Wait as `Feeding.finish` does, for both."""
        self.spark.finish()
        self.others.finish()

    def close(self, *, waits: bool = True) -> None:
        """Close both as `Feeding.close` does; none begins anything while the other is waited for."""
        self.others.close(waits=False)
        with contextlib.ExitStack() as stack:
            for lane in (self.others, self.spark):
                stack.callback(lane.close, waits=waits)
