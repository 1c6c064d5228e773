"""Keys of any columns and types as small numbers, so that two tables can be held against each other by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sidecar.mirrors.newest import Integers


class Keys:
    """The distinct keys of a table, numbered from 0."""

    def __init__(self, columns: Sequence[str], data: pa.Table) -> None:
        self.columns = tuple(columns)
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []
        codes: Integers | None = None
        for name in self.columns:
            values, own = _numbered(_alike(data.column(name).combine_chunks()))
            self._values.append(values)
            if codes is None:
                codes = own
            else:
                # Numbered anew after each column, or the product of many columns' counts would not fit a number.
                pairs, codes = _numbered(pa.array(codes * len(values) + own))
                self._pairs.append(pairs)
        assert codes is not None, "a key has a column"
        self.codes: Integers = codes
        """The number of each of the rows' keys."""
        self.count = len((self._pairs or self._values)[-1])

    def find(self, data: pa.Table) -> Integers:
        """Return the number of each key of *data*, -1 for those that are not among these."""
        codes: Integers | None = None
        for at, (name, values) in enumerate(zip(self.columns, self._values, strict=True)):
            own = _places(_alike(data.column(name)), values)
            if codes is None:
                codes = own
            else:
                is_known = (codes >= 0) & (own >= 0)
                both = np.where(is_known, codes * len(values) + own, -1)
                codes = _places(pa.array(both), self._pairs[at - 1])
        assert codes is not None, "a key has a column"
        return codes


def _alike(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return *column* with one zero: a source's unique key holds -0.0 and 0.0 for the same, Arrow does not. Values of
    several parts are texts, for Arrow does not compare them.
    """
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else repr(_plain(value)) for value in column.to_pylist()], pa.string())
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _plain(value: Any) -> Any:
    """Return *value* with one zero, however deep it stands."""
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _numbered(column: pa.Array) -> tuple[pa.Array, Integers]:
    """Return the distinct values of *column*, NULL one of them, and which of them each of its values is."""
    found = column.dictionary_encode("encode")
    return found.dictionary, found.indices.to_numpy().astype(np.int64)


def _places(column: pa.Array | pa.ChunkedArray, values: pa.Array) -> Integers:
    """Return where each value of *column* stands in *values*; -1: nowhere."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    found: Integers = pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy().astype(np.int64)
    return found
