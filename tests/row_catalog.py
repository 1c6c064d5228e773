"""Catalogs of tables in memory that Spark can MERGE into: `java/RowCatalog.java`, compiled by Spark's own Janino."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = Path(__file__).parent / "java" / "RowCatalog.java"


def install(spark: SparkSession, folder: Path) -> None:
    """Give *spark* the catalogs `rows`, `dull`, whose tables cannot be merged into, and `rigid`, which widens no type.

    *folder* is for their classes.
    """
    jvm: Any = spark._jvm
    loader = jvm.Thread.currentThread().getContextClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setSourceVersion(11)
    compiler.setTargetVersion(11)
    compiler.setParentClassLoader(loader)
    compiler.cook(SOURCE.read_text())
    classes = compiler.getBytecodes()
    for name in classes.keySet():
        (folder / f"{name}.class").write_bytes(classes[name])
    loader.addURL(jvm.java.io.File(f"{folder}/").toURI().toURL())
    for name in ("rows", "dull", "rigid"):
        spark.conf.set(f"spark.sql.catalog.{name}", "RowCatalog")
    spark.conf.set("spark.sql.catalog.dull.merges", "false")
    spark.conf.set("spark.sql.catalog.rigid.widens", "false")
