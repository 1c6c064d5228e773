"""Names of formats: Spark may know more of them than we do, so one that is nearly a known one is only doubted."""

from __future__ import annotations

from sidecar.settings.words import nearest

FILES = ("parquet", "orc", "json", "csv", "text", "avro", "xml")
KNOWN = (*FILES, "delta", "iceberg", "hudi", "jdbc", "kafka", "console", "noop", "binaryFile")
_FOLDED = tuple(name.casefold() for name in KNOWN)

_LIKE = 0.7
"""A typo leaves more of a word; packages of others have names such as `vortex`, `arrow`, `oracle` and `carbon`."""


def doubt(format_: str) -> str | None:
    """Return what is to be said of *format_*, if it is no format that we know of, and nearly one."""
    folded = format_.casefold()
    if format_ not in FILES and folded in FILES:
        # Spark minds no case, but ours are other files than what any other format makes.
        return (
            f'format = "{format_}": write "{folded}"; only so spelt it is one of the formats whose files are known here'
        )
    # What is made of a known name is a package's: `geoparquet`, `geojson`, `iceberg-rest`.
    if folded in _FOLDED or any(name in folded and len(folded) > len(name) + 2 for name in _FOLDED):
        return None
    near = nearest(format_, KNOWN, like=_LIKE)
    if near is None:
        return None
    return (
        f'format = "{format_}": did you mean "{near}"? Spark has no "{format_}" of its own; if a package of yours has '
        "one, all is well"
    )
