"""An S3 on this machine, and a second disk: other places for a log."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.fs

KEY, SECRET = "AKIDTEST", "s3cr3t/of+the=store"


@dataclass
class Store:
    """An S3 with a bucket, and how to reach it."""

    port: int
    bucket: str
    server: Any

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": f"http://127.0.0.1:{self.port}", "region": "us-east-1"}

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/logs"

    @property
    def settings(self) -> str:
        """What stands under [state]; the secret is in the environment, under the names that AWS gives it."""
        said = ", ".join(f'{name} = "{value}"' for name, value in self.options.items())
        return f'log = "{self.url}"\noptions = {{ {said} }}\n'

    def files(self) -> pyarrow.fs.FileSystem:
        return pyarrow.fs.S3FileSystem(
            access_key=KEY, secret_key=SECRET, endpoint_override=f"127.0.0.1:{self.port}", scheme="http",
            region="us-east-1", allow_bucket_creation=True, allow_bucket_deletion=True,
        )  # fmt: skip

    def names(self, below: str = "") -> list[str]:
        """Return the files in the bucket, without the places where folders have been."""
        root = f"{self.bucket}/{below}".rstrip("/")
        found = self.files().get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(i.path.removeprefix(f"{self.bucket}/") for i in found if i.is_file)

    def stop(self) -> None:
        """Let it be away."""
        self.server.stop()

    def start(self) -> None:
        """Let it be back, with all that it held, at the same address."""
        self.server = _server(self.port)


@contextlib.contextmanager
def store(bucket: str) -> Iterator[Store]:
    """Give an S3 with an empty bucket."""
    server = _server(0)
    found = Store(server.get_host_and_port()[1], bucket, server)
    try:
        found.files().create_dir(bucket)
        yield found
    finally:
        with contextlib.suppress(Exception):
            found.server.stop()


def _server(port: int) -> Any:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    return server


@contextlib.contextmanager
def second_disk(first: Path) -> Iterator[Path]:
    """Give an empty folder on another disk than *first*."""
    for where in (Path("/dev/shm"), Path("/run/shm"), Path.home(), Path("/tmp")):
        with contextlib.suppress(OSError):
            if where.stat().st_dev != first.stat().st_dev:
                with tempfile.TemporaryDirectory(dir=where, prefix="sidecar-log-") as folder:
                    yield Path(folder)
                return
    import pytest

    pytest.skip("this machine has one disk only")
