"""Tables that are kept equal to the source, in Delta or in a catalog."""
