"""Where Spark finds `format("sidecar")` without being told: it looks into modules that are called `pyspark_*`."""

from sidecar.lake.datasource import SidecarDataSource as DefaultSource

__all__ = ["DefaultSource"]
