"""Raw AMQP fields: properties and field tables, changed without decoding their values.

A broker that changes one header of a message must return all others as they came: a client can tell
a signed 16-bit number from a 32-bit one, and a long string that is not UTF-8 from a byte array.
Decoding and encoding would lose that. So a table is a list of entries here, name and value, both
raw bytes; a value is its type letter and its content. Changing one entry keeps all others, byte for
byte and in order.

The letters are those that RabbitMQ reads and writes: t b B s u I i l f d D S A T F V x. Bytes that
are not a table, or that have another letter, raise TableError; each length is checked before bytes
are taken. Arrays and nested tables are skipped by their length, so nesting costs nothing.

`RawProperties` finds the headers, the priority and the expiration in a message's properties (flag
words, then the list of properties; AMQP 0-9-1 specification, 4.2.6.1), and cuts there. Properties
were validated when they were published; if they are damaged all the same, it raises
PropertiesError.

Values as Python objects, and validation: penstock.codec.
"""

import struct
from typing import Final

RawEntry = tuple[bytes, bytes]  # name, value with its letter

# Bytes of a value after its letter; -1: they begin with a length of 4 bytes.
SIZES: Final[dict[int, int]] = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4,
    ord("l"): 8, ord("f"): 4, ord("d"): 8, ord("D"): 5, ord("S"): -1, ord("A"): -1, ord("T"): 8,
    ord("F"): -1, ord("V"): 0, ord("x"): -1,
}  # fmt: skip

# RabbitMQ's names for the types, for errors.
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
    """Bytes are not a field table, or a value in it has an unknown type."""


def split(table: bytes) -> list[RawEntry]:
    """Return the entries of a table, which is given without its length. Raises TableError."""
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
    """Return the table of these entries, without its length."""
    pieces: list[bytes] = []
    for name, value in entries:
        pieces += [bytes((len(name),)), name, value]
    return b"".join(pieces)


def split_array(value: bytes) -> list[bytes]:
    """Return the values in an array (letter A). Raises TableError for another type or damage."""
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
    """Return where the value ends whose letter is at `at`."""
    size = SIZES.get(data[at])
    if size is None:
        raise TableError(f"a field value of type {data[at : at + 1]!r} is not known")
    at += 1
    if size < 0:
        if at + 4 > len(data):
            raise TableError("a field value ends within its length")
        size = 4 + int.from_bytes(data[at : at + 4], "big")
    if at + size > len(data):
        raise TableError(f"a field value of {size} bytes, but only {len(data) - at} are left")
    return at + size


# ---- entries -------------------------------------------------------------------------------------


def get(entries: list[RawEntry], name: bytes) -> bytes | None:
    """Return the first value of that name, or None."""
    for found, value in entries:
        if found == name:
            return value
    return None


def put(entries: list[RawEntry], name: bytes, value: bytes) -> None:
    """Set the value of that name, in its old place or at the end."""
    for i, (found, _) in enumerate(entries):
        if found == name:
            entries[i] = (name, value)
            return
    entries.append((name, value))


# ---- values --------------------------------------------------------------------------------------


def content(value: bytes, letters: bytes) -> bytes | None:
    """Return the content of a value whose letter is one of these (of S, A, F, x), or None."""
    return value[5:] if value[0] in letters else None


def integer(value: bytes) -> int | None:
    """Return a whole number of any width, or a timestamp; None for another type."""
    letter = value[0]
    if letter in _SIGNED:
        return int.from_bytes(value[1:], "big", signed=True)
    return int.from_bytes(value[1:], "big") if letter in _UNSIGNED else None


def long_string(data: bytes) -> bytes:
    """Return a value of letter S."""
    return b"S" + _U32.pack(len(data)) + data


def binary(data: bytes) -> bytes:
    """Return a value of letter x."""
    return b"x" + _U32.pack(len(data)) + data


def signed(number: int) -> bytes:
    """Return a value of letter l: signed, 64 bits."""
    return b"l" + number.to_bytes(8, "big", signed=True)


def timestamp(seconds: int) -> bytes:
    """Return a value of letter T: seconds since 1970."""
    return b"T" + seconds.to_bytes(8, "big")


def array(values: list[bytes]) -> bytes:
    """Return a value of letter A."""
    data = b"".join(values)
    return b"A" + _U32.pack(len(data)) + data


def nested(entries: list[RawEntry]) -> bytes:
    """Return a value of letter F."""
    data = join(entries)
    return b"F" + _U32.pack(len(data)) + data


# ---- properties ----------------------------------------------------------------------------------

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
    """Bytes are not a list of properties."""


class RawProperties:
    """Properties, and where three of them lie in `data`: each from its `_at` to its `_end`, an
    empty range where the property would be inserted. priority: -1 for none."""

    __slots__ = (
        "data", "expiration_at", "expiration_end", "flags", "headers_at", "headers_end", "list_at",
        "priority",
    )  # fmt: skip

    def __init__(self, data: bytes) -> None:
        if len(data) < 2:
            raise PropertiesError(f"properties of {len(data)} bytes, expected at least 2")
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
        """Return the entries of the headers table; none if it is damaged."""
        if self.headers_at == self.headers_end:
            return []  # compiled, a slice that ends before it begins is an error
        try:
            return split(self.table())
        except TableError:
            return []

    def table(self) -> bytes:
        """Return the headers table as it was given, without its length; b"" for none."""
        if self.headers_at == self.headers_end:
            return b""
        return self.data[self.headers_at + 4 : self.headers_end]

    def expiration(self) -> bytes | None:
        """Return the expiration as it was given, or None."""
        if not self.flags & EXPIRATION:
            return None
        return self.data[self.expiration_at + 1 : self.expiration_end]

    def changed(self, headers: list[RawEntry], *, has_expiration: bool = True) -> bytes:
        """Return the properties with these headers; has_expiration=False: without the
        expiration."""
        return self.with_table(join(headers), has_expiration=has_expiration)

    def with_table(self, table: bytes, *, has_expiration: bool = True) -> bytes:
        """Return the properties with this table of headers, given without its length; b"" for none.
        has_expiration: as for `changed`."""
        data = self.data
        flags = self.flags & ~HEADERS
        length = b""
        if table:
            flags |= HEADERS
            length = _U32.pack(len(table))
        rest_at = self.expiration_at if has_expiration else self.expiration_end
        if not has_expiration:
            flags &= ~EXPIRATION
        return b"".join([
            flags.to_bytes(2, "big"), data[2 : self.headers_at], length, table,
            data[self.headers_end : self.expiration_at], data[rest_at:],
        ])  # fmt: skip


def _after_short(data: bytes, at: int, is_there: int) -> int:
    """Return the position after the short string at `at`, if there is one."""
    if not is_there:
        return at
    if at >= len(data):
        raise PropertiesError(f"properties of {len(data)} bytes end before one of them")
    return at + 1 + data[at]
