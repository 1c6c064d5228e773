"""Purges of tables that are shown in part, emptied, or gone: what is not seen is not taken for deleted."""

from __future__ import annotations

import threading
from pathlib import Path

import sidecar
from sidecar.runner import Runner
from tests.cases.harness import Project
from tests.servers import Database, make

OLD, NEW = "2024-05-01 10:00:00Z", "2024-05-02 10:00:00Z"


def begun(project: Project, table: str = "t") -> None:
    """Ask for a purge of *table*, and let its process end after a chunk."""
    with sidecar.open(project.path) as sc:
        sc.request_backfill(table, purge=True)
        stop = threading.Event()
        Runner(sc, stop=stop, on_step=lambda _: stop.set()).poll()


def test_rows_that_were_hidden_for_a_while_are_not_purged(tmp_path: Path, pg: Database) -> None:
    s1 = pg.connect()
    make(s1, "CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL)")
    make(s1, f"INSERT INTO t SELECT n, 'v', '{OLD}' FROM generate_series(1, 20) n")
    project = Project(tmp_path, pg.reader_url, {"t": {"chunk_size": 3}}, backfill={"parallelism": 1})
    project.poll()
    begun(project)
    make(s1, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    for _ in range(2):
        found = project.cli("run", "--once")
        assert found.code == 2
        assert "so nothing is purged" in found.text
    # As the message says; and something is gone by now.
    make(s1, "CREATE POLICY all_rows ON t FOR SELECT USING (true)", "DELETE FROM t WHERE id = 20")
    make(s1, f"INSERT INTO t VALUES (21, 'v', '{NEW}')")
    assert project.cli("run", "--once").code == 0
    assert [row["id"] for row in project.rows("t") if row["_change_type"] == "delete"] == [20]
    assert sorted(project.merged("t", "id")) == [*range(1, 20), 21]
