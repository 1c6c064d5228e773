"""A whole file of settings against a database: which tables are followed, and why others cannot be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sidecar import config
from sidecar.clock import FakeClock
from sidecar.connector import Source, SourceConnector, connect
from sidecar.errors import SettingsError
from sidecar.followed import resolve, resolve_apart, together
from sidecar.model import Column, Page, Table, Tracked
from tests.conftest import SQLiteFile

SHOP = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, created_at TEXT, updated_at TEXT);
CREATE TABLE pets (id INTEGER PRIMARY KEY, name TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
CREATE TABLE audit (id INTEGER PRIMARY KEY, note TEXT);
"""


@pytest.fixture
def shop(sqlite_db: SQLiteFile) -> SQLiteFile:
    sqlite_db.connection.executescript(SHOP)
    return sqlite_db


def settings(shop: SQLiteFile, source: str = "", rest: str = "") -> config.Settings:
    path = shop.path.parent / "sidecar.toml"
    path.write_text(f'[source]\nurl = "sqlite:///{shop.path.name}"\n{source}\n{rest}')
    return config.load(path)


def resolved(shop: SQLiteFile, source: str = "", rest: str = "") -> list[Tracked]:
    found = settings(shop, source, rest)
    connector: SourceConnector = connect(config.source(found, FakeClock()))
    try:
        return resolve(found, connector)
    finally:
        connector.close()


