"""A program: connectorx reads from a SQLite file what it is asked for, in a process of its own.

It is run by its path, by `sqlite_apart.py`, and imports nothing of Sidecar: a start is mostly imports. Asked by a line
of JSON, a URL and a SELECT, it answers with eight bytes, which say how many more follow, and an Arrow stream of so
many; none follow where it could not be read. It ends when nobody asks any more.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    # Ctrl-C is for whoever asks; it reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import connectorx
    import pyarrow as pa

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    answers.write((0).to_bytes(8, "little"))
    answers.flush()

    def send(found: pa.Table, sink: object) -> None:
        with pa.ipc.new_stream(sink, found.schema) as stream:
            stream.write_table(found)

    for asked in sys.stdin.buffer:
        url, sql = json.loads(asked)
        try:
            found = connectorx.read_sql(url, sql, return_type="arrow")
        except BaseException:  # Rust's panics are no Exceptions
            answers.write((0).to_bytes(8, "little"))
        else:
            size = pa.MockOutputStream()
            send(found, size)
            answers.write(size.size().to_bytes(8, "little"))
            send(found, answers)
            del found
        answers.flush()


if __name__ == "__main__":
    main()
