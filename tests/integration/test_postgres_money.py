"""Columns of type money: the number of decimals is the locale's, and stands nowhere else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence

import pytest

from connectors.postgres import PostgresConnector
from connectors.postgres_query import Statements
from sidecar.connector import Source
from sidecar.model import Page
from sidecar.testing.contract import scan, tracked, values
from tests.servers import Database, NoServer, Server, any_server, fresh_database, make

pytestmark = pytest.mark.postgres

LOCALES = ("ja_JP.UTF-8", "ar_KW.UTF-8", "de_DE.UTF-8")
"""No decimals, three, and two written in another way."""
DOLLARS: list[tuple[object, ...]] = [(text, [text]) for text in ("-$1,234.00", "$0.50", "$98,765.00")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that knows these locales."""
    folder = tmp_path_factory.mktemp("locales")
    for parent in folder.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(0o755)  # the server may run as another user
    folder.chmod(0o755)
    for name in LOCALES:
        source, encoding = name.split(".")
        try:
            subprocess.run(["localedef", "-i", source, "-f", encoding, folder / name], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"cannot make the locale {name}: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCPATH", str(folder))
        patch.delenv("SIDECAR_TEST_PG", raising=False)
        try:
            manager = any_server()
            found = manager.__enter__()
        except NoServer as error:
            pytest.skip(str(error))
    try:
        yield found
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    with fresh_database(server) as found:
        yield found


def amounts(database: Database) -> Sequence[tuple[object, ...]]:
    """Return what both readers make of the table `prices`, by pages of one row, so that its keys are written back."""
    connector = PostgresConnector(Source(database.reader_url))
    try:
        followed = tracked(connector, "prices", page_size=1)
        with connector._session.snapshot() as view:
            statements = Statements(Page(followed, followed.passes[0], {}, None, 9), view.xmax)
            bulk = connector._reader.bulk(statements)
        found = values(scan(connector, followed), "amount", "list")
    finally:
        connector.close()
    assert bulk is not None, "connectorx gave up"
    assert list(zip(bulk["amount"].to_pylist(), bulk["list"].to_pylist(), strict=True)) == found
    return found


def prices(database: Database, locale: str) -> None:
    admin = database.connect()
    admin.execute(f"ALTER DATABASE {database.dbname} SET lc_monetary = '{locale}'".encode())
    make(
        database.connect(),
        "CREATE TABLE prices (amount money PRIMARY KEY, list money[], updated_at timestamptz DEFAULT now())",
        "INSERT INTO prices SELECT a::money, ARRAY[a::money] FROM unnest('{-1234,0.5,98765}'::numeric[]) a",
    )


@pytest.mark.parametrize(("locale", "digits"), [("ja_JP.UTF-8", "98765"), ("ar_KW.UTF-8", "98765000")])
def test_money_of_other_than_two_decimals_is_as_its_own_locale_prints_it(
    database: Database, locale: str, digits: str
) -> None:
    prices(database, locale)
    printed = database.connect().execute("SELECT amount::text, ARRAY[amount::text] FROM prices ORDER BY 1").fetchall()
    found = amounts(database)
    assert sorted(found, key=str) == sorted(printed, key=str)
    assert "".join(c for c in str(found[-1][0]) if c.isdigit()) == digits


@pytest.mark.parametrize("locale", ["de_DE.UTF-8", "C"])
def test_money_of_two_decimals_is_dollars_in_any_locale(database: Database, locale: str) -> None:
    prices(database, locale)
    assert amounts(database) == DOLLARS


def test_a_locale_that_is_set_for_the_reader_alone_moves_no_decimals(database: Database) -> None:
    prices(database, "de_DE.UTF-8")
    database.connect().execute(f"ALTER ROLE {database.reader} SET lc_monetary = 'ja_JP.UTF-8'".encode())
    assert amounts(database) == DOLLARS
    connector = PostgresConnector(Source(database.reader_url))
    said = [str(finding) for finding in connector.check(tracked(connector, "prices"))]
    connector.close()
    assert any("lc_monetary" in text for text in said), said
