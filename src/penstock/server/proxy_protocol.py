"""The PROXY protocol: whom a proxy connects for, in a header before the client's first byte.

Versions 1 and 2 of https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt:

    1   PROXY TCP4 192.0.2.1 192.0.2.9 56324 5672\\r\\n     TCP4, TCP6 or UNKNOWN; 107 bytes at most
    2   signature(12) | version 2, command(1) | family(1) | length(2) | addresses | more

The command LOCAL and the family UNKNOWN or UNSPEC mean the proxy itself, as its health checks do.
Anybody can send such a header, so only those of trusted addresses are read, and these must send
one. A wrong header is a WrongProxyHeader.
"""

import ipaddress
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
HEAD_BYTES: Final = 16
FIRST: Final = b"PROXY "
LINE_BYTES_MAX: Final = 107
BYTES_MAX: Final = 4096  # of a header of version 2, with what proxies add
LOCAL: Final = 0x20
PROXY: Final = 0x21
TCP4: Final = 0x11
TCP6: Final = 0x21

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class WrongProxyHeader(Exception):
    """What a trusted proxy sent first is no header; the text is for the log."""


class Proxied(NamedTuple):
    """A header. size: its bytes. The others are of the client and where it connected to; "" and 0
    for the proxy itself."""

    size: int
    peer_host: str = ""
    peer_port: int = 0
    host: str = ""
    port: int = 0


def networks_of(texts: Sequence[str]) -> list[Network]:
    """Return the networks, which Config has checked."""
    return [ipaddress.ip_network(one) for one in texts]


def is_of(networks: Sequence[Network], host: str) -> bool:
    """Return whether the address is of one of the networks."""
    if not networks:
        return False
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


def read_header(data: bytes) -> Proxied | None:
    """Return the header that the bytes begin with, None while it is not whole. Raises
    WrongProxyHeader."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _second(data)
    if data[: len(FIRST)] == FIRST[: len(data)]:
        return _first(data)
    raise WrongProxyHeader(f"no PROXY header: it began with {data[:16]!r}")


def _first(data: bytes) -> Proxied | None:
    line, end, _ = data[:LINE_BYTES_MAX].partition(b"\r\n")
    if not end:
        if len(data) >= LINE_BYTES_MAX:
            raise WrongProxyHeader(f"a PROXY line of more than {LINE_BYTES_MAX} bytes")
        return None
    size = len(line) + 2
    words = line.decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return Proxied(size)
    try:
        _, family, peer_host, host, peer_port, port = words
        kind = {"TCP4": ipaddress.IPv4Address, "TCP6": ipaddress.IPv6Address}[family]
        return Proxied(size, str(kind(peer_host)), _port(peer_port), str(kind(host)), _port(port))
    except (ValueError, KeyError):
        raise WrongProxyHeader(f"a wrong PROXY line: {line!r}") from None


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise ValueError(text)
    return int(text)


def _second(data: bytes) -> Proxied | None:
    if len(data) < HEAD_BYTES:
        return None
    command, family, length = struct.unpack_from(">BBH", data, len(SIGNATURE))
    size = HEAD_BYTES + length
    if size > BYTES_MAX:
        raise WrongProxyHeader(f"a PROXY header of {size} bytes, expected at most {BYTES_MAX}")
    if command not in (LOCAL, PROXY):
        raise WrongProxyHeader(f"a PROXY header of version and command 0x{command:02x}")
    if len(data) < size:
        return None
    if command == LOCAL or family & 0xF0 == 0:
        return Proxied(size)
    n = {TCP4: 4, TCP6: 16}.get(family, 0)
    if not n or length < 2 * n + 4:
        raise WrongProxyHeader(f"a PROXY header of family 0x{family:02x} and {length} bytes")
    at = HEAD_BYTES
    hosts = [str(ipaddress.ip_address(data[i : i + n])) for i in (at, at + n)]
    peer_port, port = struct.unpack_from(">HH", data, at + 2 * n)
    return Proxied(size, hosts[0], peer_port, hosts[1], port)
