"""Keys of any type of PostgreSQL's that are asked for, one by one, and purged where the source has them no more."""

from __future__ import annotations

from pathlib import Path

import pytest

import sidecar
from tests.cases.harness import Project
from tests.servers import Database, make


@pytest.mark.parametrize(
    ("declared", "one", "two"),
    [
        ("date", "2024-05-01", "1969-12-31"),
        ("timestamptz", "2024-05-01 10:00:00.000001+00", "1969-12-31 10:00:00+00"),
        ("timestamp", "2024-05-01 10:00:00.000001", "1969-12-31 10:00:00"),
        ("time", "10:00:00", "24:00:00"),
        ("numeric(12,2)", "1.50", "-0.10"),
        ("numeric", "1e30", "1.50"),
        ("real", "0.1", "1.5"),
        ("smallint", "-5", "7"),
        ("boolean", "true", "false"),
        ("bytea", "\\x00ff", "\\x"),
        ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ],
)
def test_keys_of_any_type_that_are_asked_for_can_be_purged(
    tmp_path: Path, pg: Database, declared: str, one: str, two: str
) -> None:
    s1 = pg.connect()
    make(s1, f"CREATE TABLE k (n int, k {declared}, updated_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (n, k))")
    make(s1, f"INSERT INTO k VALUES (1, '{one}'), (1, '{two}'), (2, '{two}')")
    project = Project(tmp_path, pg.reader_url, {"k": {}})
    held = {row["n"] * 10 + number: row for number, row in enumerate(project.poll()["k"])}
    assert len(held) == 3
    make(s1, f"DELETE FROM k WHERE n = 1 AND k = '{two}'")
    with sidecar.open(project.path) as sc:
        sc.request_backfill("k", keys=[("1", one), ("1", two)], purge=True)
    found = project.poll()["k"]
    assert [(row["n"], row["_change_type"]) for row in found] == [(1, "insert"), (1, "delete")]
    assert len(project.merged("k", "n", "k")) == 2
    with sidecar.open(project.path, read_only=True) as sc:
        assert [b.state for b in sc.backfills("k")] == ["done", "done"]
