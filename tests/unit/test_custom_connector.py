"""A custom connector is a handful of methods: one over Python lists passes for a database, defaults included."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import sidecar
from sidecar import Column, Horizon, Page, SettingsError, Source, SourceConnector, Table, codec, cursor
from sidecar.changelog import ChangeLog
from sidecar.clock import SECOND, Clock, FakeClock
from sidecar.connector import connect
from sidecar.model import VERSION, Memory, Pass, Position, Scalar, Tracked
from sidecar.poll import poll
from sidecar.settings.words import did_you_mean
from sidecar.state import MemoryWatermarkStore, WatermarkStore

Row = dict[str, Scalar]

INSTANT = pa.timestamp("us", "UTC")
STAMPS = (
    Column("created_at", "instant", INSTANT),
    Column("updated_at", "instant", INSTANT),
    Column("deleted_at", "instant", INSTANT),
)


@dataclasses.dataclass
class Lists:
    """A database of Python lists, and what it knows of its transactions. Stamps are microseconds, or texts."""

    rows: dict[str, list[Row]] = dataclasses.field(default_factory=dict)
    columns: dict[str, tuple[Column, ...]] = dataclasses.field(default_factory=dict)
    key: tuple[str, ...] = ("id",)
    settled: Callable[[], int] | None = None
    floor: Callable[[], int] | None = None
    era: str | None = None
    failing: set[str] = dataclasses.field(default_factory=set)
    generous: bool = False
    reads: int = 0

    def table(self, name: str, columns: Sequence[Column] = (), rows: Sequence[Row] = ()) -> list[Row]:
        """Add a table and return its rows."""
        self.columns[name] = (Column("id", "integer", pa.int64(), nullable=False), *(columns or STAMPS))
        self.rows[name] = [{c.name: row.get(c.name) for c in self.columns[name]} | dict(row) for row in rows]
        return self.rows[name]


DATABASES: dict[str, Lists] = {}


class ListConnector(SourceConnector):
    """Reads what `DATABASES` holds under the URL. Each read sees the rows as they are then; there is no snapshot."""

    scheme = "lists"
    loads_by_key = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.lists = DATABASES[source.url]

    def tables(self) -> Sequence[str]:
        return list(self.lists.rows)

    def describe(self, table: str) -> Table:
        if table not in self.lists.rows:
            raise SettingsError(f'there is no table "{table}"{did_you_mean(table, self.lists.rows)}')
        return Table(table, (table,), self.lists.columns[table], self.lists.key)

    def horizon(self, tracked: Tracked, memory: Memory) -> Horizon:
        plain = super().horizon(tracked, memory)
        settled = plain.settled if self.lists.settled is None else self.lists.settled()
        floor = self.lists.floor and self.lists.floor()
        return dataclasses.replace(plain, settled=settled, floor=floor, era=self.lists.era)

    def read(self, page: Page) -> pa.Table:
        self.lists.reads += 1
        tracked, scan = page.tracked, page.scan
        if tracked.name in self.lists.failing:
            raise sidecar.SourceUnavailable(f'table "{tracked.name}": out of reach')
        order = ((scan.cursor,) if scan.cursor else ()) + tracked.key
        rows = [r for r in self.lists.rows[tracked.name] if all(r[n] is None for n in scan.nulls)]
        if scan.cursor is not None:
            rows = [r for r in rows if r[scan.cursor] is not None and self._above(r[scan.cursor], page)]
        if page.since is not None:
            rows = [r for r in rows if _number(r["version"]) >= page.since]
        rows.sort(key=lambda r: [r[n] for n in order])
        after = page.after
        if after is not None:
            rows = [r for r in rows if [r[n] for n in order] > list(after)]
        return self._arrow(tracked, rows[: page.limit])

    def _above(self, value: Scalar, page: Page) -> bool:
        """Return whether a row is above what is closed; a generous source does not look."""
        closed = page.closed.get(page.scan.name)
        if closed is None or self.lists.generous:
            return True
        at = cursor.from_text(value, page.tracked.timezone) if isinstance(value, str) else value
        return at is None or _number(at) > closed

    def _arrow(self, tracked: Tracked, rows: Sequence[Row]) -> pa.Table:
        columns = self.lists.columns[tracked.name]
        data = {c.name: pa.array([r[c.name] for r in rows], c.arrow) for c in columns}
        if self.lists.floor is not None:
            data[VERSION] = pa.array([r["version"] for r in rows], pa.int64())
        return pa.table(data)


def _number(value: Scalar) -> int:
    assert isinstance(value, int)
    return value


def followed(connector: SourceConnector, name: str, **settings: object) -> Tracked:
    """Return *name* as it is followed with the usual columns."""
    table = connector.describe(name)
    usual = {n: n for n in ("created_at", "deleted_at") if table.column(n) is not None}
    plain = Tracked(table, table.primary_key, "updated_at", columns=table.columns, **usual)  # type: ignore[arg-type]
    return dataclasses.replace(plain, **settings)  # type: ignore[arg-type]


def drain(connector: SourceConnector, tracked: Tracked, log: ChangeLog, store: WatermarkStore) -> list[Row]:
    """Poll to the end and return what has come into the log."""
    before = log.last()
    for _ in poll(connector, tracked, log, store):
        pass
    return list(log.rows(before))  # type: ignore[arg-type]


@pytest.fixture
def lists() -> Iterator[Lists]:
    """An empty database under `lists://here`."""
    DATABASES["lists://here"] = Lists()
    yield DATABASES["lists://here"]
    del DATABASES["lists://here"]


def opened(clock: Clock) -> ListConnector:
    return ListConnector(Source("lists://here", clock=clock))


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector, registered as an installed package registers one: by an entry point."""
    package = tmp_path / "packages" / "lists-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lists\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[sidecar.connectors]\nlists = {__name__}:ListConnector\n")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


