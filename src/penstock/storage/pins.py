"""Pins: files that stay while a backup copies a store that goes on working.

A backup copies what a checkpoint names, file by file, over many turns. Files that the engine would
delete meanwhile are noted here instead. When the last backup is done it deletes them, or, after a
crash, the next start does: they are orphans then.
"""


class Pins:
    """One per engine. count: backups that are copying. paths, trees: files and directories whose
    deletion waits."""

    def __init__(self) -> None:
        self.count: int = 0
        self.paths: list[str] = []
        self.trees: list[str] = []

    def take(self) -> tuple[list[str], list[str]]:
        """Return what may be deleted now, paths and trees, and forget it."""
        paths, self.paths = self.paths, []
        trees, self.trees = self.trees, []
        return paths, trees
