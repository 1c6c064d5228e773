"""What does a poll cost beside the simplest one that is as durable? The same changes, found by both in turn."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.types.json import set_json_loads

from benchmarks import workload
from benchmarks.bench import NAMES, Bench, project
from benchmarks.measure import Answer, Contender, Sample, take_turns, timed
from benchmarks.poll_size import LOOKBACK, REST, TURNS, change
from sidecar import Sidecar
from sidecar.clock import SystemClock
from sidecar.log.files import write_durably

CHANGES = (0, 1_000, 100_000)
AIM = 1.3
POLLS = 100
"""An idle one is too short to be timed alone."""


def ask(bench: Bench) -> list[Answer]:
    """Return an answer for each number of changes."""
    return [_ask(bench, min(count, bench.small // 2)) for count in CHANGES]


def _ask(bench: Bench, changes: int) -> Answer:
    contenders: list[Contender] = []
    clock = SystemClock()
    with contextlib.ExitStack() as stack:
        for scheme in bench.sources:
            url = stack.enter_context(bench.copy(scheme, bench.small))
            naive, ours = f"{NAMES[scheme]}: plain watermark", f"{NAMES[scheme]}: Sidecar"
            folder = stack.enter_context(bench.scratch())
            plain = stack.enter_context(Plain(folder, url))
            sc = stack.enter_context(project(folder, url, table=f'lookback = "{LOOKBACK:g}s"', sinks=False))
            sc.set_watermark("orders", "2025-12-31T00:00:00Z")
            turns = itertools.count()

            def polled(sc: Sidecar = sc) -> int:
                return sc.poll()["orders"].rows

            def prepare(
                url: str = url,
                turns: itertools.count[int] = turns,
                both: tuple[Callable[[], int], ...] = (plain.poll, polled),
            ) -> None:
                if not changes:
                    return
                # As in a loop: what was changed before has stood for lookback, and a poll has seen that it did. So both
                # find what is changed now, and read nothing else.
                clock.sleep(LOOKBACK * REST)
                for poll in both:
                    poll()
                change(url, workload.spread(bench.small, changes, next(turns)), clock.now())
                os.sync()

            contenders.append(Contender(naive, _turn(prepare, plain.poll, changes, polled)))
            contenders.append(Contender(ours, _turn(prepare, polled, changes, plain.poll), naive, AIM))
        results = take_turns(contenders, bench.runs * TURNS, say=bench.say)
    notes = [
        "The plain one: `WHERE (updated_at, id) > … ORDER BY updated_at, id` on a held connection; the rows to "
        "an Arrow table, that to a Parquet file, the greatest stamp and key to a JSON file, both fsynced and renamed.",
        "Nobody else writes, and nothing is to be read twice: what is asked is the price of the bookkeeping.",
    ]
    if not changes:
        notes.append(f"The mean of {POLLS} polls in a row. Sidecar asks first whether anything can have changed.")
    title = f"A poll that finds {changes:,} changes among {bench.small:,} rows"
    return Answer(f"poll_cost_{changes}", title, "s", results, notes)


def _turn(
    prepare: Callable[[], None], poll: Callable[[], int], changes: int, other: Callable[[], object]
) -> Callable[[], Sample]:
    def run() -> Sample:
        prepare()
        count = 1 if changes else POLLS
        found: list[int] = []
        sample = timed(lambda: found.extend(poll() for _ in range(count)))
        other()
        if found != [changes] * count:
            raise RuntimeError(f"{found} of {changes} changes were found")
        return Sample(sample.value / count)

    return run


class Plain:
    """A poller as people write it, and durable: a file of rows, then a file with the position."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder / "plain", url
        self.folder.mkdir()
        self._after: tuple[Any, Any] = ("2025-12-31T00:00:00Z", 0)
        self._files = itertools.count()

    def __enter__(self) -> Plain:
        if self.url.startswith("sqlite:"):
            self._lite = sqlite3.connect(Path(self.url.removeprefix("sqlite:///")))
            self._close: Callable[[], None] = self._lite.close
            self._ask: Callable[[], tuple[Sequence[str], list[tuple[Any, ...]]]] = self._from_sqlite
        else:
            self._server = psycopg.connect(self.url, autocommit=True)
            # JSON as text: nobody who is in a hurry takes it apart.
            set_json_loads(lambda text: text if isinstance(text, str) else text.decode(), self._server)
            self._close, self._ask = self._server.close, self._from_postgres
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def poll(self) -> int:
        """Return how many rows have come."""
        names, rows = self._ask()
        if not rows:
            return 0
        columns = [pa.array(values) for values in zip(*rows, strict=True)]
        table = pa.table(dict(zip(names, columns, strict=True)))
        self._keep(f"{next(self._files):08}.parquet", lambda path: pq.write_table(table, path))
        stamp = rows[-1][names.index("updated_at")]
        self._after = stamp, rows[-1][0]
        said = [stamp.isoformat() if isinstance(stamp, datetime) else stamp, rows[-1][0]]
        self._keep("position.json", lambda path: _write(path, json.dumps(said)))
        return len(rows)

    def _keep(self, name: str, write: Callable[[Path], None]) -> None:
        write_durably(self.folder / name, write)

    def _from_sqlite(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        found = self._lite.execute(
            "SELECT * FROM orders WHERE (updated_at, id) > (?, ?) ORDER BY updated_at, id", self._after
        )
        return [column[0] for column in found.description], found.fetchall()

    def _from_postgres(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        found = self._server.execute(
            "SELECT * FROM orders WHERE (updated_at, id) > (%s, %s) ORDER BY updated_at, id", self._after
        )
        assert found.description is not None
        return [column.name for column in found.description], found.fetchall()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
