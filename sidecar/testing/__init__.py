"""For authors of connectors: the contract that every connector passes, as a test class to subclass."""

from sidecar.testing.contract import ConnectorContract, Writer

__all__ = ["ConnectorContract", "Writer"]
