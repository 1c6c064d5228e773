"""A column of numbers in which one writer counts in milliseconds, say, and another in seconds: what the second one
writes is less than all that has been read, and no poll would ever meet it.

A column that has changed over is none: its seconds were all read before its milliseconds came. Nor is a counter, unless
one of its values, read as a time, lies between the last poll and now.
"""

from __future__ import annotations

import dataclasses

from sidecar import cursor, horizon
from sidecar.clock import SECOND
from sidecar.connector import SourceConnector
from sidecar.cursor import DAY, PER_SECOND
from sidecar.errors import SettingsError
from sidecar.model import Page, PassMark

_FIRST = 978_307_200  # 2001: from here on a number's digits tell its unit


def refuse_another(connector: SourceConnector, page: Page, before: PassMark, polled: int | None, now: int) -> None:
    """Raise SettingsError, with an example of each, if *page*'s pass is closed up to a time in one unit, and a row
    carries one in a lesser unit from after the poll that began at *polled*.

    Only a source that finds its greatest values without reading all rows is asked.
    """
    tracked, name = page.tracked, page.scan.cursor
    if name is None or polled is None or not before.greatest or before.closed is None:
        return
    if horizon.kind_of(tracked, page.scan) != "number" or type(connector).greatest is SourceConnector.greatest:
        return
    unit = _unit_of(before.closed, now)
    # Whole seconds stand still for a second; PostgreSQL's casts round them up.
    slack = tracked.lookback + horizon.TICK
    since, until = polled - slack, now + slack
    for lesser in PER_SECOND if unit else ():
        if PER_SECOND[lesser] >= PER_SECOND[unit]:
            break
        window = dataclasses.replace(page, closed={**page.closed, page.scan.name: since * PER_SECOND[lesser] // SECOND})
        found = connector.greatest(window, until * PER_SECOND[lesser] // SECOND)
        if found is not None:
            seen = before.greatest[-1][1]
            raise SettingsError(
                f'table "{tracked.name}": cursor column "{name}" counts time in two units, for example {seen} ({unit}) '
                f"and, written since the last poll, {found} ({lesser}), which is less and would never be read. Write "
                "one unit in all rows, or choose another cursor column"
            )


def _unit_of(closed: int, now: int) -> str:
    """Return the unit in which *closed* is a time that may have been written by *now*; '' where it is a counter's."""
    unit = cursor.unit_of(closed)
    if unit is None or unit == "julian":
        return ""
    seconds = closed // PER_SECOND[unit]
    return unit if _FIRST <= seconds <= (now + DAY) // SECOND else ""