def apart(shop: SQLiteFile, source: str, rest: str = "", *, known: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Return which tables are followed where *known* ones have been, and why others are not."""
    found = settings(shop, source, rest)
    connector = connect(config.source(found, FakeClock()))
    try:
        tables, broken = resolve_apart(found, connector, known)
        return [t.name for t in tables], {name: str(error) for name, error in broken.items()}
    finally:
        connector.close()


def complaint(shop: SQLiteFile, source: str = "", rest: str = "") -> str:
    with pytest.raises(SettingsError) as caught:
        resolved(shop, source, rest)
    return str(caught.value)


def test_tables_are_those_with_a_section_and_those_included(shop: SQLiteFile) -> None:
    assert [t.name for t in resolved(shop, rest="[tables.pets]")] == ["pets"]
    assert [t.name for t in resolved(shop, 'include = ["ord*"]', "[tables.pets]")] == ["pets", "orders"]
    assert [t.name for t in resolved(shop, 'exclude = ["audit"]')] == ["orders", "pets"]
    assert [t.name for t in resolved(shop, 'include = ["*"]\nexclude = ["a*", "o*"]')] == ["pets"]


def test_no_tables_at_all_is_an_error_that_names_the_wizard(shop: SQLiteFile) -> None:
    assert "sidecar init" in complaint(shop)


def test_a_pattern_without_a_table_is_an_error(shop: SQLiteFile) -> None:
    assert 'no table matches "ordrs"; did you mean "orders"?' in complaint(shop, 'include = ["ordrs"]')


def test_two_sections_for_one_table_are_an_error(shop: SQLiteFile) -> None:
    said = complaint(shop, rest="[tables.pets]\n[tables.PETS]")
    assert "[tables.PETS] and [tables.pets] are the same table" in said


def test_a_table_that_is_gone_is_named_once_by_what_asked_for_it(shop: SQLiteFile) -> None:
    found, broken = apart(shop, 'include = ["p*", "old*"]', known=("old_pets", "orders", "pets"))
    assert (found, list(broken)) == (["pets"], ["old_pets"])
    assert "it has been followed, and is not in the source any more" in broken["old_pets"]
    assert apart(shop, 'include = ["p*", "old*"]\nexclude = ["old_pets"]', known=("old_pets",)) == (["pets"], {})
    found, broken = apart(shop, 'include = ["p*"]', "[tables.pest]", known=("pest",))
    assert 'there is no table or view "pest"; there are pets' in broken["pest"]


def test_what_is_wrong_with_the_source_is_said_once() -> None:
    assert str(together({"a": SettingsError("x"), "b": SettingsError("y"), "c": SettingsError("x")})) == "x\ny"


CHILD = '[tables.{}]\n[[tables.{}.refresh_on]]\ntable = "{}"\non = {{ id = "{}" }}\n'


def test_children_go_with_their_parents_however_many_there_are_in_between(shop: SQLiteFile) -> None:
    shop.connection.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, updated_at TEXT)")
    chain = CHILD.format("notes", "notes", "orders", "id") + CHILD.format("orders", "orders", "pets", "id")
    assert [t.name for t in resolved(shop, rest=f"{chain}[tables.pets]")] == ["notes", "orders", "pets"]
    found, broken = apart(shop, "", f'{chain}[tables.pets]\nupdated_at = "nope"', known=())
    assert (found, set(broken)) == ([], {"notes", "orders", "pets"})
    assert 'refresh_on: table "orders" is not followed' in broken["notes"]
    said = complaint(shop, rest=CHILD.format("orders", "orders", "pets", "nme") + "[tables.pets]")
    assert 'refresh_on: table "pets" delivers no column "nme"; did you mean "name"?' in said


def test_what_is_wrong_with_no_table_waits_for_what_is_wrong_with_one(shop: SQLiteFile) -> None:
    sink = '[sinks.x]\npath = "x"\ntables = ["pet"]'
    found, broken = apart(shop, "", f'[tables.orders]\n[tables.pets]\nupdated_at = "nope"\n{sink}', known=())
    assert (found, list(broken)) == (["orders"], ["pets"])


class Twins(SourceConnector):
    """A table with two columns that differ only in case, which SQLite does not have."""

    scheme = "twins"

    def tables(self) -> list[str]:
        return ["orders"]

    def describe(self, name: str) -> Table:
        instants = [Column(n, "timestamp", pa.timestamp("us", "UTC")) for n in ("updated_at", "v", "V")]
        return Table(name, (name,), (Column("id", "int64", pa.int64()), *instants), ("id",))

    def read(self, page: Page) -> pa.Table:
        raise AssertionError(page)


def test_columns_that_differ_only_in_case_matter_to_sinks_alone(shop: SQLiteFile) -> None:
    source, sink = Twins(Source("twins://")), '[sinks.x]\npath = "x"\n'
    (followed,) = resolve(settings(shop, rest="[tables.orders]"), source)
    assert [c.name for c in followed.columns] == ["id", "updated_at", "v", "V"]
    with pytest.raises(SettingsError, match=r'columns "v" and "V" differ only in case'):
        resolve(settings(shop, rest=f"[tables.orders]\n{sink}"), source)
    sensitive = f'[tables.orders]\n{sink}[spark]\n"spark.sql.caseSensitive" = true'
    assert len(resolve(settings(shop, rest=sensitive), source)) == 1


def test_a_misspelt_cursor_is_refused_before_anything_is_read(shop: SQLiteFile) -> None:
    said = complaint(shop, rest='[tables.pets]\nupdated_at = "updatd_at"')
    assert 'table "pets"' in said
    assert '"updatd_at"; did you mean "updated_at"?' in said


def test_what_is_wrong_with_several_tables_is_said_at_once(shop: SQLiteFile) -> None:
    said = complaint(shop, 'include = ["*"]', '[tables.pets]\nprimary_key = "nme"\n[tables.nowhere]')
    assert 'no column "nme"; did you mean "name"?' in said
    assert '"nowhere"' in said
    assert 'table "audit": there is no column "updated_at"' in said


def test_a_default_that_no_table_has_is_an_error(shop: SQLiteFile) -> None:
    said = complaint(shop, 'include = ["o*"]', '[defaults]\ndeleted_at = "updatedat"')
    assert '[defaults] deleted_at: no table has a column "updatedat"; did you mean "updated_at"?' in said
    some = resolved(shop, 'include = ["o*", "pets"]', '[defaults]\ndeleted_at = "name"')
    assert {t.name: t.deleted_at for t in some} == {"orders": None, "pets": "name"}


def test_each_table_knows_its_sinks(shop: SQLiteFile) -> None:
    sinks = '[sinks.all]\npath = "a"\n[sinks.pets]\npath = "b"\ntables = ["pets"]\n[sinks.asked]\npath = "c"\n'
    found = {t.name: t.sinks for t in resolved(shop, rest=sinks + '[tables.orders]\nsinks = ["asked"]\n[tables.pets]')}
    assert found == {"orders": ("asked",), "pets": ("all", "pets", "asked")}
    sinks += '[defaults]\nsinks = ["all"]\n[tables.orders]\nsinks = ["asked"]\n[tables.pets]'
    assert {t.name: t.sinks for t in resolved(shop, rest=sinks)} == {"orders": ("asked",), "pets": ("all",)}


def test_a_sink_for_a_table_that_is_not_followed_is_an_error(shop: SQLiteFile) -> None:
    said = complaint(shop, rest='[tables.pets]\n[sinks.x]\npath = "x"\ntables = ["pet"]')
    assert '[sinks.x] tables: "pet" is none of the tables followed; did you mean "pets"?' in said


def test_a_source_that_has_one_form_of_each_value_refuses_to_be_asked_for_another(shop: SQLiteFile) -> None:
    assert 'table "pets": arrays: a sqlite source knows no such setting' in complaint(
        shop, rest='[tables.pets]\narrays = "string"'
    )
