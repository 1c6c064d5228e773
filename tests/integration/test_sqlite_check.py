"""What `sidecar check` says of SQLite's tables: what is missing, what is odd, and how to mend it."""

from __future__ import annotations

from connectors.sqlite import SQLiteConnector
from sidecar.testing.contract import tracked
from tests.conftest import SQLiteFile


def test_check_names_what_is_missing_and_how_to_mend_it(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    write = sqlite_db.connection
    write.executescript("""
        CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at TEXT);
        INSERT INTO t VALUES (1, '2024-05-01 10:00:00'), (2, NULL), (3, 'soon'), (4, '9999-12-31 00:00:00');
    """)
    table = tracked(source, "t")
    text = "\n".join(f"{f.message} {f.advice}" for f in source.check(table))
    for words in (
        "no index serves the pass by updated_at",
        'CREATE INDEX "sidecar_t_updated_at" ON "t" ("updated_at", "id");',
        "1 NULL (first key: id=2)",
        "about 1 value is no time (first key: id=3)",
        "1 value lies in the future",
        "carry no zone",
    ):
        assert words in text
    write.execute('CREATE INDEX "sidecar_t_updated_at" ON "t" ("updated_at", "id")')
    write.execute("DELETE FROM t WHERE id > 1")
    write.execute("UPDATE t SET updated_at = '2024-05-01T10:00:00Z'")
    assert [f for f in source.check(table) if f.level == "error" or "index" in f.message] == []


def test_check_guesses_the_unit_of_a_number(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL)")
    sqlite_db.connection.execute("INSERT INTO t VALUES (1, 1714557600123)")
    (found,) = [f for f in source.check(tracked(source, "t")) if "index" not in f.message]
    assert "times in ms (the greatest would be 2024-05-01T10:00:00.123000Z)" in found.message
    assert 'updated_at_unit = "ms"' in found.advice


def test_check_finds_keys_that_do_not_tell_rows_apart(sqlite_db: SQLiteFile, source: SQLiteConnector) -> None:
    sqlite_db.connection.executescript("""
        CREATE TABLE t (code TEXT, updated_at TEXT);
        INSERT INTO t VALUES ('a', '2024-05-01 10:00:00'), ('a', '2024-05-01 10:00:00'), (NULL, '2024-05-01 10:00:00');
        CREATE VIEW v AS SELECT * FROM t;
    """)
    for name in ("t", "v"):
        found = [f.message for f in source.check(tracked(source, name, key=("code",), key_is_unique=False))]
        assert any("no primary key" in m for m in found)
        assert any("1 NULL:" in m for m in found)
        assert any("not unique (first: code='a')" in m for m in found)
