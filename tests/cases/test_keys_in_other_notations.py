"""Keys that somebody asks for in another notation than the log's are these keys."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import sidecar
from sidecar.errors import SettingsError
from tests.cases.harness import Project
from tests.servers import Database, make

KEYS = {
    "numeric": ("1.0", "1.00"),
    "numeric(9,2)": ("1.5", "1.500"),
    "char(3)": ("a  ", "a"),
    "bpchar": ("a ", "a"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}"),
    "time": ("10:00", "10:00:00.000"),
    "timetz": ("10:00+00", "10:00:00.0 UTC"),
    "timestamptz": ("2024-05-01 10:00+00", "2024-05-01 12:00+02"),
    "interval": ("1 day 02:00", "P1DT2H"),
    "bytea": ("\\x00ff", "\\x00FF"),
    "inet": ("::1", "0:0:0:0:0:0:0:1"),
    "macaddr": ("08:00:2b:01:02:03", "08002B-010203"),
    "jsonb": ('{"a": "1.0", "b": 1.0}', '{"b":1.00,"a":"1.0"}'),
    "int4range": ("[1,5)", "[1,4]"),
    "int4[]": ("{1,2}", "{ 1, 2 }"),
    "float8": ("-0.0", "0"),
    "xid8": ("10", "0xA"),
    "bool": ("t", "true"),
}


def test_a_key_that_is_asked_for_in_another_notation_is_purged(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    tables = {f"t{number}": declared for number, declared in enumerate(KEYS)}
    for table, declared in tables.items():
        make(
            s1,
            f"CREATE TABLE {table} (n int, g int DEFAULT 1, k {declared}, PRIMARY KEY (g, k),"
            " updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00')",
        )
        s1.execute(f"INSERT INTO {table} (n, k) VALUES (0, %s::text::{declared})".encode(), (KEYS[declared][0],))
    project = Project(tmp_path, pg.reader_url, {table: {} for table in tables})
    assert [len(rows) for rows in project.poll().values()] == [1] * len(tables)
    for change_type in ("insert", "delete"):
        with sidecar.open(project.path) as sc:
            for table, declared in tables.items():
                sc.request_backfill(table, keys=[(1, KEYS[declared][1])], purge=True)
        found = project.poll()
        assert {tables[t]: [r["_change_type"] for r in rows] for t, rows in found.items()} == {
            declared: [change_type] for declared in KEYS
        }
        make(s1, *(f"DELETE FROM {table}" for table in tables))


def test_a_key_that_the_log_has_in_no_such_form_is_counted(
    tmp_path: Path, pg: Database, caplog: pytest.LogCaptureFixture
) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (k interval PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00')")
    make(s1, "INSERT INTO t VALUES ('1 day'), ('2 days')")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    project.poll()
    make(s1, "DELETE FROM t")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", keys=["24:00:00", "2 days"], purge=True)
    with caplog.at_level(logging.WARNING):
        assert [row["k"] for row in project.poll()["t"]] == ["2 days"]
    assert "1 of 2 keys have never been in the log in that form" in caplog.text


def test_a_key_that_the_server_cannot_read_is_refused(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (k uuid PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00')")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    with sidecar.open(project.path) as sc, pytest.raises(SettingsError, match=r'"t": invalid input syntax .*"x"'):
        sc.request_backfill("t", keys=["x"])


LOOSE = {
    "numeric": ("1.0", "1.00"),
    "bpchar": ("a", "a "),
    "jsonb": ("1.0", "1.00"),
    "numeric[]": ("{1.0}", "{1.00}"),
    "numrange": ("[1.0,2)", "[1.00,2)"),
    "interval": ("1 day", "24:00:00"),
    "citext": ("a", "A"),
    "text COLLATE loose": ("a", "A"),
}


def test_equal_keys_of_two_texts_are_told_of_and_none_is_lost(tmp_path: Path, pg_icu: Database) -> None:
    s1 = pg_icu.connect()
    loose = "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    make(s1, "CREATE EXTENSION citext", f"CREATE COLLATION loose {loose}")
    tables = {f"t{number}": declared for number, declared in enumerate(LOOSE)}
    for table, declared in tables.items():
        stamp = "updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00'"
        make(s1, f"CREATE TABLE {table} (n int, k {declared} PRIMARY KEY, {stamp})")
        make(s1, f"INSERT INTO {table} (n, k) VALUES (0, '{LOOSE[declared][0]}')")
    project = Project(tmp_path, pg_icu.reader_url, {table: {"page_size": 1} for table in tables})
    project.poll()
    said = " ".join(project.cli("check").text.split())
    for table, declared in tables.items():
        assert f"note: k: key column ({declared.partition(' ')[0]}) that takes" in said
        make(s1, f"UPDATE {table} SET k = '{LOOSE[declared][1]}', updated_at = now()")
    assert {tables[t]: [row["n"] for row in rows] for t, rows in project.poll().items()} == {d: [0] for d in LOOSE}
    with sidecar.open(project.path) as sc:
        for table in tables:
            sc.request_backfill(table, purge=True)
    project.poll()
    for table, declared in tables.items():
        assert list(project.merged(table, "k")) == [LOOSE[declared][1]]
    assert said.count("that takes") == len(LOOSE)
