"""Backfills of a real server by several connections, and what becomes of them where there are not as many to be had."""

from __future__ import annotations

from pathlib import Path

import sidecar
from tests.servers import Database


def test_a_reader_that_gets_no_connection_leaves_the_rows_to_the_others(pg: Database, tmp_path: Path) -> None:
    with pg.connect() as admin:
        admin.execute("CREATE TABLE t (id int PRIMARY KEY, updated_at timestamptz NOT NULL)")
        admin.execute("INSERT INTO t SELECT n, '2024-05-01T10:00:00Z' FROM generate_series(1, 1000) n")
        admin.execute("ANALYZE t")
        # One for polls, one that holds the snapshot.
        admin.execute(f'ALTER ROLE "{pg.reader}" CONNECTION LIMIT 2'.encode())
    (tmp_path / "sidecar.toml").write_text(
        f'[source]\nurl = "{pg.reader_url}"\n[state]\npath = "state"\n[tables.t]\nchunk_size = 100\n'
        "[backfill]\nparallelism = 3\n"
    )
    with sidecar.open(tmp_path / "sidecar.toml") as opened:
        assert opened.run(once=True) == 0
        assert {r["id"] for r in opened.log("t").rows()} == set(range(1, 1001))
