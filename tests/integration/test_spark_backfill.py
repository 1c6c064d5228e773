"""Backfills that Spark's executors read from PostgreSQL: the same rows, once, whatever happens to who reads them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import sidecar
from sidecar.backfilling import spark_copying
from sidecar.backfilling.turns import Order
from sidecar.model import Page
from sidecar.poll import Step
from tests import class_data
from tests.servers import Database, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connection = psycopg.Connection[tuple[Any, ...]]

ROOT = Path(__file__).parents[2]
ROWS = 4_000
RUN = "from sidecar.cli import main; main()"

# Of each kind that a chunk's file has to carry: a row that is NULL throughout, and what is large, deep or far away.
TYPES = (
    "dec numeric(38, 10), n numeric, m jsonb, a int[], s pair, h hstore_like, at timestamptz, plain timestamp,"
    " d date, clock time, u uuid, b bytea, f real, i interval"
)
VALUES = (
    "n / 7.0, n, jsonb_build_object('k', n), ARRAY[n, NULL], ROW(n, 'x')::pair, 'a', now() - n * interval '1 s',"
    " timestamp '0001-01-01' + n * interval '1 us', date '9999-12-31' - n, time '23:59:59.999999', gen_random_uuid(),"
    " decode(repeat('00ff', n % 9), 'hex'), n / 3.0, n * interval '1 hour'"
)


def fill(admin: Connection) -> None:
    make(
        admin,
        "CREATE TYPE pair AS (x int, y text)",
        "CREATE DOMAIN hstore_like AS text",
        f"CREATE TABLE t (id bigint PRIMARY KEY, {TYPES}, v int DEFAULT 0, updated_at timestamptz DEFAULT now())",
        f"INSERT INTO t SELECT n, {VALUES} FROM generate_series(1, {ROWS - 1}) n",
        f"INSERT INTO t (id) VALUES ({ROWS})",
        "CREATE INDEX ON t (updated_at, id)",
        "ANALYZE t",
    )


def project(folder: Path, url: str, engine: str = "spark", more: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "sidecar.toml"
    path.write_text(
        f'[source]\nurl = {json.dumps(url)}\n[state]\npath = "state"\n[tables.t]\nchunk_size = 100\n'
        f'[backfill]\nengine = "{engine}"\n{more}'
    )
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    with sidecar.open(path, read_only=True) as sc:
        return list(sc.log("t").rows())


def ids(path: Path) -> list[int]:
    return [row["id"] for row in rows(path)]


def staging(path: Path) -> list[Path]:
    return list((path.parent / "state" / "log" / "t").glob("_staging/**/*"))


def by_process(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `sidecar run --once` from nothing."""
    merged = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", RUN, "run", "--once", "-c", str(path)]
    return subprocess.run(command, env=merged, capture_output=True, text=True, timeout=280, check=False)


