"""Penstock: a durable message broker in Python, and its queues as a library.

`penstock.open(path)` opens a box of durable queues and streams in this process (docs/embedded.md),
`penstock.open("amqp://...")` one on a broker (docs/client.md), and `penstock.aio.open` either for
asyncio. Importing this package loads nothing else: what is used is loaded when it is first named.
`penstock.client` talks to any broker of AMQP 0-9-1, `penstock.storage` is the storage engine,
`penstock.cli` the commands.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.embedded.box import Box as Box
    from penstock.embedded.box import open_box as open  # noqa: A004  # as gzip.open is
    from penstock.embedded.box_errors import BoxClosedError as BoxClosedError
    from penstock.embedded.box_errors import QueueEmptyError as QueueEmptyError
    from penstock.embedded.box_errors import QueueFullError as QueueFullError
    from penstock.embedded.box_errors import TransactionError as TransactionError
    from penstock.embedded.job import Job as Job
    from penstock.embedded.job import Message as Message
    from penstock.embedded.queue import Queue as Queue
    from penstock.embedded.stream import Stream as Stream
    from penstock.embedded.stream_record import StreamRecord as StreamRecord
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import StreamGapError as StreamGapError

__version__: Final = "0.1.0"

# Name here -> (module, name there; "" for the module itself).
_LAZY: Final[dict[str, tuple[str, str]]] = {
    "open": ("penstock.client.opening", "open_any"),
    "aio": ("penstock.aio", ""),
    "Box": ("penstock.embedded.box", "Box"),
    "Queue": ("penstock.embedded.queue", "Queue"),
    "Job": ("penstock.embedded.job", "Job"),
    "Message": ("penstock.embedded.job", "Message"),
    "Stream": ("penstock.embedded.stream", "Stream"),
    "StreamRecord": ("penstock.embedded.stream_record", "StreamRecord"),
    "QueueEmptyError": ("penstock.embedded.box_errors", "QueueEmptyError"),
    "QueueFullError": ("penstock.embedded.box_errors", "QueueFullError"),
    "BoxClosedError": ("penstock.embedded.box_errors", "BoxClosedError"),
    "TransactionError": ("penstock.embedded.box_errors", "TransactionError"),
    "PenstockError": ("penstock.errors", "PenstockError"),
    "StreamGapError": ("penstock.errors", "StreamGapError"),
}

__all__ = [
    "open", "aio", "Box", "Queue", "Job", "Message", "Stream", "StreamRecord",
    "QueueEmptyError", "QueueFullError", "BoxClosedError", "TransactionError", "StreamGapError",
    "PenstockError",
    "build_kind", "__version__",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """What is loaded when it is first named."""
    if name not in _LAZY:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    from importlib import import_module

    module, inner = _LAZY[name]
    value: object = import_module(module)
    if inner:
        value = getattr(value, inner)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


def build_kind() -> str:
    """How this penstock was installed: "compiled" (the hot modules by mypyc) or "pure".

    Looks at the file that `penstock.storage.record` would be loaded from, and does not load it.
    """
    from importlib.machinery import EXTENSION_SUFFIXES
    from importlib.util import find_spec

    spec = find_spec("penstock.storage.record")
    origin = "" if spec is None or spec.origin is None else spec.origin
    return "compiled" if origin.endswith(tuple(EXTENSION_SUFFIXES)) else "pure"
