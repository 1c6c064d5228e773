"""The texts of arrays, composites and hstores taken apart, strictly: what is not exactly one of them raises ValueError.

These are the forms that PostgreSQL itself prints, and no other that it would read. Elements stay texts; None is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

Text: TypeAlias = str | None

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ODD = re.compile(r'[{}"\\\s]')
"""What no array of plain elements has in it."""
_BOUNDS = re.compile(r"(\[[+-]?\d+:[+-]?\d+\])+=")


class OtherBounds(ValueError):
    """An array counts its elements from another number than 1."""


def array(text: str, delimiter: str = ",") -> tuple[list[Text], tuple[int, ...]]:
    """Return an array's elements, one after the other, and the length of each of its dimensions; `{}` has none."""
    if text == "{}":
        return [], ()
    body = text[1:-1]
    if text[:1] == "{" and text[-1:] == "}" and not _ODD.search(body):
        found: list[Text] = [None if item == "NULL" else item for item in body.split(delimiter)]
        if "" in found:
            raise ValueError("an element is missing")
        return found, (len(found),)
    if _BOUNDS.match(text):
        raise OtherBounds("counts from another number than 1")
    return _nested(text, delimiter)


def _nested(text: str, delimiter: str) -> tuple[list[Text], tuple[int, ...]]:
    """Return what `array` does, for one with braces or quotes inside."""
    pieces: list[str] = []
    at = 0
    for match in _token(delimiter).finditer(text):
        if match.start() != at:
            break
        pieces.append(match[0])
        at = match.end()
    if at != len(text) or text[:1] != "{":
        raise ValueError("a character stands where none may")
    found: list[Text] = []
    shape, end = _level([*pieces, ""], 0, delimiter, found)
    if end != len(pieces):
        raise ValueError("something follows its end")
    return found, shape


def _level(pieces: Sequence[str], at: int, delimiter: str, found: list[Text]) -> tuple[tuple[int, ...], int]:
    """Add to *found* what stands between the braces that open at *at*; return the lengths in there, and the end."""
    shapes: set[tuple[int, ...]] = set()
    count = 0
    while True:
        piece = pieces[at + 1]
        if piece in ("", "}", delimiter):
            raise ValueError("an element is missing")
        if piece == "{":
            shape, at = _level(pieces, at + 1, delimiter, found)
        else:
            found.append(_unquoted(piece) if piece[0] == '"' else None if piece == "NULL" else piece)
            shape, at = (), at + 2
        shapes.add(shape)
        count += 1
        if len(shapes) > 1:
            raise ValueError("its rows are of different lengths")
        if pieces[at] == "}":
            return (count, *shape), at + 1
        if pieces[at] != delimiter:
            raise ValueError("it goes on where it should end")


@cache
def _token(delimiter: str) -> re.Pattern[str]:
    apart = re.escape(delimiter)
    return re.compile(rf'"(?:[^"\\]|\\.)*"|[{{}}]|{apart}|[^{{}}"\\\s{apart}]+', re.DOTALL | re.ASCII)


def _unquoted(piece: str) -> str:
    inner = piece[1:-1]
    return _ESCAPED.sub(r"\1", inner) if "\\" in inner else inner


# A field with nothing in it is NULL; the empty text is quoted. Quotes and backslashes stand twice.
_FIELD = re.compile(r'(?:"((?:[^"\\]|""|\\\\)*)"|([^,()"\\\s]*))([,)])', re.ASCII)


def record(text: str, count: int) -> list[Text]:
    """Return the *count* fields of a composite value."""
    if count == 0 and text == "()":
        return []
    if text[:1] != "(":
        raise ValueError("it does not begin with a bracket")
    found: list[Text] = []
    at = 1
    while True:
        match = _FIELD.match(text, at)
        if match is None:
            raise ValueError("a character stands where none may")
        quoted, bare, end = match.groups()
        at = match.end()
        found.append((bare or None) if quoted is None else quoted.replace('""', '"').replace("\\\\", "\\"))
        if end == ")":
            break
    if at != len(text):
        raise ValueError("something follows its end")
    if len(found) != count:
        raise ValueError(f"it has {len(found)} fields, its type {count}")
    return found


_STRING = r'"((?:[^"\\]|\\.)*)"'
_PAIR = re.compile(rf"{_STRING}=>(?:{_STRING}|NULL)(, |\Z)", re.DOTALL)


def pairs(text: str) -> tuple[list[str], list[Text]]:
    """Return the keys and the values of an hstore."""
    keys: list[str] = []
    values: list[Text] = []
    at, goes_on = 0, bool(text)
    while goes_on:
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError("a pair is malformed")
        key, value, end = match.groups()
        keys.append(_ESCAPED.sub(r"\1", key))
        values.append(None if value is None else _ESCAPED.sub(r"\1", value))
        at, goes_on = match.end(), bool(end)
    return keys, values


def shown(shape: Sequence[int]) -> str:
    """Return an array's number of dimensions in words."""
    return "1 dimension" if len(shape) == 1 else f"{len(shape)} dimensions"
