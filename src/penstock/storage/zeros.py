"""Zeros: a file's room filled in one system call, where the system has one for that.

A segment of the log is written with zeros before it is used, by a thread beside the one that
serves. Written piece by piece it needs the interpreter's lock between any two pieces, and gets it
only when the serving thread lets go: measured, 64 MiB in pieces of 64 KiB took a second and more
beside a busy broker, longer than the segment before it lasted, and publishers stood still until it
was done. One `sendfile` from a hole in memory needs the lock once. The kernel still writes in
pieces of a pipe, 64 KiB, which makes later small writes into the file cheaper (filesystem.py).

Not here: systems without memfd_create; there the caller writes piece by piece.
"""

import os


def write_zeros(descriptor: int, size: int) -> int:
    """Write `size` bytes of zeros from the start of a file; how many were written (0 where there is
    no such call). OSError: ENOSPC and others; part of them may have been written."""
    if not hasattr(os, "memfd_create"):
        return 0
    done = 0
    source = os.memfd_create("zeros")
    try:
        os.ftruncate(source, size)
        os.lseek(descriptor, 0, os.SEEK_SET)
        while done < size:
            n = os.sendfile(descriptor, source, done, size - done)
            if not n:
                break
            done += n
    finally:
        os.close(source)
    return done
