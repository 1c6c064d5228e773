"""Two things at once: a table is altered, or its partitions are swapped, while a transaction is open or a poll lies
interrupted by a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.harness import Project
from tests.servers import Connection, Database, make

COLUMNS = "id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL DEFAULT clock_timestamp()"


def assert_alike(owner: Connection, project: Project) -> None:
    """Each row that is there is in the log as it is, and no version of a row was delivered twice."""
    there: dict[int, str] = dict(owner.execute("SELECT id, v FROM t").fetchall())
    folded = project.merged("t", "id")
    assert {key: folded[key]["v"] for key in there} == there
    versions = [(row["id"], row["v"], row["updated_at"]) for row in project.rows("t")]
    assert len({*versions}) == len(versions)


def test_partitions_that_are_swapped_beside_an_open_transaction_lose_and_repeat_nothing(
    pg: Database, tmp_path: Path
) -> None:
    owner, late = pg.connect(), pg.connect(autocommit=False)
    make(owner, f"CREATE TABLE t ({COLUMNS}) PARTITION BY RANGE (id)")
    make(owner, "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)")
    make(owner, "CREATE TABLE high PARTITION OF t FOR VALUES FROM (100) TO (200)")
    make(owner, "INSERT INTO t SELECT g, 'first' FROM generate_series(1, 150) g")
    project = Project(tmp_path, pg.reader_url, {"t": {}})
    project.poll()
    late.execute("UPDATE t SET v = 'late', updated_at = clock_timestamp() WHERE id = 120")
    make(owner, "CREATE TABLE other (LIKE low INCLUDING ALL)")
    make(owner, "INSERT INTO other SELECT id, 'swapped', clock_timestamp() FROM low WHERE id < 50")
    project.poll()
    late.commit()
    make(owner, "ALTER TABLE t DETACH PARTITION low")
    make(owner, "ALTER TABLE t ATTACH PARTITION other FOR VALUES FROM (0) TO (100)")
    project.poll()
    assert_alike(owner, project)
    make(owner, "ALTER TABLE t DETACH PARTITION high")
    make(owner, "UPDATE high SET v = 'while away', updated_at = clock_timestamp() WHERE id = 130")
    project.poll()
    make(owner, "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")
    project.poll()
    assert project.poll()["t"] == []
    assert_alike(owner, project)


@pytest.mark.parametrize("point", ["page-read:2", "watermark-saved:2"])
def test_a_column_that_is_made_again_while_a_poll_is_interrupted_is_delivered_as_it_is(
    pg: Database, tmp_path: Path, point: str
) -> None:
    owner = pg.connect()
    make(owner, f"CREATE TABLE t ({COLUMNS})", "INSERT INTO t SELECT g, 'first' FROM generate_series(1, 50) g")
    project = Project(tmp_path, pg.reader_url, {"t": {"page_size": 10}})
    project.poll()
    make(owner, "UPDATE t SET v = 'second', updated_at = clock_timestamp()")
    project.cli("run", "--once", env={"SIDECAR_CRASH_AT": point})
    make(owner, "ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ADD COLUMN v text DEFAULT 'third'")
    project.poll()
    assert project.poll()["t"] == []
    assert_alike(owner, project)
