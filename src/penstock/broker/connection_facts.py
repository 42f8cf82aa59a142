"""ConnectionFacts: what the handshake found out about a connection, for its vhost.

The supervisor accepts a connection, does the handshake and checks the user. Then it hands the
socket over to the process of the vhost, with these facts as bytes and the bytes that it has read
after connection.open, because a client need not wait for answers. The vhost's process sends
connection.open-ok. The facts never change.

A client's properties are a field table of up to 8 KiB that anybody can send and that only operators
look at. So they stay bytes, which take a tenth of the memory, and are decoded when they are shown.
Of a table that is unusually long only well-known entries are decoded, because a listing is made on
the loop that all clients of the vhost share.

A module of its own, because the supervisor imports it without the broker's core.
"""

import json
import struct
from typing import Any, Final

from penstock.codec.fields import decode_table, decode_value, raw_entry

SHOWN_BYTES_MAX: Final = 1024
WELL_KNOWN: Final = ("product", "version", "platform", "connection_name", "capabilities")
NO_PROPERTIES: Final = b"\0\0\0\0"
# Capabilities of clients that make a difference here.
CAPABILITIES: Final = (
    "authentication_failure_close",
    "connection.blocked",
    "consumer_cancel_notify",
    "penstock.delivery_count",
)


# Six numbers, the bytes of all texts, and the characters of each. A NUL between two texts keeps
# bytes apart that are one character only together.
_HEAD: Final = struct.Struct(">HHIHHQ8I")


class ConnectionFacts:
    """Facts of a connection. name: as people see it, "host:port -> host:port". client_properties: a
    field table, checked, as bytes. frame_max (bytes), channel_max, heartbeat_s (0: none): as
    negotiated. connected_at_ms: since 1970. tls: None, or the facts of TLS that
    server.certificates lists. auth_mechanism: by which the user logged in."""

    def __init__(
        self, name: str, peer_host: str, peer_port: int, host: str, port: int, user: str,
        vhost: str, client_properties: bytes = NO_PROPERTIES, frame_max: int = 131072,
        channel_max: int = 2047, heartbeat_s: int = 60, connected_at_ms: int = 0,
        tls: dict[str, Any] | None = None, auth_mechanism: str = "PLAIN",
    ) -> None:  # fmt: skip
        self.name: Final = name
        self.peer_host: Final = peer_host
        self.peer_port: Final = peer_port
        self.host: Final = host
        self.port: Final = port
        self.user: Final = user
        self.vhost: Final = vhost
        self.client_properties: Final = client_properties
        self.frame_max: Final = frame_max
        self.channel_max: Final = channel_max
        self.heartbeat_s: Final = heartbeat_s
        self.connected_at_ms: Final = connected_at_ms
        self.tls: Final = tls
        self.auth_mechanism: Final = auth_mechanism

    def given_name(self) -> str:
        """Return the name that the client gave the connection, "" without one."""
        raw = raw_entry(self.client_properties, b"connection_name")
        name = None if raw is None or len(raw) > SHOWN_BYTES_MAX else decode_value(raw)[0]
        return name if isinstance(name, str) else ""

    def to_bytes(self) -> bytes:
        """Return the facts for `from_bytes` in another process: _HEAD, the texts, the properties.
        (JSON takes three times as long, for each connection.)"""
        tls = "" if self.tls is None else json.dumps(self.tls)
        name, peer_host, host, user = self.name, self.peer_host, self.host, self.user
        vhost, mechanism = self.vhost, self.auth_mechanism
        text = f"{name}\0{peer_host}\0{host}\0{user}\0{vhost}\0{mechanism}\0{tls}".encode(
            "utf-8", "surrogateescape"
        )
        head = _HEAD.pack(
            self.peer_port, self.port, self.frame_max, self.channel_max, self.heartbeat_s,
            self.connected_at_ms, len(text), len(name), len(peer_host), len(host), len(user),
            len(vhost), len(mechanism), len(tls),
        )  # fmt: skip
        return b"".join((head, text, self.client_properties))

    @classmethod
    def from_bytes(cls, data: bytes) -> "ConnectionFacts":
        """Return the facts of `to_bytes`."""
        head = _HEAD.unpack_from(data)
        peer_port, port, frame_max, channel_max, heartbeat_s, at_ms = head[:6]
        end = _HEAD.size + int(head[6])
        text = data[_HEAD.size : end].decode("utf-8", "surrogateescape")
        at = 0
        texts: list[str] = []
        for size in head[7:]:
            texts.append(text[at : at + size])
            at += size + 1
        name, peer_host, host, user, vhost, mechanism, tls = texts
        return cls(
            name, peer_host, peer_port, host, port, user, vhost, data[end:], frame_max,
            channel_max, heartbeat_s, at_ms, json.loads(tls) if tls else None, mechanism,
        )  # fmt: skip


def client_of(connection: str) -> str:
    """Return the client's address of a connection's name, for the audit log."""
    return connection.partition(" -> ")[0]


def erlang_address(host: str) -> str:
    """Return an IPv4 address as RabbitMQ shows it in headers: {127,0,0,1}; any other as it is."""
    parts = host.split(".")
    is_ipv4 = len(parts) == 4 and all(part.isdigit() for part in parts)
    return f"{{{','.join(parts)}}}" if is_ipv4 else host


def shown(client_properties: bytes) -> dict[str, object]:
    """Return the properties for listings: all of a table of usual size, the well-known ones of a
    longer one. client_properties: checked."""
    size = len(client_properties)
    if size <= SHOWN_BYTES_MAX:
        return decode_table(client_properties)[0]
    found: dict[str, object] = {}
    for name in WELL_KNOWN:
        raw = raw_entry(client_properties, name.encode())
        if raw is not None and len(raw) <= SHOWN_BYTES_MAX:
            found[name] = decode_value(raw)[0]
    found["..."] = f"{size} bytes, of which the well-known ones are shown"
    return found


def tls_columns(tls: dict[str, Any]) -> dict[str, object]:
    """Return the columns for listings of facts of TLS, under RabbitMQ's names; "" for none."""
    return {
        "ssl_protocol": tls.get("version", ""),
        "ssl_cipher": tls.get("cipher", ""),
        "ssl_hash": "",
        "ssl_key_exchange": "",
        "peer_cert_subject": tls.get("subject", ""),
        "peer_cert_issuer": tls.get("issuer", ""),
        "peer_cert_validity": tls.get("validity", ""),
    }


def capabilities(client_properties: bytes) -> frozenset[str]:
    """Return those of CAPABILITIES that the client has. client_properties: checked."""
    found = raw_entry(client_properties, b"capabilities")
    if found is None or found[:1] != b"F":
        return frozenset()
    table = found[1:]
    true = []
    for name in CAPABILITIES:
        raw = raw_entry(table, name.encode())
        if raw is not None and raw[:1] == b"t" and raw[1]:
            true.append(name)
    return frozenset(true)
