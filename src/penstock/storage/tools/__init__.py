"""Tools: what reads, checks, copies or mends a data directory.

Each opens a directory that no process serves and says what it found; only salvage writes, into a
directory of its own.
"""
