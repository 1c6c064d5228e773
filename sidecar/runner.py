"""The runner: catch up each table, feed each sink, rest. One table or sink that fails does not hold the others."""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar import followed
from sidecar.backfilling import fanout
from sidecar.backfilling.jobs import Jobs
from sidecar.clock import SECOND
from sidecar.delivering import places
from sidecar.delivering.delivery import Delivery
from sidecar.delivering.feeding import Lanes
from sidecar.errors import SchemaChanged, SettingsError, SidecarError, SourceUnavailable
from sidecar.horizon import LONG_HOLD, counts_time, resting
from sidecar.lake.compaction import Compaction
from sidecar.log import origin, recovery, retention
from sidecar.model import Tracked
from sidecar.poll import Step, poll, rest
from sidecar.running.holds import Holds
from sidecar.running.rest import Rest
from sidecar.running.results import PollResult
from sidecar.running.retrying import again
from sidecar.running.stopping import breaking_off
from sidecar.running.telling import SOURCE, Telling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sidecar.project import Sidecar

log_ = logging.getLogger("sidecar")

ANEW = 60.0
"""Seconds after which the source is asked anew for its tables, where not all that are followed are named."""

TURN = 60.0
"""Seconds of a long backfill after which polls and sinks have their turn, in a run that ends by itself."""


