"""Streams that stand alone, opened as a box opens its own, so that one contract asks all of them.

Each name is a directory. There is no durability of single records (`force_every` says it), so what
the contract says of it is left out: alone, what an append has returned is on disk.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock import aio
from tests.helpers.aio_adapter import StreamAdapter, Tasks

MODES = ("disk", "interval", "os", "none")


class PlainStream:
    """A stream alone, whose appends take any durability."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def append(
        self, body: Any, key: Any = "", headers: Any = None, durability: str | None = None
    ) -> int:
        given = None if durability in MODES else durability
        return int(self.inner.append(body, key=key, headers=headers, durability=given))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __bool__(self) -> bool:
        return bool(self.inner)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


class AloneBox:
    """Streams by name, each in a directory of its own below `path`."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self.path = path
        self.open: dict[str, PlainStream] = {}

    def make(self, path: Path, options: dict[str, Any]) -> Any:
        """A stream alone."""
        return penstock.open_stream(path, **options)

    def stream(self, name: str, **options: Any) -> PlainStream:
        if name not in self.open:
            self.open[name] = PlainStream(self.make(self.path / name, options))
        return self.open[name]

    def sync(self) -> None:
        for stream in self.open.values():
            stream.force()

    def close(self) -> None:
        for stream in self.open.values():
            stream.close()

    def end(self) -> None:
        self.close()


class AloneAioBox(AloneBox):
    """The same by asyncio."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tasks = Tasks()

    def make(self, path: Path, options: dict[str, Any]) -> Any:
        opened = self._tasks.call(lambda: aio.open_stream(path, **options))
        return StreamAdapter(self._tasks, opened)

    def end(self) -> None:
        try:
            self.close()
        finally:
            self._tasks.close()
