"""PostgreSQL passes the contract, read by a role that may only SELECT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg
import pytest
from psycopg import sql

from connectors.postgres import PostgresConnector
from sidecar.clock import instant
from sidecar.connector import Source, SourceConnector
from sidecar.testing.contract import Connect, ConnectorContract, Row, Writer
from tests.servers import Database

TYPES = {
    "integer": "bigint",
    "text": "text",
    "collated": 'text COLLATE "en-x-icu"',
    "bytes": "bytea",
    "uuid": "uuid",
    "stamp": "timestamptz",
}


class PostgresWriter:
    kinds = frozenset(TYPES) - {"collated"}

    def __init__(self, connection: psycopg.Connection, kinds: frozenset[str] | None = None) -> None:
        self._connection = connection
        self.kinds = kinds or self.kinds
        self._names: dict[str, str] = {}
        self._stamps: dict[str, set[str]] = {}

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
        known = table if not set(table) & set('."') else '"' + table.replace('"', '""') + '"'
        self._names[known] = table
        self._stamps[known] = {n for n, kind in columns.items() if kind == "stamp"}
        listed = [sql.SQL("{} {}").format(sql.Identifier(n), sql.SQL(TYPES[kind])) for n, kind in columns.items()]
        keys = sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key)))
        body = sql.SQL(", ").join([*listed, keys])
        self._connection.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(table), body))
        return known

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        for row in rows:
            self._connection.execute(
                sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                    sql.Identifier(self._names[table]),
                    sql.SQL(", ").join(map(sql.Identifier, row)),
                    sql.SQL(", ").join(self._values(table, row)),
                )
            )

    def update(self, table: str, where: Row, values: Row) -> None:
        sets = sql.SQL(", ").join(map(self._equal, values, self._values(table, values)))
        test = sql.SQL(" AND ").join(map(self._equal, where, self._values(table, where)))
        self._connection.execute(
            sql.SQL("UPDATE {} SET {} WHERE {}").format(sql.Identifier(self._names[table]), sets, test)
        )

    def content(self) -> object:
        found = []
        for table in self._names.values():
            query = sql.SQL("SELECT xmin::text, ctid::text, t::text FROM {} t ORDER BY ctid").format(
                sql.Identifier(table)
            )
            found.append(self._connection.execute(query).fetchall())
        objects = self._connection.execute("SELECT count(*) FROM pg_class").fetchall()
        return found, objects

    def _values(self, table: str, row: Row) -> list[sql.Literal]:
        stamps = self._stamps[table]
        # Literals, not parameters: with parameters, psycopg would read the % of a column's name as one.
        return [sql.Literal(instant(v) if n in stamps and isinstance(v, int) else v) for n, v in row.items()]

    @staticmethod
    def _equal(name: str, value: sql.Literal) -> sql.Composed:
        return sql.SQL("{} = {}").format(sql.Identifier(name), value)


class TestPostgres(ConnectorContract):
    @pytest.fixture
    def database(self, pg: Database) -> Database:
        return pg

    @pytest.fixture
    def writer(self, database: Database) -> Iterator[Writer]:
        with database.connect() as connection:
            yield PostgresWriter(connection)

    @pytest.fixture
    def connect(self, database: Database) -> Iterator[Connect]:
        opened: list[SourceConnector] = []

        def connect() -> SourceConnector:
            opened.append(PostgresConnector(Source(database.reader_url)))
            return opened[-1]

        yield connect
        for connector in opened:
            connector.close()


class TestPostgresWithLinguisticCollations(TestPostgres):
    """The same on a server with ICU, whose text keys stand in an order that no program here could guess."""

    @pytest.fixture
    def database(self, pg_icu: Database) -> Database:
        return pg_icu

    @pytest.fixture
    def writer(self, database: Database) -> Iterator[Writer]:
        with database.connect() as connection:
            yield PostgresWriter(connection, frozenset(TYPES))
