"""One SQLite file, held open for reading: what stands at the path now, and what every failure means.

Only Python's own sqlite3 opens it in this process: with two SQLite libraries on one file in one process (connectorx's,
ADBC's), closing one drops the other's POSIX locks. For the same reason nothing here ever opens the file by other means,
to look at its header, say. Where connectorx reads, it does in another process (`sqlite_apart.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import unquote

from sidecar.connector import Source
from sidecar.errors import SettingsError, SidecarError, SourceUnavailable

log = logging.getLogger("sidecar")

_STEPS = 200_000
"""Virtual machine steps (some milliseconds) between two looks at the statement timeout."""

_READ_ONLY = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


def path_of(url: str) -> Path:
    """Return the file that `sqlite:///relative.db` or `sqlite:////absolute.db` names."""
    rest = url.partition(":")[2]
    rest, _, query = rest.partition("?")
    if query:
        names = ", ".join(f'"{part.partition("=")[0]}"' for part in query.split("&"))
        raise SettingsError(f"source url: {names}: SQLite sources take no options; write sqlite:///path/to.db")
    if not rest.startswith("///"):
        raise SettingsError("source url: write sqlite:///relative/path.db, or sqlite:////absolute/path.db")
    name = unquote(rest[3:])
    if not name or name == ":memory:":
        raise SettingsError("source url: it names no file; write sqlite:///path/to.db")
    return Path(name).absolute()


class File:
    """A read-only connection to what is at the path, opened anew when that is another file than before."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.path = path_of(source.url)
        self._name = str(self.path)
        self.generation = 0
        self._connection: sqlite3.Connection | None = None
        self._identity: os.stat_result | None = None
        self._version: int | None = None
        self._had_tables = False
        self._deadline: float | None = None
        self._held: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """Return the open connection; the file at the path may have been replaced since (see `look`)."""
        if self._held is not None and self._held is not self._connection:
            raise SourceUnavailable(f"{self.path}: it was lost in the middle of a copy of what it held at one instant")
        if self._connection is None:
            self._open()
            assert self._connection is not None
        return self._connection

    def look(self) -> os.stat_result:
        """Make sure that the connection is to the file that is at the path now, and that the file is whole."""
        now = self._stat()
        if self._held is not None:
            return now  # whatever stands there now, what is held open is what is read
        before = self._identity
        if before is not None and self._connection is not None:
            if (now.st_dev, now.st_ino) != (before.st_dev, before.st_ino):
                log.warning("source %s: another file has taken its place; opening that one", self.path)
                self.close()
            elif now.st_size < before.st_size:
                log.info("source %s: shorter than before (%d bytes, was %d); opening it again",
                         self.path, now.st_size, before.st_size)  # fmt: skip
                self.close()
            elif self._is_written_past(before, now):
                self.close()
        if self._connection is None:
            self._open()
        else:
            self._identity = now
        return now

    def version(self) -> int:
        """Return what is another number once anything was committed; it means something on this connection only."""
        try:
            return _version(self.connection())
        except sqlite3.Error as error:
            self.fail(error)

    def _is_written_past(self, before: os.stat_result, now: os.stat_result) -> bool:
        """Return whether the file was written, and SQLite knows of no commit.

        An older copy that was put over it, and written to since, may have come to the same header again: then SQLite
        takes pages that it has in memory for those of today.
        """
        if (now.st_mtime_ns, now.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns):
            return False
        known, self._version = self._version, self.version()
        return known == self._version

    @contextlib.contextmanager
    def reading(self, table: str | None = None) -> Iterator[sqlite3.Connection]:
        """Hold one read transaction, as short as the block: an open one blocks a writer, or lets its WAL grow."""
        connection = self.connection()
        self._deadline = self.source.clock.monotonic() + self.source.statement_timeout
        try:
            if self._held is None:
                connection.execute("BEGIN")
            yield connection
        except sqlite3.Error as error:
            self.fail(error, table)
        finally:
            self._deadline = None
            if self._held is None:
                _end(connection)

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold one read transaction over all reads inside; inside another it is that one."""
        if self._held is not None:
            yield
            return
        self.look()
        with self.reading() as connection:
            # Only its first read takes the snapshot.
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            self._held = connection
        try:
            yield
        finally:
            self._held = None
            _end(connection)

    @property
    def is_held(self) -> bool:
        """Whether all reads see one instant."""
        return self._held is not None

    def is_in_place(self) -> bool:
        """Return whether what stands at the path is the file that is open."""
        before = self._identity
        if self._connection is None or before is None:
            return False
        try:
            now = os.stat(self._name)  # noqa: PTH116 - as in `_stat`
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino) and now.st_size >= before.st_size

    def interrupt(self) -> None:
        """Have the statement under way break off; from any thread."""
        held = self._connection
        if held is not None:
            with contextlib.suppress(sqlite3.Error):  # closed in this moment
                held.interrupt()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._connection = None

    def fail(self, error: sqlite3.Error, table: str | None = None) -> NoReturn:
        """Raise what *error* means to the one who must act; a connection that may be damaged is let go."""
        where = f'{self.path}, table "{table}"' if table else str(self.path)
        code = getattr(error, "sqlite_errorcode", 0) or 0
        said = str(error)
        primary = code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise SourceUnavailable(
                f"{where}: locked by a writer for longer than {self.source.lock_timeout:g} s (lock_timeout); "
                "the next poll tries again"
            ) from error
        if primary == sqlite3.SQLITE_INTERRUPT and not self._overdue():
            raise SourceUnavailable(f"{where}: broken off") from error
        if primary == sqlite3.SQLITE_INTERRUPT:
            raise SourceUnavailable(
                f"{where}: a statement took longer than {self.source.statement_timeout:g} s (statement_timeout); "
                "`sidecar check` names missing indexes"
            ) from error
        if said.startswith(("no such table", "no such column")):
            raise SourceUnavailable(
                f"{where}: changed while it was read ({said}); the next poll looks at it anew"
            ) from error
        if said.startswith(("no such collation", "no such function")):
            raise SettingsError(
                f"{where}: {said}, which only the application that writes the file has. Choose a primary_key and an "
                "updated_at that need none of it, or leave the table out"
            ) from error
        if said == "no query solution":
            raise SettingsError(
                f"{where}: {said}: its rows lie in the order of a collation that only the application that writes the "
                "file has, as those of a WITHOUT ROWID table may, and cannot be read without it. Leave the table out"
            ) from error
        if primary in _READ_ONLY or primary in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            self.close()
            raise self._broken(primary, code, said) from error
        raise SettingsError(f"{where}: {said}") from error

    def _open(self) -> None:
        before = self._stat()
        try:
            # mode=ro writes nothing and makes no file. Never immutable=1: it reads past the WAL and hot journals.
            connection = sqlite3.connect(
                f"{self.path.as_uri()}?mode=ro",
                uri=True,
                timeout=self.source.lock_timeout,
                isolation_level=None,
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            self.fail(error)
        self._connection = connection
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.set_progress_handler(self._overdue, _STEPS)
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            self._version = _version(connection)
            self._whole(connection, before)
        except sqlite3.Error as error:
            try:
                self.fail(error)
            finally:
                self.close()
        if not tables and self._had_tables:
            self.close()
            raise SourceUnavailable(f"{self.path}: holds no tables any more; it held some when it was last read")
        if os.name == "posix" and (now := self._stat()).st_ino != before.st_ino:
            before = now  # replaced while it was opened: the next look sees that this connection is not to it
            self._identity = os.stat_result((0,) * 10)
        else:
            self._identity = before
        self._had_tables = bool(tables)
        self.generation += 1

    def _whole(self, connection: sqlite3.Connection, found: os.stat_result) -> None:
        """Raise SourceUnavailable if the file is shorter than its own header says; a WAL may hold what it lacks."""
        if self._beside("-wal"):
            return
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
        if found.st_size < pages * size and self._stat().st_size < pages * size:
            self.close()
            raise SourceUnavailable(
                f"{self.path}: cut off ({found.st_size} bytes, {pages * size} expected); is it being restored?"
            )

    def _stat(self) -> os.stat_result:
        try:
            found = os.stat(self._name)  # noqa: PTH116 - at each poll, and Path takes longer than the look
        except (FileNotFoundError, NotADirectoryError) as error:
            self.close()
            if self._identity is None:
                raise SettingsError(f"source url: there is no file {self.path}") from error
            raise SourceUnavailable(f"{self.path}: the file is gone") from error
        except OSError as error:
            raise SettingsError(f"source url: {self.path}: {error.strerror}") from error
        if stat.S_ISDIR(found.st_mode):
            raise SettingsError(f"source url: {self.path} is a directory; name the database file in it")
        if found.st_size == 0:
            self.close()
            if self._had_tables:
                raise SourceUnavailable(f"{self.path}: the file is empty (0 bytes), and it held tables before")
            raise SettingsError(f"source url: {self.path} is empty (0 bytes): it is no database yet")
        return found

    def _overdue(self) -> int:
        return int(self._deadline is not None and self.source.clock.monotonic() > self._deadline)

    def _beside(self, ending: str) -> bool:
        return Path(f"{self.path}{ending}").exists()

    def _broken(self, primary: int, code: int, said: str) -> SidecarError:
        if primary == sqlite3.SQLITE_NOTADB:
            return SettingsError(f"source url: {self.path} is not a SQLite database (or it is encrypted)")
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            return SourceUnavailable(
                f"{self.path}: {said}. If it is being copied or restored, the next poll tries again; "
                "else PRAGMA integrity_check says what is damaged"
            )
        if not os.access(self.path, os.R_OK):
            return SettingsError(f"{self.path}: this user may not read the file")
        if self._beside("-journal") and code == sqlite3.SQLITE_READONLY_ROLLBACK:
            return SourceUnavailable(
                f"{self.path}: a writer died and left {self.path.name}-journal; a reader may not roll it back. "
                "It is rolled back when the application opens the database next"
            )
        folder = self.path.parent
        here = [f"{self.path.name}{e}" for e in ("-wal", "-shm") if self._beside(e)]
        writable = os.access(folder, os.W_OK)
        return SourceUnavailable(
            f"{self.path}: {said}. Most likely it is in WAL mode, and a reader then needs the files "
            f"{self.path.name}-wal and {self.path.name}-shm beside it ({' and '.join(here) or 'neither'} is there) "
            f"or must be able to make them (the directory {folder} is {'writable' if writable else 'not writable'} for "
            "this user). Let the application keep the database open; or let this user write to the directory; or, as "
            "its owner, set PRAGMA journal_mode = DELETE"
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _end(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
