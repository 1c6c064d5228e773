"""Where each consumer stands in each log: filed beside the log, indexed in RocksDB.

The file comes first, as the segment does: a lost RocksDB costs no sink its place. A batch's end is recorded before its
first byte is written, so that a batch cut short is written again over exactly the same offsets.
"""

from __future__ import annotations

import json

from sidecar import faults
from sidecar.changelog import ChangeLog
from sidecar.errors import StateDamaged
from sidecar.log import queries, storage
from sidecar.log.files import filename
from sidecar.log.storage import AnyPath
from sidecar.state import ConsumerPosition, WatermarkStore


def recover(log: ChangeLog, store: WatermarkStore) -> None:
    """Bring *store*'s positions in *log* up to the files."""
    for name, path in sorted(storage.names(_folder(log)), key=lambda found: found[0]):
        if name.startswith(".") or not name.endswith(".json"):
            continue
        try:
            raw = json.loads(path.read_text())
            position = ConsumerPosition(raw["acknowledged"], raw["intended"], raw.get("loading", False))
            consumer = str(raw["consumer"])
        except (ValueError, KeyError, TypeError) as error:
            raise StateDamaged(f"{path}: not a readable position: {error}. Restore it from a copy.") from error
        if store.position(log.table, consumer) != position:
            store.save_position(log.table, consumer, position)
        _check(log, f'sink "{consumer}"', max(position.acknowledged, position.intended or 0))
    for query, acknowledged in queries.positions(log).items():
        _check(log, f'query "{query}"', acknowledged, f"; or forget it: sidecar watermark forget {log.table} {query}")


def _check(log: ChangeLog, who: str, reached: int, otherwise: str = "") -> None:
    last = log.last()
    if reached > last:
        raise StateDamaged(
            f"{log.at}: ends at offset {last}, but {who} has had {reached}: segments are missing. Put them back; "
            f"or give these changes up and read the whole table again: sidecar watermark reset {log.table}{otherwise}"
        )


def intend(log: ChangeLog, store: WatermarkStore, consumer: str, until: int) -> ConsumerPosition:
    """Record that *consumer* is about to take the offsets up to *until*."""
    position = ConsumerPosition(store.position(log.table, consumer).acknowledged, until)
    _save(log, store, consumer, position)
    faults.point("batch-intended")
    return position


def load(log: ChangeLog, store: WatermarkStore, consumer: str, until: int) -> None:
    """Record that *consumer* is about to begin, with the table as of *until*."""
    _save(log, store, consumer, ConsumerPosition(0, until, loading=True))
    faults.point("batch-intended")


def acknowledge(log: ChangeLog, store: WatermarkStore, consumer: str, until: int) -> None:
    """Record that *consumer* has made everything up to *until* durable."""
    _save(log, store, consumer, ConsumerPosition(until))
    faults.point("position-saved")


def _save(log: ChangeLog, store: WatermarkStore, consumer: str, position: ConsumerPosition) -> None:
    storage.make_folder(_folder(log))
    said = {"consumer": consumer, "acknowledged": position.acknowledged, "intended": position.intended}
    text = json.dumps(said | ({"loading": True} if position.loading else {}))
    storage.write_text(_folder(log) / filename(consumer, ".json"), text)
    faults.point("position-filed")
    store.save_position(log.table, consumer, position)


def _folder(log: ChangeLog) -> AnyPath:
    return log.at / "_positions"
