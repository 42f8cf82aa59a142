"""Syncing a file whose handle was closed: by whoever keeps fewer handles open than it has files.

Handles are bounded, so a file may be written, closed, and synced later through another handle. That
is as good: Linux reports an error of writing back, if nobody has seen it yet, to a handle that was
opened after it happened too. A file that is gone was deleted by its owner, and nothing needs it.
"""

from penstock.storage.filesystem import FileSystem


def sync_closed(fs: FileSystem, path: str) -> None:
    """fdatasync of a file that is not open here. OSError: the sync failed [10]."""
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()
