"""Existing rows: what is asked for, how it is copied, what becomes of it beside polls."""
