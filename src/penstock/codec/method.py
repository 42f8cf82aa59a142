"""What all methods of AMQP have in common, and the reader of their fields.

A method is the payload of a method frame:

    class 2 | method 2 | fields

spec.py, which is generated, has a class for each. Numbers are big-endian; a short string has its
length in one byte, a long string in four; bits that follow each other share octets, the first is
the lowest bit. Text of short strings is UTF-8, other bytes are kept by surrogate escapes.

FieldReader takes the fields out of bytes that may be anybody's. Fields that run over the end of the
payload, or do not fill it, are FRAME_ERROR "cannot decode", as in RabbitMQ; a field table that is
none is SYNTAX_ERROR (fields.py). Nothing here knows which method may come when: protocol.states.
"""

from typing import ClassVar, Final, Self

from penstock.codec.fields import Table, check_table, decode_table
from penstock.errors import AMQPConnectionError, ChannelError

_FRAME_ERROR: Final = 501
_COMMAND_INVALID: Final = 503
_PRECONDITION_FAILED: Final = 406


class FieldReader:
    """Takes the fields of one method, in their order, from behind its two ids.

    table_bytes_max: bytes of the longest table that is decoded, 0 for no limit. A longer one is
    read as an empty table, and `error` says so.
    """

    def __init__(self, payload: bytes, table_bytes_max: int = 0) -> None:
        self.payload = payload
        self.at = 4
        self.table_bytes_max = table_bytes_max
        self.error: ChannelError | None = None

    def cannot_decode(self) -> AMQPConnectionError:
        """The error for a payload that is too short or too long for its method."""
        ids = [int.from_bytes(self.payload[at : at + 2], "big") for at in (0, 2)]
        shown = self.payload[4:36].hex(" ")
        more = "" if len(self.payload) <= 36 else " ..."
        text = f"cannot decode the {len(self.payload) - 4} bytes of method {ids[0]}.{ids[1]}"
        return AMQPConnectionError(_FRAME_ERROR, f"{text}: {shown}{more}", ids[0], ids[1])

    def number(self, size_bytes: int) -> int:
        """An unsigned integer of so many bytes."""
        at = self.at
        self.at = at + size_bytes
        if self.at > len(self.payload):
            raise self.cannot_decode()
        return int.from_bytes(self.payload[at : self.at], "big")

    def _string(self, size_bytes: int) -> bytes:
        at = self.at
        self.at = at + size_bytes
        if self.at > len(self.payload):
            raise self.cannot_decode()
        return self.payload[at : self.at]

    def shortstr(self) -> str:
        """A short string: text of up to 255 bytes."""
        return self._string(self.number(1)).decode("utf-8", "surrogateescape")

    def longstr(self) -> bytes:
        """A long string: bytes."""
        return self._string(self.number(4))

    def table(self) -> Table:
        """A field table."""
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
        """A field table as its bytes, with its length; checked, and not decoded."""
        at = self.at
        if len(self.payload) - at < 4:
            raise self.cannot_decode()
        self.at = check_table(self.payload, at, len(self.payload))
        return self.payload[at : self.at]

    def end(self) -> None:
        """Check that the fields filled the payload."""
        if self.at != len(self.payload):
            raise self.cannot_decode()


class Method:
    """A method with its fields. Equal to another of its class with equal fields."""

    __slots__: tuple[str, ...] = ()

    CLASS_ID: ClassVar[int] = 0
    METHOD_ID: ClassVar[int] = 0
    INDEX: ClassVar[int] = 0  # CLASS_ID << 16 | METHOD_ID: the first four bytes of the payload
    NAME: ClassVar[str] = ""
    HAS_CONTENT: ClassVar[bool] = False

    def encode(self) -> bytes:
        """The payload of the method frame, its two ids first.

        ValueError or OverflowError if a field is too large for its type.
        """
        return self.INDEX.to_bytes(4, "big")

    @classmethod
    def decode(cls, reader: FieldReader) -> Self:
        """The method whose fields the reader has."""
        return cls()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # its tables can change

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def table_too_long(size_bytes: int, most_bytes: int) -> ChannelError:
    """406 for a table of arguments that is longer than it may be."""
    text = f"a table of {size_bytes} bytes in the arguments of a method: at most {most_bytes}"
    return ChannelError(_PRECONDITION_FAILED, f"{text} are allowed")


def decode_fields(
    methods: dict[int, type[Method]], payload: bytes, table_bytes_max: int = 0
) -> Method:
    """The method of a method frame's payload, looked up by its ids.

    table_bytes_max: bytes of the longest table that it may have, 0 for no limit. A longer one is
    checked and not built: ChannelError 406, when everything else about the payload is right.
    """
    index = int.from_bytes(payload[:4], "big")
    method = methods.get(index) if len(payload) >= 4 else None
    if method is None:
        if len(payload) < 4:
            raise AMQPConnectionError(_FRAME_ERROR, "a method frame without a class and method id")
        class_id, method_id = index >> 16, index & 0xFFFF
        text = f"unknown method {method_id} of class {class_id}"
        raise AMQPConnectionError(_COMMAND_INVALID, text, class_id, method_id)
    reader = FieldReader(payload, table_bytes_max)
    decoded = method.decode(reader)
    reader.end()
    if reader.error is not None:
        reader.error.class_id, reader.error.method_id = index >> 16, index & 0xFFFF
        raise reader.error
    return decoded
