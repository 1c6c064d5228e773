"""Where Spark finds `format("sidecar")` without being told: it looks into modules that are called `pyspark_*`."""

from sidecar.datasource import SidecarDataSource as DefaultSource

__all__ = ["DefaultSource"]
