"""RawProperties: where in a basic message's properties its headers, priority and expiration lie.

Properties travel as they came: flag words, then the list of those that are there (AMQP 0-9-1
specification, 4.2.6.1). Nearly always nothing of it is needed, and when something is changed (a
death is written into the headers, the expiration taken away) the rest must stay as it was. So this
finds places and cuts there, and decodes nothing.

Properties were validated when they were published. What is no list of properties all the same is a
PropertiesError, a ValueError.

Not here: properties as Python objects, and their validation (penstock.codec.properties).

Raw tables: AMQP field tables taken apart and put together without decoding their values.

A broker that changes one header of a message must give all others back as they came: a client
tells a signed 16-bit number from a 32-bit one, and a long string that is no UTF-8 from a byte
array. Decoding a table and encoding it again loses that. So a table is here a list of entries, name
and value, both raw bytes, where a value is its type letter and what belongs to it; whoever changes
one entry leaves the rest alone, byte for byte and in order.

The letters are those that RabbitMQ reads and writes: t b B s u I i l f d D S A T F V x. Bytes that
are no table, or have another letter, are a TableError, a ValueError; every length is checked before
bytes are taken. Arrays and nested tables are passed over by their length and not looked into, so
nesting costs nothing.

Not here: values as Python objects (penstock.codec.fields).
"""

import struct
from typing import Final

RawEntry = tuple[bytes, bytes]  # name, value with its letter

# Bytes of a value behind its letter; -1: a length of 4 bytes says it.
SIZES: Final[dict[int, int]] = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4,
    ord("l"): 8, ord("f"): 4, ord("d"): 8, ord("D"): 5, ord("S"): -1, ord("A"): -1, ord("T"): 8,
    ord("F"): -1, ord("V"): 0, ord("x"): -1,
}  # fmt: skip

# As RabbitMQ calls the types in its errors.
TYPE_NAMES: Final[dict[int, str]] = {
    ord("t"): "bool", ord("b"): "byte", ord("B"): "unsignedbyte", ord("s"): "short",
    ord("u"): "unsignedshort", ord("I"): "signedint", ord("i"): "unsignedint", ord("l"): "long",
    ord("f"): "float", ord("d"): "double", ord("D"): "decimal", ord("S"): "longstr",
    ord("A"): "array", ord("T"): "timestamp", ord("F"): "table", ord("V"): "void",
    ord("x"): "binary",
}  # fmt: skip

_SIGNED: Final = b"bsIl"
_UNSIGNED: Final = b"BuiT"
_U32: Final = struct.Struct(">I")


class TableError(ValueError):
    """Bytes are no field table, or one with a type that is not known."""


def split(table: bytes) -> list[RawEntry]:
    """The entries of a table, given without the length before it. TableError."""
    entries: list[RawEntry] = []
    at = 0
    end = len(table)
    while at < end:
        start = at + 1
        at = start + table[at]
        if at >= end:
            raise TableError(f"a field name ends beyond the table's {end} bytes")
        value_end = _value_end(table, at)
        entries.append((table[start:at], table[at:value_end]))
        at = value_end
    return entries


def join(entries: list[RawEntry]) -> bytes:
    """A table of these, without the length before it."""
    pieces: list[bytes] = []
    for name, value in entries:
        pieces += [bytes((len(name),)), name, value]
    return b"".join(pieces)


def split_array(value: bytes) -> list[bytes]:
    """The values in a value of letter A. TableError if it is another, or damaged."""
    data = content(value, b"A")
    if data is None:
        raise TableError(f"a value of type {value[:1]!r}, expected an array")
    values: list[bytes] = []
    at = 0
    while at < len(data):
        value_end = _value_end(data, at)
        values.append(data[at:value_end])
        at = value_end
    return values


def _value_end(data: bytes, at: int) -> int:
    """Where the value ends whose letter is at `at`."""
    size = SIZES.get(data[at])
    if size is None:
        raise TableError(f"a field value of type {data[at : at + 1]!r} is not known")
    at += 1
    if size < 0:
        if at + 4 > len(data):
            raise TableError("a field value ends within its length")
        size = 4 + int.from_bytes(data[at : at + 4], "big")
    if at + size > len(data):
        raise TableError(f"a field value of {size} bytes, {len(data) - at} are left")
    return at + size


# ---- entries -------------------------------------------------------------------------------------


def get(entries: list[RawEntry], name: bytes) -> bytes | None:
    """The value of that name, the first if there are several; None if there is none."""
    for found, value in entries:
        if found == name:
            return value
    return None


def put(entries: list[RawEntry], name: bytes, value: bytes) -> None:
    """Set the value of that name, at its old place or at the end."""
    for i, (found, _) in enumerate(entries):
        if found == name:
            entries[i] = (name, value)
            return
    entries.append((name, value))


# ---- values --------------------------------------------------------------------------------------


def content(value: bytes, letters: bytes) -> bytes | None:
    """What a value holds whose letter is one of S, A, F, x and of these; None if it is not."""
    return value[5:] if value[0] in letters else None


def integer(value: bytes) -> int | None:
    """A whole number of any width, a timestamp included; None if it is something else."""
    letter = value[0]
    if letter in _SIGNED:
        return int.from_bytes(value[1:], "big", signed=True)
    return int.from_bytes(value[1:], "big") if letter in _UNSIGNED else None


def long_string(data: bytes) -> bytes:
    """A value of letter S."""
    return b"S" + _U32.pack(len(data)) + data


def binary(data: bytes) -> bytes:
    """A value of letter x."""
    return b"x" + _U32.pack(len(data)) + data


def signed(number: int) -> bytes:
    """A value of letter l, signed 64 bits."""
    return b"l" + number.to_bytes(8, "big", signed=True)


def timestamp(seconds: int) -> bytes:
    """A value of letter T: seconds since 1970."""
    return b"T" + seconds.to_bytes(8, "big")


def array(values: list[bytes]) -> bytes:
    """A value of letter A."""
    data = b"".join(values)
    return b"A" + _U32.pack(len(data)) + data


def nested(entries: list[RawEntry]) -> bytes:
    """A value of letter F."""
    data = join(entries)
    return b"F" + _U32.pack(len(data)) + data


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
            return split(self.data[self.headers_at + 4 : self.headers_end])
        except TableError:
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
            table = nested(headers)[1:]  # length and table, without the letter
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
