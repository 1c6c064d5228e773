"""`sidecar init`: a look at the database, and settings with a comment for each guess."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa

from sidecar import cursor
from sidecar.config import Defaults, TableSettings
from sidecar.connector import Source, SourceConnector, connect
from sidecar.errors import SettingsError, counted
from sidecar.model import Column, Page, Table, Tracked
from sidecar.settings import scrub
from sidecar.settings.environment import expand
from sidecar.settings.words import section
from sidecar.tracking import CASE_SENSITIVE, track, twins

if TYPE_CHECKING:
    from sidecar.clock import Clock

VARIABLE = "SIDECAR_PASSWORD"

UPDATED = (
    "updatedat", "updatedon", "updated", "updatetime", "updatedtime", "lastupdate", "lastupdated", "lastupdatedat",
    "dateupdated", "modifiedat", "modifiedon", "modified", "modifieddate", "datemodified", "lastmodified",
    "lastmodifiedat", "lastmodifieddate", "changedat", "changedon", "mtime", "updatedts", "updatedate",
)  # fmt: skip
CREATED = (
    "createdat", "createdon", "created", "createtime", "createdtime", "datecreated", "createddate", "creationdate",
    "insertedat", "addedat", "ctime", "createdts", "createdate",
)  # fmt: skip
DELETED = ("deletedat", "deletedon", "deletetime", "datedeleted", "deleteddate", "removedat", "deletedts")
FLAGS = ("isdeleted", "deleted", "isremoved", "removed", "softdeleted")

# The least value that is a date after 1973 when it is read in this unit.
UNITS = (("ns", 10**17), ("us", 10**14), ("ms", 10**11), ("s", 10**8))


@dataclass(frozen=True)
class Written:
    """What `init` did, as lines for whoever asked for it."""

    path: Path
    summary: tuple[str, ...]


@dataclass
class Guess:
    """A table as it could be followed, with the reason beside each setting; `why_not` if it cannot."""

    table: str
    settings: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    hints: list[str] = field(default_factory=list)
    why_not: str | None = None
    twins: tuple[str, str] | None = None

    def say(self, name: str, value: Any, reason: str) -> None:
        self.settings[name], self.reasons[name] = value, reason


def secrets(url: str) -> Iterator[str]:
    """Yield what must not be shown of a URL from the command line."""
    yield from scrub.in_url(url)
    yield from scrub.in_url(expand({"source": {"url": url}}).raw["source"]["url"])


def init(url: str, output: Path, clock: Clock) -> Written:
    """Write settings for the database at *url* to *output*; SettingsError if a file is there already."""
    if output.exists():
        raise SettingsError(f"{output} exists already; name another file with -o, or move it away")
    url = _as_url(url)
    connector = connect(Source(_from_here(_expanded(url)), clock=clock))
    try:
        guesses = [guess(connector, connector.describe(name)) for name in sorted(connector.tables())]
    finally:
        connector.close()
    reference, password = _without_password(_seen_from(url, output))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("x", encoding="utf-8") as file:
            file.write(render(reference, guesses, has_password=password))
    except FileExistsError:
        raise SettingsError(f"{output} exists already; name another file with -o, or move it away") from None
    except OSError as error:
        raise SettingsError(
            f"{output} cannot be written: {error.strerror or error}. Name another file with -o"
        ) from error
    return Written(output, tuple(_summary(output, guesses, has_password=password)))


def guess(connector: SourceConnector, table: Table) -> Guess:
    """Return how *table* could be followed."""
    found = Guess(table.name, twins=twins(table.columns))
    updated = _called(table, UPDATED)
    if updated is None:
        found.why_not = _nothing_to_poll_by(table)
    else:
        _stamps(connector, table, updated, found)
    if not table.primary_key:
        found.say("primary_key", ["id"], "to be filled in: the columns that are unique together")
        kind = "a view has no primary key" if table.kind == "view" else "it has no primary key"
        found.why_not = found.why_not or f"{kind}: name the columns that are unique together"
    if found.why_not is None:
        try:
            track(table, TableSettings.model_validate(found.settings), Defaults())
        except SettingsError as error:
            found.why_not = " ".join(str(error).split())
    return found


def render(url: str, guesses: Iterable[Guess], *, has_password: bool) -> str:
    """Return the settings file's text."""
    guesses = list(guesses)
    lines = [
        "# Settings of Sidecar, as `sidecar init` guessed them. `sidecar check` says what it thinks of them.",
        "",
        "[source]",
    ]
    if has_password:
        lines.append(f"# The password comes from the environment, as it is: export {VARIABLE}='…'")
    lines += [
        f"url = {_toml(url)}",
        "",
        "[state]",
        "# The change log and the watermarks. Back it up with the sinks, or not at all.",
        'path = ".sidecar"',
        '# retention = "30d"              # drop segments that every sink has and that are older; default: keep all',
        "",
        "[defaults]",
        "# How far a writer's clock may be behind the database's.",
        'lookback = "60s"',
        "",
    ]
    for each in sorted(guesses, key=lambda g: g.why_not is not None):
        lines += [*_section(each), ""]
    lines += [
        "[sinks.lake]",
        "# Every change, appended as Parquet files, one folder a table.",
        'format = "parquet"',
        'mode = "append"',
        'path = "lake"',
        '# transform = "shapes:orders"    # a function of yours, DataFrame → DataFrame, in shapes.py beside this file',
    ]
    for each in guesses:
        if each.twins is not None and each.why_not is None:
            first, second = each.twins
            lines += [
                "",
                "[spark]",
                f"# Table {each.table} has columns {first} and {second}: one to Spark, unless told otherwise.",
                f'"{CASE_SENSITIVE}" = true',
            ]
            break
    return "\n".join(lines) + "\n"


