"""A change log on a disk or in an object store: its files, who reads it how far, what may be dropped."""
