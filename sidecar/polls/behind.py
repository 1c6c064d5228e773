"""Several servers under one name, as behind a load balancer: one that lags behind what was read before is not read.

What it shows is older than what the log holds: rows would come again, and an older version after a newer one. So
whoever reads notes how far the source had come by then, and who reads next asks for a view that holds all of that.
"""

from __future__ import annotations

import dataclasses

from sidecar.connector import SourceConnector
from sidecar.errors import SourceUnavailable
from sidecar.model import Horizon, Watermark


def is_behind(reached: int | None, view: Horizon) -> bool:
    """Return whether *view* may lack some of what was read up to the position *reached*."""
    return reached is not None and view.covers is not None and view.covers < reached


def refuse(connector: SourceConnector, table: str, reached: int | None, view: Horizon) -> None:
    """Raise SourceUnavailable if *view* may lack some of what was read of *table* up to the position *reached*."""
    if is_behind(reached, view):
        connector.close()  # the next connection may reach another server
        raise SourceUnavailable(
            f'table "{table}": the server that answers does not show all that was read before: it is a standby that '
            "lags behind another one, or behind its primary, under the same name. Nothing is read until it has caught "
            "up; to be read without such waits, let the source's url name one server."
        )


def reaching(mark: Watermark, view: Horizon) -> Watermark:
    """Return *mark* where *view* is read."""
    return mark if view.reaches is None else dataclasses.replace(mark, reached=view.reaches)