def _stamps(connector: SourceConnector, table: Table, updated: Column, found: Guess) -> None:
    found.say("updated_at", updated.name, "the cursor: moves forward on every write")
    kind = cursor.kind(updated.arrow, updated.name)
    if kind == "number":
        unit, greatest = _unit(connector, table, updated)
        if unit:
            found.say("updated_at_unit", unit, f"its greatest value, {greatest}, is a time in {unit}")
        else:
            what = "the table is empty" if greatest is None else f"its greatest value, {greatest}, is no time"
            found.hints.append(f'updated_at_unit = "s"  # or "ms", "us", "ns", if it counts time: {what}')
    elif kind in ("reading", "text"):
        found.hints.append(
            f'timezone = "Europe/Berlin"  # if {updated.name} is local time without a zone; it is taken as UTC'
        )
    created, deleted = _called(table, CREATED), _called(table, DELETED)
    if created is not None and (cursor.kind(created.arrow, created.name) == "number") == (kind == "number"):
        found.say("created_at", created.name, f"equal to {updated.name}: the row is new")
    if deleted is not None:
        found.say("deleted_at", deleted.name, "set: the row is deleted")
    flag = next((c for c in table.columns if _bare(c.name) in FLAGS and _is_flag(c)), None)
    if deleted is None and flag is not None:
        name = flag.name if re.fullmatch(r"[a-z_][a-z0-9_]*", flag.name) else '"' + flag.name.replace('"', '""') + '"'
        found.say("deleted_when", name, "true: the row is deleted")


def _unit(connector: SourceConnector, table: Table, column: Column) -> tuple[str | None, int | None]:
    key = table.primary_key or (column.name,)
    tracked = Tracked(table=table, key=key, updated_at=column.name, columns=table.columns)
    greatest = connector.greatest(Page(tracked, tracked.passes[0], {}, None, tracked.page_size), None)
    if greatest is None or pa.types.is_floating(column.arrow):
        return None, greatest
    return next((unit for unit, least in UNITS if greatest >= least), None), greatest


def _nothing_to_poll_by(table: Table) -> str:
    times = [c.name for c in table.columns if pa.types.is_timestamp(c.arrow) or pa.types.is_date(c.arrow)]
    seen = f" (it has {', '.join(times)})" if times else ""
    return f"no column looks like updated_at{seen}: name the one that moves forward on every write"


