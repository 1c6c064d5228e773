"""A project after its end."""

from __future__ import annotations

from pathlib import Path

import pytest

import sidecar
from tests.conftest import SQLiteFile


@pytest.mark.parametrize("read_only", [False, True])
def test_a_project_that_is_closed_says_so_and_does_not_open_again(
    sqlite_db: SQLiteFile, tmp_path: Path, *, read_only: bool
) -> None:
    sqlite_db.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, updated_at TEXT NOT NULL)")
    path = tmp_path / "sidecar.toml"
    path.write_text(f'[source]\nurl = "sqlite:///{sqlite_db.path}"\n[tables.orders]\n')
    with sidecar.open(path, read_only=read_only) as sc:
        assert list(sc.tracked) == ["orders"]
    sc.refresh()
    for use in (sc.status, lambda: sc.connector, lambda: sc.tracked, lambda: sc.store):
        with pytest.raises(sidecar.SidecarError, match=r"this project is closed.*open it anew"):
            use()
    sc.close()
    with sidecar.open(path) as again:
        assert again.poll()["orders"].rows == 0
