"""Where Arrow takes memory from, in a process of Sidecar's own."""

from __future__ import annotations

import os

import pyarrow as pa


def reuse() -> None:
    """Have Arrow use again, within a second, what it has freed; unless ARROW_DEFAULT_MEMORY_POOL says otherwise.

    Its own choice gives it back at once, and takes new pages for the next batch, which the system has to clear first:
    that was a tenth of a first load, and a fifth of a batch for a mirror. Where Arrow comes without jemalloc, nothing
    is done.
    """
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ and "jemalloc" in pa.supported_memory_backends():
        pa.set_memory_pool(pa.jemalloc_memory_pool())
