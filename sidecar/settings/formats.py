"""Names of formats: Spark may know more of them than we do, so one that is nearly a known one is only doubted."""

from __future__ import annotations

from sidecar.settings.words import nearest

KNOWN = (
    "parquet", "orc", "json", "csv", "text", "avro", "xml", "delta", "iceberg", "hudi", "jdbc", "kafka", "console",
    "noop", "binaryFile",
)  # fmt: skip


def doubt(format_: str) -> str | None:
    """Return what is to be said of *format_*, if it is no format that we know of, and nearly one."""
    near = None if format_ in KNOWN else nearest(format_, KNOWN)
    if near is None:
        return None
    return (
        f'format = "{format_}": did you mean "{near}"? Spark has no "{format_}" of its own; if a package of yours has '
        "one, all is well"
    )
