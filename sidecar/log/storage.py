"""Where a change log is: a folder on a disk, or in an object store that pyarrow reaches.

On a disk a path is a `pathlib.Path`. In a store it is a `StorePath`, which has as much of a Path's methods as the log
needs; what the two do otherwise is here, a function each. A store has no rename and no folders. One PUT is the commit:
a file is there whole, or not at all. So nothing is written aside there, and nothing half-written is left behind that
anybody could see.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from sidecar.errors import SettingsError, SidecarError, StateDamaged, StateUnavailable
from sidecar.log import files
from sidecar.settings.words import did_you_mean

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs"}
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": (
        *("access_key", "secret_key", "session_token", "role_arn", "external_id", "anonymous"),
        *("region", "endpoint", "connect_timeout", "request_timeout", "force_virtual_addressing"),
    ),
    "gs": ("anonymous", "endpoint", "project_id"),
    "abfs": ("account_key", "sas_token"),
}
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE|EXPIRED|UNRECOGNIZED_CLIENT|NO_SUCH_BUCKET"
    r"|MISSING_AUTHENTICATION|\bHTTP (response code|status) 40[13]\b|PERMISSION_DENIED|UNAUTHENTICATED|Forbidden"
    r"|AuthorizationFailure|AuthenticationFailed|ContainerNotFound|No account"
)
_PATTERN = re.compile(r"[\\{}\[\]*?]")
_FROM_STORE = re.compile(r"AWS Error|curl|google::cloud|Azure|HTTP (response code|status) \d")


@dataclass(frozen=True, slots=True)
class StorePath:
    """A file, or what files' names begin with, in an object store. `options` says how it is reached.

    All that asks the store raises StateUnavailable where it cannot be reached, SettingsError where it refuses.
    """

    uri: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    size: int | None = field(default=None, compare=False, repr=False)
    """Bytes, of a file that has been listed or written here."""

    def __str__(self) -> str:
        return self.uri

    def __truediv__(self, name: str) -> StorePath:
        return StorePath(f"{self.uri}/{name}", self.options)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.uri.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        """The path without its last part."""
        return StorePath(self.uri.rpartition("/")[0], self.options)

    @property
    def _key(self) -> str:
        at = urlsplit(self.uri)
        # abfs://container@account.dfs.core.windows.net/path
        return at.netloc.partition("@")[0] + self.uri.partition("://")[2][len(at.netloc) :]

    @property
    def filesystem(self) -> FileSystem:
        """What pyarrow reaches the store by."""
        return _filesystem(_SCHEMES[urlsplit(self.uri).scheme], urlsplit(self.uri).netloc, self.options)

    def exists(self) -> bool:
        """Return whether there is such a file."""
        with reaching(self):
            return bool(self.filesystem.get_file_info(self._key).is_file)

    def open(self) -> Any:
        """Return the file, for reading here and there; FileNotFoundError if there is none."""
        with reaching(self):
            return self.filesystem.open_input_file(self._key)

    def read_bytes(self) -> bytes:
        """Return what the file holds; FileNotFoundError if there is none."""
        with reaching(self), self.filesystem.open_input_file(self._key) as file:
            return bytes(file.read())

    def read_text(self) -> str:
        """Return what the file holds, which is UTF-8; FileNotFoundError if there is none."""
        return self.read_bytes().decode()

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        with reaching(self), contextlib.suppress(*[FileNotFoundError] * missing_ok):
            self.filesystem.delete_file(self._key)

    def put(self, data: bytes) -> StorePath:
        """Let the file hold *data*, all or nothing."""
        # All of it in one call: a stream that is closed after half of it would make a file of that half.
        with reaching(self), self.filesystem.open_output_stream(self._key) as file:
            file.write(data)
        return StorePath(self.uri, self.options, len(data))

    def remove_all(self) -> None:
        """Remove all files below here."""
        with reaching(self), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._key)

    def listed(self) -> Iterator[tuple[StorePath, bool]]:
        """Yield what is right below here, and of each whether it is a file."""
        from pyarrow.fs import FileSelector, FileType

        found: list[FileInfo]
        with reaching(self):
            found = self.filesystem.get_file_info(FileSelector(self._key, allow_not_found=True))
        for info in found:
            is_file = info.type == FileType.File
            yield StorePath(f"{self.uri}/{info.base_name}", self.options, info.size if is_file else None), is_file


AnyPath: TypeAlias = Path | StorePath


def locate(place: str | Path, options: Mapping[str, str] | None = None) -> AnyPath:
    """Return the folder that *place* names: a path, a `file://` URI, or one of an object store, reached by *options*.

    Nothing is asked of a store yet. SettingsError, without a place in it, for what cannot be one.
    """
    options = options or {}
    scheme, colon, _ = (place if isinstance(place, str) else "").partition("://")
    if not colon or scheme.lower() == "file":
        if options:
            raise SettingsError(f"is a folder of this machine, which takes no options ({', '.join(options)})")
        return _local(place)
    text = str(place)
    kind, at = _SCHEMES.get(scheme.lower()), urlsplit(text)
    if kind is None:
        why = "; a file there is seen before it is whole: mount it as a folder" if scheme in ("hdfs", "viewfs") else ""
        raise SettingsError(f'"{scheme}://" is nothing that a log can be in: s3://, gs://, abfs:// or a folder{why}')
    if not at.netloc:
        raise SettingsError(f"names no bucket; write {scheme}://bucket/folder")
    if at.query or at.fragment or at.password or (at.username and kind != "abfs"):
        raise SettingsError(f"is more than {scheme}://bucket/folder; what else is to be said belongs into options")
    if wrong := next((name for name in options if name not in _OPTIONS[kind]), None):
        near = did_you_mean(wrong, _OPTIONS[kind])
        raise SettingsError(f'has no option "{wrong}"{near}; there are {", ".join(_OPTIONS[kind])}')
    if ("access_key" in options) != ("secret_key" in options):
        raise SettingsError("takes access_key and secret_key together, or none of them: then AWS's own rules find them")
    return StorePath(f"{scheme.lower()}://{at.netloc}{at.path.rstrip('/')}", tuple(sorted(options.items())))


def local(path: AnyPath) -> Path:
    """Return *path*, which must be on a disk; SettingsError for one in a store."""
    if isinstance(path, StorePath):
        raise SettingsError(f"{path}: this needs a log that is in a folder of this machine")
    return path


def _local(place: str | Path) -> Path:
    if isinstance(place, Path) or not place.lower().startswith("file:"):
        return Path(place)
    at = urlsplit(place)
    if at.netloc not in ("", "localhost") or not at.path.startswith("/"):
        raise SettingsError("names another machine; write file:///folder")
    return Path(unquote(at.path))


# -- what a disk and a store do otherwise ------------------------------------------------------------------------------


def write_durably(
    path: AnyPath, write: Callable[[Path], None], *, between: Callable[[], None] = lambda: None
) -> AnyPath:
    """Make *path* hold what *write* writes to a file on this disk, or leave it untouched; return it.

    StateDamaged where a disk refuses; StateUnavailable where a store gave no answer: then it may hold it all the same.
    """
    if isinstance(path, Path):
        files.write_durably(path, write, between=between)
        return path
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        aside = Path(folder, path.name)
        try:
            write(aside)
            data = aside.read_bytes()
        except OSError as error:
            reason = error.strerror or error
            raise StateDamaged(f"{aside}: cannot be written: {reason}. Is the disk full, or read-only?") from error
    between()
    return path.put(data)


def write_text(path: AnyPath, text: str) -> None:
    """Make *path* hold *text*, as `write_durably` does."""

    def write(aside: Path) -> None:
        aside.write_text(text, encoding="utf-8")

    write_durably(path, write)


def make_folder(path: AnyPath) -> None:
    """Create *path* and its parents, where folders are to be created; StateDamaged where that is refused."""
    if isinstance(path, Path):
        files.make_folder(path)


def names(path: AnyPath) -> list[tuple[str, AnyPath]]:
    """Return the files in the folder *path*, by name; none where there is no such folder."""
    if isinstance(path, Path):
        return [(p.name, p) for p in path.iterdir()] if path.is_dir() else []
    return [(p.name, p) for p, is_file in path.listed() if is_file]


def folders(path: AnyPath) -> list[str]:
    """Return the names of the folders in *path*."""
    if isinstance(path, Path):
        return sorted(p.name for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
    return sorted(p.name for p, is_file in path.listed() if not is_file)


def half_written(path: AnyPath) -> Iterator[Path]:
    """Yield what `write_durably` has left in the folder *path* when its process was killed; in a store, nothing."""
    if isinstance(path, Path):
        yield from [*path.glob(".*.tmp")]


def remove_all(path: AnyPath) -> None:
    """Remove the folder *path* with all that is in it; no matter if it is not there."""
    if isinstance(path, Path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.remove_all()


def size(path: AnyPath) -> int:
    """Return how many bytes the file *path* has."""
    if isinstance(path, Path):
        return path.stat().st_size
    if path.size is not None:
        return path.size
    with path.open() as file:
        return int(file.size())


def whole(path: AnyPath) -> Any:
    """Return what pyarrow reads all of *path* from."""
    if isinstance(path, Path):
        return path
    import pyarrow as pa

    # One request; to go from column to column would take many.
    return pa.BufferReader(path.read_bytes())


@contextlib.contextmanager
def parts(path: AnyPath) -> Iterator[Any]:
    """Open *path* for something that pyarrow reads only a part of, such as a footer."""
    if isinstance(path, Path):
        yield path
    else:
        with path.open() as file:
            yield file


def for_spark(path: AnyPath) -> str:
    """Return what Spark calls *path*: Hadoop has names of its own."""
    text = str(path)
    return f"s3a{text[2:]}" if text.startswith("s3:") else text


def literal(path: str) -> str:
    """Return *path* as Spark's readers take it for itself: they look for patterns in what they are given."""
    return _PATTERN.sub(r"\\\g<0>", path)


