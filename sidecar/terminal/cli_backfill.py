"""The command about backfills: ask for one, list them, cancel them."""

from __future__ import annotations

from typing import Annotated

import typer

from sidecar.errors import SettingsError
from sidecar.terminal.cli_parts import SETTINGS, Config, followed, held, opened
from sidecar.terminal.tables import printed


def backfill(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="A followed table; only --list goes without.")
    ] = None,
    *,
    config: Config = SETTINGS,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only rows for which this condition holds, in the source's SQL.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Only this key, or these: may be repeated. Commas between a key's values. @FILE: a key a line.",
        ),
    ] = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Afterwards, delete what the source does not have any more.")
    ] = False,
    empty: Annotated[
        bool, typer.Option("--empty", help="With --purge: even if the table has no rows at all any more.")
    ] = False,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Only the rows that are set aside (on_bad_value).")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Show the backfills: state, progress, ETA.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the table's backfills that have not ended.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --list: one JSON array.")] = False,
) -> None:
    """Deliver existing rows again: all of a table, or a part of it.

    The request is kept, and done by the process that runs the loop, or by the next run. Polls go on meanwhile.

    Example: [bold]sidecar backfill orders --where "total < 0"[/bold], or [bold]sidecar backfill --list[/bold]
    """
    from sidecar.backfilling import backfills
    from sidecar.terminal import show_backfills

    if list_:
        with opened(config, read_only=True) as sc:
            found = backfills.statuses(sc, None if table is None else held(sc, table))
        print(show_backfills.as_json(found)) if as_json else printed(show_backfills.as_table(found))
        return
    if table is None:
        raise SettingsError("name the table to backfill; --list shows the backfills of all tables")
    if cancel:
        with opened(config, read_only=True) as sc:
            name = held(sc, table)
            ended = backfills.cancel(sc, name)
        print(f"{name}: {len(ended)} cancelled" if ended else f"{name}: no backfill is waiting or running")
        return
    with opened(config) as sc:
        name = followed(sc, table)
        asked = sc.request_backfill(
            name,
            where=where,
            keys=backfills.keys_in(keys) if keys else None,
            purge=purge,
            empty=empty,
            quarantined=quarantined,
        )
        if asked is None:
            print(f"{name}: no rows are set aside")
        else:
            what = backfills.described(asked)
            print(f"{name}: backfill {asked.id} ({what}) is asked for; the loop that runs does it, or the next run")
