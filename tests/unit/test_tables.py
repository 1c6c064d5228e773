"""Tables for people, in a terminal of any width and in a pipe."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sidecar.terminal import tables
from sidecar.terminal.tables import Table

WIDE = [["insert", "1", "x" * 300, "a note of two words"], ["delete", "20", "", "1"]]
STANDING = Table(("table", "offset", "state"), [["orders", "1", "ok"], ["t", "20", "word " * 20 + "end"]], prose=True)


def seen(table: Table, width: int) -> list[str]:
    terminal = io.StringIO()
    Console(width=width, file=terminal).print(tables.drawn(table, width))
    return [line.rstrip() for line in terminal.getvalue().splitlines()]


def test_a_pipe_has_a_line_a_row_and_all_of_each_value(capsys: pytest.CaptureFixture[str]) -> None:
    tables.printed(Table(("kind", "id", "text", "note"), WIDE))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "x" * 300 + "  a note of two words" in lines[1]
    assert [line.index(word) for line, word in zip(lines, ("id", "1 ", "20"), strict=True)] == [8, 8, 8]


def test_a_table_stands_in_a_terminal_that_has_room_for_it() -> None:
    assert seen(Table(("id", "note"), [["1", "a note of two words"]]), 80) == ["id  note", "1   a note of two words"]


def test_only_prose_goes_over_several_lines() -> None:
    lines = seen(STANDING, 60)
    assert lines[:2] == ["table   offset  state", "orders  1       ok"]
    assert lines[2].startswith("t       20      word word")
    assert lines[-1].endswith("end")


def test_where_there_is_no_room_a_row_becomes_a_record() -> None:
    lines = seen(Table(("kind", "id", "text", "note"), WIDE), 60)
    assert lines[:2] == ["kind  insert", "id    1"]
    assert "…" in " ".join(lines)
    assert lines[-5:] == ["", "kind  delete", "id    20", "text", "note  1"]
    assert seen(STANDING, 40)[:3] == ["table   orders", "offset  1", "state   ok"]


def test_no_value_breaks_a_line_or_speaks_to_the_terminal() -> None:
    table = Table(("a",), [["x\ny\x1b[31m é 漢"]])
    assert tables.lines(table) == ["a", r"x\ny\x1b[31m é 漢"]
    assert seen(table, 80) == ["a", r"x\ny\x1b[31m é 漢"]


def test_several_texts_have_a_line_each_in_a_terminal_and_one_together_in_a_pipe() -> None:
    table = Table(("version", "columns"), [["1", ("id int64", "total double")]], prose=True)
    assert seen(table, 80)[1:] == ["1        id int64", "         total double"]
    assert tables.lines(table)[1] == "1        id int64; total double"
