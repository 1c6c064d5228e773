"""A class-data archive of Spark: with one, Java need not read, check and lay out 15,000 classes at each start.

It is made by a process of its own, once a run has needed Spark and there was none (`archive_maker.py`), and kept in the
user's cache folder under a key of all that it depends on: another Java, another Spark or another class path is another
archive. Java looks at that as well, class by class, and goes without what does not fit, but it trusts a file to be
whole. So a note beside it, written last, says how long it is: **the note is the commit**. And Java is told to compare
checksums (a twentieth of a second): a disk that has lost a block would crash it. The note has one as well, by which an
archive that is passed over for that is found out, and made anew.

Whatever is in the way, Spark starts as it would without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sidecar.clock import SECOND, Clock
from sidecar.log.files import sync, write_durably

SWITCH = "SIDECAR_FAST_START"
"""What `[spark] fast_start` is for a project, this is for a process: `false` neither uses an archive nor makes one."""

UNUSED = 30 * 86_400 * SECOND
"""How long an archive that nobody has used is kept, in microseconds."""

RETRY = 86_400 * SECOND
"""How long making one is not tried again after it has failed, in microseconds."""

# What stands on Java's class path besides the jars; the archive is of one class path.
_ON_CLASS_PATH = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES")
_EXTRA = "spark.driver.extraClassPath"
_OWN = re.compile(r"-Xshare\b|SharedArchive|SharedClassList|ArchiveClassesAtExit|AOT(Cache|Mode|Configuration)")
_JAVA_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS")
"""Environment variables from which Spark's driver takes options for Java."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one Java and one Spark, made or not. `extra` is what the user has put before Spark's jars."""

    folder: Path
    key: str
    java: Path
    jars: Path
    extra: str

    @property
    def path(self) -> Path:
        """The archive."""
        return self.folder / f"spark-{self.key}.jsa"

    @property
    def base(self) -> Path:
        """The archive of Java's own classes, on which that of Spark's stands, where Java came without one."""
        return self.folder / f"spark-{self.key}.base.jsa"

    @property
    def note(self) -> Path:
        """What says that the archive is whole, or why there is none."""
        return self.path.with_suffix(".json")

    def size(self) -> int | None:
        """Return how long the archive is; None if there is none that is whole."""
        try:
            about = json.loads(self.note.read_text(encoding="utf-8"))
            size: int | None = about["size"]
            whole = size == self.path.stat().st_size and about["base"] in {None, _size(self.base)}
            return size if whole else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def options(self) -> str:
        """Return the Java options that use it, if it is there; whatever it is worth, Java says not a word of it."""
        if self.size() is None:
            return ""
        with contextlib.suppress(OSError):
            os.utime(self.note)
        files = f"{self.base}:{self.path}" if self.base.exists() else self.path
        quiet = "-Xlog:cds=off -Xlog:cds+dynamic=off"
        return f"-Xshare:auto {shlex.quote(f'-XX:SharedArchiveFile={files}')} -XX:+VerifySharedSpaces {quiet}"

    def is_sound(self) -> bool:
        """Return whether it is there, and every byte as it was written; that takes reading all of it."""
        try:
            about = json.loads(self.note.read_text(encoding="utf-8"))
            return self.size() is not None and about["checksums"] == self._checksums()
        except (OSError, ValueError, KeyError):
            return False

    def is_wanted(self, clock: Clock) -> bool:
        """Return whether it is to be made: there is none, it has not failed just now, and there may be one."""
        if self.is_sound():
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            failed = "failed" in json.loads(self.note.read_text(encoding="utf-8"))
            return not failed or clock.now() - self.note.stat().st_mtime_ns // 1000 > RETRY
        except FileNotFoundError:
            return os.access(self.folder, os.W_OK)
        except ValueError:
            return True
        except OSError:
            return False

    def commit(self, made: Path) -> None:
        """Take the file *made* for the archive; OSError or StateDamaged where the disk refuses."""
        size = made.stat().st_size
        # An old note must not vouch for a new file.
        self.note.unlink(missing_ok=True)
        sync(made)
        base = _size(self.base)
        if base is not None:
            sync(self.base)
        made.replace(self.path)
        self._write({"size": size, "base": base, "checksums": self._checksums()})

    def fail(self, reason: str) -> None:
        """Keep others from trying what has failed, for a while."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self._write({"size": None, "base": None, "failed": reason})

    def sweep(self, clock: Clock) -> None:
        """Drop archives that this one has replaced, those not used for a long time, and what was left half made."""
        for found in self.folder.glob("spark-*"):
            with contextlib.suppress(OSError, ValueError):
                if found.suffix == ".json" and found != self.note:
                    about = json.loads(found.read_text(encoding="utf-8"))
                    same = all(about.get(k) == v for k, v in self._about().items())
                    if same or clock.now() - found.stat().st_mtime_ns // 1000 > UNUSED:
                        found.unlink()
        for found in self.folder.glob("spark-*.jsa"):
            if not found.with_name(f"{found.name.partition('.')[0]}.json").exists():
                found.unlink(missing_ok=True)
        for found in self.folder.glob("making-*"):
            shutil.rmtree(found, ignore_errors=True)

    def make_aside(self) -> None:
        """Have it made by another process, which outlives this one, stands back for all others, and says nothing."""
        order = json.dumps({"folder": str(self.folder), "java": str(self.java), "extra": self.extra})
        with contextlib.suppress(OSError):
            maker = subprocess.Popen(
                [sys.executable, "-P", "-m", "sidecar.lake.archive_maker", order],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                # Java's report of a crash is left where it runs.
                cwd=self.folder,
                start_new_session=True,
            )
            # A process that has ended and nobody has waited for stays as a zombie while this one runs.
            threading.Thread(target=maker.wait, daemon=True).start()

    def _checksums(self) -> list[int]:
        return [_checksum(file) for file in (self.path, self.base) if file.exists()]

    def _about(self) -> dict[str, str]:
        return {"java": str(self.java), "jars": str(self.jars), "extra": self.extra}

    def _write(self, what: Mapping[str, object]) -> None:
        def write(aside: Path) -> None:
            aside.write_text(json.dumps({**self._about(), **what}), encoding="utf-8")

        write_durably(self.note, write)


