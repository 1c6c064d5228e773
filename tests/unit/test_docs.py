"""The documents say what is so: their settings parse, their names exist, and nothing that users touch is left out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

import sidecar
from sidecar import cli, config
from tests import types_matrix, types_matrix_sqlite
from tests.servers import Database

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
DOCS = "\n".join([README, *(p.read_text() for p in sorted((ROOT / "docs").glob("*.md")))])


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_settings_in_the_readme_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", "p@ss:w/rd#1")
    path = tmp_path / "sidecar.toml"
    path.write_text(next(b for b in blocks("toml") if "[source]" in b))
    settings = config.load(path)
    assert settings.tables["orders"].page_size == 50_000
    assert set(settings.sinks) == {"lake", "hook", "mirror"}


@pytest.mark.parametrize(
    "section", [config.SourceSettings, config.StateSettings, config.Defaults, config.SinkSettings, config.SparkSettings]
)
def test_every_setting_is_documented(section: type[config.SourceSettings]) -> None:
    ours = {"conf", "connector"}
    names = [field.alias or name for name, field in section.model_fields.items()]
    missing = [name for name in names if name not in ours and not re.search(rf"\b{name}\b", DOCS)]
    assert not missing


def test_every_command_in_the_readme_exists_and_every_command_is_in_it() -> None:
    group = typer.main.get_command(cli.app)
    assert isinstance(group, typer.core.TyperGroup)
    named = set(re.findall(r"\bsidecar (\w+)", "\n".join(blocks("sh"))))
    assert named <= set(group.commands)
    assert all(re.search(rf"sidecar {name}\b", DOCS) for name in group.commands if name != "demo")


def test_every_python_example_compiles() -> None:
    found = blocks("python")
    assert found
    for block in found:
        compile(block, "README.md", "exec")


def test_every_public_name_can_be_reached() -> None:
    assert all(getattr(sidecar, name) is not None for name in dir(sidecar))


def test_every_promise_is_numbered() -> None:
    assert all(f"**G{n}**" in DOCS for n in range(1, 9))


def test_the_matrix_of_types_is_what_a_server_and_the_connector_say(pg: Database) -> None:
    if int(pg.connect().info.server_version) < 150000:
        pytest.skip("the matrix has types of PostgreSQL 15")
    page = types_matrix.PAGE.read_text()
    assert types_matrix.HALF.replaced(page, types_matrix.matrix(pg)) == page


def test_sqlites_half_of_the_matrix_is_what_the_connector_says() -> None:
    page = types_matrix.PAGE.read_text()
    assert types_matrix_sqlite.HALF.replaced(page, types_matrix_sqlite.matrix()) == page
