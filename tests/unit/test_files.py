"""Files stand whole or not at all, under names that nothing else reads as more than a name."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import StateDamaged
from sidecar.log.files import filename, make_folder, unescaped, write_durably

NAMES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1)


@given(NAMES)
def test_a_file_name_can_be_read_back(name: str) -> None:
    assert unescaped(filename(name)) == name


@pytest.mark.parametrize("name", ["客户" * 10 + "." + "订单" * 10, "é" * 63, "x" * 185])
def test_a_name_of_many_bytes_is_no_longer_than_a_file_may_be_called(name: str) -> None:
    assert len(filename(name)) <= 255
    assert unescaped(filename(name)) == name


@pytest.mark.parametrize("name", ["shop." + "a" * 250, "客户" * 13 + ".订单"])
def test_a_name_that_has_room_stays_what_it_has_always_been(name: str) -> None:
    assert filename(name) == quote(name)


@pytest.mark.parametrize("found", ["", "%%", "%%_w", "%%eA", "a b", "%2e", "shop\udcff"])
def test_what_is_no_name_of_ours_is_none(found: str) -> None:
    assert unescaped(found) is None


@given(NAMES, NAMES)
def test_two_names_are_never_one_file(a: str, b: str) -> None:
    assert (filename(a) == filename(b)) == (a == b)


@given(NAMES)
def test_a_file_name_is_one_plain_component_that_spark_does_not_hide(name: str) -> None:
    found = filename(name)
    assert found.isascii()
    assert not set(found) & set("/\\:=*?[]{},'\" \n\0$&;<>|~`!()#^+@")
    assert found[0] not in "._"


@pytest.mark.parametrize("name", ["orders", "public.orders", "Order_Items", "a-b", "x9"])
def test_plain_names_stay_plain(name: str) -> None:
    assert filename(name) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("..", "%2E."), ("_x", "%5Fx"), ("a/b", "a%2Fb"), ("a%2Fb", "a%252Fb"), ("ß", "%C3%9F"), ("a=b", "a%3Db")],
)
def test_odd_names_are_escaped(name: str, expected: str) -> None:
    assert filename(name) == expected


@pytest.mark.parametrize("name", ["订单" * 13 + "!", "é" * 41, "é" * 42])
def test_a_file_of_a_name_of_many_bytes_can_be_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / filename(name, ".json")
    write_durably(path, lambda aside: write(aside, "one"))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def write(path: Path, text: str) -> None:
    path.write_text(text)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_durably(path, lambda aside: write(aside, "one"))
    write_durably(path, lambda aside: write(aside, "two"))
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("one")

    def fail(aside: Path) -> None:
        aside.write_text("half")
        raise OSError(28, os.strerror(28))

    with pytest.raises(StateDamaged, match=f"{path}: cannot be written: No space left on device"):
        write_durably(path, fail)
    assert path.read_text() == "one"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_what_happens_in_between_happens_before_the_rename(tmp_path: Path) -> None:
    path, seen = tmp_path / "x", list[bool]()
    write_durably(path, lambda aside: write(aside, "one"), between=lambda: seen.append(path.exists()))
    assert seen == [False]
    assert path.exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("-")
    with pytest.raises(StateDamaged, match="cannot be created"):
        make_folder(tmp_path / "file" / "inside")
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
