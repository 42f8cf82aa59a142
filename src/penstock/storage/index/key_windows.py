"""KeyWindow: the last keys that one queue or exchange has seen, so that it takes no message twice.

A message with a key is published in one record with a SEEN for each window that it passes, so after
a crash message and key are both there or neither is. The checkpoint has the windows as of its cut:

    section    name length 2 | name | count 4 | count x key 16 | count x until (ms since 1970) 8

name: "q" and a queue's first part, or "e" and an exchange. The keys are in the order in which they
came. NEVER: a key without an end. The window forgets the oldest key when it is full, and a key
whose time is over. How many it keeps is the broker's knowledge: until `size` is set, replay keeps
all.

The cut copies nothing. Keys are only added at the end and taken from elsewhere, so what a window
had at the cut is what it has without those that were added since; what it has forgotten since, it
forgets again in replay. Keys of messages that are not logged are not in checkpoints either.
"""

import struct
from collections import OrderedDict
from itertools import islice
from typing import Final

from penstock.native import mypyc_attr

KEY_BYTES: Final = 16
NEVER: Final = (1 << 63) - 1
HELD_BYTES: Final = 260  # measured: a key in a window that has forgotten many
SIZE_MAX: Final = 100_000  # of a window: what a checkpoint encodes at once, some 20 ms
PAST_MAX: Final = 1024  # keys whose time is over that are forgotten at once
_HEAD: Final = struct.Struct(">H")
_COUNT: Final = struct.Struct(">I")


@mypyc_attr(acyclic=True)
class KeyWindow:
    """The keys of one queue or exchange: key -> until when (ms), in the order of arrival. added:
    how many came; one that comes again while a checkpoint is made counts once. lsn: of the last one
    that was logged. size: how many it keeps, 0: all. ttl_ms: for how long, None: without end.
    is_logged: it is of a durable queue or exchange."""

    __slots__ = (
        "_recent", "_unlogged", "added", "is_logged", "keys", "lsn", "name", "size", "ttl_ms",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        self.name: bytes = name
        self.size: int = 0
        self.ttl_ms: int | None = None
        self.is_logged: bool = True
        # A dict would look at the places of all that left it before it finds its first key.
        self.keys: OrderedDict[bytes, int] = OrderedDict()
        self.added: int = 0
        self.lsn: int = 0
        self._unlogged: set[bytes] = set()
        self._recent: set[bytes] | None = None  # since the cut of the checkpoint in progress

    def has(self, key: bytes, now_ms: int) -> bool:
        """Return whether a message with this key came, and its time is not over."""
        return self.keys.get(key, 0) > now_ms

    def add(self, key: bytes, until_ms: int, *, lsn: int = 0, is_logged: bool = True) -> None:
        """Note a key, and forget the oldest ones if there are too many. lsn: of its record."""
        self.lsn = max(self.lsn, lsn)
        is_back = self.keys.pop(key, None) is not None
        self.keys[key] = until_ms
        recent = self._recent
        if recent is None or not is_back or key not in recent:
            self.added += 1
        if recent is not None:
            recent.add(key)
        if is_logged:
            self._unlogged.discard(key)
        else:
            self._unlogged.add(key)
        self._trim()

    def set_up(self, size: int, ttl_ms: int | None) -> None:
        """Set how many keys it keeps, and for how long."""
        self.size, self.ttl_ms = size, ttl_ms
        self._trim()

    def until_ms(self, now_ms: int, ttl_ms: int | None) -> int:
        """Return until when it keeps a key that comes now. ttl_ms: the message's own."""
        most = self.ttl_ms if ttl_ms is None else ttl_ms
        return NEVER if most is None else now_ms + most

    def forget_past(self, now_ms: int) -> None:
        """Forget the first keys whose time is over, PAST_MAX at most."""
        for _ in range(PAST_MAX):
            key = next(iter(self.keys), None)
            if key is None or self.keys[key] > now_ms:
                return
            self._forget(key)

    def _trim(self) -> None:
        while self.size and len(self.keys) > self.size:
            self._forget(next(iter(self.keys)))

    def _forget(self, key: bytes) -> None:
        del self.keys[key]
        self._unlogged.discard(key)

    def cut(self) -> int:
        """Begin a checkpoint. Return what `encode` needs for the state as of now."""
        self._recent = set()
        return self.added

    def encode(self, added: int) -> bytes:
        """Return its section as of when so many keys were `added`."""
        self._recent = None
        n = max(len(self.keys) - (self.added - added), 0)
        items = [item for item in islice(self.keys.items(), n) if item[0] not in self._unlogged]
        keys = b"".join([key for key, _ in items])
        times = struct.pack(f">{len(items)}Q", *[until for _, until in items])
        return _HEAD.pack(len(self.name)) + self.name + _COUNT.pack(len(items)) + keys + times


class KeyWindows:
    """The windows of a vhost, by name. is_used: there was one since the start."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, KeyWindow] = {}
        self.is_used: bool = False

    def of(self, name: bytes) -> KeyWindow:
        """Return the window of this name, which is made if there is none."""
        found = self.by_name.get(name)
        if found is None:
            found = self.by_name[name] = KeyWindow(name)
            self.is_used = True
        return found

    def delete(self, name: bytes) -> None:
        """Delete a window, if there is one."""
        self.by_name.pop(name, None)

    def capture(self) -> list[tuple[KeyWindow, int]]:
        """Return each window with what `encode` needs for its state as of now."""
        windows = [window for window in self.by_name.values() if window.is_logged]
        return [(window, window.cut()) for window in windows]

    def restore(self, data: bytes) -> None:
        """Add a window from a checkpoint. ValueError, struct.error: it is not one."""
        window, times = decode(data)
        if window.name in self.by_name:
            raise ValueError(f"two windows of {window.name!r}")
        for key, until_ms in times:
            window.add(key, until_ms)
        self.by_name[window.name] = window
        self.is_used = True


def decode(data: bytes) -> tuple[KeyWindow, list[tuple[bytes, int]]]:
    """Return an empty window of this section's name, and (key, until) in order. ValueError,
    struct.error: it is not a section."""
    (length,) = _HEAD.unpack_from(data)
    at = _HEAD.size + length
    (count,) = _COUNT.unpack_from(data, at)
    at += _COUNT.size
    end = at + count * KEY_BYTES
    if len(data) != end + 8 * count:
        raise ValueError(f"a window of {count} keys has {len(data)} bytes")
    times = struct.unpack_from(f">{count}Q", data, end)
    keys = [data[i : i + KEY_BYTES] for i in range(at, end, KEY_BYTES)]
    return KeyWindow(data[_HEAD.size : _HEAD.size + length]), list(zip(keys, times, strict=True))
