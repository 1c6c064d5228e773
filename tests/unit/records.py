"""Records of deliveries as tests write and read them: key → (content, value at which the updated pass meets it)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from sidecar.model import INFINITY
from sidecar.polls import deliveries
from sidecar.polls.deliveries import CONTENT, KEY, MORE, REST, UPDATED, Keys, Records

Known = Mapping[int, tuple[int, int] | None]


def keys(*numbers: int) -> Keys:
    found = np.zeros((2, len(numbers)), dtype=np.int64)
    # A few values of the first half, so that it does not tell keys apart.
    found[KEY] = [n % 7 for n in numbers]
    found[REST] = numbers
    return found


def records(known: Known) -> Records:
    """Return *known* as records; None says that nothing is remembered of the key any more."""
    found = deliveries.nothing(keys(*known))
    for index, value in enumerate(known.values()):
        if value is not None:
            found[CONTENT, index], found[UPDATED, index] = value
            found[MORE, index] = -1
    return found


def lasting(*numbers: int, content: int = 1) -> Records:
    """Return records of keys that no watermark closes."""
    return records(dict.fromkeys(numbers, (content, INFINITY)))


def known(parts: Records | Iterable[Records]) -> dict[int, tuple[int, int]]:
    """Return what is said by records, of which no key stands twice."""
    whole = parts if isinstance(parts, np.ndarray) else deliveries.joined(list(parts))
    whole = whole[:, ~deliveries.says_nothing(whole)]
    found = {int(r[REST]): (int(r[CONTENT]), int(r[UPDATED])) for r in whole.T}
    assert len(found) == deliveries.count(whole), "a key stands twice"
    return found
