"""ByteCache: bytes that were read and verified, the most recently used of them, by threads.

Reading a page in chunks touches the border block of two neighbours twice, and tasks that read parts
of one page all need its index. So a few MiB of both are kept, by keys that say which bytes they are
(page id, block, checksum): what is in here is never stale, it is only forgotten.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable


class ByteCache:
    """Holds at most `limit_bytes`; any thread may call."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, bytes] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable) -> bytes | None:
        """What was put there, if it is still there."""
        with self._lock:
            data = self._held.get(key)
            if data is not None:
                self._held.move_to_end(key)
            return data

    def put(self, key: Hashable, data: bytes) -> None:
        """Keep it, for as long as others are not used more recently; not if it is too large."""
        if len(data) > self._limit_bytes:
            return
        with self._lock:
            before = self._held.pop(key, None)
            if before is not None:
                self.held_bytes -= len(before)
            self._held[key] = data
            self.held_bytes += len(data)
            while self.held_bytes > self._limit_bytes:
                _, gone = self._held.popitem(last=False)
                self.held_bytes -= len(gone)
