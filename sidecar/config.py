"""sidecar.toml and the environment → frozen settings, or all that is wrong with them, in plain words.

Nothing here connects to anything. `sidecar.tracking` holds the tables' settings against what the source has.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from urllib.parse import quote

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    SecretStr,
    ValidationError,
    model_validator,
)

from sidecar.clock import SECOND
from sidecar.errors import SettingsError
from sidecar.log.storage import AnyPath, locate
from sidecar.model import OnBadValue, Scalar
from sidecar.settings import complaints, mirrored, values
from sidecar.settings.environment import Loc, expand
from sidecar.settings.scrub import Secrets, in_url
from sidecar.settings.words import did_you_mean, section

if TYPE_CHECKING:
    from sidecar.clock import Clock
    from sidecar.connector import Source

Text: TypeAlias = Annotated[str, PlainValidator(values.text)]
Names: TypeAlias = Annotated[tuple[str, ...], PlainValidator(values.names)]
Integer: TypeAlias = Annotated[int, PlainValidator(values.positive)]
Micros: TypeAlias = Annotated[int, PlainValidator(values.duration)]
Secret: TypeAlias = Annotated[SecretStr, PlainValidator(values.secret)]
Folder: TypeAlias = Annotated[Path, PlainValidator(values.folder)]
Place: TypeAlias = Annotated[str, PlainValidator(values.place)]
Zone: TypeAlias = Annotated[str, PlainValidator(values.zone)]
Function: TypeAlias = Annotated[str, PlainValidator(values.function)]
Options: TypeAlias = Annotated[dict[str, str], PlainValidator(values.options)]
Flag: TypeAlias = Annotated[bool, PlainValidator(values.flag)]
Optional_: TypeAlias = Annotated[str | Literal[False], PlainValidator(values.name_or_false)]
_INFINITY = values.word("error", "null", "keep as string")
_ARRAYS, _JSON = values.word("list", "string"), values.word("string", "variant")
ByColumn: TypeAlias = str | dict[str, str]
Unit: TypeAlias = Literal["s", "ms", "us", "ns"]

FILE_FORMATS = ("parquet", "csv", "json", "orc", "text", "xml", "avro", "delta")
_SECRET_OPTION = re.compile(r"password|secret|token|credential|(access|account|api)[._-]?key|sas", re.IGNORECASE)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)


class SourceSettings(_Section):
    """[source]: where the data is. Timeouts are microseconds."""

    url: Secret | None = None
    connector: Text = "postgresql"
    host: Text | None = None
    port: Integer | None = None
    database: Text | None = None
    user: Text | None = None
    password: Secret | None = None
    include: Names | None = None
    exclude: Names = ()
    connect_timeout: Micros = 10 * SECOND
    lock_timeout: Micros = 5 * SECOND
    statement_timeout: Micros = 300 * SECOND


class StateSettings(_Section):
    """[state]: where the watermarks and the change log are, and how long segments are kept (None: for ever).

    `log`: a folder, or a store that `options` reach; None: in `path`. `bases`: of what is dropped, the table stays.
    """

    path: Folder = Field(default=Path(".sidecar"), validate_default=True)
    log: Place | None = None
    options: Options = {}
    retention: Micros | None = None
    bases: Flag = True


class RefreshSettings(_Section):
    """[[tables.NAME.refresh_on]]: a parent, and which of our columns equal which of its."""

    table: Text
    on: Annotated[dict[str, str], Field(min_length=1)]


class TableSettings(_Section):
    """[tables.NAME]: how a table is followed; None is "not said here". Durations are microseconds."""

    primary_key: Names | None = None
    updated_at: Text | None = None
    created_at: Optional_ | None = None
    deleted_at: Optional_ | None = None
    deleted_when: Text | None = None
    not_deleted: Annotated[tuple[Scalar, ...], PlainValidator(values.scalars)] | None = None
    columns: Names | None = None
    timezone: Zone | None = None
    page_size: Integer | None = None
    lookback: Micros | None = None
    max_hold: Micros | None = None
    created_at_tolerance: Micros | None = None
    updated_at_unit: Unit | None = None
    schema_change: Literal["evolve", "fail"] | None = None
    backfill_added: Flag | None = None
    on_bad_value: OnBadValue | None = None
    auto_backfill: Flag | None = None
    backfill_version: Text | None = None
    chunk_size: Integer | None = None
    consistent: Flag | None = None
    refresh_on: tuple[RefreshSettings, ...] | None = None
    sinks: Names | None = None
    numeric: Annotated[ByColumn, PlainValidator(values.by_column(values.numeric))] | None = None
    infinity: Annotated[ByColumn, PlainValidator(values.by_column(_INFINITY))] | None = None
    arrays: Annotated[ByColumn, PlainValidator(values.by_column(_ARRAYS))] | None = None
    # pydantic has a method of this name.
    json_: Annotated[ByColumn, PlainValidator(values.by_column(_JSON))] | None = Field(default=None, alias="json")


class Defaults(TableSettings):
    """[defaults]: any table setting, and what holds for all tables alike; of columns nothing is said by name."""

    numeric: Annotated[str, PlainValidator(values.numeric)] | None = None
    infinity: Annotated[str, PlainValidator(_INFINITY)] | None = None
    arrays: Annotated[str, PlainValidator(_ARRAYS)] | None = None
    json_: Annotated[str, PlainValidator(_JSON)] | None = Field(default=None, alias="json")

    metadata_prefix: Annotated[str, PlainValidator(values.prefix)] = "_"


class SinkSettings(_Section):
    """[sinks.NAME]: where changes go, and what happens to them on the way."""

    format: Text = "parquet"
    mode: Literal["append", "mirror"] = "append"
    path: Place | None = None
    table: Text | None = None
    history: Flag = False
    on_delete: Literal["delete", "mark"] = "delete"
    compact_every: Micros = 600 * SECOND
    vacuum_after: Micros = 3600 * SECOND
    transform: Function | None = None
    foreach: Function | None = None
    options: Options = {}
    tables: Names | None = None

    @model_validator(mode="after")
    def _goes_somewhere(self) -> SinkSettings:
        if self.foreach is not None:
            extra = [name for name in ("format", "path", "table", "mode") if name in self.model_fields_set]
            if extra:
                raise ValueError(f'"foreach" is given instead of {" and ".join(extra)}; keep one of them')
        elif self.path is None and self.table is None and self.format in FILE_FORMATS:
            raise ValueError(f'no "path" to write {self.format} files to, and no "foreach" function either')
        wrong = mirrored.contradiction(self.mode, self.format, self.model_dump(exclude_unset=True))
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @property
    def kind(self) -> mirrored.KindName:
        """Which kind of mirror it is."""
        return mirrored.kind(history=self.history, on_delete=self.on_delete)


class BackfillSettings(_Section):
    """[backfill]: how existing rows are read: where, by how many connections, how fast, and when not. Microseconds."""

    engine: Literal["local", "spark"] = "local"
    parallelism: Integer = 2
    copy_phase: Micros = 3600 * SECOND
    max_rows_per_second: Integer | None = None
    max_replication_lag: Micros | None = None
    max_lock_wait: Micros | None = None


class SparkSettings(_Section):
    """[spark]: the master's URL, whether its classes come from an archive, and any `"spark.x.y"` configuration."""

    master: Text | None = None
    fast_start: Flag = True
    conf: Options = {}

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        if "conf" in raw:
            raise ValueError('unknown key "conf"; write "spark.x.y" = "…" directly under [spark]')
        rest = {k: v for k, v in raw.items() if k != "spark" and not k.startswith("spark.")}
        return {**rest, "conf": dict(values.flat({k: v for k, v in raw.items() if k not in rest}))}


