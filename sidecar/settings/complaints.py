"""What pydantic finds wrong → words that somebody who knows only the file understands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import ValidationError

from sidecar.settings.environment import Expanded
from sidecar.settings.scrub import Secrets
from sidecar.settings.words import did_you_mean, nearest, section

Keys: TypeAlias = Mapping[str, Sequence[str]]
"""The keys of each section."""


def said(error: ValidationError, raw: Mapping[str, Any], expanded: Expanded, keys: Keys) -> Iterator[str]:
    """Yield what is wrong with *raw*, whose sections have *keys*, except for what is only because the environment lacks
    something: that is said already.
    """
    for found in error.errors(include_url=False):
        loc = tuple(found["loc"])
        # Of a section with something missing in it, it is not known whether it contradicts itself.
        is_in_doubt = found["type"] == "value_error" and any(m[: len(loc)] == loc for m in expanded.missing)
        if loc not in expanded.missing and not is_in_doubt:
            # What came from the environment may be a secret that stands at the wrong key.
            yield Secrets(expanded.values(loc)).scrub(_sentence(found, loc, raw, keys))


def _sentence(error: Any, loc: tuple[Any, ...], raw: Mapping[str, Any], keys: Keys) -> str:
    if len(loc) == 1:
        if error["type"] == "extra_forbidden":
            what = f"section [{loc[0]}]" if isinstance(raw.get(loc[0]), dict) else f'key "{loc[0]}"'
            return f"unknown {what}{did_you_mean(loc[0], keys)}"
        return f"[{loc[0]}] {_complaint(error)}"
    depth = 2 if loc[0] in ("tables", "sinks") else 1
    where, rest = f"[{section(*loc[:depth])}]", loc[depth:]
    if error["type"] == "extra_forbidden" and any(isinstance(part, int) for part in rest):
        return f'{where} {_path(rest[:-1])}: unknown key "{rest[-1]}"'
    if error["type"] == "extra_forbidden":
        return f'{where} unknown key "{rest[0]}"' + _instead(loc, depth, raw, keys)
    return f"{where} {_path(rest)}: {_complaint(error)}" if rest else f"{where} {_complaint(error)}"


def _path(rest: Sequence[Any]) -> str:
    return ".".join(map(str, rest))


def _instead(loc: tuple[Any, ...], depth: int, raw: Mapping[str, Any], keys: Keys) -> str:
    within: Any = raw
    for part in loc:
        within = within[part]
    if loc[0] == "tables" and isinstance(within, dict):
        return f"; for a table in a schema, write [{section('tables', '.'.join(loc[1:]))}]"
    return did_you_mean(loc[depth], keys[loc[0]])


def _complaint(error: Any) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if error["type"] == "literal_error":
        words = str(error["ctx"]["expected"]).replace("'", '"')
        near = nearest(str(error["input"]), re.findall(r'"([^"]*)"', words))
        return f"is none of {words}" + (f'; did you mean "{near}"?' if near else "")
    if error["type"] == "tuple_type":
        return "must be a list of sections, each with keys of its own"
    if error["type"] == "missing":
        return "is not said"
    return "must be a section with keys of its own"
