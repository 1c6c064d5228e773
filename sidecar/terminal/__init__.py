"""The command line's parts: what it asks, shows and writes."""
