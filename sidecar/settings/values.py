"""One value of the settings file → the value that the program works with; ValueError says what is wrong, plainly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr, ValidationInfo

from sidecar.model import Scalar
from sidecar.settings.words import nearest

UNITS: Mapping[str, int] = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 7 * 86_400_000_000,
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]+)")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def duration(value: Any) -> int:
    """Return microseconds for `60s`, `250ms`, `2h30m`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f'{value} has no unit; write "{value}s" or "{value}m"')
    text_ = text(value).strip()
    if re.fullmatch(r"\d+(\.\d+)?", text_):
        raise ValueError(f'"{text_}" has no unit; write "{text_}s" or "{text_}m"')
    total, end = Fraction(0), 0
    while match := _PART.match(text_, end):
        number, unit = match.groups()
        if unit not in UNITS:
            break
        total, end = total + Fraction(number) * UNITS[unit], match.end()
    if not text_ or end != len(text_):
        raise ValueError(
            f'"{text_}" is no duration; write a number with a unit, such as "60s", "250ms", "5m", "2h30m", "7d"'
        )
    if total.denominator != 1:
        raise ValueError(f'"{text_}" is finer than a microsecond')
    return int(total)


def text(value: Any) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, not {_kind(value)}")
    if not value:
        raise ValueError("is empty")
    return value


def secret(value: Any) -> SecretStr:
    """Return a text that shows itself to nobody."""
    return SecretStr(text(value))


def names(value: Any) -> tuple[str, ...]:
    """Return a list of names; a single one may stand without brackets."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f'must be a list of names, ["…", "…"], not {_kind(value)}')
    if not value:
        raise ValueError("is an empty list; leave it out for the default")
    if wrong := [v for v in value if not isinstance(v, str) or not v]:
        raise ValueError(f"must be a list of names in quotes; {_kind(wrong[0])} is among them")
    if twice := next((v for i, v in enumerate(value) if v in value[:i]), None):
        raise ValueError(f'"{twice}" stands there twice')
    return tuple(value)


def name_or_false(value: Any) -> str | Literal[False]:
    """Return a column's name, or False for "none, even if there is one"."""
    if value is False:
        return False
    if value is True:
        raise ValueError("must be a column's name, or false to do without")
    return text(value)


def positive(value: Any) -> int:
    """Return a whole number above zero; from the environment it comes as text."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number above 0")
    return int(value)


def flag(value: Any) -> bool:
    """Return true or false; from the environment they come as text."""
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise ValueError("must be true or false, without quotes")
    return value


def scalars(value: Any) -> tuple[Scalar, ...]:
    """Return a list of values as the source may hold them."""
    found = value if isinstance(value, list) else [value]
    if wrong := [v for v in found if not isinstance(v, (str, int, float))]:
        hint = "; write it as text" if isinstance(wrong[0], (datetime, date, time)) else ""
        raise ValueError(f"must be a list of texts and numbers; {_kind(wrong[0])} is among them{hint}")
    return tuple(found)


def options(value: Any) -> dict[str, str]:
    """Return options as Spark takes them: text for text."""
    if not isinstance(value, dict):
        raise ValueError(f"must be options, {{ name = value, … }}, not {_kind(value)}")
    found = {}
    for name, option in value.items():
        if not isinstance(option, (str, int, float)):
            raise ValueError(f'"{name}" must be text, a number, true or false, not {_kind(option)}')
        found[name] = str(option).lower() if isinstance(option, bool) else str(option)
    return found


def numeric(value: Any) -> str:
    """Return what numbers without declared digits arrive as."""
    match = re.fullmatch(r"decimal\((\d{1,2}),\s*(\d{1,2})\)", value) if isinstance(value, str) else None
    if match and 1 <= int(match[1]) <= 38 and int(match[2]) <= int(match[1]):
        return f"decimal({int(match[1])},{int(match[2])})"
    if value in ("string", "double"):
        return str(value)
    raise ValueError('must be "string", "double" or "decimal(P,S)" with P up to 38 and S up to P')


def word(*words: str) -> Callable[[Any], str]:
    """Return a check that a value is one of *words*."""

    def check(value: Any) -> str:
        if value not in words:
            near = nearest(value, words) if isinstance(value, str) else None
            hint = f'; did you mean "{near}"?' if near else ""
            raise ValueError("must be one of " + ", ".join(f'"{w}"' for w in words) + hint)
        return str(value)

    return check


def by_column(check: Callable[[Any], str]) -> Callable[[Any], str | dict[str, str]]:
    """Return *check* for one value that holds for all columns, or for a value a column."""

    def checked(value: Any) -> str | dict[str, str]:
        if not isinstance(value, dict):
            return check(value)
        found = {}
        for name, one in value.items():
            try:
                found[name] = check(one)
            except ValueError as error:
                raise ValueError(f'"{name}" {error}') from None
        return found

    return checked


def flat(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield *raw*'s entries under dotted names."""
    # Without its quotes, spark.x.y = "…" is a section within a section to TOML.
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def folder(value: Any, info: ValidationInfo) -> Path:
    """Return an absolute path; a relative one starts from the settings file's folder."""
    given = value if isinstance(value, Path) else Path(text(value))
    return Path(_base(info), given.expanduser())


def place(value: Any, info: ValidationInfo) -> str:
    """Return where a sink writes to: a URL as it is, a path made absolute."""
    place_ = text(value)
    return place_ if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", place_) else str(folder(place_, info))


def zone(value: Any) -> str:
    """Return the name of a time zone that this machine knows."""
    import zoneinfo

    name = text(value)
    try:
        zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        known = zoneinfo.available_timezones()
        near = nearest(name, known)
        hint = f'; did you mean "{near}"?' if near else '; write it like "Europe/Berlin"'
        raise ValueError(f'"{name}" is no time zone{hint}') from None
    return name


def function(value: Any) -> str:
    """Return where a function is, as `module:function`."""
    if not _FUNCTION.fullmatch(text(value)):
        raise ValueError(f'"{value}" names no function; write "package.module:function"')
    return str(value)


def prefix(value: Any) -> str:
    """Return what the metadata columns' names begin with."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise ValueError('must begin with a letter or "_", and go on with letters, digits and "_"')
    return value


def _base(info: ValidationInfo) -> Path:
    context: Mapping[str, Path] = info.context or {}
    return context.get("folder", Path())


def _kind(value: Any) -> str:
    words: tuple[tuple[Any, str], ...] = (
        (bool, "true or false"),
        ((int, float), "a number"),
        (str, "a text" if value else "an empty text"),
        (list, "a list"),
        (dict, "a section"),
        ((datetime, date, time), "a date or time"),
    )
    return next((word for type_, word in words if isinstance(value, type_)), "something else")
