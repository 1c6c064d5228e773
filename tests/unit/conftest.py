"""The command line, and a shop that it follows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sidecar.cli import execute
from tests.command import SHOP, Answer, Sidecar
from tests.conftest import SQLiteFile


@pytest.fixture
def sidecar(capfd: pytest.CaptureFixture[str]) -> Sidecar:
    """Run one command in this process."""

    def run(*arguments: str) -> Answer:
        capfd.readouterr()
        code = execute(arguments)
        sys.stdout.flush()
        return Answer(code, *capfd.readouterr())

    return run


@pytest.fixture
def shop(sqlite_db: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> SQLiteFile:
    """A shop, and settings that follow it into the change log only; the working directory is theirs."""
    sqlite_db.connection.executescript(SHOP)
    monkeypatch.chdir(sqlite_db.path.parent)
    Path("sidecar.toml").write_text(
        f'[source]\nurl = "sqlite:///{sqlite_db.path.name}"\n[tables.orders]\n[tables.ticks]\n'
    )
    return sqlite_db
