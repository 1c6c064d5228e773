"""SQLite passes the contract."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from connectors.sqlite import SQLiteConnector
from sidecar.clock import instant
from sidecar.connector import Source, SourceConnector
from sidecar.sql import quoted
from sidecar.testing.chunks import ChunksContract
from sidecar.testing.contract import Connect, ConnectorContract, Row, Writer
from tests.conftest import SQLiteFile

TYPES = {"integer": "INTEGER", "text": "TEXT", "bytes": "BLOB", "stamp": "TEXT"}


class SQLiteWriter:
    kinds = frozenset({"integer", "text", "bytes", "stamp"})

    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._stamps: dict[str, set[str]] = {}

    def create(self, table: str, columns: Mapping[str, str], key: Sequence[str]) -> str:
        self._stamps[table] = {n for n, kind in columns.items() if kind == "stamp"}
        listed = ", ".join(f"{quoted(n)} {TYPES[kind]}{' NOT NULL' if n in key else ''}" for n, kind in columns.items())
        self._run(f"CREATE TABLE {quoted(table)} ({listed}, PRIMARY KEY ({', '.join(map(quoted, key))}))", [])
        return table

    def insert(self, table: str, rows: Sequence[Row]) -> None:
        for row in rows:
            names, marks = ", ".join(map(quoted, row)), ", ".join("?" * len(row))
            self._run(f"INSERT INTO {quoted(table)} ({names}) VALUES ({marks})", self._values(table, row))

    def update(self, table: str, where: Row, values: Row) -> None:
        sets = ", ".join(f"{quoted(n)} = ?" for n in values)
        test = " AND ".join(f"{quoted(n)} = ?" for n in where)
        parameters = [*self._values(table, values), *self._values(table, where)]
        self._run(f"UPDATE {quoted(table)} SET {sets} WHERE {test}", parameters)

    def content(self) -> object:
        return hashlib.sha256(self._file.path.read_bytes()).hexdigest()

    def _values(self, table: str, row: Row) -> list[object]:
        return [
            instant(v).strftime("%Y-%m-%d %H:%M:%S.%f") if n in self._stamps[table] and isinstance(v, int) else v
            for n, v in row.items()
        ]

    def _run(self, sql: str, parameters: Sequence[object]) -> None:
        self._file.connection.execute(sql, parameters)


class TestSQLite(ConnectorContract):
    @pytest.fixture
    def writer(self, sqlite_db: SQLiteFile) -> Writer:
        return SQLiteWriter(sqlite_db)

    @pytest.fixture
    def connect(self, sqlite_db: SQLiteFile) -> Iterator[Connect]:
        opened: list[SourceConnector] = []

        def connect() -> SourceConnector:
            opened.append(SQLiteConnector(Source(sqlite_db.url)))
            return opened[-1]

        yield connect
        for connector in opened:
            connector.close()


class TestSQLiteInWAL(ChunksContract):
    """What a copy is asked for, where a writer goes on meanwhile."""

    @pytest.fixture
    def writer(self, sqlite_db: SQLiteFile) -> Writer:
        sqlite_db.connection.execute("PRAGMA journal_mode = WAL")
        return SQLiteWriter(sqlite_db)

    connect = TestSQLite.connect
