"""What a FaultyFileSystem reads: how much in a turn, and how much at once."""

from collections.abc import Callable

import pytest

from tests.helpers.faulty_filesystem import FaultyFileSystem


class Reads:
    """size: bytes since `take`. longest: bytes of the longest read; a test may set it to 0."""

    size = 0
    longest = 0

    def take(self) -> int:
        size, self.size = self.size, 0
        return size


def is_no_log(path: str) -> bool:
    """Bodies, pages and segments, but not the log."""
    return not path.endswith(".wal")


def counted_reads(
    monkeypatch: pytest.MonkeyPatch, is_counted: Callable[[str], bool] = is_no_log
) -> Reads:
    """Count from now on what is read of files of these paths, by all file systems."""
    found = Reads()
    plain = FaultyFileSystem.on_read

    def on_read(
        fs: FaultyFileSystem, path: str, data: bytearray, start: int, stop: int
    ) -> bytes:  # fmt: skip
        if is_counted(path):
            n = min(stop, len(data)) - start
            found.size += n
            found.longest = max(found.longest, n)
        return plain(fs, path, data, start, stop)

    monkeypatch.setattr(FaultyFileSystem, "on_read", on_read)
    return found
