"""Which of Arrow's types a segment gives back as they were given to it. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def unheld(type_: Any) -> Iterator[tuple[pa.DataType, pa.DataType | None]]:
    """Yield what within *type_* Parquet has no word for, or reads as another type; and that, where it can be had so."""
    if pa.types.is_timestamp(type_) and type_.unit != "us":
        yield type_, pa.timestamp("us", type_.tz)
    elif pa.types.is_date64(type_):
        yield type_, pa.date32()
    elif type_ == pa.time32("s"):
        yield type_, pa.time64("us")
    elif (
        (pa.types.is_struct(type_) and type_.num_fields == 0)
        or (pa.types.is_decimal(type_) and type_.scale < 0)
        or pa.types.is_union(type_)
        or pa.types.is_interval(type_)
        or pa.types.is_run_end_encoded(type_)
    ):
        yield type_, None
    else:
        for number in range(type_.num_fields):
            yield from unheld(type_.field(number).type)
