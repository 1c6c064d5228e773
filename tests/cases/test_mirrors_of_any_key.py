"""Mirrors, histories and the view follow keys of any type: what is changed or deleted is found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import sidecar
from tests.cases.harness import Project, sqlite_file
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# By type, a value in each of three rows. All are parts of one key: a part that is not found again is a row that is not.
POSTGRES = {
    "char(3)": ("'a'", "''", "'ab'"),
    "text": ("E'a\\\\b'", "' a '", "'é'"),
    "numeric": ("1.00", "'NaN'", "1e20"),
    "numeric(38,10)": ("1.5", "-0.1", "1e27"),
    "float8": ("'-0.0'", "'NaN'", "'Infinity'"),
    "float4": ("0.1", "'-Infinity'", "1e-40"),
    "uuid": ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"),
    "bytea": ("'\\x'", "'\\x00'", "'\\xff00'"),
    "bool": ("true", "false", "true"),
    "date": ("'0001-01-01'", "'9999-12-31'", "'1969-12-31'"),
    "timestamptz": ("'0001-01-01 00:00:00.000001+00'", "'9999-12-31 23:59:59.999999+00'", "'1582-10-10 00:00+00'"),
    "timestamp": ("'0001-01-01'", "'9999-12-31 23:59:59.999999'", "'2024-03-31 02:30'"),
    "interval": ("'1 day'", "'1 mon'", "'-1 s'"),
    "int[]": ("'{1}'", "'{}'", "'{NULL}'"),
    "bigint": ("-9223372036854775808", "9223372036854775807", "0"),
    "jsonb": ("'1.0'", "'\"\"'", "'null'"),
}
SQLITE = {
    "BLOB": ("x''", "x'00'", "x'ff00'"),
    "TEXT": ("'a' || char(0)", "'a'", "'a' || char(0) || 'b'"),
    "TEXT COLLATE NOCASE": ("'a'", "'É'", "'é'"),
    "REAL": ("-0.0", "9e999", "5e-324"),
    "": ("1", "'a'", "2.5"),
    "ANY": ("1", "1.5", "2.0"),
    "BOOLEAN": ("0", "1", "1"),
    "INT": ("-9223372036854775808", "9007199254740993", "9007199254740992"),
    "DATETIME": ("'2024-05-01'", "1714557600", "''"),
    "UNIQUEIDENTIFIER": ("x'61'", "x'ff'", "x'00'"),
}
SINKS = {
    "lake": {"format": "delta", "mode": "mirror", "path": "lake"},
    "past": {"format": "delta", "mode": "mirror", "path": "past", "history": True},
}


def _setup(types: dict[str, tuple[str, str, str]], stamp: str) -> list[str]:
    """Return what makes the table `t`, with its three rows, the key's columns called k0, k1, …"""
    names = ", ".join(f"k{at}" for at in range(len(types)))
    columns = ", ".join(f"k{at} {declared} NOT NULL" for at, declared in enumerate(types))
    rows = (", ".join(values[n] for values in types.values()) for n in range(3))
    return [
        f"CREATE TABLE t ({columns}, n INT, v INT DEFAULT 0, updated_at {stamp}, PRIMARY KEY ({names}))",
        *(f"INSERT INTO t ({names}, n) VALUES ({row}, {n})" for n, row in enumerate(rows)),
    ]


def _follow(tmp_path: Path, url: str, spark: SparkSession, rows: str, write: Callable[[str], object], now: str) -> None:
    """Change the rows, then delete one; assert that each copy, one of them in the schema *rows*, is as the source."""
    sinks = {**SINKS, "rows": {"mode": "mirror", "table": f"rows.{rows}.{{table}}"}}
    project = Project(tmp_path, url, {"t": {"page_size": 1, "chunk_size": 1}}, sinks=sinks)

    def run(*wanted: tuple[int, int]) -> None:
        with sidecar.open(project.path) as sc:
            assert sc.run(spark, once=True) == 0
            copies = {name: sc.mirror(spark, "t", name) for name in sinks} | {"current": sc.current(spark, "t")}
            copies["past"] = copies["past"].where("_is_current")
            found = {
                name: sorted((row["n"], row["v"]) for row in copy.select("n", "v").collect())
                for name, copy in copies.items()
            }
        assert found == {name: [*wanted] for name in copies}

    run((0, 0), (1, 0), (2, 0))
    write(f"UPDATE t SET v = 1, updated_at = {now} WHERE n < 2")
    run((0, 1), (1, 1), (2, 0))
    write("DELETE FROM t WHERE n = 0")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", purge=True)
    run((1, 1), (2, 0))


def test_copies_follow_keys_of_any_type(tmp_path: Path, pg: Database, catalogs: SparkSession) -> None:
    s1 = pg.connect()
    make(s1, *_setup(POSTGRES, "timestamptz NOT NULL DEFAULT '2024-05-01+00'"))
    # Of the same key, the other zero.
    zero = "UPDATE t SET k4 = 0.0 WHERE n = 0"
    _follow(tmp_path, pg.reader_url, catalogs, "anytype", lambda sql: make(s1, zero, sql), "now()")


def test_copies_follow_keys_of_any_kind_of_sqlite(tmp_path: Path, catalogs: SparkSession) -> None:
    script = "; ".join(_setup(SQLITE, "TEXT NOT NULL DEFAULT '2024-05-01 10:00:00'"))
    s1 = sqlite_file(tmp_path / "source.db", script)
    url = f"sqlite:///{tmp_path / 'source.db'}"
    _follow(tmp_path, url, catalogs, "anykind", s1.execute, "'2024-05-02 10:00:00'")
    s1.close()
