"""A key of somebody's choice that is not unique is named, wherever a page ends: nothing is passed over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from connectors.postgres_query import Statements
from connectors.postgres_read import Reader
from sidecar.errors import SettingsError
from tests.cases.harness import Project, sqlite_file
from tests.servers import Database, make

TWICE = "stands? more than once .*add the columns that make it so to primary_key"


@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("declared", "one", "other"),
    [("int", "1", "1"), ("numeric", "1.0", "1.00"), ("interval", "1 day", "24:00"), ("text", "a", "a")],
)
def test_a_key_that_stands_twice_is_named_though_a_page_ends_between(
    tmp_path: Path, pg: Database, page_size: int, declared: str, one: str, other: str
) -> None:
    s1 = pg.connect()
    make(s1, f"CREATE TABLE raw (k {declared}, updated_at timestamptz NOT NULL)", "CREATE VIEW t AS SELECT * FROM raw")
    make(s1, f"INSERT INTO raw SELECT k::{declared}, '2024-05-01+00' FROM unnest(ARRAY['{one}', '{other}']) AS k")
    tables = {"t": {"primary_key": ["k"], "page_size": page_size}}
    project = Project(tmp_path, pg.reader_url, tables)
    if page_size == 1 or one == other:
        with pytest.raises(SettingsError, match=TWICE):
            project.poll()
    else:
        assert len(project.poll()["t"]) == 2, "two keys, of which none is lost"


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("made", ["VIEW t AS SELECT * FROM raw", "TABLE t AS SELECT * FROM raw"])
def test_two_texts_that_a_collation_takes_for_one_are_named_though_a_page_ends_between(
    tmp_path: Path, pg_icu: Database, made: str, page_size: int
) -> None:
    s1 = pg_icu.connect()
    make(s1, "CREATE COLLATION \"No Case\" (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    make(s1, 'CREATE TABLE raw (n int, k text COLLATE "No Case", updated_at timestamptz NOT NULL)')
    make(s1, "INSERT INTO raw VALUES (1, 'a', '2024-05-01+00'), (1, 'A', '2024-05-01+00')", f"CREATE {made}")
    project = Project(tmp_path, pg_icu.reader_url, {"t": {"primary_key": ["n", "k"], "page_size": page_size}})
    if page_size == 1:
        with pytest.raises(SettingsError, match=TWICE):
            project.poll()
    else:
        assert len(project.poll()["t"]) == 2, "two keys, of which none is lost"


@pytest.mark.parametrize("page_size", [1, 2, 3])
@pytest.mark.parametrize(
    ("declared", "one", "other"),
    [("INT", "1", "1"), ("", "1", "1.0"), ("TEXT COLLATE NOCASE", "'a'", "'A'"), ("BLOB", "x'00'", "x'00'")],
)
def test_a_key_of_sqlite_that_stands_twice_is_named_though_a_page_ends_between(
    tmp_path: Path, page_size: int, declared: str, one: str, other: str
) -> None:
    setup = f"CREATE TABLE t (k {declared}, updated_at TEXT NOT NULL);"
    setup += "".join(f"INSERT INTO t VALUES ({key}, '2024-05-01 10:00:00');" for key in (one, other))
    sqlite_file(tmp_path / "source.db", setup).close()
    tables = {"t": {"primary_key": ["k"], "page_size": page_size}}
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'source.db'}", tables)
    if page_size > 1 and one != other:
        assert len(project.poll()["t"]) == 2, "two keys, of which none is lost"
    else:
        with pytest.raises(SettingsError, match=TWICE):
            project.poll()


def test_texts_that_differ_stay_apart_wherever_a_page_ends(tmp_path: Path) -> None:
    keys = ("A", "AA", "a", "a ", "a  ")
    setup = "CREATE TABLE t (k TEXT, updated_at TEXT NOT NULL);"
    setup += "".join(f"INSERT INTO t VALUES ('{key}', '2024-05-01 10:00:00');" for key in keys)
    sqlite_file(tmp_path / "source.db", setup).close()
    tables = {"t": {"primary_key": ["k"], "page_size": 1}}
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'source.db'}", tables)
    assert sorted(row["k"] for row in project.poll()["t"]) == sorted(keys)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("loaded", [True, False], ids=["loaded by key", "polled by stamp"])
@pytest.mark.parametrize("is_postgres", [True, False], ids=["postgres", "sqlite"])
def test_two_rows_of_one_key_are_named_wherever_a_page_ends(
    tmp_path: Path, request: pytest.FixtureRequest, is_postgres: bool, loaded: bool, size: int
) -> None:
    """The next page begins behind the key at which the last one ended: the second row would lie before it."""
    rows = "('a', 1), ('b', 2), ('b', 3), ('c', 4)"
    made = "CREATE TABLE loose (k text, v int, updated_at timestamptz DEFAULT '2024-05-01T10:00:00Z');"
    sizes = {"page_size": size, "chunk_size": size, "primary_key": ["k"]}
    if is_postgres:
        pg: Database = request.getfixturevalue("pg")
        write, url = pg.connect(), pg.reader_url
        write.execute(made.encode())
    else:
        file = sqlite_file(tmp_path / "s.db", made.replace("timestamptz", "text"))
        url = f"sqlite:///{tmp_path}/s.db"
    project = Project(tmp_path / "p", url, {"loose": sizes | {"auto_backfill": loaded}})
    if not loaded:
        assert project.poll()["loose"] == []
    insert = f"INSERT INTO loose (k, v) VALUES {rows}"
    if is_postgres:
        write.execute(insert.encode())
    else:
        file.executescript(insert)
    with pytest.raises(SettingsError, match=r'table "loose": 1 key stands more than once \(first: k=\'b\'\)'):
        project.poll()


@pytest.mark.parametrize("twice", [False, True])
def test_large_reads_go_on_where_a_page_looks_one_row_further(
    tmp_path: Path, pg: Database, monkeypatch: pytest.MonkeyPatch, twice: bool
) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE raw (k int, updated_at timestamptz NOT NULL)", "CREATE VIEW t AS SELECT * FROM raw")
    make(s1, "INSERT INTO raw SELECT n, '2024-05-01+00' FROM generate_series(1, 40000) AS n")
    read, bulk = list[int](), Reader.bulk

    def counted(reader: Reader, statements: Statements) -> pa.Table | None:
        found = bulk(reader, statements)
        read.append(0 if found is None else len(found))
        return found

    monkeypatch.setattr(Reader, "bulk", counted)
    project = Project(tmp_path, pg.reader_url, {"t": {"primary_key": ["k"], "page_size": 5000}})
    if twice:
        # Pages of 100, 1,600, and then 5,000 rows: the fifth ends here.
        make(s1, "INSERT INTO raw VALUES (16700, '2024-05-01+00')")
        with pytest.raises(SettingsError, match=TWICE):
            project.poll()
    else:
        assert [row["k"] for row in project.poll()["t"]] == list(range(1, 40001))
    assert len(read) < 3, "several pages at once"
    assert sum(read) > 20_000