def find(java: Path, jars: Path, config: Mapping[str, str], environment: Mapping[str, str]) -> Archive | None:
    """Return the archive for Spark's *jars* on *java*; None where there is to be none.

    That is where the user has taken class-data sharing into their own hands, or there is no folder for caches.
    """
    own = [*(config.get(k, "") for k in _JAVA_OPTIONS), *(environment.get(k, "") for k in JAVA_VARIABLES)]
    folder = cache_folder(environment)
    off = environment.get(SWITCH, "").lower() in {"0", "false", "no", "off"}
    # Java takes a colon for the end of a first archive's name.
    if off or os.name != "posix" or folder is None or ":" in str(folder) or _OWN.search(" ".join(own)):
        return None
    extra = config.get(_EXTRA, "")
    try:
        parts: list[object] = [str(java), str(jars), extra, *_of_java(java)]
        parts += sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(jars))
    except OSError:
        return None
    parts += [environment.get(name) for name in _ON_CLASS_PATH]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
    return Archive(folder, key, java, jars, extra)


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return where archives are kept: `sidecar` in the user's folder for caches; None if there is none."""
    given = environment.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given, "sidecar")
    try:
        return Path.home() / ".cache" / "sidecar"
    except RuntimeError:
        return None


def has_base(java: Path) -> bool:
    """Return whether *java* came with an archive of its own classes; a small one that was put together may not have."""
    return any(java.resolve().parents[1].glob("lib/server/classes*.jsa"))


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _checksum(file: Path) -> int:
    found = 0
    with file.open("rb") as read:
        while part := read.read(1 << 20):
            found = zlib.crc32(part, found)
    return found


def _of_java(java: Path) -> list[tuple[str, int, int]]:
    """Return what tells one build of Java from another under the same name."""
    real = java.resolve()
    # The launcher is a few kilobytes, and often the same; the machine is in a library.
    files = [real, *sorted(real.parents[1].glob("lib/server/libjvm.*"))]
    return [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
