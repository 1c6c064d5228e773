"""A position that somebody sets by hand: the value that is given, as the cursor's own number."""

from __future__ import annotations

import pyarrow as pa

from sidecar import cursor
from sidecar.clock import SECOND
from sidecar.errors import SettingsError
from sidecar.model import CursorKind, Tracked

_SLACK = 300 * SECOND
"""The source's clock may be ahead of this one."""


def closed_at(value: str, tracked: Tracked, kind: CursorKind, now: int) -> int:
    """Return up to where *value* closes *tracked*; SettingsError if it is no value of its cursor, or in the future."""
    closed = cursor.parse(value, tracked, kind)
    if closed is None:
        example = "as the column holds them" if kind in ("number", "real") else "as 2024-05-01T10:00:00Z"
        raise SettingsError(
            f'"{value}" is no value of table "{tracked.name}", column "{tracked.updated_at}"; write it {example}'
        )
    limit = cursor.ceiling(now + _SLACK, tracked, kind)
    if limit is not None and closed > limit and not pa.types.is_date(tracked.cursor_type):
        raise SettingsError(
            f'"{value}" lies in the future ({cursor.show(closed, kind, tracked.unit)}): what is stamped up to then '
            "would not be delivered. Write a time that is past; a day alone stands for its end"
        )
    return closed
