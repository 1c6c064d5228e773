"""What goes to stderr while something runs: log lines, failures, and the progress of a first load."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from sidecar.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sidecar.clock import Clock
    from sidecar.poll import Step
    from sidecar.scrub import Secrets

EVERY = 5.0
"""Seconds between two lines of progress where nobody watches a terminal."""
SOON = 1.0
"""Seconds after which a poll is long enough to show its progress."""

log_ = logging.getLogger("sidecar")


def failures(error: BaseException) -> list[str]:
    """Return what went wrong, one line a failure."""
    if isinstance(error, SettingsError):
        return [line for line in str(error).splitlines() if line.strip()]
    return [" ".join(str(error).split()) or type(error).__name__]


def set_up_logging(secrets: Secrets) -> None:
    """Send log lines to stderr from now on, scrubbed of *secrets*."""
    handler = _Handler()
    handler.addFilter(secrets)
    handler.setFormatter(_Formatter())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    log_.setLevel(logging.INFO)


class _Handler(logging.Handler):
    """Writes to whatever stderr is at the time: a progress display puts itself in its place while it is shown."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class _Formatter(logging.Formatter):
    """Information as it is; `error: …` and `warning: …` before each line of the rest."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_text:
            text = f"{text}\n{record.exc_text}"
        if record.levelno < logging.WARNING:
            return text
        word = "error" if record.levelno >= logging.ERROR else "warning"
        return "\n".join(f"{word}: {line}" for line in text.splitlines() if line.strip())


class LoadProgress:
    """Shows how far the long polls have come: a live line in a terminal, else a log line every few seconds."""

    def __init__(self, clock: Clock, *, live: bool | None = None) -> None:
        self._clock = clock
        self._live = sys.stderr.isatty() if live is None else live
        self._table = ""
        self._rows = 0
        self._began = self._said = clock.monotonic()
        self._display: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, step: Step) -> None:
        """Take notice of one page."""
        now = self._clock.monotonic()
        if step.table != self._table:
            self._table, self._rows, self._began, self._said = step.table, 0, now, now
        self._rows += step.rows_read
        if step.done:
            self._end()
            self._table = ""
        elif self._live and now - self._began >= SOON:
            self._draw(step.expected)
        elif not self._live and now - self._said >= EVERY:
            self._said = now
            rate = max(1, round(self._rows / max(now - self._began, 0.001)))
            left = "" if step.expected is None else f" eta_s={max(0, step.expected - self._rows) // rate}"
            log_.info("table=%s loading rows=%d rows_per_s=%d%s", step.table, self._rows, rate, left)

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _draw(self, expected: int | None) -> None:
        if self._display is None:
            self._display = _progress()
            self._display.start()
            self._task = self._display.add_task("", total=None, table=self._table, rate="")
        rate = self._rows / max(self._clock.monotonic() - self._began, 0.001)
        assert self._task is not None
        speed = f"{rate:,.0f} rows/s"
        # An estimate may be too low; a bar that is full while work goes on would be a lie.
        total = None if expected is None else max(expected, self._rows + 1)
        self._display.update(self._task, completed=self._rows, total=total, table=self._table, rate=speed)

    def _end(self) -> None:
        if self._display is not None:
            self._display.stop()
        self._display = self._task = None


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[Any] = [
        SpinnerColumn(),
        TextColumn("loading {task.fields[table]}", markup=False),
        TextColumn("{task.completed:,} rows"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    ]
    return Progress(*columns, console=Console(stderr=True), transient=True)