def page(tracked: Tracked, limit: int = 2, scan: Pass | None = None, after: Position | None = None) -> Page:
    return Page(tracked, scan or tracked.passes[0], {}, after, limit)


def test_a_connector_without_a_horizon_of_its_own_goes_by_the_clock(lists: Lists, clock: FakeClock) -> None:
    lists.table("parcels")
    connector = opened(clock)
    assert SourceConnector.horizon(connector, followed(connector, "parcels"), None) == Horizon(clock.now(), clock.now())


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_the_greatest_value_is_found_over_all_pages(lists: Lists, clock: FakeClock, limit: int) -> None:
    now = clock.now()
    lists.table("parcels", rows=[{"id": n, "updated_at": now - 10 + n} for n in range(6)])
    lists.rows["parcels"].append({"id": 9, "created_at": None, "updated_at": now + SECOND, "deleted_at": None})
    connector = opened(clock)
    tracked = followed(connector, "parcels")
    assert connector.greatest(page(tracked, limit), now) == now - 5
    assert connector.greatest(page(tracked, limit), None) == now + SECOND
    assert connector.greatest(page(tracked, limit), now - 11) is None
    assert connector.greatest(page(tracked, limit, tracked.passes[-1]), now) is None


def test_positions_survive_the_codec_and_are_echoed_as_they_were(lists: Lists, clock: FakeClock) -> None:
    lists.table("parcels", rows=[{"id": n, "updated_at": clock.now()} for n in (2**62, -1, 0)])
    connector = opened(clock)
    tracked = followed(connector, "parcels")
    first = connector.read(page(tracked, 1))
    after = codec.unpack(codec.pack(codec.position(first, ("updated_at", "id"))))
    assert after == (clock.now(), -1)
    assert connector.read(page(tracked, 5, after=after)).column("id").to_pylist() == [0, 2**62]


