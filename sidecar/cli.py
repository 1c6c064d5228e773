"""The command line: arguments, progress, exit codes. What the commands do is imported when they run."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from sidecar.errors import SidecarError
from sidecar.terminal.cli_backfill import backfill
from sidecar.terminal.cli_export import export
from sidecar.terminal.cli_parts import (
    SETTINGS,
    Config,
    TableName,
    archiving,
    exits,
    known_secrets,
    logged,
    opened,
    stopping,
)
from sidecar.terminal.cli_position import schema, watermark
from sidecar.terminal.tables import printable, printed, terminal_width

INTERRUPTED = 130
SHOWN = 50

app = typer.Typer(
    name="sidecar",
    help="Keep a lakehouse copy of a database that you may only read.\n\n"
    "Start with [bold]sidecar demo[/bold] to watch it work, or [bold]sidecar init URL[/bold] to begin with your own "
    "database; then [bold]sidecar check[/bold], and [bold]sidecar run[/bold].\n\n"
    f"{exits(0, 1, 2, 3, 4, 5, 6, 130)}.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"sidecar {version('sidecar')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


@app.command(epilog=exits(0, 2, 3))
def init(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Where the data is: postgresql://user@host/database, sqlite:///shop.db")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", "-c", "--config", help="The file to write.")] = SETTINGS,
) -> None:
    """Look at the database and write settings, with a comment for each guess.

    Nothing is overwritten. A password is not written down: the settings refer to the environment.

    Example: [bold]sidecar init postgresql://reader@db.internal/shop[/bold]
    """
    from sidecar.clock import SystemClock
    from sidecar.terminal import wizard

    known_secrets().update(wizard.secrets(url))
    written = wizard.init(url, output, SystemClock())
    for line in written.summary:
        print(line)


@app.command(epilog=exits(0, 1, 2, 3, 5))
def check(config: Config = SETTINGS) -> None:
    """Say what stands in the way: tables that have stopped, rights, indexes, clocks, NULLs, Java. Exit 1 on an error.

    Reads only; may take a full scan of a table. Each finding says what to do, an index with the SQL to copy.

    Example: [bold]sidecar check -c shop.toml[/bold]
    """
    from sidecar.terminal import checks

    with opened(config, read_only=True) as sc:
        findings = checks.findings(sc)
        for line in checks.report(sc, findings, terminal_width()):
            print(known_secrets().scrub(line))
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


@app.command(epilog=exits(0, 1, 2, 3, 4, 5, 6, 130))
def run(
    config: Config = SETTINGS,
    once: Annotated[bool, typer.Option("--once", help="Catch up, write to the sinks, exit: for cron.")] = False,
    interval: Annotated[str, typer.Option(help="How long to rest between two rounds.")] = "5s",
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master, instead of \\[spark] master in the settings.")
    ] = None,
) -> None:
    """Follow the tables: poll, append to the change log, write to the sinks.

    A line a poll goes to stderr, with its time where that is no terminal. The first run reads everything.

    Ctrl-C stops in good order: within a second, or once a sink has its batch; a second one does not wait for that.

    With --once and nothing new, Spark is not started.

    Example: [bold]sidecar run --interval 30s[/bold], or in a crontab [bold]sidecar run --once[/bold]
    """
    from sidecar.settings import values
    from sidecar.terminal import allocation
    from sidecar.terminal.console import LoadProgress

    allocation.reuse()
    try:
        seconds = values.duration(interval) / 1_000_000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--interval") from None
    with (
        opened(config, master=master, dated=True) as sc,
        stopping() as stop,
        archiving(stop),
        LoadProgress(sc.clock) as progress,
    ):
        code = sc.run(once=once, interval=seconds, stop=stop, on_step=progress)
    raise typer.Exit(code)


@app.command(epilog=exits(0, 2, 3, 5))
def status(
    config: Config = SETTINGS,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array, an object a table.")] = False,
) -> None:
    """Show where each table stands; also while a runner is at work.

    Watermark: the greatest cursor value seen. Offset: the last segment of the change log. Sinks: how far each has come.

    Polled: how long ago the copy was level with the source; - as long as its first load is not complete.

    State: ok, what is under way, what has held the table back for over a minute; or that no setting asks for it now.

    Each error stands below, on a line of its own; also why a table that the settings ask for is not followed.

    It exits with 0 whatever it shows; sidecar check exits with 1 on an error.

    Example: [bold]sidecar status --json | jq '.[] | select(.error)'[/bold]
    """
    from sidecar.terminal import show

    with opened(config, read_only=True) as sc:
        found = show.status(sc.status(), sc.settings, sc.clock.now())
    if as_json:
        import json

        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif found:
        printed(show.status_table(found))
        for at, line in enumerate(show.status_errors(found)):
            print(("" if at else "\n") + printable(line))
    else:
        print("nothing has been polled yet: sidecar run")


@app.command(epilog=exits(0, 2, 3, 5))
def changes(
    table: TableName,
    config: Config = SETTINGS,
    since: Annotated[int | None, typer.Option(min=0, help="Only changes after this offset.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many changes.")] = None,
    format_: Annotated[
        Literal["table", "jsonl"], typer.Option("--format", help="For people, or a JSON object a line.")
    ] = "table",
) -> None:
    """Print a table's changes in log order.

    With --since, those after it, from the oldest on; else the newest, which are 50 in a table without --limit.

    A terminal too narrow for a table shows them value by value, long values cut.

    A pipe has a line a change, with all of it.

    Example: [bold]sidecar changes orders --since 12 --format jsonl | jq .id[/bold]
    """
    from sidecar.terminal import show

    with opened(config, read_only=True) as sc:
        log = sc.log(logged(sc, table))
        count = limit or (SHOWN if format_ == "table" else None)
        rows, more = show.changes(log, log.floor() if since is None else since, limit), False
        if since is None and count is not None:
            rows, more = show.newest(log, count)
        if format_ == "table":
            printed(show.changes_table(list(rows)))
            if more:
                print(f"The newest {count}; --since 0 begins at the beginning.", file=sys.stderr)
            return
        for row in rows:
            print(show.line(row))


def demo(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made, and left for you to try.")] = Path(
        "sidecar-demo"
    ),
) -> None:
    """Watch a sample shop database being changed, and followed.

    Example: [bold]sidecar demo[/bold], then [bold]cd sidecar-demo[/bold] and [bold]sidecar changes orders[/bold]
    """
    from sidecar.terminal import demo as show

    with archiving():
        code = show.run(folder)
    raise typer.Exit(code)


# In the order in which they are listed: that in which they are needed.
app.command(epilog=exits(0, 2, 3, 5))(backfill)
app.command(epilog=exits(0, 2, 3, 5))(export)
app.command(epilog=exits(0, 2, 3, 4, 5))(schema)
app.add_typer(watermark, name="watermark")
app.command(epilog=exits(0, 1, 2, 130))(demo)


def execute(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every failure is a line on stderr, without a secret in it."""
    try:
        code = app(list(arguments) if arguments is not None else None, prog_name="sidecar", standalone_mode=False)
        sys.stdout.flush()
    except SidecarError as error:
        return _fail(error, error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has had enough of it. Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        return _unexpected(error)
    return code if isinstance(code, int) else 0


def main() -> NoReturn:
    """Run the command line of this process."""
    sys.exit(execute())


def _fail(error: BaseException, code: int) -> int:
    from sidecar.terminal.console import failures

    _details(error)
    for line in failures(error):
        print(known_secrets().scrub(f"error: {line}"), file=sys.stderr)
    return code


def _usage(error: Any) -> int:
    message = error.format_message()
    if message:
        path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "sidecar"
        print(known_secrets().scrub(f"error: {message} (see {path} --help)"), file=sys.stderr)
    return int(error.exit_code)


def _unexpected(error: BaseException) -> int:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    hint = "" if _details(error) else "; run again with SIDECAR_DEBUG=1 for details"
    print(known_secrets().scrub(f"error: unexpected {text}{hint}"), file=sys.stderr)
    return 1


def _details(error: BaseException) -> bool:
    wanted = bool(os.environ.get("SIDECAR_DEBUG"))
    if wanted:
        print(known_secrets().scrub("".join(traceback.format_exception(error))), file=sys.stderr)
    return wanted


if __name__ == "__main__":
    main()
