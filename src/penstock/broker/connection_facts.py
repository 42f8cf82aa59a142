"""ConnectionFacts: what the handshake found out about a connection, for its vhost.

The supervisor accepts a connection, does the handshake and checks the user. Then it hands the
socket over to the process of the vhost, with these facts as JSON and the bytes that it has read
after connection.open, because a client need not wait for answers. The vhost's process sends
connection.open-ok. The facts never change. `tls` is reserved for facts of an encrypted connection.

What a client says of itself, its properties, is a field table of up to 8 KiB that anybody can send
and that only operators look at. So it stays bytes, which take a tenth of the memory, and is decoded
when it is shown; of one that is unusually long only what is well known, for a listing is made on
the loop that all clients of the vhost share.
"""

import base64
from dataclasses import asdict, dataclass
from typing import Any, Final

from penstock.codec.fields import decode_table, decode_value, raw_entry

SHOWN_BYTES_MAX: Final = 1024
WELL_KNOWN: Final = ("product", "version", "platform", "connection_name", "capabilities")
NO_PROPERTIES: Final = b"\0\0\0\0"
# What a client says that it can do, as far as it makes a difference here.
CAPABILITIES: Final = (
    "authentication_failure_close",
    "connection.blocked",
    "consumer_cancel_notify",
    "penstock.delivery_count",
)


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """Facts of a connection. name: as people see it, "host:port -> host:port". client_properties: a
    field table, checked, as bytes. frame_max (bytes), channel_max, heartbeat_s (0: none): as
    negotiated. connected_at_ms: since 1970. tls: None, or facts of TLS."""

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

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON, with the properties in base64."""
        encoded = base64.b64encode(self.client_properties).decode("ascii")
        return {**asdict(self), "client_properties": encoded}

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> "ConnectionFacts":
        """Return the facts of `to_json`."""
        properties = base64.b64decode(facts["client_properties"])
        return cls(**{**facts, "client_properties": properties})


def shown(client_properties: bytes) -> dict[str, object]:
    """What people see of them: all of a table of usual size, of a longer one what is well known.
    client_properties: checked."""
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
    """Those of CAPABILITIES that the client says it has. client_properties: checked."""
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
