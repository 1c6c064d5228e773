"""A PostgreSQL server that crashes with synchronous_commit off forgets commits that were seen, and then gives out their
numbers again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.cases.harness import Project, wait_for
from tests.servers import NOBODY, Database, NoServer, OwnServer, binaries, fresh_database, make, start


@dataclass
class Restarting:
    """A server that may be stopped by a signal and started again; what runs in its place ends with this."""

    server: OwnServer
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def by(self, stop: signal.Signals) -> None:
        """Stop the server, and start it anew. SIGQUIT is a crash: what is in memory alone is lost."""
        data = self.server.socket / "data"
        pid = int((data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(pid, stop)
        assert wait_for(lambda: not (data / "postmaster.pid").exists())
        user = NOBODY if os.getuid() == 0 else None
        nowhere = subprocess.DEVNULL
        self.processes.append(
            subprocess.Popen(command, cwd=self.server.socket, user=user, group=user, stdout=nowhere, stderr=nowhere)
        )
        assert wait_for(lambda: is_up(self.server))

    def end(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGINT)
            process.wait(20)
        self.server.stop()


@pytest.fixture
def restarting() -> Iterator[Restarting]:
    """A server that takes ten seconds to write down what it has committed."""
    try:
        found = Restarting(start(next(iter(binaries()), Path("/usr/lib/postgresql"))))
    except (NoServer, OSError) as error:
        pytest.skip(f"only a server of our own may crash: {error}")
    try:
        with psycopg.connect(
            host=str(found.server.socket), port=found.server.port, user=found.server.user, autocommit=True
        ) as owner:
            owner.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        found.by(signal.SIGINT)
        yield found
    finally:
        found.end()


@pytest.fixture
def own(restarting: Restarting) -> Iterator[Database]:
    with fresh_database(restarting.server) as database:
        yield database


def is_up(server: OwnServer) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(host=str(server.socket), port=server.port, user=server.user, dbname="postgres").close()
        return True
    return False


@pytest.mark.parametrize("stop", [signal.SIGQUIT, signal.SIGINT], ids=["a crash", "an orderly restart"])
def test_what_is_written_under_numbers_that_were_seen_before_a_crash_is_delivered(
    restarting: Restarting, own: Database, tmp_path: Path, stop: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    owner = own.connect()
    make(owner, "CREATE TABLE t (id int PRIMARY KEY, v text, updated_at timestamptz NOT NULL DEFAULT now())")
    make(owner, "INSERT INTO t SELECT g, 'first' FROM generate_series(1, 10) g", "CHECKPOINT")
    project = Project(tmp_path, own.reader_url, {"t": {}})
    project.poll()
    for key in (1, 2, 3):
        owner.execute("UPDATE t SET v = 'seen', updated_at = now() WHERE id = %s", (key,))
    assert sorted(row["id"] for row in project.poll()["t"]) == [1, 2, 3]
    restarting.by(stop)
    owner = own.connect()
    is_lost = owner.execute("SELECT FROM t WHERE v = 'seen'").fetchone() is None
    assert is_lost == (stop == signal.SIGQUIT)
    for key in (1, 2, 3):
        owner.execute("UPDATE t SET v = 'kept', updated_at = now() WHERE id = %s", (key,))
    # Past all numbers that were ever seen: by these, nothing looks amiss.
    for _ in range(10):
        owner.execute("SELECT pg_current_xact_id()")
    assert sorted(row["id"] for row in project.poll()["t"]) == [1, 2, 3]
    assert project.poll()["t"] == []
    found = owner.execute("SELECT id, v FROM t").fetchall()
    assert {key: row["v"] for key, row in project.merged("t", "id").items()} == dict(found)
    assert ("a crash undid its last commits" in caplog.text) == is_lost
