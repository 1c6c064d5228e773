"""`${NAME}` in the settings file → the environment's value, and a note of where each value went."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import quote

from sidecar.settings.words import section

Loc: TypeAlias = tuple[str | int, ...]

_REFERENCE = re.compile(r"\$(\$?)\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Expanded:
    """The settings with every reference replaced, and what could not be."""

    raw: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[Loc, str]] = field(default_factory=list)
    missing: set[Loc] = field(default_factory=set)
    origins: list[tuple[Loc, str]] = field(default_factory=list)

    def values(self, loc: Loc) -> list[str]:
        """Return what came from the environment to *loc*, or to a place within it."""
        return [value for origin, value in self.origins if origin[: len(loc)] == loc]


def expand(raw: dict[str, Any]) -> Expanded:
    """Return *raw* with `${NAME}` replaced in every string; `$${NAME}` stays a literal `${NAME}`.

    In `source.url` a reference before the last `@` is percent-encoded, so that a password with `@ : / # %` in it works
    as it is. A URL that is one reference and nothing else is taken as the environment has it.
    """
    found = Expanded()
    found.raw = {key: _expand(value, (key,), found) for key, value in raw.items()}
    return found


def _expand(value: Any, loc: Loc, found: Expanded) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, (*loc, k), found) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, (*loc, i), found) for i, v in enumerate(value)]
    return _text(value, loc, found) if isinstance(value, str) else value


def _text(text: str, loc: Loc, found: Expanded) -> str:
    # A file path is no credential: what stands before an @ in it is left alone.
    in_url = loc == ("source", "url") and not text.lower().startswith("sqlite:")
    credentials_end = text.rfind("@") if in_url else -1

    def replace(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return match.group()[1:]
        value = os.environ.get(name)
        if value is None:
            _complain(name, loc, found)
            return match.group()
        found.origins.append((loc, value))
        return quote(value, safe="") if match.start() < credentials_end else value

    return _REFERENCE.sub(replace, text)


def _complain(name: str, loc: Loc, found: Expanded) -> None:
    depth = 2 if loc[0] in ("tables", "sinks") and len(loc) > 2 else 1
    key = ".".join(str(part) for part in loc[depth:])
    where = f"[{section(*(str(part) for part in loc[:depth]))}] {key}" if key else f"{loc[0]}"
    if _NAME.fullmatch(name):
        problem = f"the environment variable {name} is not set (${{{name}}} stands there)"
    else:
        problem = f"${{{name}}} names no environment variable; write $${{…}} for a literal ${{…}}"
    found.problems.append((loc, f"{where}: {problem}"))
    # A list is found wrong as a whole.
    found.missing.update(loc[:i] for i in range(depth + 1, len(loc) + 1))
