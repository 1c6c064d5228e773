"""What goes to stderr while something runs: log lines, failures, and the progress of a first load."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sidecar.clock import SECOND, iso
from sidecar.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sidecar.clock import Clock
    from sidecar.poll import Step
    from sidecar.settings.scrub import Secrets

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


def set_up_logging(secrets: Secrets, *, dated: bool = False) -> None:
    """Send log lines to stderr from now on, scrubbed of *secrets*; *dated*, where nobody watches a terminal."""
    handler = _Handler()
    handler.addFilter(secrets)
    handler.setFormatter(_Dated() if dated and not sys.stderr.isatty() else _Formatter())
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


class _Dated(_Formatter):
    """Each line with its time, in UTC, and its level: a file, or a journal, is read long afterwards."""

    def format(self, record: logging.LogRecord) -> str:
        at = iso(int(record.created) * SECOND)
        word = "info: " if record.levelno < logging.WARNING else ""
        return "\n".join(f"{at} {word}{line}" for line in super().format(record).splitlines())


@dataclass
class _Load:
    """A long poll, or a backfill: how many rows have been read here, and how many had been before."""

    began: float
    said: float
    before: int
    rows: int = 0
    task: TaskID | None = None


class LoadProgress:
    """Shows how far long polls and backfills have come: live lines in a terminal, else a log line every few seconds."""

    def __init__(self, clock: Clock, *, live: bool | None = None) -> None:
        self._clock = clock
        self._live = sys.stderr.isatty() if live is None else live
        self._loads: dict[tuple[str, str | None], _Load] = {}
        self._display: Progress | None = None

    def __call__(self, step: Step) -> None:
        """Take notice of one page, or chunk."""
        now, key = self._clock.monotonic(), (step.table, step.job)
        load = self._loads.setdefault(key, _Load(now, now, step.before))
        load.rows += step.rows_read
        if step.done:
            self._end(self._loads.pop(key))
        elif self._live and now - load.began >= SOON:
            self._draw(step, load)
        elif not self._live and now - load.said >= EVERY:
            load.said = now
            rate, done = max(1, round(self._rate(load))), load.before + load.rows
            left = "" if step.expected is None else f" eta_s={max(0, step.expected - done) // rate}"
            log_.info("table=%s loading rows=%d rows_per_s=%d%s", step.table, done, rate, left)

    def __enter__(self) -> LoadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        for load in self._loads.values():
            self._end(load)
        self._loads.clear()
        self._close()

    def _rate(self, load: _Load) -> float:
        return load.rows / max(self._clock.monotonic() - load.began, 0.001)

    def _draw(self, step: Step, load: _Load) -> None:
        if self._display is None:
            self._display = _progress()
            self._display.start()
        if load.task is None:
            load.task = self._display.add_task(
                "", total=None, what=f"loading {step.table}", rate="", completed=load.before
            )
        done = load.before + load.rows
        # An estimate may be too low; a bar that is full while work goes on would be a lie.
        total = None if step.expected is None else max(step.expected, done + 1)
        speed = f"{self._rate(load):,.0f} rows/s"
        self._display.update(load.task, completed=done, total=total, rate=speed)

    def _end(self, load: _Load) -> None:
        if self._display is None or load.task is None:
            return
        if len(self._display.tasks) == 1:
            self._close()
        else:
            self._display.remove_task(load.task)

    def _close(self) -> None:
        if self._display is not None:
            self._display.stop()
        self._display = None


class Counting:
    """Shows how many rows of how many something is done with, as LoadProgress does; nothing where it is quick."""

    def __init__(self, what: str, clock: Clock, *, live: bool | None = None) -> None:
        self._what, self._clock = what, clock
        self._live = sys.stderr.isatty() if live is None else live
        self._began: float | None = None
        self._said = 0.0
        self._display: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        """Take notice of *done* rows of *total*."""
        now = self._clock.monotonic()
        if self._began is None:
            self._began = self._said = now
        rate = max(1, round(done / max(now - self._began, 0.001)))
        if self._live and now - self._began >= SOON:
            if self._display is None or self._task is None:
                self._display = _progress()
                self._display.start()
                self._task = self._display.add_task("", total=total, what=self._what, rate="")
            self._display.update(self._task, completed=done, rate=f"{rate:,} rows/s")
        elif not self._live and now - self._said >= EVERY:
            self._said = now
            log_.info("%s rows=%d of=%d rows_per_s=%d", self._what, done, total, rate)

    def __enter__(self) -> Counting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[Any] = [
        SpinnerColumn(),
        TextColumn("{task.fields[what]}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.completed:,} rows"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("eta"),
        TimeRemainingColumn(),
    ]
    return Progress(*columns, console=Console(stderr=True), transient=True)
