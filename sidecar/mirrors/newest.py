"""Changes in the order in which they count, and the newest of each key. Pure functions.

Spark promises no order, and one batch may hold a key many times: as its chunk of a backfill saw it, and as polls did.
Of two changes of a key, the later one is, in this order of questions:

1. the one with the greater `_commit_version`: offsets are the log's order (G3), and a log holds a key at most once in
   each, so that this alone decides. The others are for batches that something else than a log has made:
2. a live event, not a backfill's image, which may be of any age;
3. the one with the later `_commit_timestamp`;
4. a delete: of what was seen at one instant, it is what comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.model import DELETE, HISTORY, MARK, METADATA

Integers: TypeAlias = npt.NDArray[np.int64]

BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class Named:
    """What the columns that Sidecar adds are called: `prefix` and a word."""

    prefix: str

    @property
    def change_type(self) -> str:
        return self.prefix + METADATA[0]

    @property
    def version(self) -> str:
        return self.prefix + METADATA[1]

    @property
    def timestamp(self) -> str:
        return self.prefix + METADATA[2]

    @property
    def origin(self) -> str:
        return self.prefix + METADATA[3]

    @property
    def metadata(self) -> tuple[str, ...]:
        """The metadata columns of a change."""
        return tuple(self.prefix + name for name in METADATA)

    @property
    def deleted_at(self) -> str:
        return self.prefix + MARK[0]

    @property
    def valid_from(self) -> str:
        return self.prefix + HISTORY[0]

    @property
    def valid_to(self) -> str:
        return self.prefix + HISTORY[1]

    @property
    def is_current(self) -> str:
        return self.prefix + HISTORY[2]


def ordered(changes: pa.Table, named: Named) -> pa.Table:
    """Return *changes* with each key's in the order in which they count."""
    ranks = {
        "version": changes.column(named.version),
        "live": pc.not_equal(changes.column(named.origin), BACKFILL),
        "timestamp": changes.column(named.timestamp),
        "deletes": pc.equal(changes.column(named.change_type), DELETE),
    }
    table = pa.table({name: column.cast(pa.int64()) for name, column in ranks.items()})
    return taken(changes, pc.sort_indices(table, sort_keys=[(name, "ascending") for name in ranks]).to_numpy())


def are_in_order(codes: Integers, versions: Integers) -> bool:
    """Return whether the changes of each key, by its number in *codes*, stand in the order of their *versions*.

    A log's do: they need not be put into order then, which would copy all of them, and out of the order of the key.
    """
    order = np.argsort(codes, kind="stable")
    codes, versions = codes[order], versions[order]
    return bool(((codes[1:] != codes[:-1]) | (versions[1:] > versions[:-1])).all())


def taken(rows: pa.Table, places: npt.NDArray[np.integer]) -> pa.Table:
    """Return the rows of *rows* at *places*: itself where these are all, in their order, as they are for a first load.

    Each copy of a batch that is not made is a large one.
    """
    if bool((places[1:] > places[:-1]).all()):
        if len(places) == len(rows):
            return rows
        # Goes through the rows piece by piece; `take` makes one piece of them first.
        keep = np.zeros(len(rows), bool)
        keep[places] = True
        return rows.filter(pa.array(keep))
    return rows.take(pa.array(places))


def last_of_each(codes: Integers) -> Integers:
    """Return where the last of each of *codes* stands, in the order of the places."""
    # Of several equal places that are assigned to, numpy keeps the last one's value.
    last = np.full(int(codes.max()) + 1 if len(codes) else 0, -1, dtype=np.int64)
    last[codes] = np.arange(len(codes))
    found: Integers = np.sort(last[last >= 0])
    return found
