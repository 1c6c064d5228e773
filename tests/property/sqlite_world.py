"""SQLite, with stamps in every form that a column may hold."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from connectors.sqlite import SQLiteConnector
from sidecar.clock import SECOND, FakeClock, instant
from sidecar.connector import Source, SourceConnector
from sidecar.cursor import DAY
from sidecar.model import Page, Position, Tracked
from tests.property.world import SPLIT, START, Knows, folder, follow


@dataclass(frozen=True)
class Form:
    """How stamps stand in the file: the column's declaration, and the setting that goes with it."""

    declared: str
    unit: str | None = None


FORMS = {
    "text-s": Form("TEXT"),
    "text-us": Form("TEXT"),
    "text-mixed": Form("TEXT"),
    "datetime-mixed": Form("DATETIME"),
    "epoch-s": Form("INTEGER", "s"),
    "epoch-ms": Form("INTEGER", "ms"),
    "epoch-us": Form("DATETIME"),
    "epoch-ns": Form("TIMESTAMP"),
    "julian": Form("DATETIME"),
    "real": Form("REAL", "s"),
    "counter": Form("INTEGER"),
}

# Hours and minutes ahead of UTC, and how that is written. Digits of those behind sort before what they are later than.
_ZONES = [
    *((0, 0, ""), (0, 0, "Z"), (0, 0, "+00:00"), (2, 0, "+02:00"), (-5, 0, "-05:00")),
    *((5, 30, "+05:30"), (14, 0, "+14:00"), (-12, 0, "-12:00")),
]
_SIGNS = [" ", "T"]
_DIGITS = [6, 0, 3]
SHAPES = len(_ZONES) * len(_SIGNS) * len(_DIGITS)


class Unhurried(SQLiteConnector):
    """Reads a page when it is asked for it: what stands in it must not depend on how fast the test goes on."""

    reads_ahead: ClassVar[bool] = False

    def split(self, page: Page, parts: int) -> Sequence[Position]:
        return SPLIT


class SQLiteWorld:
    """SQLite: one writer at a time, in WAL mode or in rollback mode."""

    writers = 1
    knows: Knows = "nothing"
    heap = "t"

    def __init__(self, form: str) -> None:
        self.form = form
        self.clock = FakeClock(START)
        self._folder = folder("world")
        self._path = self._folder / "source.db"
        self._writer = sqlite3.connect(self._path, isolation_level=None)
        self._reader = sqlite3.connect(self._path, isolation_level=None)
        declared = FORMS[form].declared
        self._writer.execute(f"PRAGMA journal_mode={'DELETE' if declared == 'DATETIME' else 'WAL'}")
        self._writer.execute(
            f"CREATE TABLE t (id INTEGER PRIMARY KEY, v INTEGER, created_at {declared}, updated_at {declared}, "
            f"deleted_at {declared})"
        )
        if form in ("text-mixed", "julian", "epoch-ms"):
            self._writer.execute("CREATE INDEX by_time ON t (updated_at, id)")

    def connector(self) -> SourceConnector:
        return Unhurried(Source(f"sqlite:///{self._path}", clock=self.clock))

    def tracked(self, connector: SourceConnector) -> Tracked:
        unit: Any = FORMS[self.form].unit
        return follow(connector, unit=unit)

    def begin(self, writer: int) -> None:
        self.execute(writer, "BEGIN")

    def execute(self, writer: int, sql: str) -> None:
        del writer
        self._writer.execute(sql)

    def stamp(self, micros: int, shape: int) -> str:
        match self.form:
            case "epoch-s":
                return str(micros // SECOND)
            case "epoch-ms" | "counter":
                return str(micros // 1000)
            case "epoch-us":
                return str(micros)
            case "epoch-ns":
                return str(micros * 1000 + shape)
            case "julian":
                return repr(micros / DAY + 2_440_587.5)
            case "real":
                return repr(micros / SECOND)
            case "text-s":
                return f"'{instant(micros):%Y-%m-%d %H:%M:%S}'"
            case "text-us":
                return f"'{instant(micros):%Y-%m-%d %H:%M:%S.%f}'"
            case _:
                return f"'{mixed(micros, shape)}'"

    def content(self) -> dict[int, tuple[int, bool]]:
        rows = self._reader.execute("SELECT id, v, deleted_at IS NOT NULL FROM t").fetchall()
        return {key: (v, bool(gone)) for key, v, gone in rows}

    def close(self) -> None:
        self._writer.close()
        self._reader.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def mixed(micros: int, shape: int) -> str:
    """Return an instant as ISO text in one of `SHAPES` forms: cut to seconds or milliseconds, of any zone's clock."""
    shape, zone = divmod(shape, len(_ZONES))
    shape, sign = divmod(shape, len(_SIGNS))
    hours, minutes, suffix = _ZONES[zone]
    digits = _DIGITS[shape % len(_DIGITS)]
    moment = instant(micros) + timedelta(hours=hours, minutes=minutes)
    fraction = f"{moment:.%f}"[: digits + 1] if digits and moment.microsecond else ""
    return f"{moment:%Y-%m-%d}{_SIGNS[sign]}{moment:%H:%M:%S}{fraction}{suffix}"
