"""A row that a table has from its last batch: if it is not there any more, somebody has put the table back, or away.

Not all tables can tell that by themselves: those of Spark's catalogs have no place for an offset but their rows, and a
table that is rolled back is whole in itself. So one row is remembered beside the log, by its key and the offset that it
had, and is asked for together with the rows of the next batch, which costs nothing. It is forgotten before a batch that
changes it, or a crash in between would make a liar of it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sidecar.changelog import ChangeLog
from sidecar.errors import SinkError
from sidecar.log import log_records
from sidecar.log.files import filename
from sidecar.mirrors.keys import Keys
from sidecar.polls.evolution import conformed


@dataclass
class Witness:
    """The row that is remembered of what *sink* makes of *log*: its `key`, a table of one row, and its `offset`."""

    log: ChangeLog
    sink: str
    key: pa.Table | None = field(init=False)
    offset: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        found = log_records.read(self.log, self._name)
        self.has_begun = found is not None
        self.key = None
        if found is not None and found["key"] is not None:
            with pa.ipc.open_stream(base64.b64decode(found["key"])) as stream:
                self.key, self.offset = stream.read_all(), int(found["offset"])

    def beside(self, keys: pa.Table) -> pa.Table:
        """Return *keys*, and the witness's, where it has the same columns."""
        known = self._of(keys.schema)
        return keys if known is None else pa.concat_tables([keys, known])

    def check(self, rows: pa.Table, key: tuple[str, ...], version: str, what: str) -> None:
        """Raise SinkError if none of *rows*, by *key*, is the witness at its offset, in the column *version*, or at a
        later one; *what* says which table they are of.
        """
        known = self._of(pa.schema([rows.schema.field(name) for name in key]))
        if known is None:
            return
        its = rows.column(version).filter(pa.array(Keys(key, known).find(rows) >= 0))
        newest = pc.max(its).as_py()
        if newest is not None and newest >= self.offset:
            return
        said = ", ".join(f"{name}={value!r}" for name, value in known.to_pylist()[0].items())
        is_now = "is not there" if newest is None else f"is as of offset {newest}"
        raise SinkError(
            f"{what} was put back to an older version, or somebody has changed its rows: the row {said} was as of "
            f"offset {self.offset}, and {is_now}. Put the newest version back; or give the sink another name and "
            "table: that one begins anew"
        )

    def forget(self, keys: Keys) -> None:
        """Forget the witness if it is one of *keys*, which are about to be changed."""
        known = self.key
        if known is not None and set(keys.columns) == set(known.column_names) and (keys.find(known) >= 0).any():
            self._write(None, 0)

    def remember(self, key: pa.Table, offset: int) -> None:
        """Take the row of *key* for the witness, which was put there as of *offset*."""
        self._write(key, offset)

    def _of(self, schema: pa.Schema) -> pa.Table | None:
        known = self.key
        return None if known is None or set(known.column_names) != set(schema.names) else conformed(known, schema)

    def _write(self, key: pa.Table | None, offset: int) -> None:
        text = None
        if key is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, key.schema) as stream:
                stream.write_table(key)
            text = base64.b64encode(sink.getvalue()).decode()
        log_records.write(self.log, self._name, {"key": text, "offset": offset})
        self.key, self.offset, self.has_begun = key, offset, True

    @property
    def _name(self) -> str:
        return f"_witnesses/{filename(self.sink, '.json')}"
