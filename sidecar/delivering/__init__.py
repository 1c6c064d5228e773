"""The log's batches → sinks."""
