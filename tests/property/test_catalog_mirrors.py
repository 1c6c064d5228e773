"""Mirrors in a catalog, of random changes that are cut, crashed and repeated in any way: the log, folded.

As in `test_mirrors.py`, but a commit takes Spark half a second: so there is one story, of many keys, for each kind.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from sidecar import faults
from sidecar.mirrors.catalog_table import Catalog
from sidecar.mirrors.mirror import KINDS, MirrorSink
from sidecar.sinks import Batch
from tests.property.test_mirrors import FOLDS, START, Change, Killed, Segment, arrow, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [(number // 2, "ab"[number % 2]) for number in range(60)]
SEEDS = range(40 if os.environ.get("SIDECAR_SOAK") else 1)


def story(dice: random.Random) -> list[Segment]:
    """Return twelve segments of a source that lives: rows come, change, go, come back, and are backfilled again."""
    alive: dict[Any, tuple[Any, ...]] = {}
    width, now, found = 1, START, []
    for offset in range(1, 13):
        width = min(3, width + (offset in {3, 7}))
        now += dice.choice([1, 1_000, -5, 0])
        changes, is_backfill = [], dice.random() < 0.4
        for key in dice.sample(KEYS, dice.randrange(30)):
            what = dice.choice(["write", "write", "delete", "bare"])
            if is_backfill and key in alive and what != "write":
                changes.append(Change("insert", "backfill", key, alive[key]))
            elif is_backfill or what == "write":
                kind = "update_postimage" if key in alive and not is_backfill else "insert"
                alive[key] = tuple(dice.choice([None, 1, 2]) for _ in range(min(2, width)))
                if width == 3:
                    alive[key] = (*alive[key], dice.choice(["x", None]))
                changes.append(Change(kind, "backfill" if is_backfill else "poll", key, alive[key]))
            else:
                values = alive.pop(key, ())
                changes.append(Change("delete", "poll", key, values if what == "delete" else ()))
        found.append(Segment(offset, now, width, tuple(changes)))
    return found


@pytest.fixture
def interpreted(catalogs: SparkSession) -> Iterator[SparkSession]:
    """The session, compiling no plan: it would take longer than the plans of so few rows do."""
    catalogs.conf.set("spark.sql.codegen.wholeStage", "false")
    catalogs.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield catalogs
    catalogs.conf.unset("spark.sql.codegen.wholeStage")
    catalogs.conf.unset("spark.sql.codegen.factoryMode")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_mirror_in_a_catalog_is_the_log_folded_however_it_is_cut_crashed_and_repeated(
    interpreted: SparkSession, kind: str, seed: int
) -> None:
    segments, name = story(random.Random(seed)), f"{kind}_{seed}"
    catalog = Catalog("rows.shop.{table}", None, lambda: interpreted)

    def give(first: int, last: int, dies_at: str | None = None) -> None:
        """Hand the batch to a new process, as it were, which may die of it."""
        sink = MirrorSink("lake", kind=kind, catalog=catalog)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(faults, "point", lambda point: die(point, dies_at))
            batch = Batch(name, first, last, key=("id", "part"), log="a log")
            sink.apply(arrow(segments[first - 1 : last]), batch, "_commit_version")
            assert dies_at is None

    def held(through: int) -> bool:
        """Return whether the table is the log folded *through* that offset."""
        width = segments[through - 1].width
        return content(interpreted, f"rows.shop.{name}", width) == FOLDS[kind](segments[:through], width)

    give(1, 5, "mirror-created")
    give(1, 5, "mirror-written")
    give(1, 5, "mirror-committed")
    assert held(5)
    give(6, 9, "mirror-evolved")
    # Positions from before what the table has: batches that begin further back, and end elsewhere.
    give(4, 9)
    assert held(9)
    give(2, 12, "mirror-committed")
    give(2, 12)
    assert held(12)


def die(point: str, at: str | None) -> None:
    if point == at:
        raise Killed


def content(spark: SparkSession, place: str, width: int) -> list[Any]:
    """Return the table's rows as any reader gets them, without the column that says as of which offset they are."""
    table = spark.table(place).toArrow()
    names = ["id", "part", *(f"v{n}" for n in range(width)), *(n for n in table.column_names if n[0] == "_")]
    names.remove("_commit_version")
    rows: list[Mapping[str, Any]] = table.to_pylist()
    return sorted((tuple(plain(row[n]) for n in names) for row in rows), key=repr)
