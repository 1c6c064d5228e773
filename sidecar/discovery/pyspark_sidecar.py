"""Where Spark finds `format("sidecar")` without being told: it looks into modules that are called `pyspark_*`."""
