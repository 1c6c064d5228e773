"""The commands about where a table stands: its watermark, and what its columns have been."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sidecar.errors import SettingsError, SidecarError
from sidecar.settings.words import sink_of_its_own
from sidecar.terminal.cli_parts import SETTINGS, Config, TableName, exits, followed, held, logged, opened
from sidecar.terminal.tables import printed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sidecar.polls.evolution import Change
    from sidecar.project import Sidecar

watermark = typer.Typer(
    help="Show or move the position in a table.\n\nExample: [bold]sidecar watermark show orders[/bold]",
    no_args_is_help=True,
)


@watermark.command("show", epilog=exits(0, 2, 3, 5))
def watermark_show(
    table: TableName,
    config: Config = SETTINGS,
    as_json: Annotated[bool, typer.Option("--json", help="The watermark as it is stored.")] = False,
) -> None:
    """Show the position in a table: what is closed, and the greatest value seen.

    Example: [bold]sidecar watermark show orders[/bold]
    """
    from sidecar.terminal import show

    with opened(config, read_only=True) as sc:
        if as_json:
            print(show.watermark_json(sc.watermark(held(sc, table))))
            return
        name = followed(sc, table)
        for line in show.watermark(sc.followable()[0][name], sc.watermark(name)):
            print(line)


@watermark.command("set", epilog=exits(0, 2, 3, 4, 5))
def watermark_set(
    table: TableName,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="A cursor value: a number, or a timestamp, best with its zone.")
    ],
    config: Config = SETTINGS,
) -> None:
    """Let the next poll read from just above VALUE on, delivered before or not.

    A timestamp without a zone is read as UTC, or by the table's timezone if it has one, and the answer says so.

    A day alone stands for its end, as does a minute.

    Example: [bold]sidecar watermark set orders 2024-05-01T00:00:00Z[/bold]
    """
    from sidecar.running import moving
    from sidecar.terminal import show

    with opened(config) as sc:
        name = followed(sc, table)
        try:
            mark = sc.set_watermark(name, value)
        except ValueError:
            raise SettingsError(f'table "{name}": its cursor column holds numbers, and "{value}" is none') from None
        tracked = sc.followable()[0][name]
        if (how := moving.read_as(value, tracked)) is not None:
            print(f"{name}: {how}")
        for line in show.watermark(tracked, mark):
            print(line)


@watermark.command("reset", epilog=exits(0, 2, 3, 4, 5))
def watermark_reset(table: TableName, config: Config = SETTINGS) -> None:
    """Let the next poll read the whole table again, as if for the first time. The log and the sinks go on.

    Example: [bold]sidecar watermark reset orders[/bold]
    """
    with opened(config) as sc:
        name = followed(sc, table)
        sc.reset_watermark(name)
    print(f"{name}: the next poll reads all of it")


@watermark.command("forget", epilog=exits(0, 2, 3, 5))
def watermark_forget(
    table: TableName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The name that the query was given: its consumer.")],
    config: Config = SETTINGS,
) -> None:
    """Forget a streaming query that runs no more, so that retention keeps nothing for it any longer.

    One that still runs is known again with its next batch. sidecar status shows them.

    Example: [bold]sidecar watermark forget orders dashboard[/bold]
    """
    from sidecar.log import queries

    with opened(config) as sc:
        name = logged(sc, table)
        queries.forget(sc.log(name), query)
    print(f'{name}: query "{query}" is forgotten')


def schema(
    table: TableName,
    config: Config = SETTINGS,
    accept: Annotated[
        bool, typer.Option("--accept", help="Go on with the columns as they are now, whatever they were.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a version, on a line.")] = False,
) -> None:
    """Show what a table's columns have been and are to be, or accept what they have become.

    A column that came, went, or grew needs no word. Any other change stops the table.

    Once accepted, the changes before and after it are read apart, as of two tables.

    Mirrors and sinks of files then go on with all other tables; this one needs a sink of its own, as is said there.

    Example: [bold]sidecar schema orders[/bold]
    """
    from sidecar.running import standing
    from sidecar.terminal import show

    with opened(config, read_only=not accept) as sc:
        name = followed(sc, table) if accept else logged(sc, table)
        if accept:
            told = sc.accept_schema(name)
            if not told:
                print(f"{name}: nothing has changed")
                return
            print("\n".join([f"{name}: from the next poll on:", *told, *_asked_of_sinks(sc, name)]))
            return
        versions = list(sc.log(name).schemas())
        if as_json:
            for version in versions:
                print(show.line(show.schema(version)))
        else:
            pending, waits = _pending(sc, name)
            printed(show.schemas_table(versions, pending, waits=waits is not None))
            if waits is not None:
                print(standing.stopped(sc, name, waits), file=sys.stderr)


def _asked_of_sinks(sc: Sidecar, table: str) -> Iterator[str]:
    sinks = sc.tracked[table].sinks
    if sinks:
        yield (
            f"Mirrors and sinks of files ({', '.join(sinks)}) go on with all other tables; this one needs "
            f"{sink_of_its_own(table)}"
        )
    if any(sc.settings.sinks[name].mode == "mirror" for name in sinks):
        yield f"A new mirror begins with the whole table in its new columns: sidecar watermark reset {table}"


def _pending(sc: Sidecar, table: str) -> tuple[Sequence[Change], str | None]:
    """Return what has become of *table*'s columns in the source since its newest segment, and what is to be decided."""
    from sidecar.polls import changes

    try:
        tracked = sc.followable()[0].get(table)
        found = [] if tracked is None else sc.log(table).changes(sc.described(table))
    except SidecarError as error:
        print(f"Not known is what its columns are by now: {error}", file=sys.stderr)
        return [], None
    return found, None if tracked is None else changes.decision(tracked, found)
