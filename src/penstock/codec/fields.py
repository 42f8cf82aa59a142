"""Fields of AMQP 0-9-1: tables, values, strings and numbers, from bytes to Python and back.

A table holds names and typed values, and may be nested: `arguments` and `headers` are tables.

    table   length 4 | entries                entry  name length 1 | name | value
    array   length 4 | values                 value  letter 1 | data

The letters are those of RabbitMQ and its clients. Where the specification differs (nobody ever used
its letters for 16 and 64 bits) RabbitMQ's errata hold:

    t boolean 1        b, B integer 1         s, u integer 2         I, i integer 4
    l, L integer 8     f float 4              d float 8              D scale 1, integer 4
    S bytes, length 4  x bytes, length 4      T seconds 8            V nothing
    A array            F table                (b s I l L are signed, B u i T are not)

Text is UTF-8. A name that is not valid UTF-8 is decoded with surrogate escapes; a long string (S)
that is not becomes bytes. Python values are written as: bool t, int I or else l, float d, str S,
bytes x, datetime T, Decimal D, list or tuple A, dict F, None V. So a value that is read and written
again stays equal, but its letter may change. A time after the year 9999 becomes the number of its
seconds, at most 2^63 - 1: all that can be read can be written.

Tables and arrays may be nested NESTING_MAX deep, because code that compares, stores or writes a
decoded table recurses, with three of Python's 1,000 frames for each level. Malformed bytes raise
AMQPConnectionError SYNTAX_ERROR; Python values that cannot be written raise TypeError or
ValueError. `check_table` checks a table without building it, for the hot path; `raw_entry` returns
one value of a checked table as bytes.

FieldReader reads the fields of a method from untrusted bytes. Fields that run over the end of the
payload, or do not fill it, are FRAME_ERROR "cannot decode", as in RabbitMQ.
"""

import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from penstock.errors import (
    FRAME_ERROR,
    PRECONDITION_FAILED,
    SYNTAX_ERROR,
    AMQPConnectionError,
    ChannelError,
)

NESTING_MAX: Final = 128
ARGUMENTS_BYTES_MAX: Final = 8192  # of a table in the arguments of a method, as servers take it
SHORTSTR_BYTES_MAX: Final = 255

Table = dict[str, object]

_FLOAT = struct.Struct(">f")
_DOUBLE = struct.Struct(">d")
_DECIMAL = struct.Struct(">Bi")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MAX: Final = 253402300799  # the last second of the year 9999


def check_table(data: bytes, at: int, end: int) -> int:
    """Check that a table with its length begins at `at` and ends before or at `end`.

    Returns where it ends. Builds nothing, so untrusted bytes cost no memory.
    """
    return _check(data, at, end, 1, True)


def decode_table(data: bytes, at: int = 0) -> tuple[Table, int]:
    """Return the table with its length at `at`, and where it ends. Of equal names the last wins."""
    end = check_table(data, at, len(data))
    return _build_table(data, at + 4, end), end


def raw_entry(table: bytes, name: bytes) -> bytes | None:
    """Return the value of a name in a checked table with its length: letter and bytes, undecoded.

    None if there is no such name. Of equal names the last counts."""
    found: bytes | None = None
    end = 4 + int.from_bytes(table[:4], "big")
    at = 4
    while at < end:
        name_end = at + 1 + table[at]
        is_it = table[at + 1 : name_end] == name
        at = _check_value(table, name_end, end, 0)
        if is_it:
            found = table[name_end:at]
    return found


def decode_value(data: bytes, at: int = 0) -> tuple[object, int]:
    """Return the value with its letter at `at`, and where it ends."""
    end = _check_value(data, at, len(data), 1)
    return _build_value(data, at, end), end


def encode_table(table: Table) -> bytes:
    """Return a table as bytes, with its length first. Names are up to 255 bytes."""
    return _encode_table(table, 1)


def encode_value(value: object) -> bytes:
    """Return a value as bytes, with its letter first."""
    return _encode_value(value, 0)


# The types of the fields of a method.
OCTET: Final = 0
SHORT: Final = 1
LONG: Final = 2
LONGLONG: Final = 3
SHORTSTR: Final = 4
LONGSTR: Final = 5
TABLE: Final = 6
RAW_TABLE: Final = 7  # a table that is checked when it is read, and stays bytes
BIT: Final = 8  # one of up to eight bits in an octet
ZEROS: Final = (
    bytes(1),
    bytes(2),
    bytes(4),
    bytes(8),
    bytes(1),
    bytes(4),
    bytes(4),
    bytes(4),
    bytes(1),
)


