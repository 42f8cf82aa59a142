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
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    ClassVar,
    Self,
    dataclass_transform,
    get_args,
    get_origin,
)

from penstock.codec.fields import (
    BIT,
    LONG,
    LONGLONG,
    LONGSTR,
    OCTET,
    RAW_TABLE,
    SHORT,
    SHORTSTR,
    TABLE,
    Step,
    Table,
    read_fields,
    write_fields,
)

Bit = Annotated[bool, BIT]
Octet = Annotated[int, OCTET]
Short = Annotated[int, SHORT]
Long = Annotated[int, LONG]
LongLong = Annotated[int, LONGLONG]
ShortStr = Annotated[str, SHORTSTR]
LongStr = Annotated[bytes, LONGSTR]
FieldTable = Annotated[Table, TABLE]
RawTable = Annotated[bytes, RAW_TABLE]

NEVER_THE_SAME = {TABLE, RAW_TABLE, LONGLONG}


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
class Method:
    """A method with its fields. Equal to another one of its class with equal fields."""

    CLASS_ID: ClassVar[int]
    METHOD_ID: ClassVar[int]
    INDEX: ClassVar[int]  # CLASS_ID << 16 | METHOD_ID: the first four bytes of the payload
    NAME: ClassVar[str]  # such as basic.get-ok
    HAS_CONTENT: ClassVar[bool]
    REPEATS: ClassVar[bool]  # clients send the same bytes again: it has no table and no tag
    _HEAD: ClassVar[bytes]
    _STEPS: ClassVar[tuple[Step, ...]]

    def __init_subclass__(cls, ids: tuple[int, int], has_content: bool = False) -> None:
        """Make a dataclass of the class. ids: of its AMQP class, and of the method in it."""
        class_name, *method_name = re.findall("[A-Z][a-z]*", cls.__name__)
        cls.CLASS_ID, cls.METHOD_ID = ids
        cls.INDEX = ids[0] << 16 | ids[1]
        cls.NAME = f"{class_name}.{'-'.join(method_name)}".lower()
        cls.HAS_CONTENT = has_content
        cls._HEAD = cls.INDEX.to_bytes(4, "big")
        cls._STEPS = _steps(cls.__annotations__)
        cls.REPEATS = not any(kind in NEVER_THE_SAME for _, kind, _ in cls._STEPS)
        dataclass(kw_only=True)(cls)

    def encode(self) -> bytes:
        """Return the payload of the method frame, beginning with the two ids.

        Raises ValueError or OverflowError if a field is too large for its type.
        """
        return write_fields(self._HEAD, self, self._STEPS)

    @classmethod
    def decode(cls, payload: bytes, table_bytes_max: int = 0) -> Self:
        """Return the method of a payload that begins with its ids; as spec.decode_method."""
        method = cls.__new__(cls)
        method.__dict__ = read_fields(payload, cls._STEPS, table_bytes_max)
        return method


def _steps(hints: dict[str, Any]) -> tuple[Step, ...]:
    """Return the steps for the fields that a class annotates so, in the order of the wire."""
    found: list[Step] = []
    free_bits = 0
    for name, hint in hints.items():
        is_reserved = get_origin(hint) is ClassVar
        kind = (get_args(hint)[0] if is_reserved else hint).__metadata__[0]
        if kind != BIT:
            found.append(("" if is_reserved else name, kind, ()))
            free_bits = 0
            continue
        if not free_bits:
            found.append(("", BIT, ()))
            free_bits = 8
        if not is_reserved:
            found[-1] = ("", BIT, (*found[-1][2], (name, 1 << (8 - free_bits))))
        free_bits -= 1
    return tuple(found)
