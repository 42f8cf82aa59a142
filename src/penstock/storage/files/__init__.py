"""Files: the one interface to the file system, and what a data directory is.

`filesystem` alone calls the operating system about files. Above it: what each file and directory is
named and who may hold it, moves of a directory, options and modes of durability, users.
"""
