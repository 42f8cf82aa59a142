"""Method: what all methods of AMQP have in common, and the types of their fields.

A method is the payload of a method frame:

    class 2 | method 2 | fields

Numbers are big-endian; a short string has its length in one byte, a long string in four; bits that
follow each other share octets, the first is the lowest bit. fields.py reads and writes the values.

A subclass is a row of the table in spec.py. It declares its fields with the types below, and is
made a dataclass: type checkers and editors know its fields and constructor. `encode` and `decode`
follow the list of fields that is built from the declaration when the class is defined.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    dataclass_transform,
    get_args,
    get_origin,
)

from penstock.codec.fields import (
    Bits,
    FieldReader,
    ReadStep,
    Table,
    WriteStep,
    encode_long,
    encode_longlong,
    encode_longstr,
    encode_octet,
    encode_short,
    encode_shortstr,
    encode_table,
    read_fields,
    write_fields,
)


class FieldType(NamedTuple):
    """A type of field: how it is written and read. zero: the bytes of a reserved field."""

    encode: Callable[[Any], bytes]
    decode: Callable[[FieldReader], Any]
    zero: bytes


BIT = FieldType(encode_octet, FieldReader.octet, bytes(1))  # of up to eight bits in an octet

Bit = Annotated[bool, BIT]
Octet = Annotated[int, FieldType(encode_octet, FieldReader.octet, bytes(1))]
Short = Annotated[int, FieldType(encode_short, FieldReader.short, bytes(2))]
Long = Annotated[int, FieldType(encode_long, FieldReader.long, bytes(4))]
LongLong = Annotated[int, FieldType(encode_longlong, FieldReader.longlong, bytes(8))]
ShortStr = Annotated[str, FieldType(encode_shortstr, FieldReader.shortstr, bytes(1))]
LongStr = Annotated[bytes, FieldType(encode_longstr, FieldReader.longstr, bytes(4))]
FieldTable = Annotated[Table, FieldType(encode_table, FieldReader.table, bytes(4))]
# A table that is checked when it is read, and stays bytes.
RawTable = Annotated[bytes, FieldType(bytes, FieldReader.raw_table, bytes(4))]


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Method:
    """A method with its fields. Equal to another one of its class with equal fields."""

    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    INDEX: ClassVar[int]  # CLASS_ID << 16 | METHOD_ID: the first four bytes of the payload
    NAME: ClassVar[str]  # such as basic.get-ok
    HAS_CONTENT: ClassVar[bool]
    _HEAD: ClassVar[bytes]
    _WRITE_STEPS: ClassVar[tuple[WriteStep, ...]]
    _READ_STEPS: ClassVar[tuple[ReadStep, ...]]

    def __init_subclass__(cls, ids: tuple[int, int], has_content: bool = False) -> None:
        """Make a dataclass of the class. ids: of its AMQP class, and of the method in it."""
        class_name, *method_name = re.findall("[A-Z][a-z]*", cls.__name__)
        cls.CLASS_ID, cls.METHOD_ID = ids
        cls.INDEX = ids[0] << 16 | ids[1]
        cls.NAME = f"{class_name}.{'-'.join(method_name)}".lower()
        cls.HAS_CONTENT = has_content
        cls._HEAD = cls.INDEX.to_bytes(4, "big")
        steps = _steps(cls.__annotations__)
        cls._WRITE_STEPS = tuple((name, kind.encode, bits, kind.zero) for name, kind, bits in steps)
        cls._READ_STEPS = tuple((name, kind.decode, bits) for name, kind, bits in steps)
        dataclass(kw_only=True)(cls)

    def encode(self) -> bytes:
        """Return the payload of the method frame, beginning with the two ids.

        Raises ValueError or OverflowError if a field is too large for its type.
        """
        return write_fields(self._HEAD, self, self._WRITE_STEPS)

    @classmethod
    def decode(cls, payload: bytes, table_bytes_max: int = 0) -> Self:
        """Return the method of a payload that begins with its ids; as spec.decode_method."""
        method = cls.__new__(cls)
        method.__dict__ = read_fields(payload, cls._READ_STEPS, table_bytes_max)
        return method


def _steps(hints: dict[str, Any]) -> list[tuple[str, FieldType, Bits]]:
    """Return the steps for the fields that a class annotates so, in the order of the wire."""
    found: list[tuple[str, FieldType, Bits]] = []
    free_bits = 0
    for name, hint in hints.items():
        is_reserved = get_origin(hint) is ClassVar
        kind = (get_args(hint)[0] if is_reserved else hint).__metadata__[0]
        if kind is not BIT:
            found.append(("" if is_reserved else name, kind, ()))
            free_bits = 0
            continue
        if not free_bits:
            found.append(("", BIT, ()))
            free_bits = 8
        if not is_reserved:
            found[-1] = ("", BIT, (*found[-1][2], (name, 1 << (8 - free_bits))))
        free_bits -= 1
    return found
