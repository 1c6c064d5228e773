"""The place in a user's own code where something was raised."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.delivering.raised_at import raised_at

SHAPES = """
import json
import parts_of_a_user

def orders(text):
    return json.loads(text)

def deep(text):
    return parts_of_a_user.part(text)
"""


@pytest.fixture
def shapes(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "shapes_of_a_user.py").write_text(SHAPES)
    (tmp_path / "parts_of_a_user.py").write_text("def part(text):\n    raise ValueError(text)\n")
    before = list(sys.path)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("shapes_of_a_user")
    sys.path[:] = before
    for name in ("shapes_of_a_user", "parts_of_a_user"):
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("function", "place"),
    [
        ("orders", "shapes_of_a_user.py, line 6, in orders"),
        ("deep", "parts_of_a_user.py, line 2, in part"),
    ],
)
def test_the_innermost_line_of_a_users_files_is_named(shapes: Any, tmp_path: Path, function: str, place: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        getattr(shapes, function)("{")
    assert raised_at(raised.value, tmp_path, []) == place


def test_a_module_that_is_installed_elsewhere_is_known_by_its_name(shapes: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        shapes.orders("{")
    place = raised_at(raised.value, tmp_path / "elsewhere", ["shapes_of_a_user"])
    assert place == f"{tmp_path}/shapes_of_a_user.py, line 6, in orders"
    assert raised_at(raised.value, tmp_path / "elsewhere", ["json"]) is not None
    assert raised_at(raised.value, tmp_path / "elsewhere", []) is None


def test_what_an_executor_raised_says_its_place_in_its_text(tmp_path: Path) -> None:
    text = f'''An exception was thrown from the Python worker:
  File "{tmp_path}/shapes.py", line 15, in f
    return 1 // 0
  File "{tmp_path}/.venv/lib/python3.11/site-packages/x.py", line 3, in g
ZeroDivisionError: integer division or modulo by zero'''
    assert raised_at(RuntimeError(text), tmp_path, []) == "shapes.py, line 15, in f"
