"""Each kind of key that SQLite can have: read in parts, changed, asked for and purged."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sidecar
from sidecar.errors import SettingsError
from tests.cases.harness import Project, Row, fold, sqlite_file

OLD, NEW = "2024-05-01T10:00:00Z", "2024-05-01T11:00:00Z"


@dataclass(frozen=True)
class Keys:
    """How a table's key is declared, and four keys, each an SQL list. `n` tells the rows."""

    columns: str
    values: Sequence[str]
    end: str = ")"
    key: str = "k"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.split()[0] for part in self.key.split(","))

    def create(self, table: str) -> str:
        stamp = "updated_at TEXT NOT NULL"
        return f'CREATE TABLE "{table}" ({self.columns}, n INT, {stamp}, PRIMARY KEY ({self.key}){self.end};'

    def insert(self, table: str, n: int) -> str:
        names = ", ".join(self.names)
        return f"INSERT INTO \"{table}\" ({names}, n, updated_at) VALUES ({self.values[n]}, {n}, '{OLD}');"


APART = ") WITHOUT ROWID"
NUL = ("'a'", "'a' || char(0)", "'a' || char(0) || 'b'", "'b'")
HUGE = ("-9223372036854775808", "9007199254740993", "9007199254740992", "9223372036854775807")
CASES = {
    "rowid": Keys("k INTEGER", ("-1", "0", "2", "1")),
    "rowid, huge": Keys("k INTEGER", HUGE),
    "int": Keys("k INT NOT NULL", HUGE),
    "int, without rowid": Keys("k INTEGER", HUGE, APART),
    "text, without rowid": Keys("k TEXT", ("'b'", "''", "'B'", "'é'"), APART),
    "strict": Keys("k ANY", ("1", "'1x'", "2.5", "'a'"), ") STRICT, WITHOUT ROWID"),
    "blob": Keys("k BLOB NOT NULL", ("x''", "x'00ff'", "x'00'", "x'61'")),
    "blob, without rowid": Keys("k BLOB", ("x''", "x'00ff'", "x'00'", "x'61'"), APART),
    "blob, undeclared": Keys("k NOT NULL", ("x''", "x'00ff'", "x'00'", "x'61'")),
    "blob, uniqueidentifier": Keys(
        "k UNIQUEIDENTIFIER, b", ("x'00', x'ff'", "x'00', x'01'", "x'', x''", "x'61', x''"), APART, "b, k"
    ),
    "classes mixed": Keys("k NOT NULL", ("1", "'a'", "2.5", "'10'")),
    "undeclared integers": Keys("k NOT NULL", HUGE),
    "undeclared numbers": Keys("k NOT NULL", ("1", "1.5", "2.0", "-3")),
    "undeclared, inexact": Keys("k NOT NULL", ("9007199254740993", "9007199254740992.0", "2.0", "3")),
    "real": Keys("k REAL NOT NULL", ("1", "1.5", "-0.0", "1e300")),
    "numeric": Keys("k NUMERIC NOT NULL", ("1.0", "'1.50'", "2", "-3")),
    "nul": Keys("k TEXT NOT NULL", NUL),
    "nul, without rowid": Keys("k TEXT", NUL, APART),
    "nocase": Keys("k TEXT COLLATE NOCASE NOT NULL", ("'b'", "'A'", "'É'", "'é'")),
    "nocase, without rowid": Keys("k TEXT COLLATE NOCASE", ("'b'", "'A'", "'É'", "'é'"), APART),
    "rtrim": Keys("k TEXT COLLATE RTRIM NOT NULL", ("'b '", "'a'", "'a b  '", "''")),
    "nocase, undeclared": Keys("k COLLATE NOCASE NOT NULL", ("'b'", "1", "'A'", "2.5")),
    "uuid": Keys("k UUID NOT NULL", ("'a0-1'", "'A0-1'", "7", "'b'")),
    "boolean": Keys("k BOOLEAN NOT NULL, m INT", ("1, 1", "0, 1", "1, 2", "0, 2"), key="k, m"),
    "date": Keys("k DATE NOT NULL", ("'2024-05-01'", "'2024-05-02'", "'1969-12-31'", "'0001-01-01'")),
    "datetime": Keys("k DATETIME NOT NULL", ("'2024-05-01'", "'2024-05-01 10:00'", "1714557600", "'x'")),
    "timestamp": Keys("k TIMESTAMP NOT NULL", ("1714557600", "1714557601", "1714557600.5", "1714557599")),
    "descending": Keys("k INTEGER NOT NULL, m TEXT", ("1, 'a'", "1, 'b'", "2, ''", "0, 'c'"), key="k DESC, m"),
    "composite": Keys(
        "a TEXT COLLATE NOCASE NOT NULL, b TEXT COLLATE RTRIM NOT NULL, c TEXT NOT NULL",
        ("'A', 'x ', 'c'", "'a', 'x', 'C'", "'b', ' x', ''", "'B', 'X', 'c'"),
        key="a, b, c",
    ),
    "composite, without rowid": Keys(
        "a COLLATE NOCASE, b BLOB, c REAL",
        ("'A', x'00', 1", "'a', x'00', 1.5", "1, x'', 2", "'B', x'01', -1"),
        APART,
        "a, b, c",
    ),
    "composite, by other order": Keys(
        "a TEXT NOT NULL, b INT NOT NULL", ("2, 'a'", "1, 'a'", "2, 'B'", "0, 'b'"), key="b, a"
    ),
    "collated in the key alone": Keys("k TEXT NOT NULL", ("'b'", "'A'", "'É'", "'é'"), key="k COLLATE NOCASE"),
}


