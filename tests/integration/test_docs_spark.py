"""docs/spark.md does what it says: each of its examples is run, in its order, in one folder."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.page import Block, Reader, Wrong, blocks, environment, merged

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_every_example_runs_from_top_to_bottom(tmp_path: Path) -> None:
    # In a process of its own: relative paths mean the folder in which the JVM was started.
    done = subprocess.run(
        [sys.executable, "-m", "tests.page", str(PAGE)],
        cwd=tmp_path,
        env=environment(ROOT),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.count('"line"') == len(blocks(PAGE.read_text())) - 1


def test_what_is_not_run_says_why() -> None:
    assert all(block.not_run is None or len(block.not_run) > 10 for block in blocks(PAGE.read_text()))


def run(page: str) -> Reader:
    reader = Reader("page.md")
    for block in blocks(page):
        reader.run(block)
    return reader


@pytest.mark.parametrize(
    "page",
    [
        "```python\n1 + 1  # → 3\n```\n",
        "```python\nprint('a')  # → b\n```\n",
        "```python\nx = 1  # → 2\ny = [\n    1,  # → 1\n]\n```\n",
        "```python\nraise ValueError\n```\n",
        "```python\nx = (\n```\n",
        "<!-- not run: a cluster -->\n```python\nx = (\n```\n",
        "```bash\nfalse\ntrue\n```\n",
        "```bash\nfalse | true\n```\n",
        "```bash\necho a\n```\n\n```text\nb\n```\n",
        "```sql\nSELECT nothing\n```\n",
        "```toml\nnot toml\n[tables.orders]\nnor this\n```\n",
        "```scala\nval x = 1\n```\n",
        "```\nsomething\n```\n",
        "```python\n1\n",
    ],
)
def test_an_example_that_is_wrong_is_found(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sidecar.toml").write_text('[source]\nurl = "sqlite:///shop.db"\n')
    with pytest.raises(Wrong):
        run(page)


def test_an_example_that_is_right_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(
        "```python\nx = 1\nx + 1  # → 2\nprint('a', 'b')  # → a b\n[1,\n 2, 3]  # → [1, …]\nprint('end')\n```\n"
        "```text\na b\nend\n```\n```bash\necho one\necho three\n```\n```text\none\n…\n```\n"
        "```sql\nSELECT 41 + 1\n```\n```text\n…42…\n```\n```yaml\n# a/b.yml\nx: 1\n```\n"
        "<!-- not run: there is no cluster -->\n```bash\nspark-submit x\n```\n"
    )
    assert Path("a/b.yml").read_text() == "# a/b.yml\nx: 1\n"


def test_a_mark_holds_for_the_block_below_it_alone() -> None:
    found = blocks("<!-- not run: no network -->\n\n```bash\na\n```\n\n```bash\nb\n```\n")
    assert found == [Block("bash", "a\n", 4, "no network"), Block("bash", "b\n", 8)]


def test_a_section_is_added_or_takes_the_place_of_its_name() -> None:
    before = '[source]\nurl = "a"\n\n[sinks.lake]\nmode = "append"\n'
    after = merged(before, '# sidecar.toml\n[sinks.lake]\nmode = "mirror"\n\n[sinks.other]\npath = "x"\n')
    assert after == '[source]\nurl = "a"\n[sinks.lake]\nmode = "mirror"\n[sinks.other]\npath = "x"\n'
    with pytest.raises(tomllib.TOMLDecodeError):
        merged(before, "[sinks.lake]\nmode =\n")


def test_a_page_without_pairs_of_fences_is_no_page() -> None:
    with pytest.raises(Wrong):
        blocks("text ```python\nx\n```\n")
