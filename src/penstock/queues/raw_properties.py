"""RawProperties: where in a basic message's properties its headers, priority and expiration lie.

Properties travel as they came: flag words, then the list of those that are there (AMQP 0-9-1
specification, 4.2.6.1). Nearly always nothing of it is needed, and when something is changed (a
death is written into the headers, the expiration taken away) the rest must stay as it was. So this
finds places and cuts there, and decodes nothing.

Properties were validated when they were published. What is no list of properties all the same is a
PropertiesError, a ValueError.

Not here: properties as Python objects, and their validation (penstock.codec.properties).
"""

from typing import Final

from penstock.queues import raw_tables
from penstock.queues.raw_tables import RawEntry

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MORE_FLAGS: Final = 0x0001

EMPTY: Final = b"\0\0"  # no property at all


class PropertiesError(ValueError):
    """Bytes are no list of properties."""


class RawProperties:
    """Properties, and the places of three of them in `data`. Each is the range from its `_at` to
    its `_end`, empty where the property would stand if it were there. priority: -1 for none."""

    __slots__ = (
        "data", "expiration_at", "expiration_end", "flags", "headers_at", "headers_end", "list_at",
        "priority",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        if len(data) < 2:
            raise PropertiesError(f"properties of {len(data)} bytes, expected two at least")
        flags = data[0] << 8 | data[1]
        at = 2
        last = flags
        while last & MORE_FLAGS:
            if at + 2 > len(data):
                raise PropertiesError("the flags of properties do not end")
            last = data[at] << 8 | data[at + 1]
            at += 2
        self.data: bytes = data
        self.flags: int = flags
        self.list_at: int = at
        self.priority: int = -1
        at = _after_short(
            data, _after_short(data, at, flags & CONTENT_TYPE), flags & CONTENT_ENCODING
        )
        self.headers_at: int = at
        if flags & HEADERS:
            if at + 4 > len(data):
                raise PropertiesError("properties end before the headers")
            at += 4 + int.from_bytes(data[at : at + 4], "big")
        self.headers_end: int = at
        if flags & DELIVERY_MODE:
            at += 1
        if flags & PRIORITY:
            if at >= len(data):
                raise PropertiesError("properties end before the priority")
            self.priority = data[at]
            at += 1
        at = _after_short(data, _after_short(data, at, flags & CORRELATION_ID), flags & REPLY_TO)
        self.expiration_at: int = at
        at = _after_short(data, at, flags & EXPIRATION)
        self.expiration_end: int = at
        if at > len(data):
            raise PropertiesError(f"properties of {len(data)} bytes end within one of them")

    def headers(self) -> list[RawEntry]:
        """The entries of the headers table; none if it is damaged."""
        if self.headers_at == self.headers_end:
            return []  # compiled, a slice that ends before it begins is an error
        try:
            return raw_tables.split(self.data[self.headers_at + 4 : self.headers_end])
        except raw_tables.TableError:
            return []

    def expiration(self) -> bytes | None:
        """The expiration as it was given, None if there is none."""
        if not self.flags & EXPIRATION:
            return None
        return self.data[self.expiration_at + 1 : self.expiration_end]

    def changed(self, headers: list[RawEntry], *, has_expiration: bool = True) -> bytes:
        """The properties with these headers; has_expiration=False: without their expiration."""
        data = self.data
        flags = self.flags & ~HEADERS
        table = b""
        if headers:
            flags |= HEADERS
            table = raw_tables.nested(headers)[1:]  # length and table, without the letter
        rest_at = self.expiration_at if has_expiration else self.expiration_end
        if not has_expiration:
            flags &= ~EXPIRATION
        return b"".join([
            flags.to_bytes(2, "big"), data[2 : self.headers_at], table,
            data[self.headers_end : self.expiration_at], data[rest_at:],
        ])  # fmt: skip


def _after_short(data: bytes, at: int, is_there: int) -> int:
    """Behind the short string at `at`, if there is one."""
    if not is_there:
        return at
    if at >= len(data):
        raise PropertiesError(f"properties of {len(data)} bytes end before one of them")
    return at + 1 + data[at]
