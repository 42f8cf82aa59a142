import ipaddress
import struct

import pytest

from penstock.server.proxy_protocol import (
    SIGNATURE,
    Proxied,
    WrongProxyHeader,
    is_of,
    read_header,
)

LINE = b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 5672\r\n"
FROM = ("192.0.2.1", 56324, "192.0.2.9", 5672)


def second(command: int, family: int, addresses: bytes, more: bytes = b"") -> bytes:
    return (
        SIGNATURE + struct.pack(">BBH", command, family, len(addresses + more)) + addresses + more
    )


FOUR = bytes([192, 0, 2, 1, 192, 0, 2, 9]) + struct.pack(">HH", 56324, 5672)
SIX = ipaddress.ip_address("2001:db8::1").packed + ipaddress.ip_address("::1").packed + bytes(4)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (LINE, FROM),
        (b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", ("2001:db8::1", 1, "::1", 2)),
        (b"PROXY UNKNOWN\r\n", ("", 0, "", 0)),
        (b"PROXY UNKNOWN a b c d\r\n", ("", 0, "", 0)),
        (second(0x21, 0x11, FOUR), FROM),
        (second(0x21, 0x11, FOUR, b"\x04\0\1x"), FROM),
        (second(0x21, 0x21, SIX), ("2001:db8::1", 0, "::1", 0)),
        (second(0x20, 0x00, b""), ("", 0, "", 0)),
        (second(0x20, 0x11, FOUR), ("", 0, "", 0)),
        (second(0x21, 0x00, b""), ("", 0, "", 0)),
    ],
)
def test_a_header_is_read_as_soon_as_it_is_whole(data: bytes, found: tuple[object, ...]) -> None:
    for size in range(len(data)):
        assert read_header(data[:size]) is None
    assert read_header(data + b"AMQP") == Proxied(len(data), *found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP",
        b"PROXX",
        b"PROXY " + b"x" * 200,
        b"PROXY TCP4 192.0.2.1 192.0.2.9 56324\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.9 56324 70000\r\n",
        b"PROXY TCP4 2001:db8::1 192.0.2.9 56324 5672\r\n",
        b"PROXY TCP5 192.0.2.1 192.0.2.9 56324 5672\r\n",
        b"PROXY \r\n",
        second(0x31, 0x11, FOUR),
        second(0x21, 0x11, FOUR[:-1]),
        second(0x21, 0x31, bytes(216)),
        second(0x21, 0x11, FOUR, bytes(5000)),
    ],
)
def test_a_wrong_header_is_an_error(data: bytes) -> None:
    with pytest.raises(WrongProxyHeader):
        read_header(data)


def test_only_addresses_of_the_networks_are_trusted() -> None:
    networks = [ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fe80::/10")]
    assert is_of(networks, "10.1.2.3")
    assert is_of(networks, "::ffff:10.1.2.3")
    assert is_of(networks, "fe80::1%eth0")
    assert not is_of(networks, "192.0.2.1")
    assert not is_of([], "10.1.2.3")
