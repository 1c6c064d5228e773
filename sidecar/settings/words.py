"""Names in messages: the nearest known one, and sections as the file writes them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

MANY = 20


def nearest(name: str, known: Iterable[str], like: float = 0.6) -> str | None:
    """Return that of *known* which *name* may have been meant to be, by how much is *like* it (1: all)."""
    folded = {k.casefold(): k for k in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=like)
    return folded[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "…"?` for the nearest known name, else what there is."""
    known = list(known)
    if (near := nearest(name, known)) is not None:
        return f'; did you mean "{near}"?'
    return f"; there are: {listed(known)}" if known else "; there are none"


def listed(names: Iterable[str]) -> str:
    """Return *names* as a list that still fits into a message."""
    names = list(names)
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more


def section(*parts: str) -> str:
    """Return a section's name as TOML writes it, quoted where it must be."""
    return ".".join(p if re.fullmatch(r"[A-Za-z0-9_-]+", p) else json.dumps(p, ensure_ascii=False) for p in parts)


def sink_of_its_own(table: str = "TABLE") -> str:
    """Return how *table* alone gets another sink, where the tables beside it keep the one that they have."""
    name = json.dumps(table, ensure_ascii=False)
    return (
        f"a sink of its own: [sinks.NAME] with another path and tables = [{name}], and "
        f'[{section("tables", table)}] sinks = ["NAME"]'
    )
