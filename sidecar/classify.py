"""Row to change type: pure, whole columns at a time.

`deleted_at` set, or `deleted_when` true, is a `delete`; `created_at == updated_at`, within the tolerance, an `insert`;
so is a row that was never stamped by an update; anything else an `update_postimage`. The words are those of Spark's
and Delta's change feeds.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from sidecar.cursor import NONE, Flags, Integers, kind, span
from sidecar.model import DELETE, INFINITY, INSERT, UPDATE, Tracked


def change_types(updated: Integers, created: Integers | None, gone: Flags, tolerance: int) -> pa.Array:
    """Return a change type a row; *tolerance* is in the columns' own units."""
    codes = np.full(len(updated), 1, dtype=np.int8)
    codes[inserts(updated, created, tolerance)] = 0
    codes[gone] = 2
    words = (INSERT, UPDATE, DELETE)
    if len(codes) and (codes == codes[0]).all():
        return pa.repeat(words[codes[0]], len(codes))
    # Made here: the first array of a process makes pyarrow import pandas, if it is there, and most runs find nothing.
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words)).cast(pa.string())


def inserts(updated: Integers, created: Integers | None, tolerance: int) -> Flags:
    """Return which rows still stand as they were created."""
    if created is None:
        return np.zeros(len(updated), dtype=bool)
    known = (created != NONE) & (np.abs(created) != INFINITY)
    stamped = (updated != NONE) & (updated != INFINITY)
    # Compared by order first: the difference of two far values must not wrap around.
    near = np.zeros(len(updated), dtype=bool)
    both = known & stamped
    near[both] = (updated[both] <= created[both] + tolerance) & (created[both] <= updated[both] + tolerance)
    result: Flags = near | (known & (updated == NONE))
    return result


def tolerance(tracked: Tracked) -> int:
    """Return `created_at_tolerance` in the units of *tracked*'s cursor column."""
    found = span(tracked.tolerance, tracked, kind(tracked.cursor_type, tracked.updated_at))
    return tracked.tolerance if found is None else found
