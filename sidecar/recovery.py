"""From the log back to the state: after a crash between a rename and a save, and after RocksDB is gone.

Each segment's footer carries the watermark after it and what had to be remembered of its rows, so the state is a fold
over the log. What polls without changes had learned since is lost with RocksDB and learned again.
"""

from __future__ import annotations

import logging

from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.state import WatermarkStore

log_ = logging.getLogger("sidecar")


def recover(log: ChangeLog, store: WatermarkStore) -> int:
    """Bring *store* up to *log*, and clear away half-written files; return how many segments were applied.

    StateDamaged if the log ends before the state does: segments have been taken away.
    """
    log.sweep_up()
    mark = store.watermark(log.table)
    known, last = (mark.offset if mark else 0), log.last()
    if last < known:
        raise StateDamaged(
            f"{log.folder}: ends at offset {last}, but {known} had been written: segments are missing. Put them back; "
            f"or give these changes up and read the whole table again: sidecar watermark reset {log.table}"
        )
    applied = 0
    if last > known:
        for watermark, remembered in log.replay(known):
            store.save(log.table, watermark, remembered)
            applied += 1
        log_.info("table=%s rolled_forward=%d from=%d to=%d", log.table, applied, known, last)
    return applied