def test_a_generous_connector_delivers_nothing_twice(lists: Lists, clock: FakeClock, tmp_path: Path) -> None:
    lists.generous = True
    rows = lists.table("parcels", rows=[{"id": n, "created_at": n, "updated_at": clock.now() - n} for n in range(5)])
    connector = opened(clock)
    tracked = followed(connector, "parcels", page_size=2)
    log, store = ChangeLog(tmp_path, "parcels"), MemoryWatermarkStore()
    assert len(drain(connector, tracked, log, store)) == 5
    for _ in range(4):
        clock.advance(61)
        assert drain(connector, tracked, log, store) == []
    rows[0]["deleted_at"] = clock.now()
    assert [(r["id"], r["_change_type"], r["_origin"]) for r in drain(connector, tracked, log, store)] == [
        (0, "delete", "soft_delete")
    ]
    assert drain(connector, tracked, log, store) == []


@pytest.mark.usefixtures("registered")
def test_a_registered_connector_is_found_by_its_scheme(lists: Lists) -> None:
    assert connect(Source("LISTS://here".replace("LISTS", "lists"))).tables() == []


def test_an_unknown_scheme_is_named_with_those_that_are_known() -> None:
    with pytest.raises(SettingsError, match=r'no connector for "pigeons://".*postgresql.*sqlite'):
        connect(Source("pigeons://loft"))


@pytest.mark.usefixtures("registered")
def test_a_project_follows_a_custom_source_from_the_settings_alone(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("parcels", rows=[{"id": n, "created_at": clock.now(), "updated_at": clock.now()} for n in range(3)])
    settings = tmp_path / "sidecar.toml"
    settings.write_text('[source]\nurl = "lists://here"\n[tables.parcels]\npage_size = 2\n')
    with sidecar.open(settings, clock=clock) as project:
        result = project.poll()["parcels"]
        assert (result.rows, result.first_offset, result.last_offset, result.complete) == (3, 1, 2, True)
        assert project.poll()["parcels"].rows == 0
        assert [r["id"] for r in project.log("parcels").rows()] == [0, 1, 2]
    with sidecar.open(settings, clock=clock) as project:
        assert project.poll()["parcels"].rows == 0


@pytest.mark.usefixtures("registered")
def test_a_watermark_that_is_reset_reads_all_rows_again_and_only_then(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("parcels", rows=[{"id": n, "updated_at": clock.now()} for n in range(3)])
    settings = tmp_path / "sidecar.toml"
    settings.write_text('[source]\nurl = "lists://here"\n[tables.parcels]\n')
    with sidecar.open(settings, clock=clock) as project:
        project.poll()
        project.reset_watermark("parcels")
        assert project.poll()["parcels"].rows == 3
        assert project.poll()["parcels"].rows == 0
        clock.advance(3600)
        project.set_watermark("parcels", "2024-05-01T09:59:59Z")
        assert project.poll()["parcels"].rows == 3
        with pytest.raises(SettingsError, match="soon"):
            project.set_watermark("parcels", "soon")


class FinerConnector(ListConnector):
    """Answers in nanoseconds what it describes in microseconds."""

    def read(self, page: Page) -> pa.Table:
        found = super().read(page)
        at = found.schema.get_field_index("at")
        return found.set_column(at, "at", pa.chunked_array([[1_000_000_001] * len(found)], pa.timestamp("ns", "UTC")))


def test_values_that_do_not_fit_the_type_described_are_named_by_their_column(
    lists: Lists, clock: FakeClock, tmp_path: Path
) -> None:
    lists.table("parcels", [Column("at", "instant", INSTANT), *STAMPS], [{"id": 1, "updated_at": clock.now()}])
    connector, log = FinerConnector(Source("lists://here", clock=clock)), ChangeLog(tmp_path, "parcels")
    with pytest.raises(SettingsError, match=r'"parcels": column "at" comes as timestamp\[ns, tz=UTC\], with values'):
        drain(connector, followed(connector, "parcels"), log, MemoryWatermarkStore())
    assert log.last() == 0