class Settings(_Section):
    """All of sidecar.toml, checked as far as a file can be without its source."""

    source: SourceSettings
    state: StateSettings
    defaults: Defaults = Defaults()
    tables: dict[str, TableSettings] = {}
    sinks: dict[str, SinkSettings] = {}
    backfill: BackfillSettings = BackfillSettings()
    spark: SparkSettings = SparkSettings()
    _path: Path = PrivateAttr(default=Path("sidecar.toml"))
    _from_environment: tuple[str, ...] = PrivateAttr(default=())
    _unset: tuple[str, ...] = PrivateAttr(default=())

    def need_source(self) -> None:
        """Raise SettingsError if the environment lacks what [source] says; who opens no source can do without."""
        if self._unset:
            raise SettingsError("\n".join(self._unset))

    @property
    def path(self) -> Path:
        """The file that this was read from."""
        return self._path

    @property
    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self._path.absolute().parent

    @property
    def log(self) -> AnyPath:
        """Where the change logs are, a folder a table."""
        at = self.state
        return at.path / "log" if at.log is None and not at.options else locate(at.log or "", at.options)

    @property
    def secrets(self) -> Secrets:
        """What no log line and no error may show."""
        found = list(self._from_environment)
        if self.source.password is not None:
            found.append(self.source.password.get_secret_value())
        if self.source.url is not None:
            found.extend(in_url(self.source.url.get_secret_value()))
        for options in (self.spark.conf, self.state.options, *(s.options for s in self.sinks.values())):
            found.extend(v for k, v in options.items() if _SECRET_OPTION.search(k))
        return Secrets(found)


