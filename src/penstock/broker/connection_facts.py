"""What was settled about a connection before its vhost's process gets it.

The supervisor accepts a connection, does the handshake and authenticates the user. Then the
connection is handed over to its vhost's process with these facts, which never change.

A client's properties are a field table of up to 8 KiB that anybody can send and that only operators
look at. So they stay bytes, which take a tenth of the memory, and are decoded when they are shown.
Of a table that is unusually long only well-known entries are decoded, because a listing is made on
the loop that all clients of the vhost share.

A module of its own, because the supervisor imports it without the broker's core.
"""

from dataclasses import dataclass
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


@dataclass
class ConnectionFacts:
    """What was settled before the hand-over. client_properties: a field table, checked, as bytes.
    connected_at_ms: since 1970. tls: facts of TLS."""

    name: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    user: str
    vhost: str
    client_properties: bytes = NO_PROPERTIES
    frame_max: int = 131072
    channel_max: int = 2047
    heartbeat_s: int = 60
    connected_at_ms: int = 0
    tls: dict[str, Any] | None = None


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