def _called(table: Table, names: tuple[str, ...]) -> Column | None:
    """Return the column whose name stands first in *names*, of those that can be a cursor."""
    able = [c for c in table.columns if _bare(c.name) in names and _can_be_cursor(c)]
    return min(able, key=lambda c: names.index(_bare(c.name)), default=None)


def _bare(name: str) -> str:
    return name.lower().replace("_", "").replace(" ", "").replace("-", "")


def _can_be_cursor(column: Column) -> bool:
    try:
        cursor.kind(column.arrow, column.name)
    except SettingsError:
        return False
    return "BOOL" not in column.type.upper()


def _is_flag(column: Column) -> bool:
    return pa.types.is_boolean(column.arrow) or "BOOL" in column.type.upper()


# -- text --------------------------------------------------------------------------------------------------------------


def _section(guess_: Guess) -> list[str]:
    lines = [f"[{section('tables', guess_.table)}]"]
    for name, value in guess_.settings.items():
        lines.append(f"{name} = {_toml(value)}".ljust(32) + f" # {guess_.reasons[name]}")
    if guess_.why_not is None:
        return lines + [f"# {hint}" for hint in guess_.hints]
    if "updated_at" not in guess_.settings:
        lines.append('updated_at = "…"')
    return [f"# Not followed: {guess_.why_not}", *(f"# {line}" for line in lines)]


def _summary(output: Path, guesses: list[Guess], *, has_password: bool) -> Iterator[str]:
    followed = [g for g in guesses if g.why_not is None]
    verb = "is" if len(followed) == 1 else "are"
    yield f"{output}: {len(followed)} of {counted(len(guesses), 'table')} {verb} followed"
    for each in guesses:
        if each.why_not is not None:
            yield f"  not {each.table}: {each.why_not}"
    if has_password:
        yield f"The password was not written down. Before the next command: export {VARIABLE}='…'"
    suffix = "" if output.name == "sidecar.toml" and output.parent == Path() else f" -c {output}"
    yield f"Next: sidecar check{suffix}"


def _toml(value: Any) -> str:
    # A JSON string is a TOML string, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- the URL -----------------------------------------------------------------------------------------------------------


def _as_url(given: str) -> str:
    """Return *given* as a URL; the name of a file that is there is taken for a SQLite database."""
    if "://" in given or given.startswith("sqlite:"):
        return given
    path = Path(given)
    if path.is_file():
        return f"sqlite:///{quote(str(path))}"
    raise SettingsError(f"{given}: neither a URL, such as postgresql://user@host/database, nor a file that is there")


def _expanded(url: str) -> str:
    """Return *url* with references to the environment replaced, as the settings file will have them."""
    found = expand({"source": {"url": url}})
    if found.problems:
        raise SettingsError("\n".join(problem for _, problem in found.problems))
    expanded: str = found.raw["source"]["url"]
    return expanded


def _from_here(url: str) -> str:
    scheme, colon, rest = url.partition(":///")
    if scheme.lower() != "sqlite" or not colon or rest.startswith("/"):
        return url
    return f"{scheme}:///{quote(str(Path(unquote(rest)).absolute()))}"


def _seen_from(url: str, output: Path) -> str:
    """Return *url* with a relative path as it reads from the settings file's folder."""
    scheme, colon, rest = url.partition(":///")
    here = Path().absolute()
    if scheme.lower() != "sqlite" or not colon or rest.startswith("/") or output.absolute().parent == here:
        return url
    path, folder = (here / unquote(rest)).resolve(), output.absolute().parent.resolve()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return f"{scheme}:///{quote(str(shown))}"


def _without_password(url: str) -> tuple[str, bool]:
    """Return *url* with a reference in place of its password, and whether it had one."""
    scheme, colon, rest = url.partition("://")
    found = re.match(r"[^/?#]*@", rest) or re.match(r".*@", rest)
    user, colon_, password = found.group()[:-1].partition(":") if found else ("", "", "")
    if scheme.lower() == "sqlite" or not colon_ or not password or re.fullmatch(r"\$\{\w+\}", password):
        return url, False
    assert found is not None
    return f"{scheme}{colon}{user}:${{{VARIABLE}}}@{rest[found.end() :]}", True
