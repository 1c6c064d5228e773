"""When a source numbers its row versions anew: restored from a copy, or a standby that lacked something took over.

Numbers up to then say nothing about numbers from then on: a new version may even carry the number of one that was
delivered. So all of them are forgotten, by a segment of the log that says so, and one poll tells by content what has
been delivered: the newest row of each key in the log. The same is done where a table has been given rows that were
written elsewhere before: their numbers do not say that they are new here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from sidecar import codec
from sidecar.changelog import ChangeLog
from sidecar.cursor import Flags
from sidecar.model import DELETE, METADATA, Horizon, Tracked, Watermark
from sidecar.polls import evolution
from sidecar.polls.deliveries import as_bytes
from sidecar.polls.rows import Rows, keys_of


def is_renumbered(mark: Watermark, view: Horizon) -> bool:
    """Return whether *view* numbers its versions otherwise than the source that *mark* was made with."""
    known = mark.era or (mark.progress.horizon.era if mark.progress else None)
    return known is not None and known != view.era


def said(tracked: Tracked, view: Horizon) -> str:
    """Return what has become of the numbers, for people."""
    if view.joined:
        return view.joined
    if view.era is None:
        return (
            "which version a row is cannot be read any more: the role may not read the table as a whole, or it is "
            "another kind of table now. Rows are told apart by their content"
        )
    return (
        "the server was restored or failed over, or a crash undid its last commits. What it may have written about "
        "that time is read again and compared with the log. Rows that it has lost stay in the log; to begin afresh: "
        f"sidecar watermark reset {tracked.name}"
    )


def forgotten(mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* without any version in it, as the next segment will carry it; what is closed stays closed."""
    offset = mark.offset + 1
    job = mark.job and dataclasses.replace(mark.job, since=None)
    if job is not None and job.closed is not None:
        # Polls go on from here, whatever the version; what they have not read up to here is the backfill's.
        job = dataclasses.replace(job, closed=mark.closed())
    mark = dataclasses.replace(mark, offset=offset, since=None, memory=view.memory, era=view.era, doubt=offset, job=job)
    return dataclasses.replace(mark, progress=None)


def newest(tracked: Tracked, log: ChangeLog, until: int) -> Mapping[bytes, bytes]:
    """Return a digest of the newest row of each key in *log* up to offset *until*, by key.

    All of what retention has left is read: a row that stood far above the horizon may have been delivered long ago.
    """
    found: dict[bytes, bytes] = {}
    change_type = tracked.metadata_prefix + METADATA[0]
    columns = pa.schema([(change_type, pa.string()), *((c.name, c.arrow) for c in tracked.columns)])
    for segment in log.list(log.floor(), until):
        data = log.get(segment.offset)
        # What was written before the columns changed otherwise than by growing is no row of today's.
        if data is not None and len(data) and evolution.compatible(data.schema, columns):
            data = evolution.conformed(data, columns)
            found.update(zip(as_bytes(keys_of(tracked, data)), _digests(data, columns.names), strict=True))
    return found


def unchanged(found: Rows, held: Mapping[bytes, bytes]) -> Flags:
    """Return which rows are in the log as they are."""
    names = [c.name for c in found.tracked.columns]
    change_type = found.tracked.metadata_prefix + METADATA[0]
    # Keys in the form in which the log has them, too.
    data = found.delivered().append_column(change_type, found.change_types())
    digests, keys = _digests(data, [change_type, *names]), as_bytes(keys_of(found.tracked, data))
    same = (held.get(key) == digest for key, digest in zip(keys, digests, strict=True))
    return np.fromiter(same, bool, len(found))


def _digests(data: pa.Table, names: list[str]) -> list[bytes]:
    """Return digests of what stands in *names*, of which the first says whether a row is deleted.

    Only that: what a backfill delivers as a row that is there may be an update to a poll.
    """
    rows = codec.rows(data, names)
    return [blake2b(repr((kind == DELETE, *row)).encode(), digest_size=16).digest() for kind, *row in rows]
