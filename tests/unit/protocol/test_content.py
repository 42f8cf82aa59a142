"""Looking ahead for a whole publish, and assembling one that is not."""

import pytest

from penstock.protocol.connection import ChannelInput, is_route, whole_publish
from tests.helpers.wire_session import publish, route

BODY_MAX = 1000
MESSAGE = publish(258, "key", b"body")
HEADER_AT = MESSAGE.index(b"\x02\x01\x02")


def whole(data: bytes, at: int = HEADER_AT, number: int = 258) -> int:
    return whole_publish(data, at, number, 4088, BODY_MAX)


def test_a_whole_message_is_found_with_or_without_a_body() -> None:
    assert whole(MESSAGE) == len(MESSAGE)
    assert whole(MESSAGE + MESSAGE) == len(MESSAGE)
    empty = publish(258, "key", b"")
    assert whole(empty) == len(empty)


def test_one_that_is_cut_anywhere_is_not() -> None:
    for end in range(HEADER_AT, len(MESSAGE)):
        assert whole(MESSAGE[:end]) == 0


def test_one_in_which_any_octet_of_its_envelope_is_wrong_is_not() -> None:
    payloads = set(range(HEADER_AT + 19, HEADER_AT + 22)) | set(
        range(len(MESSAGE) - 5, len(MESSAGE) - 1)
    )
    for at in set(range(HEADER_AT, len(MESSAGE))) - payloads:
        data = MESSAGE[:at] + bytes((MESSAGE[at] ^ 0x40,)) + MESSAGE[at + 1 :]
        assert whole(data) == 0, at


def test_one_of_another_channel_or_too_large_is_not() -> None:
    assert whole(MESSAGE, number=1) == 0
    assert whole_publish(MESSAGE, HEADER_AT, 258, 4088, 3) == 0
    assert whole_publish(MESSAGE, HEADER_AT, 258, 3, BODY_MAX) == 0


@pytest.mark.parametrize("good", [route(), route("", ""), route("k" * 255, "e" * 255, 3)])
def test_a_route_is_two_short_strings_and_bits(good: bytes) -> None:
    data = b"xx" + good + b"yy"
    assert is_route(data, 2, 2 + len(good))
    assert not is_route(data, 2, 1 + len(good))
    assert not is_route(data, 2, 3 + len(good))


def test_no_route_is_read_beyond_its_end() -> None:
    for size in range(6):
        assert not is_route(b"\xff" * size, 0, size)


def test_pieces_are_joined_as_they_come_and_counted() -> None:
    channel = ChannelInput(1)
    channel.begin(route(), None)
    channel.begin_body(b"\x00\x00", 1000, is_spooling=False)
    for at in range(1000):
        channel.add(bytes((at % 256,)))
    assert channel.held_bytes == 1000 + 2 + len(route())
    assert channel.body() == bytes(at % 256 for at in range(1000))
    channel.reset(is_ready=True)
    assert channel.held_bytes == 0
    assert channel.body() == b""
