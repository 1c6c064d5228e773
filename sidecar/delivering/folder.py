"""Small files beside those of a sink, on whatever file system Spark finds its folder on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sidecar.errors import SinkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folder:
    """A folder on whatever file system Spark finds it on."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._jvm: Any = spark._jvm
        configuration: Any = spark._jsc.hadoopConfiguration()
        self.files = self.at("").getFileSystem(configuration)

    def record(self, name: str) -> Any:
        """Return what the file *name*, which `write` has written, says in JSON; None where there is none.

        SinkError if it says nothing, as after a power cut: nobody but the disk knows then what has become of the rest.
        """
        text = self.read(name)
        if text is not None:
            try:
                return json.loads(text)
            except ValueError as error:
                raise SinkError(
                    f"{self.path}/{name}: is damaged, as by a power cut ({error}); the newest files beside it may be, "
                    "too. Look at these; if they are whole, delete it, and it is made anew"
                ) from error
        # A kill may have come between taking the old one away and putting the new one in its place; or while the first
        # one of all was written, when there were no files yet that it could have told of.
        aside = f"_{name}.new"
        try:
            found = json.loads(self.read(aside) or "")
        except ValueError:
            return None
        # What would be written next is written over it.
        self.replace(self.at(aside), name)
        return found

    def read(self, name: str) -> str | None:
        """Return what the file *name* holds; None where there is none."""
        path = self.at(name)
        if not self.files.exists(path):
            return None
        stream = self.files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Make the file *name* hold *text*, what it held before until then."""
        aside = self.at(f"_{name}.new")
        stream = self.files.create(aside, True)
        stream.write(bytearray(text.encode()))
        stream.close()
        self.replace(aside, name)

    def replace(self, aside: Any, name: str) -> None:
        """Give the file *aside* the *name*, in place of what has it."""
        self.files.delete(self.at(name), False)
        if not self.files.rename(aside, self.at(name)):
            raise SinkError(f"{self.path}: {aside} could not be moved to {name}")

    def at(self, name: str) -> Any:
        """Return Hadoop's path of the file *name*, or of the folder."""
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)
