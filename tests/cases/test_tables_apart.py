"""Tables that cannot be followed beside tables that can: each is named, and holds up no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sidecar
from sidecar.errors import SettingsError
from tests.cases.harness import Project, kinds
from tests.servers import Database

TABLES = """\
CREATE TABLE customers (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE regions (id int PRIMARY KEY, updated_at timestamptz NOT NULL DEFAULT now());
INSERT INTO customers VALUES (1); INSERT INTO regions VALUES (1);
"""


@pytest.mark.parametrize("include", [["public.*"], ["customers", "regions", "migr*"]])
def test_a_new_table_that_nothing_can_be_polled_by_holds_up_no_other(
    tmp_path: Path, pg: Database, include: list[str]
) -> None:
    s1 = pg.connect()
    s1.execute(TABLES + "CREATE TABLE migrated (id int PRIMARY KEY, updated_at timestamptz)")
    project = Project(tmp_path, None, {}, source={"url": pg.reader_url, "include": include})
    project.poll()
    s1.execute("DROP TABLE migrated; CREATE TABLE migrations (version text); INSERT INTO regions VALUES (2)")
    run = project.cli("run", "--once")
    assert run.code == 2
    assert 'table "migrations": it has no primary key' in run.err
    assert kinds(project.rows("regions")[1:], "id") == [("update_postimage", 2)]


@pytest.mark.parametrize("source", [{"include": ["customers", "regions"]}, {"exclude": ["*_tmp"]}])
def test_a_table_that_a_pattern_let_in_is_missed_once_it_is_renamed(
    tmp_path: Path, pg: Database, source: dict[str, Any]
) -> None:
    s1 = pg.connect()
    s1.execute(TABLES)
    project = Project(tmp_path, None, {}, source={"url": pg.reader_url, **source})
    project.poll()
    s1.execute("ALTER TABLE customers RENAME TO customers_tmp; INSERT INTO regions VALUES (2)")
    with sidecar.open(project.path) as sc:
        for _ in range(2):
            with pytest.raises(SettingsError, match='table "customers": it has been followed, and is not in'):
                sc.poll()
        s1.execute("ALTER TABLE customers_tmp RENAME TO customers; INSERT INTO customers VALUES (4)")
        sc.poll()
    assert kinds(project.rows("regions"), "id") == [("insert", 1), ("update_postimage", 2)]
    assert kinds(project.rows("customers"), "id") == [("insert", 1), ("update_postimage", 4)]


def test_a_table_whose_settings_are_wrong_holds_up_no_other_and_comes_in_by_no_pattern(
    tmp_path: Path, pg: Database
) -> None:
    s1 = pg.connect()
    s1.execute(TABLES + "CREATE TABLE notes (line text, updated_at timestamptz)")
    tables = {"customers": {"updated_at": "updatd_at"}, "notes": {}}
    project = Project(tmp_path, None, tables, source={"url": pg.reader_url, "include": ["*"]})
    run = project.cli("run", "--once")
    assert run.code == 2
    assert 'table "customers": updated_at: there is no column "updatd_at"' in run.err
    assert 'table "notes": it has no primary key' in run.err
    assert kinds(project.rows("regions"), "id") == [("insert", 1)]
    assert not (project.folder / "state" / "log" / "customers").exists()
