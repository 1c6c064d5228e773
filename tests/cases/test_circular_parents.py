"""Tables that are each other's parents, or their own: a change brings what belongs to it once, and comes to rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sidecar
from tests.cases.filled import now
from tests.conftest import SQLiteFile
from tests.servers import Database

TABLES = """[tables.a]
[[tables.a.refresh_on]]
table = "b"
on = { other = "id" }
[tables.b]
[[tables.b.refresh_on]]
table = "a"
on = { other = "id" }
[tables.own]
[[tables.own.refresh_on]]
table = "own"
on = { other = "id" }
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_tables_that_are_each_others_parents_come_to_rest(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    db: SQLiteFile | Database = request.getfixturevalue("sqlite_db" if kind == "sqlite" else "pg")
    url = db.url if isinstance(db, SQLiteFile) else db.reader_url

    def writer(sql: str) -> None:
        connection: Any = db.connection if isinstance(db, SQLiteFile) else db.connect()
        connection.execute(sql)

    for name in ("a", "b", "own"):
        stamp = "timestamptz" if kind == "postgres" else "text"
        writer(f"CREATE TABLE {name} (id integer PRIMARY KEY, other integer, updated_at {stamp} NOT NULL)")
        writer(f"INSERT INTO {name} VALUES (1, 1, '2024-05-01 10:00:00Z'), (2, 1, '2024-05-01 10:00:00Z')")
    (tmp_path / "sidecar.toml").write_text(f'[source]\nurl = "{url}"\n[state]\npath = "state"\n{TABLES}')
    with sidecar.open(tmp_path / "sidecar.toml") as opened:
        assert opened.run(once=True) == 0
        before = {name: opened.log(name).last() for name in opened.tracked}
        for name in before:
            writer(f"UPDATE {name} SET updated_at = '{now()}' WHERE id = 1")
        for _ in range(3):
            assert opened.run(once=True) == 0
        found = {n: sorted(int(str(r["id"])) for r in opened.log(n).rows(since)) for n, since in before.items()}
        ends = {name: opened.log(name).last() for name in before}
        assert opened.run(once=True) == 0
        assert {name: opened.log(name).last() for name in before} == ends
    # The change; then both rows that belong to a row that has changed. The one that is its own parent comes twice, too.
    assert found == {"a": [1, 1, 2], "b": [1, 1, 2], "own": [1, 1, 2]}
