"""Keys of every kind, and values that look like SQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from tests.cases.harness import Project, fold, kinds
from tests.cases.tables import BINS, SNOWFLAKES, TAGS
from tests.conftest import SQLiteFile
from tests.servers import Database

CLIENTS = r"""
CREATE TABLE clients (code TEXT PRIMARY KEY, v TEXT, created_at TEXT NOT NULL, updated_at TEXT NOT NULL);
INSERT INTO clients VALUES ('O''Brien','a','2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('x''); DROP TABLE clients; --','b','2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('y\','c','2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('z'' OR ''1''=''1','d','2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('{0} %s $1 ? :p','e','2024-05-01 10:00:00','2024-05-01 10:00:00'),
 ('nul' || char(10) || 'line','f','2024-05-01 10:00:00','2024-05-01 10:00:00');
"""

ODD = ["", "\x01", "a", "A", "\x00a", "a\x00", "a\x00b", "é", "e\u0301", "\ufeff", "\U0001f600", "\uffff", "ß", "NULL"]


def test_keys_whose_parts_hold_separators_stay_apart(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-27"""
    s1 = sqlite_db.connection
    s1.executescript(BINS)
    project = Project(tmp_path, sqlite_db.url, {"bins": {"page_size": 2}})
    assert len(project.poll()["bins"]) == 10
    merged = project.merged("bins", "site", "bin")
    assert (len(merged), sum(r["qty"] for r in merged.values())) == (10, 55)
    assert project.poll()["bins"] == []
    s1.execute("UPDATE bins SET qty = -2 WHERE site = 'A' AND bin = 'B|C'")
    s1.execute("UPDATE bins SET qty = -4 WHERE site = '12' AND bin = '3'")
    assert {(r["site"], r["bin"], r["qty"]) for r in project.poll()["bins"]} == {("A", "B|C", -2), ("12", "3", -4)}


@pytest.mark.parametrize("page_size", [11, 100])
def test_keys_of_empty_and_odd_texts_stay_apart_in_sqlite(
    tmp_path: Path, sqlite_db: SQLiteFile, page_size: int
) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE k (a TEXT NOT NULL, b TEXT NOT NULL, n INT, updated_at TEXT NOT NULL, PRIMARY KEY (a, b))")
    pairs = [(a, b) for a in ODD for b in ODD]
    s1.executemany("INSERT INTO k VALUES (?, ?, 0, '2024-05-01 10:00:00')", pairs)
    project = Project(tmp_path, sqlite_db.url, {"k": {"page_size": page_size}})
    found = project.poll()["k"]
    assert sorted((r["a"], r["b"]) for r in found) == sorted(pairs)
    s1.execute("UPDATE k SET n = 1 WHERE a = '' AND b = ''")
    s1.execute("UPDATE k SET n = 1 WHERE a = ? AND b = ?", ("a\x00b", "a\x00"))
    assert [(r["a"], r["b"]) for r in project.poll()["k"]] == [("", ""), ("a\x00b", "a\x00")]
    assert project.poll()["k"] == []


@pytest.mark.parametrize("page_size", [1, 50])
def test_keys_of_empty_and_odd_texts_stay_apart_in_postgres(tmp_path: Path, pg: Database, page_size: int) -> None:
    s1 = pg.connect()
    s1.execute("CREATE TABLE k (a text, b varchar(20), n int, updated_at timestamptz NOT NULL, PRIMARY KEY (a, b))")
    texts = [t for t in ODD if "\x00" not in t] + ["\\", "\\x41", "'", "t", " ", "a ", "\n", "\r\n", ",", '"', "\\."]
    pairs = [(a, b) for a in texts for b in texts]
    with s1.cursor() as cursor:
        cursor.executemany("INSERT INTO k VALUES (%s, %s, 0, '2024-05-01 10:00+00')", pairs)
    project = Project(tmp_path, pg.reader_url, {"k": {"page_size": page_size}})
    assert sorted((r["a"], r["b"]) for r in project.poll()["k"]) == sorted(pairs)
    s1.execute("UPDATE k SET n = 1 WHERE a = b")
    assert sorted(r["a"] for r in project.poll()["k"]) == sorted(texts)
    assert project.poll()["k"] == []


def test_a_key_that_sqlite_folds_by_its_collation_is_walked_in_that_order(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE k (slug TEXT COLLATE NOCASE PRIMARY KEY, n INT, updated_at TEXT NOT NULL)")
    slugs = ["b", "A", "c", "D", "_x", "Zeta", "é", "É", "ab", "AC"]
    s1.executemany("INSERT INTO k VALUES (?, 0, '2024-05-01 10:00:00')", [(s,) for s in slugs])
    project = Project(tmp_path, sqlite_db.url, {"k": {"page_size": 1}})
    assert sorted(r["slug"] for r in project.poll()["k"]) == sorted(slugs)
    assert project.poll()["k"] == []


def test_a_first_load_by_a_linguistic_collation_killed_in_between_skips_nothing(
    tmp_path: Path, pg_icu: Database
) -> None:
    """RC-29"""
    s1 = pg_icu.connect()
    s1.execute(TAGS)
    project = Project(tmp_path, pg_icu.reader_url, {"tags": {"page_size": 2}})
    assert project.cli("run", "--once", env={"SIDECAR_CRASH_AT": "chunk-saved:2"}).code == -9
    assert 0 < len(project.rows("tags")) < 9
    s1.execute("UPDATE tags SET n = n + 100, updated_at = '2024-05-01 11:00+00' WHERE slug IN ('B', 'élan')")
    project.poll()
    project.poll()
    assert {slug: r["n"] for slug, r in project.merged("tags", "slug").items()} == {
        "a": 1, "B": 102, "c": 3, "D": 4, "_x": 5, "ab": 6, "a_z": 7, "Zeta": 8, "élan": 109
    }  # fmt: skip
    assert len(project.rows("tags")) == 9
    assert project.poll()["tags"] == []


@pytest.mark.parametrize("page_size", [1, 2, 5000])
def test_a_database_that_sorts_by_language_is_walked_in_its_order(
    tmp_path: Path, pg_icu: Database, page_size: int
) -> None:
    s1 = pg_icu.connect()
    s1.execute('CREATE TABLE tags (a text, b text COLLATE "C", updated_at timestamptz, PRIMARY KEY (a, b))')
    texts = ["a", "B", "_x", "ab", "a_z", "a-z", "élan", "Elan", "elan", "", "co-op", "coop", "ä", "z", "Ö"]
    with s1.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO tags VALUES (%s, %s, '2024-05-01+00')", [(a, b) for a in texts for b in ("b", "A", "")]
        )
    project = Project(tmp_path, pg_icu.reader_url, {"tags": {"page_size": page_size}})
    assert len(project.poll()["tags"]) == len(project.merged("tags", "a", "b")) == 45
    assert project.poll()["tags"] == []


def test_a_collation_that_takes_two_texts_for_one_loses_neither(tmp_path: Path, pg_icu: Database) -> None:
    s1 = pg_icu.connect()
    s1.execute(
        "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE tags (slug text COLLATE ci PRIMARY KEY, n int, updated_at timestamptz NOT NULL);"
        "INSERT INTO tags SELECT s, 0, '2024-05-01+00' FROM unnest(ARRAY['b', 'A', 'c', 'É', 'e', 'Z']) s"
    )
    project = Project(tmp_path, pg_icu.reader_url, {"tags": {"page_size": 1}})
    assert len(project.poll()["tags"]) == 6
    s1.execute("UPDATE tags SET n = 1 WHERE slug = 'a'")
    assert [r["slug"] for r in project.poll()["tags"]] == ["A"]


@pytest.mark.parametrize("page_size", [1, 2])
def test_big_integers_are_exact_keys(tmp_path: Path, pg: Database, page_size: int) -> None:
    """RC-31"""
    s1 = pg.connect()
    s1.execute(SNOWFLAKES)
    project = Project(tmp_path, pg.reader_url, {"snowflakes": {"page_size": page_size}})
    found = project.poll()["snowflakes"]
    assert len(found) == 8
    assert all(r["v"] == f"v{r['id']}" for r in project.merged("snowflakes", "id").values())
    assert project.poll()["snowflakes"] == []
    s1.execute("UPDATE snowflakes SET updated_at = '2024-05-01 10:00:01+00' WHERE id = 9007199254740993")
    assert kinds(project.poll()["snowflakes"], "id") == [("update_postimage", 9007199254740993)]


def test_big_integers_and_doubles_are_exact_keys_in_sqlite(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.execute("CREATE TABLE s (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    s1.execute("CREATE TABLE r (id REAL PRIMARY KEY, updated_at TEXT NOT NULL)")
    big = [-(2**63), -5, 0, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1]
    reals = [-1e300, -0.1, 0.0, 5e-324, 0.1, 0.30000000000000004, 0.3, float("inf")]
    s1.executemany("INSERT INTO s VALUES (?, '2024-05-01 10:00:00')", [(n,) for n in big])
    s1.executemany("INSERT INTO r VALUES (?, '2024-05-01 10:00:00')", [(n,) for n in reals])
    project = Project(tmp_path, sqlite_db.url, {"s": {"page_size": 1}, "r": {"page_size": 1}})
    found = project.poll()
    assert [r["id"] for r in found["s"]] == big
    assert sorted(r["id"] for r in found["r"]) == sorted(reals)
    assert project.poll() == {"s": [], "r": []}


def test_keys_and_stamps_that_look_like_sql_are_values(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    """RC-67"""
    s1 = sqlite_db.connection
    s1.executescript(CLIENTS)
    project = Project(tmp_path, sqlite_db.url, {"clients": {"page_size": 1}})
    first = project.poll()["clients"]
    assert sorted(r["v"] for r in first) == list("abcdef")
    assert {r["code"] for r in first} == {code for (code,) in s1.execute("SELECT code FROM clients")}
    assert project.poll()["clients"] == []
    s1.execute("INSERT INTO clients VALUES ('zz''z','g','2024-05-01 10:00:01','2024-05-01 10:00:01')")
    s1.execute(
        "INSERT INTO clients VALUES ('later','h','2024-05-01 10:00:09'' OR 1=1 --','2024-05-01 10:00:09'' OR 1=1 --')"
    )
    assert [r["v"] for r in project.poll()["clients"]] == ["g", "h"]
    assert project.poll()["clients"] == []
    assert s1.execute("SELECT count(*) FROM clients").fetchone() == (8,)


@pytest.mark.parametrize("conforming", ["on", "off"])
def test_keys_that_look_like_sql_are_values_in_postgres(tmp_path: Path, pg: Database, conforming: str) -> None:
    s1 = pg.connect()
    s1.execute(f"ALTER ROLE {pg.reader} SET standard_conforming_strings = {conforming}")
    s1.execute("CREATE TABLE clients (code text PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
    codes = ["O'Brien", "x'); DROP TABLE clients; --", "y\\", "\\' OR 1=1 --", "z' OR '1'='1", "{0} %s $1 ? :p",
             "a\nb", "$$", "$1", "/*", "%(x)s", "\\'", "E'\\x41'", ";", "U&'\\0041'"]  # fmt: skip
    for code in codes:
        s1.execute("INSERT INTO clients VALUES (%s, 'v', '2024-05-01+00')", (code,))
    project = Project(tmp_path, pg.reader_url, {"clients": {"page_size": 1}})
    assert {r["code"] for r in project.poll()["clients"]} == set(codes)
    assert project.poll()["clients"] == []
    assert len(fold(project.rows("clients"), "code")) == len(codes)


def test_a_key_that_is_not_unique_or_null_is_named(tmp_path: Path, sqlite_db: SQLiteFile) -> None:
    s1 = sqlite_db.connection
    s1.executescript("CREATE TABLE k (a TEXT, b INT, updated_at TEXT); INSERT INTO k VALUES ('x', 1, '2024-05-01');")
    s1.execute("INSERT INTO k VALUES ('x', 2, '2024-05-01')")
    project = Project(tmp_path, sqlite_db.url, {"k": {"primary_key": ["a"]}})
    with pytest.raises(SettingsError, match="x"):
        project.poll()
    project.tables = {"k": {"primary_key": ["a", "b"]}}
    project.write()
    assert len(project.poll()["k"]) == 2
    s1.execute("INSERT INTO k VALUES (NULL, 3, '2024-05-02')")
    with pytest.raises(SettingsError, match='"a" holds a NULL'):
        project.poll()


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_a_number_and_its_text_are_never_taken_for_one_key(
    tmp_path: Path, sqlite_db: SQLiteFile, page_size: int
) -> None:
    s1 = sqlite_db.connection
    s1.executescript(
        "CREATE TABLE mixed (id PRIMARY KEY NOT NULL, n INTEGER, updated_at TEXT DEFAULT '2024-05-01 10:00:00');"
        "INSERT INTO mixed (id, n) VALUES (1, 0), (2, 1), ('01', 2), ('1', 3), (1.5, 4), ('a', 5)"
    )
    project = Project(tmp_path, sqlite_db.url, {"mixed": {"page_size": page_size, "chunk_size": page_size}})
    with pytest.raises(SettingsError, match="\"id\" holds both the number 1 and the text '1'"):
        project.poll()
    s1.execute("UPDATE mixed SET id = 'one' WHERE id = '1'")
    project.poll()
    assert sorted(row["n"] for row in project.merged("mixed", "id").values()) == [0, 1, 2, 3, 4, 5]
    assert project.poll()["mixed"] == []


def test_a_collation_that_only_the_application_has_is_named_where_rows_are_ordered_by_it(
    tmp_path: Path, sqlite_db: SQLiteFile
) -> None:
    s1 = sqlite_db.connection
    s1.create_collation("LOCALIZED", lambda a, b: (a.lower() > b.lower()) - (a.lower() < b.lower()))
    s1.executescript(
        "CREATE TABLE names (id TEXT COLLATE LOCALIZED PRIMARY KEY NOT NULL, updated_at TEXT NOT NULL);"
        "CREATE TABLE songs (id INTEGER PRIMARY KEY, title TEXT COLLATE LOCALIZED, updated_at TEXT NOT NULL);"
        "CREATE INDEX titles ON songs (title); INSERT INTO songs VALUES (1, 'b', '2024-05-01 10:00:00');"
        "INSERT INTO names VALUES ('a', '2024-05-01 10:00:00')"
    )
    project = Project(tmp_path, sqlite_db.url, {"names": {}, "songs": {}})
    with pytest.raises(SettingsError, match=r'table "names": no such collation sequence: LOCALIZED.*primary_key'):
        project.poll()
    assert [row["title"] for row in project.rows("songs")] == ["b"]
