"""Tables for people. A terminal has a table where it fits, else a record a row; a pipe has a line a row, uncut."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table as RichTable

Cell: TypeAlias = str | tuple[str, ...]
"""A text; or several, each on a line of its own where there is room."""

LONGEST = 120
"""A terminal shows no more of a value; a pipe, and JSON, have it whole."""

NARROWEST = 30
"""Prose in fewer columns is no longer read as such."""

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Table:
    """The columns' names, and rows of as many cells. *prose*: the last column is text for people, which may go over
    several lines, and is always shown whole.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    prose: bool = False


def printed(table: Table) -> None:
    """Print *table*: for a terminal, as wide as that; for anything else, as wide as it needs."""
    width = terminal_width()
    if width is None:
        print("\n".join(lines(table)))
        return
    from rich.console import Console

    Console(width=width).print(drawn(table, width))


def terminal_width() -> int | None:
    """Return how wide the terminal is; None where stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(table: Table) -> list[str]:
    """Return *table* as lines: one a row, however long, and nothing of a value cut."""
    from rich.cells import cell_len

    rows = [tuple(table.names), *(tuple(map(_whole, row)) for row in table.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    return [
        _GAP.join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def drawn(table: Table, width: int) -> RenderableType:
    """Return *table* for a terminal of *width* columns."""
    from rich.cells import cell_len

    rows = [
        [_shown(cell, whole=at == len(row) - 1 and table.prose) for at, cell in enumerate(row)] for row in table.rows
    ]
    needs = [
        max(cell_len(line) for cell in column for line in cell.split("\n"))
        for column in zip(table.names, *rows, strict=True)
    ]
    others = sum(needs[:-1]) + len(_GAP) * (len(needs) - 1)
    if others + (min(needs[-1], NARROWEST) if table.prose else needs[-1]) <= width:
        return _table(table.names, rows)
    return _records(table.names, rows)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    found = RichTable(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for at, name in enumerate(names):
        found.add_column(name, no_wrap=at < len(names) - 1, overflow="fold")
    for row in rows:
        found.add_row(*map(Text, row))
    return found


def _records(names: Sequence[str], rows: Sequence[Sequence[str]]) -> RichTable:
    """Return a line a value; an empty one stands between two rows."""
    from rich.table import Table as RichTable
    from rich.text import Text

    found = RichTable(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0), show_header=False)
    found.add_column(no_wrap=True, style="bold")
    found.add_column(overflow="fold")
    for number, row in enumerate(rows):
        if number:
            found.add_row("", "")
        for name, cell in zip(names, row, strict=True):
            found.add_row(Text(name), Text(cell))
    return found


def _whole(cell: Cell) -> str:
    return printable(cell) if isinstance(cell, str) else "; ".join(map(printable, cell))


def _shown(cell: Cell, *, whole: bool) -> str:
    if not isinstance(cell, str):
        return "\n".join(map(printable, cell))
    text = printable(cell)
    return text if whole or len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def printable(text: str) -> str:
    """Return *text* in one line, with what a terminal would obey, or not show, as Python writes it."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
