"""FieldReader: fields read from bytes, and the errors for too few bytes."""

import pytest

from penstock.codec.fields import FieldReader
from penstock.errors import AMQPConnectionError


def test_fields_come_in_their_order() -> None:
    reader = FieldReader(b"\x00\x01\x00\x02\x01\x02\x02ab\x00\x00\x00\x01c" + bytes(4))
    assert reader.short() == 0x0102
    assert reader.shortstr() == "ab"
    assert reader.longstr() == b"c"
    assert reader.table() == {}
    reader.end()


def test_what_cannot_be_decoded_is_shown_with_its_method() -> None:
    reader = FieldReader(b"\x00\x3c\x00\x28\x05ab")
    with pytest.raises(AMQPConnectionError) as caught:
        reader.shortstr()
    error = caught.value
    assert (error.code, error.class_id, error.method_id) == (501, 60, 40)
    assert error.text == "FRAME_ERROR - cannot decode the 3 bytes of method 60.40: 05 61 62"


def test_a_long_payload_is_shown_in_part() -> None:
    with pytest.raises(AMQPConnectionError, match=r"00 00 \.\.\.$"):
        FieldReader(bytes(100)).end()