def _written(value: Any) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)


def _polled(project: Project) -> dict[str, list[tuple[int, str]]]:
    found = project.poll()
    return {table: sorted((row["n"], row["_change_type"]) for row in rows) for table, rows in found.items()}


def _held(project: Project, source: sqlite3.Connection) -> dict[str, dict[int, Row]]:
    """Return the logs folded, by table and n; they are what the source has."""
    found = {}
    for table, keys in CASES.items():
        rows = fold(project.rows(table), *keys.names)
        found[table] = {row["n"]: row for row in rows.values()}
        assert len(found[table]) == len(rows)
        assert sorted(found[table]) == [n for (n,) in source.execute(f'SELECT n FROM "{table}" ORDER BY n')]
    return found


def test_a_key_of_any_kind_is_read_in_parts_changed_and_purged(tmp_path: Path) -> None:
    source = sqlite_file(tmp_path / "source.db", "".join(keys.create(table) for table, keys in CASES.items()))
    tables = {table: {"page_size": 1, "chunk_size": 1} for table in CASES}
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'source.db'}", tables)

    def made(scripts: Iterable[str]) -> None:
        source.executescript(f"BEGIN; {' '.join(scripts)} COMMIT;")

    def in_all(script: str) -> None:
        made(script.replace("{t}", f'"{table}"') for table in CASES)

    def asked(keys: Mapping[str, Sequence[Any]] | None = None, *, purge: bool = False) -> None:
        with sidecar.open(project.path) as sc:
            for table in CASES:
                sc.request_backfill(table, keys=None if keys is None else keys[table], purge=purge)

    def each(*changes: tuple[int, str]) -> dict[str, list[tuple[int, str]]]:
        return {table: list(changes) for table in CASES}

    made(keys.insert(table, n) for table, keys in CASES.items() for n in range(3))
    assert _polled(project) == each((0, "insert"), (1, "insert"), (2, "insert"))
    _held(project, source)
    assert _polled(project) == each()
    made(keys.insert(table, 3) for table, keys in CASES.items())
    in_all(f"UPDATE {{t}} SET updated_at = '{NEW}' WHERE n < 3;")
    asked()
    found = _polled(project)
    assert {table: {n for n, _ in changes} for table, changes in found.items()} == {t: {0, 1, 2, 3} for t in CASES}
    rows = _held(project, source)
    assert _polled(project) == each()
    in_all("DELETE FROM {t} WHERE n < 2;")
    named = {
        table: [tuple(_written(rows[table][n][name]) for name in keys.names) for n in (0, 2)]
        for table, keys in CASES.items()
    }
    asked(named, purge=True)
    assert _polled(project) == each((0, "delete"), (2, "insert"))
    asked(purge=True)
    assert _polled(project) == each((1, "delete"), (2, "insert"), (3, "insert"))
    _held(project, source)
    source.close()


