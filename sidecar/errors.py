"""Failures, by who must act. Every message says where (table, column, key), what happened, and what to do.

No message holds a secret or a row's value, keys and cursor values excepted.
"""

from __future__ import annotations

from typing import ClassVar


class SidecarError(Exception):
    """Base of all failures that a user can act on; `exit_code` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class SettingsError(SidecarError):
    """Fix the settings, or the data that they describe."""

    exit_code = 2


class SourceUnavailable(SidecarError):
    """The source cannot be read right now; trying again later may help."""

    exit_code = 3


class SchemaChanged(SidecarError):
    """The source's table is no longer what the log holds; somebody has to decide."""

    exit_code = 2


class LogTruncated(SidecarError):
    """The asked offsets have been dropped by retention; start from the first offset that is left."""

    exit_code = 2


class StateHeld(SidecarError):
    """Another process holds the state; wait for it, or stop it."""

    exit_code = 4


class StateDamaged(SidecarError):
    """The state cannot be trusted; restore or rebuild it."""

    exit_code = 5


class StateUnavailable(SidecarError):
    """The storage that the change log is in cannot be reached right now; trying again later may help."""

    exit_code = 3


class SinkError(SidecarError):
    """A sink failed; its batch is tried again from the acknowledged offset."""

    exit_code = 6


def about(table: str, error: SidecarError) -> str:
    """Return what *error* says, and which table it is about where it says only of what server or file."""
    text = str(error)
    return text if f'"{table}"' in text or table == "source" else f'table "{table}": {text}'


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return how many of what, in words for messages: `1 row`, `2 rows`; *many* where that is not *one* and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
