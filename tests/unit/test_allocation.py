"""Where Arrow takes memory from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

SCRIPT = """
import sys
import pyarrow as pa
from sidecar.cli import main

sys.argv[1:] = ["run", "--once", "-c", "nothing.toml"]
try:
    main()
except SystemExit:
    print(pa.default_memory_pool().backend_name)
"""


@pytest.mark.skipif("jemalloc" not in pa.supported_memory_backends(), reason="Arrow comes without jemalloc here")
@pytest.mark.parametrize(("said", "pool"), [(None, "jemalloc"), ("system", "system")])
def test_a_run_uses_memory_again_unless_the_environment_says_otherwise(
    tmp_path: Path, said: str | None, pool: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environment |= {} if said is None else {"ARROW_DEFAULT_MEMORY_POOL": said}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1:] == [pool], done.stderr