# -- stores ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reaching(path: StorePath) -> Iterator[None]:
    """Raise what happens to a request for *path* as what it is; FileNotFoundError stays."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _failure(path, error) from None


def unreadable(path: AnyPath, error: Exception) -> SidecarError | None:
    """Return what kept *error* from being an answer, where that is the way to the store; None: it is the file."""
    if isinstance(path, StorePath) and isinstance(error, OSError) and _FROM_STORE.search(str(error)):
        return _failure(path, error)
    return None


def _failure(path: StorePath, error: OSError) -> SidecarError:
    said = str(error).partition("\n")[0].partition(" (Request ID")[0].rstrip(". ")
    if _REFUSED.search(said):
        return SettingsError(
            f"{path}: the store refuses: {said}. Check the bucket, and that what [state.options] says, or else the "
            "environment, may list, read, write and delete there"
        )
    return StateUnavailable(
        f"{path}: the store cannot be reached: {said}. The next run goes on from here; if it never could be reached, "
        "check [state] log and its options"
    )


@functools.cache
def _filesystem(kind: str, host: str, options: tuple[tuple[str, str], ...]) -> FileSystem:
    from pyarrow import fs

    given: dict[str, Any] = dict(options)
    for name in ("anonymous", "force_virtual_addressing"):
        if name in given:
            given[name] = given[name] == "true"
    for name in ("connect_timeout", "request_timeout"):
        if name in given:
            given[name] = float(given[name])
    if kind == "s3" and "endpoint" not in given:
        # pyarrow's client follows AWS's rules in all but this.
        given["endpoint"] = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    scheme, _, endpoint = given.pop("endpoint", "").rpartition("://")
    if endpoint:
        given |= {"endpoint_override": endpoint.rstrip("/"), "scheme": scheme or "https"}
    if kind == "gs":
        return fs.GcsFileSystem(**given)
    if kind == "abfs":
        return fs.AzureFileSystem(host.partition("@")[2].partition(".")[0], **given)
    if "region" not in given and not endpoint and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        given["region"] = fs.resolve_s3_region(host)
    # Delayed: a small file is one request instead of three.
    return fs.S3FileSystem(allow_delayed_open=True, **given)
