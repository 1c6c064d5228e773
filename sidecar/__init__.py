"""Sidecar keeps a lakehouse copy of a database that you may only read.

with sidecar.open("sidecar.toml") as sc:
    sc.run(spark, interval=5)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.changelog import ChangeLog
    from sidecar.connector import Finding, Source, SourceConnector
    from sidecar.errors import (
        LogTruncated,
        SchemaChanged,
        SettingsError,
        SidecarError,
        SinkError,
        SourceUnavailable,
        StateDamaged,
        StateHeld,
    )
    from sidecar.lake.datasource import register
    from sidecar.lake.envelope import debezium, debezium_json
    from sidecar.lake.spark import session
    from sidecar.model import Column, Horizon, Page, Pass, Table, Tracked, Wishes
    from sidecar.project import Sidecar
    from sidecar.project import open_project as open
    from sidecar.sinks import Batch
    from sidecar.state import MemoryWatermarkStore, RocksDBWatermarkStore, WatermarkStore

_WHERE = {
    "Batch": "sinks",
    "ChangeLog": "changelog",
    "Column": "model",
    "Finding": "connector",
    "Horizon": "model",
    "LogTruncated": "errors",
    "MemoryWatermarkStore": "state",
    "Page": "model",
    "Pass": "model",
    "RocksDBWatermarkStore": "state",
    "SchemaChanged": "errors",
    "SettingsError": "errors",
    "Sidecar": "project",
    "SidecarError": "errors",
    "SinkError": "errors",
    "Source": "connector",
    "SourceConnector": "connector",
    "SourceUnavailable": "errors",
    "StateDamaged": "errors",
    "StateHeld": "errors",
    "Table": "model",
    "Tracked": "model",
    "WatermarkStore": "state",
    "Wishes": "model",
    "debezium": "lake.envelope",
    "debezium_json": "lake.envelope",
    "register": "lake.datasource",
    "session": "lake.spark",
}

__all__ = [  # noqa: RUF022  `open` stands first: it is what everybody needs
    "open",
    "Batch",
    "ChangeLog",
    "Column",
    "Finding",
    "Horizon",
    "LogTruncated",
    "MemoryWatermarkStore",
    "Page",
    "Pass",
    "RocksDBWatermarkStore",
    "SchemaChanged",
    "SettingsError",
    "Sidecar",
    "SidecarError",
    "SinkError",
    "Source",
    "SourceConnector",
    "SourceUnavailable",
    "StateDamaged",
    "StateHeld",
    "Table",
    "Tracked",
    "WatermarkStore",
    "Wishes",
    "debezium",
    "debezium_json",
    "register",
    "session",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    # Imported when asked for: `import sidecar` costs a command line nothing that it does not use.
    if name == "open":
        return import_module("sidecar.project").open_project
    if name in _WHERE:
        return getattr(import_module(f"sidecar.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'sidecar' has no attribute {name!r}")