def test_all_rows_come_once_in_order_and_of_the_same_types(
    pg: Database, admin: Connection, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(admin)
    asked, ask = [], spark_copying._ask

    def counted(spark: SparkSession, order: Order) -> str:
        asked.append(order)
        return ask(spark, order)

    monkeypatch.setattr(spark_copying, "_ask", counted)
    found, schemas = {}, {}
    for engine in ("spark", "local"):
        path = project(tmp_path / engine, pg.reader_url, engine)
        with sidecar.open(path) as sc:
            assert sc.run(spark, once=True) == 0
            [done] = sc.backfills()
            assert (done.state, done.read) == ("done", ROWS)
            schemas[engine] = sc.log("t").schema()
            found[engine] = {
                row["id"]: {k: v for k, v in row.items() if not k.startswith("_commit")} for row in sc.log("t").rows()
            }
        assert sorted(ids(path)) == [*range(1, ROWS + 1)]
        assert staging(path) == []
    assert found["spark"] == found["local"]
    assert schemas["spark"] == schemas["local"]
    assert len(asked) >= 8, "a turn for each span"
    for order in asked:
        span = [n for n in ids(tmp_path / "spark" / "sidecar.toml") if _within(n, order.work.page)]
        assert span == sorted(span)


def _within(number: int, page: Page) -> bool:
    low, high = (page.after or (0,))[0], (page.until or (ROWS,))[0]
    return int(str(low)) < number <= int(str(high))


@pytest.mark.soak
def test_polls_and_sinks_go_on_meanwhile(
    pg: Database, admin: Connection, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(admin)
    monkeypatch.setattr("sidecar.runner.TURN", 0.5)
    monkeypatch.setattr(spark_copying, "CHUNKS", 2)
    sink = '[sinks.lake]\npath = "lake"\n'
    path = project(tmp_path, pg.reader_url, more=f"max_rows_per_second = 2000\n{sink}")
    steps: list[Step] = []

    def write(step: Step) -> None:
        steps.append(step)
        admin.execute("UPDATE t SET v = v + 1, updated_at = clock_timestamp() WHERE id %% 40 = %s", [len(steps) % 40])

    with sidecar.open(path) as sc:
        assert sc.run(spark, once=True, on_step=write) == 0
        sc.poll()
        origins = [row["_origin"] for row in sc.log("t").rows()]
    assert "backfill" in origins[origins.index("poll") :], "in the middle of the backfill"
    newest: dict[int, int] = {}
    for row in rows(path):
        assert row["v"] >= newest.get(row["id"], 0)
        newest[row["id"]] = row["v"]
    assert newest == dict(admin.execute("SELECT id, v FROM t").fetchall())
    assert spark.read.parquet(str(tmp_path / "lake" / "t")).count() > ROWS


@pytest.mark.soak
def test_what_a_task_cannot_read_is_named_as_it_would_be_here(
    pg: Database, admin: Connection, spark: SparkSession, tmp_path: Path
) -> None:
    fill(admin)
    admin.execute("UPDATE t SET d = 'infinity' WHERE id = 777")
    said = {}
    for engine in ("spark", "local"):
        path = project(tmp_path / engine, pg.reader_url, engine)
        with sidecar.open(path) as sc, pytest.raises(sidecar.SettingsError) as caught:
            sc.poll()
        said[engine] = str(caught.value)
        assert staging(path) == []
    assert said["spark"] == said["local"]
    assert "777" in said["spark"]
    assert pg.reader_password not in said["spark"]


@pytest.mark.soak
def test_a_session_without_the_package_says_what_to_do(
    pg: Database, admin: Connection, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(admin)

    def elsewhere(_: object) -> str:
        raise ModuleNotFoundError("No module named 'sidecar'")

    monkeypatch.setattr("sidecar.backfilling.turns.take", elsewhere)
    # By value, as what a notebook defines: the executors import nothing of it.
    monkeypatch.setattr("sidecar.backfilling.spark_copying.turns", _Turns(elsewhere))
    with (
        sidecar.open(project(tmp_path, pg.reader_url)) as sc,
        pytest.raises(sidecar.SettingsError, match='no Python package "sidecar"'),
    ):
        sc.poll()


class _Turns:
    def __init__(self, take: Any) -> None:
        self.take = take


def test_a_killed_run_goes_on_and_its_files_are_swept_up(pg: Database, admin: Connection, tmp_path: Path) -> None:
    fill(admin)
    path = project(tmp_path, pg.reader_url)
    killed = by_process(path, SIDECAR_CRASH_AT="chunk-saved:9")
    assert killed.returncode == -signal.SIGKILL, killed
    before = ids(path)
    assert 0 < len(before) < ROWS
    assert staging(path)
    again = by_process(path)
    assert (again.returncode, "Traceback" in again.stderr) == (0, False), again
    assert ids(path)[: len(before)] == before
    assert sorted(ids(path)) == [*range(1, ROWS + 1)]
    assert staging(path) == []
    with sidecar.open(path, read_only=True) as sc:
        [done] = sc.backfills()
    assert (done.state, done.read, done.written) == ("done", ROWS, ROWS)


def spark_home(folder: Path) -> Path:
    """Return a Spark of links to the installed one: a local cluster's executors leave what they log beside it."""
    import pyspark

    home = folder / "spark"
    home.mkdir()
    for path in Path(pyspark.__file__).parent.iterdir():
        (home / path.name).symlink_to(path)
    return home


@pytest.mark.parametrize(
    "master",
    [
        pytest.param("local[2]", marks=pytest.mark.soak),
        pytest.param("local[2,4]", marks=pytest.mark.soak),
        "local-cluster[2,1,1024]",
    ],
)
def test_executors_that_die_repeat_nothing(pg: Database, admin: Connection, tmp_path: Path, master: str) -> None:
    fill(admin)
    quick = f'"spark.executor.extraJavaOptions" = {json.dumps(class_data.ONE_COMPILER)}\n'
    path = project(tmp_path, pg.reader_url, more=f'[spark]\nmaster = "{master}"\n{quick}')
    # Each Python worker dies in the middle of a turn, the tenth chunk lying there; another one begins that turn anew.
    done = by_process(path, SIDECAR_CRASH_AT="chunk-read:10", SPARK_HOME=str(spark_home(tmp_path)))
    # Where a task has one attempt, it is Sidecar that tries again.
    assert ("Trying again" in done.stderr) == (master == "local[2]"), done
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done
    assert "backfill=done" in done.stderr
    assert sorted(ids(path)) == [*range(1, ROWS + 1)]
    assert staging(path) == []
