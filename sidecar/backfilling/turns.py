"""One turn of reading on another machine: some chunks of a span, each a file in a folder that both machines see.

This is what runs inside Spark's executors. A turn is short, and never waits for whoever asked for it: so it holds no
executor while others have work for it, ends soon after a driver that was killed, and what it has read is worth
something only once it says so. A turn that Spark tries again therefore repeats nothing, and mixes nothing up.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from sidecar import codec, errors, faults
from sidecar.backfilling.copying import Work, following
from sidecar.connector import Source, connect
from sidecar.errors import SettingsError, SidecarError, StateDamaged
from sidecar.log import storage
from sidecar.log.storage import AnyPath
from sidecar.model import Page
from sidecar.polls import twins


@dataclass(frozen=True, slots=True)
class Order:
    """What to read: of `work`, from `page` on, in the view of the source that its holder has called `view`.

    The turn ends after so many `chunks` or `size` bytes, or the `seconds`, whichever comes first.
    """

    source: Source
    view: str
    work: Work
    page: Page
    folder: AnyPath
    chunks: int
    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Staged:
    """A chunk that has been read, as `page`, and lies in a file."""

    page: Page
    path: AnyPath


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of an order: chunks, in order; then what went wrong, or the page to go on with (None: at the end)."""

    staged: tuple[Staged, ...]
    page: Page | None
    error: SidecarError | None = None


def take(order: Order) -> str:
    """Read what *order* asks for; return what came of it, for `Turn`'s reader in the process that asked."""
    folder, clock = order.folder, order.source.clock
    page: Page | None = None
    staged: list[tuple[int, str | None, str]] = []
    error: tuple[str, str] | None = None
    try:
        if isinstance(folder, Path) and not folder.is_dir():
            raise SettingsError(
                f'[backfill] engine = "spark": an executor does not find {folder}. The folder [state] path must be on '
                "storage that all executors reach under the same path"
            )
        connector = connect(order.source)
        try:
            with connector.join(order.view):
                connector.horizon(order.page.tracked, order.work.memory)
                end, left = clock.monotonic() + order.seconds, order.size
                page = order.page
                while page is not None and len(staged) < order.chunks and left > 0 and clock.monotonic() < end:
                    began = clock.monotonic()
                    data = twins.read(connector, page)
                    took = clock.monotonic() - began
                    staged.append((page.limit, _packed(page), _put(folder, data)))
                    faults.point("chunk-read")
                    left -= data.nbytes
                    page = following(order.work, page, data, took)
        finally:
            connector.close()
    except SidecarError as found:
        error = _known(found), str(found)
    return json.dumps({"staged": staged, "next": page and (page.limit, _packed(page)), "error": error})


def read_back(answer: str, order: Order) -> Turn:
    """Return what `take` made of *order*."""
    raw = json.loads(answer)
    staged = tuple(Staged(_page(order, limit, after), order.folder / name) for limit, after, name in raw["staged"])
    if raw["error"] is not None:
        name, said = raw["error"]
        return Turn(staged, None, getattr(errors, name)(said))
    return Turn(staged, raw["next"] and _page(order, *raw["next"]))


def load(path: AnyPath) -> pa.Table:
    """Return the rows in *path*, of the very types in which they were read; the file is gone afterwards."""
    try:
        with pa.OSFile(str(path)) if isinstance(path, Path) else storage.whole(path) as file:
            data = pa.ipc.open_file(file).read_all()
        path.unlink()
    except (OSError, pa.ArrowInvalid) as error:
        raise StateDamaged(f"{path}: a chunk that was read cannot be found or read any more: {error}") from error
    return data


def _put(folder: AnyPath, data: pa.Table) -> str:
    # Several attempts at one turn may be under way at once, and none of them knows of the others.
    name = f"{secrets.token_hex(8)}.arrow"
    if not isinstance(folder, Path):
        whole = pa.BufferOutputStream()
        _write(whole, data)
        (folder / name).put(whole.getvalue())
        return name
    aside = folder / f".{name}.tmp"
    try:
        with pa.OSFile(str(aside), "wb") as file:
            _write(file, data)
        aside.replace(folder / name)
    except OSError as error:
        reason = error.strerror or error
        raise StateDamaged(f"{aside}: cannot be written: {reason}. Is the disk full, or read-only?") from error
    return name


def _write(file: pa.NativeFile, data: pa.Table) -> None:
    with pa.ipc.new_file(file, data.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(data)


def _packed(page: Page) -> str | None:
    return None if page.after is None else codec.pack(page.after)


def _page(order: Order, limit: int, after: str | None) -> Page:
    return dataclasses.replace(order.page, limit=limit, after=None if after is None else codec.unpack(after))


def _known(error: SidecarError) -> str:
    """Return the name of the class in `errors.py` that *error* is of: another one may not be known where it is read."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == errors.__name__)