def _one_table(tmp_path: Path, keys: Keys) -> tuple[sqlite3.Connection, Project]:
    source = sqlite_file(tmp_path / "source.db", keys.create("t"))
    for n in range(len(keys.values)):
        source.execute(keys.insert("t", n))
    url = f"sqlite:///{tmp_path / 'source.db'}"
    return source, Project(tmp_path, url, {"t": {"page_size": 1, "chunk_size": 1}})


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        (Keys("k TEXT", ("'a'", "NULL")), r'"k" holds a NULL \(rowid 2\)'),
        (
            Keys("a BLOB, b TEXT", ("x'00', 'a'", "x'01', NULL"), key="a, b"),
            r"\"b\" holds a NULL \(a=b'.x01', rowid 2\)",
        ),
        (Keys("k NOT NULL", ("1", "'a'", "x'00'")), r"\"k\" .* of class blob, .*first key: k=b'.x00'"),
        (Keys("k NUMERIC NOT NULL", ("1", "'a'")), r"\"k\" .* of class text, .*first key: k='a'"),
        (
            Keys("k NUMERIC NOT NULL", ("1", "9007199254740993")),
            r'"k" .* no double holds .*first key: k=9007199254740993',
        ),
        (Keys("k NOT NULL", ("1", "'1'")), r'"k" holds both the number 1 and the text'),
    ],
    ids=["null", "null within", "blob beside others", "numeric, text", "numeric, inexact", "twins"],
)
def test_a_key_that_tells_no_rows_apart_is_an_error_that_names_the_row(tmp_path: Path, keys: Keys, row: str) -> None:
    source, project = _one_table(tmp_path, keys)
    with pytest.raises(SettingsError, match=f'^table "t": key column {row}'):
        project.poll()
    source.close()


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        (Keys("k BOOLEAN NOT NULL", ("1", "0")), "5"),
        (Keys("k NOT NULL", ("1", "0")), "x"),
        (Keys("k NOT NULL", ("1", "0")), "1.5"),
        (Keys("k INT NOT NULL", ("1", "0")), "x"),
    ],
    ids=["boolean", "undeclared integers", "undeclared integers, real", "integers"],
)
def test_a_key_that_no_row_can_have_is_refused_and_purges_nothing(tmp_path: Path, keys: Keys, asked: str) -> None:
    source, project = _one_table(tmp_path, keys)
    assert len(project.poll()["t"]) == 2
    with sidecar.open(project.path) as sc, pytest.raises(SettingsError, match=f"'{asked}' is no value of its key"):
        sc.request_backfill("t", keys=[asked], purge=True)
    assert project.poll()["t"] == []
    source.close()


@pytest.mark.parametrize(("collation", "one", "other"), [("NOCASE", "a", "A"), ("RTRIM", "a", "a ")])
def test_a_text_that_a_collation_takes_for_another_is_told_of_and_purged(
    tmp_path: Path, collation: str, one: str, other: str
) -> None:
    keys = Keys(f"k TEXT COLLATE {collation} NOT NULL", (f"'{one}'", "'b'"))
    source, project = _one_table(tmp_path, keys)
    project.poll()
    source.execute(f"UPDATE t SET k = '{other}', updated_at = '{NEW}' WHERE k = '{one}'")
    assert [row["k"] for row in project.poll()["t"]] == [other]
    assert set(project.merged("t", "k")) == {one, other, "b"}
    with sidecar.open(project.path) as sc:
        sc.request_backfill("t", keys=[one], purge=True)
    project.poll()
    assert set(project.merged("t", "k")) == {other, "b"}
    assert f"under COLLATE {collation}" in " ".join(project.cli("check").text.split())
    source.close()


@pytest.mark.parametrize(
    ("columns", "key", "end", "said"),
    [
        ("k TEXT COLLATE own NOT NULL", "k", ")", "no such collation sequence: own, .* Choose a primary_key"),
        ("g INT NOT NULL, k TEXT COLLATE own NOT NULL", "g, k", ")", "no such collation sequence: own, .* Choose"),
        ("k TEXT", "k COLLATE own", APART, "no query solution: .* a collation that only the application .* Leave the"),
        ("k TEXT NOT NULL", "k COLLATE own", ")", None),
        ("k INT, v TEXT COLLATE own UNIQUE", "k", ")", None),
    ],
    ids=["alone", "within", "without rowid", "in the key's index alone", "beside the key"],
)
def test_a_collation_that_only_the_application_has_is_an_error_where_rows_lie_by_it(
    tmp_path: Path, columns: str, key: str, end: str, said: str | None
) -> None:
    keys = Keys(columns, ("1", "2"), end, key)
    source = sqlite3.connect(tmp_path / "source.db", isolation_level=None)
    source.create_collation("own", lambda a, b: (a > b) - (a < b))
    source.executescript(keys.create("t"))
    for n in range(2):
        if said is None:
            source.execute(keys.insert("t", n))
    url = f"sqlite:///{tmp_path / 'source.db'}"
    project = Project(tmp_path, url, {"t": {"page_size": 1, "chunk_size": 1}})
    if said is None:
        assert len(project.poll()["t"]) == 2
    else:
        with pytest.raises(SettingsError, match=f'table "t": {said}'):
            project.poll()
    source.close()
