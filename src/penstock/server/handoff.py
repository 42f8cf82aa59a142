"""Opened: a client that is logged in, as it goes from the supervisor to its vhost's process.

The socket travels as a descriptor beside it (process_link), and with it every byte that was read
behind connection.open, for a client need not wait for answers before it goes on sending. The
process that gets it owes connection.open-ok and everything after that.

On the way it is JSON; the client's properties are their field table in base64, so that they come
out as they went in; nobody decodes them before they are shown. `tls` has its place here: facts of
an encrypted connection, which is decrypted by somebody else.

Not here: the handshake before (login), its sending (process_link), the session after it (hub).
"""

import base64
from dataclasses import dataclass, replace
from typing import Any

from penstock.access.permissions import Identity


@dataclass(frozen=True, slots=True)
class Opened:
    """name: as people see it, "host:port -> host:port". frame_max in bytes, heartbeat_s 0 for none;
    both as negotiated. client_properties: a field table, checked, as bytes. connected_at_ms: since
    1970. tls: None, or facts of it."""

    name: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    user: str
    vhost: str
    client_properties: bytes
    frame_max: int
    channel_max: int
    heartbeat_s: int
    connected_at_ms: int
    tls: dict[str, object] | None = None


FIELDS = tuple(Opened.__slots__)


def pack(opened: Opened, identity: Identity) -> dict[str, object]:
    """As JSON has it."""
    facts: dict[str, object] = {name: getattr(opened, name) for name in FIELDS}
    facts["client_properties"] = base64.b64encode(opened.client_properties).decode("ascii")
    return {"facts": facts, "identity": identity.facts()}


def unpack(message: dict[str, Any]) -> tuple[Opened, Identity]:
    """What `pack` gave."""
    opened = Opened(**message["facts"])
    properties = base64.b64decode(message["facts"]["client_properties"])
    return replace(opened, client_properties=properties), Identity.from_facts(message["identity"])