def encode_shortstr(text: str) -> bytes:
    """Return a short string: the length in one byte, then at most 255 bytes of UTF-8."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > SHORTSTR_BYTES_MAX:
        raise ValueError(f"a short string of {len(data)} bytes: at most 255 are allowed: {text!r}")
    return bytes((len(data),)) + data


def encode_field(kind: int, value: Any) -> bytes:
    """Return a value as a field of this type. Raises OverflowError for an integer that is too
    large, ValueError for a text."""
    if kind == SHORTSTR:
        return encode_shortstr(value)
    if kind == LONGSTR:
        return len(value).to_bytes(4, "big") + bytes(value)
    if kind == TABLE:
        return encode_table(value)
    if kind == RAW_TABLE:
        return bytes(value)
    number: int = value
    return number.to_bytes(len(ZEROS[kind]), "big")


class FieldReader:
    """Reads the fields of one method in their order, after its two ids.

    table_bytes_max: bytes of the longest table that is decoded, 0 for no limit. A longer one is
    read as an empty table, and sets `error`.
    """

    def __init__(self, payload: bytes, table_bytes_max: int = 0) -> None:
        self.payload = payload
        self.at = 4
        self.table_bytes_max = table_bytes_max
        self.error: ChannelError | None = None

    def cannot_decode(self) -> AMQPConnectionError:
        """Return the error for a payload that is too short or too long for its method."""
        ids = [int.from_bytes(self.payload[at : at + 2], "big") for at in (0, 2)]
        shown = self.payload[4:36].hex(" ")
        more = "" if len(self.payload) <= 36 else " ..."
        text = f"cannot decode the {len(self.payload) - 4} bytes of method {ids[0]}.{ids[1]}"
        return AMQPConnectionError(FRAME_ERROR, f"{text}: {shown}{more}", ids[0], ids[1])

    def _take(self, size_bytes: int) -> bytes:
        at = self.at
        self.at = at + size_bytes
        if self.at > len(self.payload):
            raise self.cannot_decode()
        return self.payload[at : self.at]

    def octet(self) -> int:
        """Read an unsigned integer of 1 byte."""
        at = self.at
        if at >= len(self.payload):
            raise self.cannot_decode()
        self.at = at + 1
        return self.payload[at]

    def short(self) -> int:
        """Read an unsigned integer of 2 bytes."""
        at = self.at
        if len(self.payload) - at < 2:
            raise self.cannot_decode()
        self.at = at + 2
        return (self.payload[at] << 8) | self.payload[at + 1]

    def long(self) -> int:
        """Read an unsigned integer of 4 bytes."""
        return int.from_bytes(self._take(4), "big")

    def longlong(self) -> int:
        """Read an unsigned integer of 8 bytes."""
        return int.from_bytes(self._take(8), "big")

    def shortstr(self) -> str:
        """Read a short string: text of up to 255 bytes."""
        return self._take(self.octet()).decode("utf-8", "surrogateescape")

    def longstr(self) -> bytes:
        """Read a long string: bytes."""
        return self._take(self.long())

    def table(self) -> Table:
        """Read a field table."""
        if len(self.payload) - self.at < 4:
            raise self.cannot_decode()
        size = int.from_bytes(self.payload[self.at : self.at + 4], "big")
        if 0 < self.table_bytes_max < size:
            self.at = check_table(self.payload, self.at, len(self.payload))
            self.error = table_too_long(size, self.table_bytes_max)
            return {}
        table, self.at = decode_table(self.payload, self.at)
        return table

    def raw_table(self) -> bytes:
        """Read a field table as bytes, with its length. It is checked, and not decoded."""
        at = self.at
        if len(self.payload) - at < 4:
            raise self.cannot_decode()
        self.at = check_table(self.payload, at, len(self.payload))
        return self.payload[at : self.at]

    def field(self, kind: int) -> object:
        """Read a field of this type."""
        if kind == SHORTSTR:
            return self.shortstr()
        if kind == OCTET:
            return self.octet()
        if kind == SHORT:
            return self.short()
        if kind == LONG:
            return self.long()
        if kind == LONGLONG:
            return self.longlong()
        if kind == LONGSTR:
            return self.longstr()
        return self.table() if kind == TABLE else self.raw_table()

    def end(self) -> None:
        """Check that the fields filled the payload."""
        if self.at != len(self.payload):
            raise self.cannot_decode()


# One field, with its type; or up to eight bits in one octet. The name is "" for bits, and for a
# reserved field. A bit that is not reserved is (name, its value in the octet).
Bits = tuple[tuple[str, int], ...]
Step = tuple[str, int, Bits]


def read_fields(payload: bytes, steps: tuple[Step, ...], table_bytes_max: int) -> dict[str, Any]:
    """Return the fields of a method's payload by their names. table_bytes_max: as of FieldReader,
    whose error is raised. Raises AMQPConnectionError if they do not fill the payload."""
    reader = FieldReader(payload, table_bytes_max)
    values: dict[str, Any] = {}
    for name, kind, bits in steps:
        if kind == BIT:
            octet = reader.octet()
            for bit, mask in bits:
                values[bit] = octet & mask != 0
        else:
            value = reader.field(kind)
            if name:
                values[name] = value
    reader.end()
    if reader.error is not None:
        reader.error.class_id = (payload[0] << 8) | payload[1]
        reader.error.method_id = (payload[2] << 8) | payload[3]
        raise reader.error
    return values


def write_fields(head: bytes, method: object, steps: tuple[Step, ...]) -> bytes:
    """Return the fields of a method behind its two ids."""
    parts = [head]
    for name, kind, bits in steps:
        if name:
            parts.append(encode_field(kind, getattr(method, name)))
        elif bits:
            octet = 0
            for bit, value in bits:
                if getattr(method, bit):
                    octet |= value
            parts.append(octet.to_bytes(1, "big"))
        else:
            parts.append(ZEROS[kind])
    return b"".join(parts)


def table_too_long(size_bytes: int, most_bytes: int) -> ChannelError:
    """Return the 406 for a table in the arguments of a method that is longer than allowed."""
    text = f"a table of {size_bytes} bytes in the arguments of a method: at most {most_bytes}"
    return ChannelError(PRECONDITION_FAILED, f"{text} are allowed")


# ------------------------------------------------------------------------------------- check


def _wrong(text: str) -> AMQPConnectionError:
    return AMQPConnectionError(SYNTAX_ERROR, text)


def _check(data: bytes, at: int, end: int, depth: int, is_table: bool) -> int:
    """Check a table or an array. Returns where it ends. depth: how deep it is nested."""
    if depth > NESTING_MAX:
        raise _wrong(f"a field table is nested more than {NESTING_MAX} deep")
    if end - at < 4:
        raise _wrong("a field table has no length")
    length = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
    at += 4
    if length > end - at:
        raise _wrong(f"a field table of {length} bytes, of which {end - at} are there")
    end = at + length
    while at < end:
        if is_table:
            at += 1 + data[at]
        at = _check_value(data, at, end, depth)
    return end


def _check_value(data: bytes, at: int, end: int, depth: int) -> int:
    """Check the value whose letter is at `at`. Returns where it ends."""
    if at >= end:
        raise _wrong("a field table's entry has no value")
    letter = data[at]
    at += 1
    if letter == 0x53 or letter == 0x78:  # S x
        if end - at < 4:
            raise _wrong("a long string has no length")
        size = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
        size += 4
    elif letter == 0x46:  # F
        return _check(data, at, end, depth + 1, True)
    elif letter == 0x41:  # A
        return _check(data, at, end, depth + 1, False)
    else:
        size = _size_of(letter)
    if size > end - at:
        raise _wrong(f"a field value of {size} bytes, of which {end - at} are there")
    return at + size


def _size_of(letter: int) -> int:
    """Return how many bytes follow a letter of fixed size."""
    if letter == 0x49 or letter == 0x69 or letter == 0x66:  # I i f
        return 4
    if letter == 0x74 or letter == 0x62 or letter == 0x42:  # t b B
        return 1
    if letter == 0x6C or letter == 0x4C or letter == 0x64 or letter == 0x54:  # l L d T
        return 8
    if letter == 0x73 or letter == 0x75:  # s u
        return 2
    if letter == 0x56:  # V
        return 0
    if letter == 0x44:  # D
        return 5
    raise _wrong(f"a field value of the unknown type {chr(letter)!r}")


# ------------------------------------------------------------------------------------- build
#
# These functions read bytes that were checked: every length, letter and depth is right.


def _build_table(data: bytes, at: int, end: int) -> Table:
    table: Table = {}
    while at < end:
        name_end = at + 1 + data[at]
        name = data[at + 1 : name_end].decode("utf-8", "surrogateescape")
        at = _check_value(data, name_end, end, 0)
        table[name] = _build_value(data, name_end, at)
    return table


def _build_array(data: bytes, at: int, end: int) -> list[object]:
    values: list[object] = []
    while at < end:
        value_at = at
        at = _check_value(data, at, end, 0)
        values.append(_build_value(data, value_at, at))
    return values


def _build_value(data: bytes, at: int, end: int) -> object:
    letter = data[at]
    at += 1
    if letter == 0x53:  # S
        raw = data[at + 4 : end]
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return raw
    if letter == 0x78:  # x
        return data[at + 4 : end]
    if letter == 0x46:  # F
        return _build_table(data, at + 4, end)
    if letter == 0x41:  # A
        return _build_array(data, at + 4, end)
    if letter == 0x74:  # t
        return data[at] != 0
    if letter == 0x56:  # V
        return None
    return _build_number(letter, data[at:end])


def _build_number(letter: int, raw: bytes) -> object:
    if letter == 0x64:  # d
        return _DOUBLE.unpack(raw)[0]
    if letter == 0x66:  # f
        return _FLOAT.unpack(raw)[0]
    if letter == 0x44:  # D
        scale, digits = _DECIMAL.unpack(raw)
        return Decimal(digits).scaleb(-scale)
    if letter == 0x54:  # T
        seconds = int.from_bytes(raw, "big")
        if seconds <= _SECONDS_MAX:
            return _EPOCH + timedelta(seconds=seconds)
        return min(seconds, (1 << 63) - 1)
    is_unsigned = letter == 0x42 or letter == 0x75 or letter == 0x69  # B u i
    return int.from_bytes(raw, "big", signed=not is_unsigned)


# ------------------------------------------------------------------------------------ encode


def _encode_table(table: Table, depth: int) -> bytes:
    if depth > NESTING_MAX:
        raise ValueError(f"a field table is nested more than {NESTING_MAX} deep")
    parts: list[bytes] = []
    for name, value in table.items():
        parts.append(encode_shortstr(name))
        parts.append(_encode_value(value, depth))
    body = b"".join(parts)
    return len(body).to_bytes(4, "big") + body


def _encode_array(values: list[object], depth: int) -> bytes:
    if depth > NESTING_MAX:
        raise ValueError(f"a field table is nested more than {NESTING_MAX} deep")
    body = b"".join([_encode_value(value, depth) for value in values])
    return len(body).to_bytes(4, "big") + body


def _encode_value(value: object, depth: int) -> bytes:
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogateescape")
        return b"S" + len(text).to_bytes(4, "big") + text
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return _encode_int(value)
    if isinstance(value, bytes):
        return b"x" + len(value).to_bytes(4, "big") + value
    if isinstance(value, dict):
        return b"F" + _encode_table(value, depth + 1)
    if isinstance(value, list):
        return b"A" + _encode_array(value, depth + 1)
    return _encode_rare(value, depth)


def _encode_rare(value: object, depth: int) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, float):
        return b"d" + _DOUBLE.pack(value)
    if isinstance(value, datetime):
        return b"T" + _seconds_of(value).to_bytes(8, "big")
    if isinstance(value, Decimal):
        return b"D" + _encode_decimal(value)
    if isinstance(value, tuple):
        return b"A" + _encode_array(list(value), depth + 1)
    if isinstance(value, bytearray | memoryview):
        return _encode_value(bytes(value), depth)
    raise TypeError(f"a field table cannot hold {type(value).__name__}: {value!r}")


def _encode_int(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + value.to_bytes(4, "big", signed=True)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + value.to_bytes(8, "big", signed=True)
    raise ValueError(f"a field table cannot hold an integer of more than 64 bits: {value}")


def _seconds_of(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"a field table's time needs a time zone: {moment!r}")
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    if seconds < 0:
        raise ValueError(f"a field table cannot hold a time before 1970: {moment!r}")
    return seconds


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a field table cannot hold the decimal {value}")
    if exponent > 9:
        raise ValueError(f"a field table holds decimals of 32 bits, not {value}")
    number = int("".join([str(digit) for digit in digits]) or "0")
    if sign:
        number = -number
    if exponent > 0:
        number *= 10**exponent
    scale = -exponent if exponent < 0 else 0
    if scale > 255 or not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"a field table holds decimals of 32 bits, not {value}")
    return _DECIMAL.pack(scale, number)
