"""A MANIFEST that ends at an earlier record would make a database of older and newer parts."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.fault.damage import prepare, run
from tests.fault.harness import holds


def test_a_manifest_that_ends_early_repeats_nothing(tmp_path: Path) -> None:
    source, project, _ = prepare(tmp_path, flushed=False)
    before = tmp_path / "before"
    shutil.copytree(project.path, before)
    size = len(next(project.database.glob("MANIFEST-*")).read_bytes())
    wrong = []
    for length in range(size - 1, 0, -29):
        shutil.rmtree(project.path)
        shutil.copytree(before, project.path)
        manifest = next(project.database.glob("MANIFEST-*"))
        manifest.write_bytes(manifest.read_bytes()[:length])
        outcome = run(project)
        if outcome.code == 5:
            continue
        try:
            holds(source, project)
        except AssertionError as error:
            wrong.append(f"{manifest.name} cut to {length} of {size}: {str(error).splitlines()[0]}")
    assert not wrong, wrong
