"""The content header's properties: written, read, scanned; and what is refused."""

import pytest

from penstock.codec.properties import PROPERTY_NAMES, BasicProperties, expiration_at, scan
from penstock.errors import AMQPConnectionError

FULL = BasicProperties(
    content_type="application/json",
    content_encoding="gzip",
    headers={"x-match": "any", "n": 1, "deep": {"list": [1, None]}},
    delivery_mode=2,
    priority=9,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_795_000_000,
    type="t",
    user_id="guest",
    app_id="a",
    cluster_id="k",
)


def test_nothing_is_two_bytes() -> None:
    assert BasicProperties().encode() == b"\x00\x00"
    assert scan(b"\x00\x00") == 0
    assert BasicProperties.decode(b"\x00\x00") == BasicProperties()


def test_all_of_them_come_back() -> None:
    data = FULL.encode()
    assert data[:2] == b"\xff\xfc"
    assert BasicProperties.decode(data) == FULL
    assert scan(data) == 0xFFFC << 16 | 9 << 8 | 2
    assert expiration_at(data) == b"60000"


@pytest.mark.parametrize("name", PROPERTY_NAMES)
def test_each_alone_and_each_left_out(name: str) -> None:
    bit = 1 << 15 - PROPERTY_NAMES.index(name)
    alone = BasicProperties()
    setattr(alone, name, getattr(FULL, name))
    rest = BasicProperties.decode(FULL.encode())
    setattr(rest, name, None)
    for properties, flags in ((alone, bit), (rest, 0xFFFC & ~bit)):
        data = properties.encode()
        assert scan(data) >> 16 == flags
        assert BasicProperties.decode(data) == properties
        expiration = None if properties.expiration is None else b"60000"
        assert expiration_at(data) == expiration
        assert properties != FULL


def test_a_golden_header() -> None:
    properties = BasicProperties(content_type="a", delivery_mode=2, priority=3, expiration="10")
    assert properties.encode().hex() == "990001610203023130"


def test_a_cut_or_longer_list_is_a_syntax_error() -> None:
    data = FULL.encode()
    for wrong in [*(data[:size] for size in range(len(data))), data + b"\x00"]:
        for read in (scan, BasicProperties.decode):
            with pytest.raises(AMQPConnectionError) as caught:
                read(wrong)
            assert caught.value.code == 502


@pytest.mark.parametrize(
    "data", [b"\x00\x02", b"\x00\x01", b"\x00\x01\x80\x00", b"\x00\x03\x00\x00"]
)
def test_a_property_that_does_not_exist_is_a_syntax_error(data: bytes) -> None:
    with pytest.raises(AMQPConnectionError, match="SYNTAX_ERROR"):
        scan(data)


def test_more_flag_words_may_be_there_if_they_say_nothing() -> None:
    data = b"\x10\x01\x00\x01\x00\x00\x02"
    assert scan(data) == 0x1001 << 16 | 2
    assert BasicProperties.decode(data) == BasicProperties(delivery_mode=2)
    assert expiration_at(b"\x01\x01\x00\x00\x015") == b"5"


def test_bytes_that_are_no_text_come_back() -> None:
    data = b"\x80\x00\x01\xff"
    properties = BasicProperties.decode(data)
    assert properties.content_type == "\udcff"
    assert properties.encode() == data


def test_what_is_too_large_is_not_written() -> None:
    with pytest.raises(OverflowError):
        BasicProperties(priority=256).encode()
    with pytest.raises(ValueError, match="short string"):
        BasicProperties(type="t" * 256).encode()
    with pytest.raises(TypeError):
        BasicProperties(type=1.5).encode()  # type: ignore[arg-type]


def test_how_they_look() -> None:
    assert repr(BasicProperties(priority=1)) == "BasicProperties(priority=1)"
    assert BasicProperties() != object()
    with pytest.raises(TypeError):
        hash(BasicProperties())
