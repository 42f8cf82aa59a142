"""Penstock: a durable message broker in Python, and its queues as a library.

`penstock.open(path)` opens a box of durable queues and streams in this process
(docs/start/library.md), `penstock.open("amqp://...")` one on a broker (docs/guides/client.md), and
`penstock.aio.open` either for asyncio. `penstock.open_stream` and `penstock.persist` use a
directory for one stream (docs/guides/persist.md). Importing this package loads nothing else; a name
is loaded when first used.
`penstock.client` talks to any broker of AMQP 0-9-1, `penstock.storage` is the storage engine,
`penstock.cli` the commands.
"""

from typing import TYPE_CHECKING, Final

from penstock.native import VERSION
from penstock.native import build_kind as build_kind

if TYPE_CHECKING:
    from penstock import aio as aio
    from penstock.embedded.alone_stream import AloneStream as AloneStream
    from penstock.embedded.alone_stream import open_stream as open_stream
    from penstock.embedded.box import Box as Box
    from penstock.embedded.directory_box import open_box as open  # noqa: A004  # as gzip.open is
    from penstock.embedded.messages import Job as Job
    from penstock.embedded.messages import Message as Message
    from penstock.embedded.persist import Persisted as Persisted
    from penstock.embedded.persist import persist as persist
    from penstock.embedded.queue import Queue as Queue
    from penstock.embedded.stream import Stream as Stream
    from penstock.embedded.stream_record import StreamRecord as StreamRecord
    from penstock.errors import AMQPConnectionError as AMQPConnectionError
    from penstock.errors import AMQPError as AMQPError
    from penstock.errors import BatchConflictError as BatchConflictError
    from penstock.errors import BoxClosedError as BoxClosedError
    from penstock.errors import ChannelError as ChannelError
    from penstock.errors import ConnectionLostError as ConnectionLostError
    from penstock.errors import CorruptionError as CorruptionError
    from penstock.errors import DescriptorsError as DescriptorsError
    from penstock.errors import DiskFullError as DiskFullError
    from penstock.errors import ForkedError as ForkedError
    from penstock.errors import LockedError as LockedError
    from penstock.errors import MissingCapabilityError as MissingCapabilityError
    from penstock.errors import MissingPackageError as MissingPackageError
    from penstock.errors import NetworkFileSystemError as NetworkFileSystemError
    from penstock.errors import NotAStoreError as NotAStoreError
    from penstock.errors import NotLeasableError as NotLeasableError
    from penstock.errors import OptionError as OptionError
    from penstock.errors import PathNotFreeError as PathNotFreeError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import QueueEmptyError as QueueEmptyError
    from penstock.errors import QueueFullError as QueueFullError
    from penstock.errors import QueueLeasedError as QueueLeasedError
    from penstock.errors import ReaderTakenError as ReaderTakenError
    from penstock.errors import SettledError as SettledError
    from penstock.errors import StoppedError as StoppedError
    from penstock.errors import StorageError as StorageError
    from penstock.errors import StreamGapError as StreamGapError
    from penstock.errors import SyncFailedError as SyncFailedError
    from penstock.errors import TransactionError as TransactionError
    from penstock.errors import TransactionTooLargeError as TransactionTooLargeError
    from penstock.errors import UnknownLeaseError as UnknownLeaseError
    from penstock.errors import UnknownQueueError as UnknownQueueError
    from penstock.errors import UnreachableError as UnreachableError
    from penstock.errors import VersionError as VersionError

else:

    def open(path, **options):  # noqa: A001
        """Open the box in a directory (options: penstock.embedded.directory_box.open_box), or that
        of a broker (options: penstock.client.box.open_remote)."""
        from penstock.amqp_url import is_url

        if is_url(path):
            from penstock.client.box import open_remote

            return open_remote(path, **options)
        from penstock.embedded.directory_box import open_box

        return open_box(path, **options)


__version__: Final = VERSION

__all__ = [
    "open", "open_stream", "persist", "aio", "Box", "Queue", "Job", "Message", "Stream",
    "StreamRecord", "AloneStream", "Persisted",
    "build_kind", "__version__",
    "AMQPConnectionError", "AMQPError", "BatchConflictError", "BoxClosedError", "ChannelError",
    "ConnectionLostError", "CorruptionError", "DescriptorsError", "DiskFullError", "ForkedError",
    "LockedError",
    "MissingCapabilityError", "MissingPackageError", "NetworkFileSystemError", "NotAStoreError",
    "NotLeasableError", "OptionError", "PathNotFreeError", "PenstockError", "QueueEmptyError",
    "QueueFullError", "QueueLeasedError",
    "ReaderTakenError", "SettledError", "StoppedError", "StorageError", "StreamGapError",
    "SyncFailedError", "TransactionError", "TransactionTooLargeError", "UnknownLeaseError",
    "UnknownQueueError",
    "UnreachableError", "VersionError",
]  # fmt: skip

# Name here -> (module, name there; "" for the module itself).
_LAZY: Final[dict[str, tuple[str, str]]] = {
    "open_stream": ("penstock.embedded.alone_stream", "open_stream"),
    "persist": ("penstock.embedded.persist", "persist"),
    "aio": ("penstock.aio", ""),
    "AloneStream": ("penstock.embedded.alone_stream", "AloneStream"),
    "Persisted": ("penstock.embedded.persist", "Persisted"),
    "Box": ("penstock.embedded.box", "Box"),
    "Queue": ("penstock.embedded.queue", "Queue"),
    "Job": ("penstock.embedded.messages", "Job"),
    "Message": ("penstock.embedded.messages", "Message"),
    "Stream": ("penstock.embedded.stream", "Stream"),
    "StreamRecord": ("penstock.embedded.stream_record", "StreamRecord"),
    **{name: ("penstock.errors", name) for name in __all__ if name.endswith("Error")},
}


def __getattr__(name: str) -> object:
    """Load a name when it is first used."""
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
