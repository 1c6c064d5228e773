"""The order in which `make test` hands out the files of tests."""

from __future__ import annotations

from tests.conftest import FOLDER, HEAVIEST


def test_the_files_that_come_first_are_there() -> None:
    assert [file for file in HEAVIEST if not (FOLDER / file).is_file()] == []
    assert len({*HEAVIEST}) == len(HEAVIEST)
