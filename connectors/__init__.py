"""The built-in connectors. They register through the entry point group that anyone's would use."""
