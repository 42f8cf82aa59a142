"""ConnectionFacts: what was settled about a connection before its vhost had it.

The supervisor accepts, shakes hands and finds out who it is; then the connection is handed over to
its vhost's process, and these facts with it. They never change.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ConnectionFacts:
    """What was settled before the hand-over. connected_at_ms: since 1970. tls: facts of TLS."""

    name: str
    peer_host: str
    peer_port: int
    host: str
    port: int
    user: str
    vhost: str
    client_properties: dict[str, Any] = field(default_factory=dict)
    frame_max: int = 131072
    channel_max: int = 2047
    heartbeat_s: int = 60
    connected_at_ms: int = 0
    tls: dict[str, Any] | None = None
