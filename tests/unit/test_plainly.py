"""What Spark is told of an error of Sidecar's that one of its Python processes met: the text, and no trace."""

from __future__ import annotations

import io
import os

import pytest
from pyspark.util import handle_worker_exception

from sidecar.errors import SettingsError
from sidecar.lake.plainly import HIDE, plainly

LENGTHS = 8
"""Bytes before the text: that an error follows, and how long it is."""


@plainly()
def refuse() -> None:
    raise SettingsError('table "ordrs" has no log')


def told_by(function: object) -> str:
    """Return what PySpark tells the JVM of the error that *function* raises."""
    out = io.BytesIO()
    try:
        function()  # type: ignore[operator]
    except Exception as error:
        handle_worker_exception(error, out)
    return out.getvalue()[LENGTHS:].decode()


def test_in_a_process_of_sparks_an_error_arrives_without_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    assert told_by(refuse) == 'sidecar.errors.SettingsError: table "ordrs" has no log\n'
    # And the next work of that process, which may be a function of the user's, has its trace.
    assert HIDE not in os.environ
    assert told_by(lambda: 1 // 0).startswith("Traceback")


def test_elsewhere_it_is_the_error_that_was_raised() -> None:
    with pytest.raises(SettingsError) as raised:
        refuse()
    assert type(raised.value) is SettingsError
    assert HIDE not in os.environ