def load(path: str | Path) -> Settings:
    """Return the settings in *path*; SettingsError holds everything that is wrong with them, one problem a line.

    What the environment does not say of [source] is an error for who wants to read that: see `Settings.need_source`.
    """
    path = Path(path)
    expanded = expand(_parse(path))
    raw = {"source": {}, "state": {}, **expanded.raw}
    unset = [f"{path}: {problem}" for _, problem in expanded.problems]
    waits = all(loc[0] == "source" for loc, _ in expanded.problems)
    problems: list[str] = []
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(_known(raw, expanded.missing), context={"folder": path.absolute().parent})
        if waits:
            problems += [*(() if unset else _places(settings.source)), *_contradictions(settings)]
    except ValidationError as error:
        problems += complaints.said(error, raw, expanded, _keys())
    if problems or settings is None or not waits:
        raise SettingsError("\n".join([*unset, *(f"{path}: {problem}" for problem in problems)]))
    settings._path = path
    settings._unset = tuple(unset)
    settings._from_environment = tuple(v for loc, v in expanded.origins if _is_secret(loc))
    return settings


def source(settings: Settings, clock: Clock) -> Source:
    """Return where to connect, for `connector.connect`; the path in a SQLite URL is absolute."""
    from sidecar.connector import Source

    settings.need_source()
    at = settings.source
    return Source(
        url=_absolute(_url(at), settings.folder),
        user=at.user,
        password=None if at.password is None else at.password.get_secret_value(),
        connect_timeout=at.connect_timeout / SECOND,
        lock_timeout=at.lock_timeout / SECOND,
        statement_timeout=at.statement_timeout / SECOND,
        clock=clock,
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: there is no such file; `sidecar init URL` writes one, -c/--config names another"
        ) from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: is not TOML: {error}") from None


def _url(at: SourceSettings) -> str:
    if at.url is not None:
        return at.url.get_secret_value()
    database = at.database or ""
    if at.connector == "sqlite":
        return f"sqlite:///{quote(database)}"
    host = f"[{at.host}]" if ":" in (at.host or "") else quote(at.host or "", safe="")
    port = f":{at.port}" if at.port else ""
    return f"{at.connector}://{host}{port}/{quote(database, safe='')}"


def _absolute(url: str, folder: Path) -> str:
    scheme, colon, rest = url.partition(":///")
    if scheme.lower() != "sqlite" or not colon or not rest or rest.startswith(("/", ":memory:", "?")):
        return url
    return f"{scheme}:///{quote(str(folder))}/{rest}"


def _known(raw: Mapping[str, Any], missing: Collection[Loc]) -> dict[str, Any]:
    """Return *raw* without the entries of its [source] that are *missing*."""
    at = raw["source"]
    known = {k: v for k, v in at.items() if ("source", k) not in missing} if isinstance(at, dict) else at
    return {**raw, "source": known}


def _places(at: SourceSettings) -> Iterator[str]:
    parts = [name for name in ("connector", "host", "port", "database") if name in at.model_fields_set]
    if at.url is not None and parts:
        yield f"[source] url and {', '.join(parts)} say the same thing; keep one of them"
    elif parts and at.database is None:
        yield f"[source] {', '.join(parts)}: no database is named; give database as well"
    elif at.url is None and at.database is None:
        yield '[source] says no place: give url = "postgresql://user@host/database" or "sqlite:///file.db"'
    elif at.url is not None and ":" not in at.url.get_secret_value():
        yield '[source] url: is none; it begins with the kind of source, such as "postgresql://" or "sqlite:///"'


def _contradictions(settings: Settings) -> Iterator[str]:
    try:
        _ = settings.log
    except SettingsError as error:
        yield f"[state] log: {error}"
    for name, table in (
        ("defaults", settings.defaults),
        *((section("tables", n), t) for n, t in settings.tables.items()),
    ):
        for sink in table.sinks or ():
            if sink not in settings.sinks:
                yield f"[{name}] sinks: there is no [sinks.{sink}]{did_you_mean(sink, settings.sinks)}"
    mirrors = [(section("sinks", n), s) for n, s in settings.sinks.items() if s.mode == "mirror"]
    yield from mirrored.shared_places((where, s.path, s.table, s.tables) for where, s in mirrors)


def _is_secret(loc: tuple[str | int, ...]) -> bool:
    return (
        loc[:2] in (("source", "password"), ("state", "options"))
        or loc[0] == "spark"
        or (loc[0] == "sinks" and "options" in loc)
    )


def _keys() -> dict[str, list[str]]:
    """Return the keys that each section knows, as the file writes them."""
    sections: dict[str, type[_Section]] = {
        "source": SourceSettings, "state": StateSettings, "defaults": Defaults, "backfill": BackfillSettings,
        "spark": SparkSettings, "tables": TableSettings, "sinks": SinkSettings,
    }  # fmt: skip
    return {
        name: [at.alias or key for key, at in model.model_fields.items() if key != "conf"]
        for name, model in sections.items()
    }
