"""A simulated machine with several disks, each with a size of its own: directories of the root."""

from tests.helpers.faulty_filesystem import UNLIMITED_BYTES, FaultyFileSystem


class SizedDisks(FaultyFileSystem):
    """sizes: name of a directory of the root -> bytes of that disk; others have no end."""

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.sizes: dict[str, int] = {}

    def used_on(self, disk: str) -> int:
        """Bytes of all files there."""
        start = f"/{disk}/"
        return sum(
            self.size(name)
            for name in self.names()
            if name.startswith(start) and not name.endswith("/")
        )

    def free_bytes(self, path: str) -> int:
        super().free_bytes(path)
        disk = path.strip("/").partition("/")[0]
        if disk not in self.sizes:
            return UNLIMITED_BYTES
        return max(self.sizes[disk] - self.used_on(disk), 0)

    def on_write(self, kind: str, path: str, number: int, data: bytes | None, place: int) -> None:
        # The simulated disk has one size: now it has as much left as this disk.
        self.capacity = None
        if path.strip("/").partition("/")[0] in self.sizes:
            self.capacity = self.used_bytes() + self.free_bytes(path)
        try:
            super().on_write(kind, path, number, data, place)
        finally:
            self.capacity = None
