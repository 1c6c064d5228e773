"""The command line as tests use it: an answer, and a shop to follow. The fixtures are in unit/conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SHOP = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, raw BLOB, created_at TEXT NOT NULL, updated_at TEXT NOT NULL,
                     deleted_at TEXT);
CREATE TABLE ticks (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL);
INSERT INTO orders VALUES (1, 1.5, x'00ff', '2024-05-01T10:00:00Z', '2024-05-01T10:00:00Z', NULL),
                          (2, 9e999, NULL, '2024-05-01T10:00:00Z', '2024-05-01T11:00:00Z', NULL),
                          (9007199254740993, NULL, NULL, '2024-05-01T10:00:00Z', '2024-05-01T12:00:00Z', '2024-05-01');
INSERT INTO ticks VALUES (1, 7);
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Sidecar = Callable[..., Answer]


def settings(text: str) -> None:
    Path("sidecar.toml").write_text(text)
