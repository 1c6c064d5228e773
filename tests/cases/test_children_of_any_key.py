"""Children come again by whatever key their parents have, also where theirs is of another type or notation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cases.harness import Project, sqlite_file
from tests.servers import Database, make

POSTGRES = (
    # parent's type, child's; a parent with a child, the child's reference to it; a parent without
    ("text", "char(3)", "a", "a", "b"),
    ("char(3)", "text", "a", "a", "b"),
    ("char(5)", "varchar(3)", "a", "a", "b"),
    ("char(3)", "char(5)", "a", "a", "b"),
    ("numeric", "int", "1.00", "1", "1.5"),
    ("numeric", "bigint", "1", "1", "1e30"),
    ("numeric", "numeric(9,2)", "1", "1.00", "1.555"),
    ("numeric", "float8", "1.5", "1.5", "2"),
    ("numeric(9,2)", "numeric", "1.50", "1.5", "2"),
    ("numeric", "numeric", "1.50", "1.5", "2"),
    ("int", "numeric", "1", "1.0", "2"),
    ("float8", "numeric", "0.5", "0.50", "1"),
    (
        "uuid",
        "uuid",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11",
        "b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    ),
    ("bytea", "bytea", "\\x00ff", "\\x00ff", "\\x"),
    ("citext", "citext", "a", "A", "b"),
    ("text", "citext", "a", "A", "b"),
    ("interval", "interval", "1 day", "24:00", "2 days"),
    ("timestamptz", "timestamptz", "2024-05-01 10:00+00", "2024-05-01 12:00+02", "2024-05-02 10:00+00"),
    ("date", "date", "2024-05-01", "2024-05-01", "2024-05-02"),
    ("time", "time", "10:00", "10:00", "11:00"),
    ("jsonb", "jsonb", "1.0", "1.00", "2"),
    ("int[]", "int[]", "{1}", "{1}", "{2}"),
    ("feeling", "mood", "a", "a", "z"),
    ("mood", "feeling", "a", "a", "z"),
    ("bool", "bool", "t", "t", "f"),
    ("xid8", "xid8", "1", "1", "2"),
)

SQLITE = (
    ("INTEGER NOT NULL", "INT", "1", "1", "2"),
    ("INTEGER NOT NULL", "TEXT", "1", "'1'", "2"),
    ("TEXT NOT NULL", "INT", "'1'", "1", "'2'"),
    ("INTEGER NOT NULL", "", "1", "1", "2"),
    ("INTEGER NOT NULL", "REAL", "1", "1.0", "2"),
    ("REAL NOT NULL", "INT", "1.0", "1", "1.5"),
    ("REAL NOT NULL", "", "1.0", "1", "1.5"),
    ("NOT NULL", "", "1", "1.0", "'x'"),
    ("NOT NULL", "INT", "1", "1", "2.5"),
    ("NOT NULL", "NUMERIC", "1.0", "1", "2"),
    ("BLOB NOT NULL", "BLOB", "x'00ff'", "x'00ff'", "x'61'"),
    ("BLOB NOT NULL", "", "x'00ff'", "x'00ff'", "x'61'"),
    ("NOT NULL", "", "x'61'", "x'61'", "x'00'"),
    ("NOT NULL", "BLOB", "x'61'", "x'61'", "x'00'"),
    ("BLOB NOT NULL", "UNIQUEIDENTIFIER", "x'61'", "x'61'", "x'00'"),
    ("TEXT NOT NULL", "TEXT COLLATE NOCASE", "'a'", "'A'", "'b'"),
    ("TEXT NOT NULL", "TEXT", "'a' || char(0) || 'b'", "'a' || char(0) || 'b'", "'a'"),
    ("TEXT NOT NULL", "TEXT COLLATE RTRIM", "'a'", "'a '", "'b'"),
    ("BOOLEAN NOT NULL", "BOOLEAN", "1", "1", "0"),
    ("DATE NOT NULL", "DATE", "'2024-05-01'", "'2024-05-01'", "'2024-05-02'"),
    ("DATETIME NOT NULL", "DATETIME", "'2024-05-01 10:00'", "'2024-05-01 10:00'", "'2024-05-02'"),
    ("DECIMAL(9,2) NOT NULL", "DECIMAL(9,2)", "1.50", "1.5", "2"),
)


def _project(folder: Path, url: str, count: int) -> Project:
    tables: dict[str, dict[str, Any]] = {f"{kind}{n}": {} for n in range(count) for kind in "pc"}
    project = Project(folder, url, tables)
    on = (f'[[tables.c{n}.refresh_on]]\ntable = "p{n}"\non = {{ parent = "k" }}\n' for n in range(count))
    project.path.write_text(project.path.read_text(encoding="utf-8") + "".join(on), encoding="utf-8")
    return project


def _come_again(project: Project, changed: Callable[[], object], count: int) -> dict[int, list[tuple[Any, ...]]]:
    """Return by number what comes to each child once all parents have *changed*: n of the row, and by what it comes."""
    project.poll()
    assert not any(project.poll().values())
    changed()
    found = project.poll()
    return {n: [(row["n"], row["_origin"]) for row in found[f"c{n}"]] for n in range(count)}


def test_children_come_again_by_keys_of_any_type(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    mood = ("CREATE TYPE mood AS ENUM ('z', 'a')", "CREATE DOMAIN feeling AS mood")
    make(s1, "CREATE EXTENSION citext", *mood)
    stamp = "updated_at timestamptz NOT NULL DEFAULT '2024-05-01+00'"
    for number, (theirs, own, one, reference, other) in enumerate(POSTGRES):
        make(s1, f"CREATE TABLE p{number} (k {theirs} PRIMARY KEY, {stamp})")
        make(s1, f"CREATE TABLE c{number} (n int PRIMARY KEY, parent {own}, {stamp})")
        make(s1, f"INSERT INTO p{number} VALUES ('{one}'), ('{other}')")
        make(s1, f"INSERT INTO c{number} VALUES (0, '{reference}'), (1, NULL)")
    project = _project(tmp_path, pg.reader_url, len(POSTGRES))

    def changed() -> None:
        make(s1, *(f"UPDATE p{number} SET updated_at = now()" for number in range(len(POSTGRES))))

    found = _come_again(project, changed, len(POSTGRES))
    assert {POSTGRES[n]: rows for n, rows in found.items() if rows != [(0, "backfill")]} == {}


def test_children_come_again_by_keys_of_any_kind_of_sqlite(tmp_path: Path) -> None:
    s1 = sqlite_file(tmp_path / "source.db", "")
    stamp = "updated_at TEXT NOT NULL DEFAULT '2024-05-01 10:00:00'"
    script = ["BEGIN"]
    for number, (theirs, own, one, reference, other) in enumerate(SQLITE):
        script.append(f"CREATE TABLE p{number} (k {theirs} PRIMARY KEY, {stamp})")
        script.append(f"CREATE TABLE c{number} (n INT PRIMARY KEY NOT NULL, parent {own}, {stamp})")
        script.append(f"INSERT INTO p{number} (k) VALUES ({one}), ({other})")
        script.append(f"INSERT INTO c{number} (n, parent) VALUES (0, {reference}), (1, NULL)")
    s1.executescript("; ".join([*script, "COMMIT"]))
    project = _project(tmp_path, f"sqlite:///{tmp_path / 'source.db'}", len(SQLITE))

    def changed() -> None:
        s1.executescript("".join(f"UPDATE p{n} SET updated_at = '2024-05-02 10:00:00';" for n in range(len(SQLITE))))

    found = _come_again(project, changed, len(SQLITE))
    assert {SQLITE[n]: rows for n, rows in found.items() if rows != [(0, "backfill")]} == {}
    s1.close()