@dataclass
class Runner:
    """Runs an open project. A session handed in is used as it is; without one, Spark starts when a sink has work."""

    sidecar: Sidecar
    spark: SparkSession | None = None
    stop: threading.Event | None = None
    on_step: Callable[[Step], None] | None = None
    long_hold: int = LONG_HOLD
    _stale: bool = False
    _is_at_home: bool = False
    _broken: Mapping[str, SidecarError] = field(default_factory=dict)
    _errors: dict[str, SidecarError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stop = self.stop or threading.Event()
        self._delivery = Delivery(self.sidecar, self.spark, self.stop)
        self._rest = Rest(self.sidecar)
        self._asked = self.sidecar.clock.monotonic()
        self._holds = Holds(self.long_hold)
        self._telling = Telling(self.sidecar.clock, self.sidecar.settings.state.path)
        self._feeding = Lanes(lambda: self._delivery.is_vain)
        self._compaction = Compaction(
            self._delivery.session, self.sidecar.described, self._feeding.spark.ask, self.sidecar.clock
        )
        self._jobs = Jobs(self.sidecar, self.stop, self._failed, self._looked_anew, self._delivery.session)
        self._fan_out = fanout.FanOut(self.sidecar, self._jobs.requests, self.catch_up, self._failed)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self, *, once: bool, interval: float) -> int:
        """Catch up, feed, rest, until told to stop or, with *once*, until nothing is new; return the exit code.

        The code is that of the first failure in the last round; a loop goes on after failures that may pass.
        """
        assert self.stop is not None
        try:
            with breaking_off(self.stop, self._cancel):
                if once:
                    self._drain()
                else:
                    while not self.stop.is_set():
                        self._round(interval)
        finally:
            self._jobs.close()
            # Whoever asks a second time to stop does not wait for a batch; and no other one is begun behind his back.
            is_in_haste = isinstance(sys.exception(), KeyboardInterrupt)
            if is_in_haste:
                self.stop.set()
            try:
                self._feeding.close(waits=not is_in_haste)
            finally:
                self._delivery.close()
        self._end()
        failures = (*self._errors.values(), *self._delivery.failures.values(), *self._compaction.failures.values())
        return next((error.exit_code for error in failures), 0)

    def poll(self, names: Iterable[str] | None = None) -> dict[str, PollResult]:
        """Bring the logs up to the source, the sinks left alone; raise the first failure once all have had a turn."""
        if names is None and (resting := self._rest.whole()) is not None:
            return {name: PollResult(name) for name in resting}
        self._begin_round()
        tracked = {t.name: t for t in self._tables()}
        wanted = {*tracked, *self._errors} if names is None else {names} if isinstance(names, str) else set(names)
        unknown = wanted - {*tracked, *self._errors}
        if unknown and "source" not in self._errors:
            raise SettingsError(f'table "{min(unknown)}" is not followed; followed are: {", ".join(tracked)}')
        results = {name: PollResult(name) for name in tracked if name in wanted}
        self._fan_out.begin()
        try:
            self._copy(None, results)
            for name, result in results.items():
                result.join(self.catch_up(tracked[name]))
            self._fan_out.follow()
            self._copy(None, {name: result for name, result in results.items() if tracked[name].refresh_on})
        finally:
            self._jobs.close()
            self._delivery.close()
        self._end()
        others = [error for name, error in self._errors.items() if name in {*wanted, SOURCE} - tracked.keys()]
        for error in (*others, *(result.error or self._errors.get(name) for name, result in results.items())):
            if error is not None:
                raise error
        if names is None and not self._stale and not self._jobs.waiting(wanted):
            self._rest.begins_whole(self.sidecar.tracked)
        return results

    def _round(self, interval: float) -> None:
        """Poll and feed, then rest; rather than rest, copy what is to be backfilled."""
        assert self.stop is not None
        self._begin_round()
        tables = self._tables()
        self._telling.begins(tables, interval, functools.partial(places.doubts, self.sidecar))
        self._fan_out.begin()
        for tracked in tables:
            if self._stopping():
                return
            self.catch_up(tracked)
            self._feed(tracked)
        self._fan_out.follow()
        until = self.sidecar.clock.monotonic() + interval
        if not self._copy(until):
            self.sidecar.clock.sleep(max(0.0, until - self.sidecar.clock.monotonic()), self.stop)

    def _drain(self) -> None:
        """Backfill, poll and feed until nothing is left; polls have their turn once a minute."""
        self._begin_round()
        has_fanned_out = False
        while True:
            tables = self._tables()
            self._telling.begins(tables, None, functools.partial(places.doubts, self.sidecar))
            self._fan_out.begin()
            self._copy(self.sidecar.clock.monotonic() + TURN)
            self._rest.new_round()
            for tracked in tables:
                if self._stopping():
                    return
                self.catch_up(tracked)
                self._feed(tracked)
            if not has_fanned_out:
                # Once: parents that never stop changing would keep it from its end.
                self._fan_out.follow()
                has_fanned_out = True
            if not self._jobs.waiting():
                for _ in ("once all sinks have all", "once a base is there, where that needs one"):
                    self._feeding.finish()
                    for tracked in tables:
                        self._retain(tracked)
                return

    def _begin_round(self) -> None:
        self._errors = {}
        self._rest.new_round()
        self._jobs.new_round()

    def _end(self) -> None:
        """Have whoever polls next ask what the tables are, if only some could be followed, or one has failed."""
        if self._stale:
            self.sidecar.refresh()

    def _copy(self, until: float | None, results: Mapping[str, PollResult] | None = None) -> set[str]:
        """Go on with what is to be backfilled; return the tables of which chunks were read."""
        copied = set()
        for step in self._jobs.work(until, results):
            copied.add(step.table)
            if results is not None:
                results[step.table].add(step)
            else:
                # The sinks have something to do while the source is read.
                self._delivery.ask_for_full(self.sidecar.tracked[step.table], self._feeding)
            if self.on_step is not None:
                self.on_step(step)
        return copied

    def _feed(self, tracked: Tracked) -> None:
        """Have the sinks given what is new, meanwhile; drop what all of them have had."""
        if not self._stopping():
            self._delivery.ask(tracked, self._feeding)
            self._retain(tracked)

    def _tables(self) -> list[Tracked]:
        """Return the followed tables; after a failure, as the source describes them now, if it can. None at all before
        it is sure that the state is of their database.
        """
        known = self.sidecar.__dict__.get("tracked")
        if self._stale or self._may_be_more():
            self.sidecar.refresh()
            self._stale = False
        try:
            if "tracked" not in self.sidecar.__dict__:
                self._asked = self.sidecar.clock.monotonic()
                self._track_apart()
            if self.sidecar.tracked and not self._is_at_home:
                _ = self.sidecar.store  # and so the lock
                origin.check(self.sidecar.connector, self.sidecar.settings.state.path)
                self._is_at_home = True
        except SidecarError as error:
            if not self._is_at_home and not isinstance(error, SourceUnavailable):
                raise
            # A table that is gone for a moment, or a source that is down, does not end a loop that has begun.
            self._telling.stops(SOURCE, error)
            self._failed(SOURCE, error)
            if not self._is_at_home:
                self.sidecar.note_away(error)  # else each table says it by itself
            self._stale = True
            self.sidecar.__dict__["tracked"] = found = (known or {}) if self._is_at_home else {}
            return list(found.values())
        self._telling.goes_on(SOURCE)
        self._jobs.keep_to(self.sidecar.tracked)
        return list(self.sidecar.tracked.values())

    def _may_be_more(self) -> bool:
        """Return whether it is time to ask for tables that are new, and that the settings let in by a pattern."""
        at = self.sidecar.settings.source
        return (at.include is not None or bool(at.exclude)) and self.sidecar.clock.monotonic() >= self._asked + ANEW

    def _track_apart(self) -> None:
        """Follow the tables that can be followed; the others fail, and hold up none of these."""
        broken = self._broken = self.sidecar.track_apart()
        if broken and not self.sidecar.tracked:
            self.sidecar.refresh()
            raise followed.together(broken)
        for table, reason in broken.items():
            self._telling.stops(table, reason)
            self._failed(table, reason)
            self._stale = True

    # -- one table -----------------------------------------------------------------------------------------------------

    def catch_up(self, tracked: Tracked) -> PollResult:
        """Poll *tracked* until it is level with the source, retrying what may pass; failures are noted, not raised."""
        result = PollResult(tracked.name)
        if self._rest.holds(tracked.name):
            self._telling.level.rests(tracked.name)
            return result
        clock, store = self.sidecar.clock, self.sidecar.store
        began = clock.monotonic()
        once = functools.partial(self._poll, tracked, result)
        try:
            try:
                once()
            except SourceUnavailable as error:
                if self._stopping():
                    raise
                again(tracked.name, once, error, clock, self.stop)
            except (SettingsError, SchemaChanged):
                if not self._has_moved_on(tracked):
                    raise
                # The table was altered between two statements of this poll.
                self._look_anew()
                once()
        except SidecarError as error:
            result.error = error
            self._telling.stops(tracked.name, error)
            self._failed(tracked.name, error)
            # What the source was described as may be what is wrong: look again before the next round.
            self._stale = True
        else:
            self._telling.goes_on(tracked.name)
            # Of a backfill in this round, of a sink or a base, something may still be wrong.
            has_failed = tracked.name in {*self._errors, *self._compaction.failures}
            if not has_failed and not self._delivery.has_failed(tracked.name):
                store.note(tracked.name, None)
        result.seconds = clock.monotonic() - began
        self._telling.polled(result)
        return result

    def _poll(self, tracked: Tracked, result: PollResult) -> None:
        connector, store = self.sidecar.connector, self.sidecar.store
        pulse = self._rest.pulse()
        until = self._rest.until(tracked.name, pulse)
        self._rest.ends(tracked.name)
        if until is not None:
            if self.sidecar.clock.monotonic() >= until:
                # Once: from now on all that was seen has stood for long enough.
                rest(connector, tracked, store, pulse)
                until = math.inf
            self._rest.begins(tracked.name, pulse, until)
            return
        began = self.sidecar.clock.monotonic()
        if self._has_moved_on(tracked):
            self._look_anew()
        tracked = self.sidecar.tracked.get(tracked.name, tracked)
        if tracked.name in self.sidecar.damaged:
            raise self.sidecar.damaged[tracked.name]
        recovery.settle(self.sidecar.log(tracked.name), store)
        if self._jobs.holds(tracked, store.watermark(tracked.name)):
            return
        log = self.sidecar.log(tracked.name)
        for step in poll(connector, self.sidecar.settled(tracked), log, store):
            result.add(step)
            if self.on_step is not None:
                self.on_step(step)
            if self._stopping() and not step.done:
                return
        mark = store.watermark(tracked.name)
        seen = mark.marks["updated"].greatest if mark is not None else ()
        if result.rows and mark is not None and mark.polled is not None and seen and counts_time(tracked):
            result.lag = max(0, mark.polled - seen[-1][1]) / SECOND
        if mark is not None and mark.polled is not None:
            self._holds.tell(tracked, mark.hold, mark.polled)
        self._telling.late(tracked, result.late)
        self._rest.begins(tracked.name, pulse, began + resting(tracked) / SECOND)

    def _has_moved_on(self, tracked: Tracked) -> bool:
        """Return whether the source describes *tracked* otherwise than when that was last asked."""
        before = self.sidecar.outlines.get(tracked.name)
        return before is not None and before != self.sidecar.connector.outline(tracked.table)

    def _look_anew(self) -> None:
        """Ask the source what its tables are. If none of them can be followed any more, all go on as they were, and
        each round asks anew.
        """
        known = self.sidecar.__dict__.get("tracked") or {}
        self.sidecar.refresh()
        try:
            self._track_apart()
        except SidecarError as error:
            self.sidecar.__dict__["tracked"] = known
            self.sidecar.outlines = {}
            self._failed("source", error)
            self._stale = True
        # What is being copied is read as the tables were.
        self._jobs.keep_to(self.sidecar.tracked)

    def _looked_anew(self, table: str) -> bool:
        """Return whether the source describes *table* otherwise by now; it is then followed as it is."""
        tracked = self.sidecar.tracked.get(table)
        try:
            moved = tracked is not None and self._has_moved_on(tracked)
        except SidecarError:
            return False  # what has failed says more
        if moved:
            self._look_anew()
        return moved

    def _retain(self, tracked: Tracked) -> None:
        kept = self.sidecar.settings.state.retention
        if kept is not None and tracked.name not in self.sidecar.damaged:
            names = [s.name for s in self._delivery.wanting(tracked)]
            held = self.sidecar.store.positions() if self._broken else ()
            names += fanout.of_parent(tracked.name, self.sidecar.tracked.values(), held)
            before = self.sidecar.clock.now() - kept
            try:
                log = self.sidecar.log(tracked.name)
                has_bases = self.sidecar.settings.state.bases and isinstance(log.at, Path)
                drop = self._compaction.retain if has_bases else retention.drop_old
                drop(log, self.sidecar.store, names, before)
            except SidecarError as error:
                self._failed(tracked.name, error)

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _stopping(self) -> bool:
        return self.stop is not None and self.stop.is_set()

    def _cancel(self) -> None:
        self.sidecar.cancel()
        self._jobs.cancel()

    def _failed(self, where: str, error: SidecarError) -> None:
        if self._stopping() and isinstance(error, SourceUnavailable):
            return  # broken off
        self._errors[where] = error
        self.sidecar.unsettle(where)
        if where in self.sidecar.__dict__.get("tracked", {}):
            self.sidecar.store.note(where, str(error))
            self._rest.ends(where)  # or nobody would take the note away
        self._telling.failed(where, error)
