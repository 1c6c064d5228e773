"""A hot standby of a server that was started here."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from sidecar.clock import SystemClock
from tests.servers import NOBODY, Database, NoServer, OwnServer, free_port, url_of


@contextlib.contextmanager
def standby_of(database: Database) -> Iterator[str]:
    """Give the reader's URL at a hot standby of *database*'s server; NoServer where there can be none."""
    server = database.server
    if not isinstance(server, OwnServer) or not (server.binaries / "pg_basebackup").exists():
        raise NoServer("only a server of our own can be copied")
    home = Path(tempfile.mkdtemp(prefix="sidecar-standby-"))
    user = NOBODY if os.getuid() == 0 else None
    if user:
        os.chown(home, user, user)
    data, port = home / "data", free_port()
    place = ["-h", str(server.socket), "-p", str(server.port), "-U", server.user]
    subprocess.run(
        [server.binaries / "pg_basebackup", *place, "-D", data, "-R", "-X", "stream", "-c", "fast"],
        check=True,
        cwd=home,
        user=user,
        group=user,
        capture_output=True,
    )
    command = [str(server.binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(home)]
    for setting in ("listen_addresses=127.0.0.1", "max_connections=100", "max_prepared_transactions=20"):
        command += ["-c", setting]
    nowhere = subprocess.DEVNULL
    running = subprocess.Popen(command, cwd=home, user=user, group=user, stdout=nowhere, stderr=nowhere)
    try:
        yield url_of("127.0.0.1", port, database.reader, database.reader_password, database.dbname)
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        shutil.rmtree(home, ignore_errors=True)


def caught_up(primary: psycopg.Connection[tuple[Any, ...]], standby: str) -> None:
    """Wait until *standby* shows what *primary* has committed."""
    clock, plain = SystemClock(), r"-c default_transaction_isolation=read\ committed"
    row = primary.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    for _ in range(400):
        try:
            with psycopg.connect(standby, autocommit=True, options=plain) as connection:
                if connection.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", row).fetchone() == (True,):
                    return
        except psycopg.OperationalError:
            pass
        clock.sleep(0.05)
    raise AssertionError("the standby does not follow")
