"""Spark Declarative Pipelines over a log: what is planned, what runs, and what Spark says where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.lake import spark as lean
from tests.cases.harness import Project
from tests.page import ANY_PORT, environment, make_shop

ROOT = Path(__file__).parents[2]

SPEC = """
name: {name}
storage: {folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
SOURCE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

spark = SparkSession.active()
log = {log!r}
columns = spark.read.parquet(log).schema
METADATA = ["_change_type", "_commit_version", "_commit_timestamp", "_origin"]
"""
AUTO_CDC = """
@dp.temporary_view
def order_changes():
    return spark.readStream.schema(columns).parquet(log)

for type_ in (1, 2):
    dp.create_streaming_table(f"orders_{type_}")
    dp.create_auto_cdc_flow(
        target=f"orders_{type_}",
        source="order_changes",
        keys=["id"],
        sequence_by="_commit_version",
        apply_as_deletes=expr("_change_type = 'delete'"),
        except_column_list=METADATA,
        stored_as_scd_type=type_,
    )
"""
NEWEST = """
@dp.temporary_view
def order_changes():
    return spark.read.schema(columns).parquet(log)
"""
# In SQL: `DataFrame.drop` of a pipeline's own view is resolved too early, by Spark 4.3.
CURRENT = """
CREATE MATERIALIZED VIEW orders AS
SELECT * EXCEPT (_change_type, _commit_version, _commit_timestamp, _origin, newest)
FROM (SELECT *, max(_commit_version) OVER (PARTITION BY id) AS newest FROM order_changes)
WHERE _commit_version = newest AND _change_type <> 'delete'
"""
BY_STATUS = "CREATE MATERIALIZED VIEW by_status AS SELECT status, count(*) AS orders FROM orders GROUP BY status"

# What `spark-pipelines` does, several times in one JVM.
DRIVER = """
import json, sys
from pathlib import Path
from pyspark.pipelines import cli
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()

def run(name, dry):
    path = Path(name, "spark-pipeline.yml").resolve()
    spec = cli.load_pipeline_spec(path)
    graph = cli.create_dataflow_graph(
        spark, default_catalog=spec.catalog, default_database=spec.database, sql_conf=spec.configuration
    )
    registry = cli.SparkConnectGraphElementRegistry(spark, graph)
    cli.register_definitions(path, registry, spec, spark, graph)
    events = cli.start_run(
        spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=dry, storage=spec.storage
    )
    try:
        cli.handle_pipeline_events(events)
        return "done"
    except Exception as error:
        return str(error)

found = {"planned": run("auto_cdc", True), "run": run("auto_cdc", False), "newest": run("newest", False)}
found["orders"] = [r.asDict() for r in spark.sql("SELECT id, status FROM orders ORDER BY id").collect()]
found["by_status"] = {r.status: r.orders for r in spark.table("by_status").collect()}
Path("found.json").write_text(json.dumps(found))
spark.stop()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes of two pipelines over the log of a shop."""
    folder = tmp_path_factory.mktemp("pipelines")
    make_shop(folder / "shop.db")
    project = Project(folder, f"sqlite:///{folder / 'shop.db'}", {"orders": {}})
    project.poll()
    source = SOURCE.format(log=str(folder / "state" / "log" / "orders"))
    for name, files in {
        "auto_cdc": {"orders.py": source + AUTO_CDC},
        "newest": {"changes.py": source + NEWEST, "orders.sql": CURRENT, "by_status.sql": BY_STATUS},
    }.items():
        (folder / name / "transformations").mkdir(parents=True)
        (folder / name / "spark-pipeline.yml").write_text(SPEC.format(name=name, folder=(folder / name).as_uri()))
        for file, text in files.items():
            (folder / name / "transformations" / file).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        cwd=folder,
        env=environment(ROOT) | ANY_PORT | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": lean.LOCAL_ADDRESS},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    read: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return read


@pytest.mark.spark
def test_an_auto_cdc_flow_from_the_log_is_planned(found: dict[str, Any]) -> None:
    assert found["planned"] == "done"


@pytest.mark.spark
def test_it_runs_as_soon_as_the_catalog_has_merge_and_says_so_until_then(found: dict[str, Any]) -> None:
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in found["run"], found["run"]


@pytest.mark.spark
def test_a_materialized_view_is_the_table_without_merge(found: dict[str, Any]) -> None:
    assert found["newest"] == "done"
    assert [row["id"] for row in found["orders"]] == [n for n in range(1, 21) if n % 8]
    assert sum(found["by_status"].values()) == 18
