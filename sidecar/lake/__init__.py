"""Spark's side: a session, the log and the table as DataFrames."""
