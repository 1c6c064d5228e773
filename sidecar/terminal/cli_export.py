"""The command that writes a table, as it is or was, into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sidecar.errors import counted
from sidecar.terminal.cli_parts import SETTINGS, Config, TableName, logged, opened


def export(
    table: TableName,
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The file: .parquet, .csv, or .jsonl.")
    ],
    config: Config = SETTINGS,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="WHEN", help="An offset, or a time with its zone. Default: now.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a table, as it is by its log or was at an earlier offset or time, into one file.

    The source is not asked; a runner may be at work. No rows are held in memory.

    Spark does it, which needs Java 17 or newer, and some seconds to start.

    csv: nothing between two commas is NULL, "" an empty text. In csv and jsonl, values are as in sidecar changes.

    Example: [bold]sidecar export orders --as-of 2024-05-01T00:00:00Z -o orders.parquet[/bold]
    """
    from sidecar.lake import export
    from sidecar.terminal.console import Counting

    when = int(as_of) if as_of is not None and as_of.isascii() and as_of.isdigit() else as_of
    with opened(config, read_only=True) as sc:
        name = logged(sc, table)
        with Counting(f"exporting {name}", sc.clock) as progress:
            rows = export.export(sc, name, when, output, force=force, progress=progress, doing=progress.doing)
    print(f"{name}: {counted(rows, 'row')} in {output}")
