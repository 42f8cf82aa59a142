"""The client: AMQP 0-9-1 from the client's side, and the box of the library on a broker.

`penstock.client.connect(url)` opens a plain AMQP connection: channels, publishing with confirms,
consumers. It works with any broker of AMQP 0-9-1. `penstock.open(url)` opens a `penstock.Box`,
which needs Penstock at the other end. From the box down:

    opening                whether to open a directory or a broker
    box, queue, stream     RemoteBox, RemoteQueue, RemoteStream: what the methods of a box do
    driver                 runs the calls, and reconnects when the connection was lost
    message                a message that a broker delivered
    link                   a connection and its channels, by what a box uses them for
    client_connection, client_channel, greeting
    wire                   a socket, its thread, heartbeats

Importing this package loads nothing else; a name is loaded when first used. Tasks of Spark read
URLs and have no use for the rest.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.client.amqp_url import AmqpUrl
    from penstock.client.connection import ClientChannel, ClientConnection, Received, connect
    from penstock.embedded.library_errors import ConnectionLostError, UnreachableError

_MODULES: Final = {
    "AmqpUrl": "penstock.client.amqp_url",
    "connect": "penstock.client.connection",
    "ClientConnection": "penstock.client.connection",
    "ClientChannel": "penstock.client.connection",
    "Received": "penstock.client.connection",
    "ConnectionLostError": "penstock.embedded.library_errors",
    "UnreachableError": "penstock.embedded.library_errors",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULES[name]), name)
    return found


__all__ = [
    "connect", "AmqpUrl", "ClientConnection", "ClientChannel", "Received",
    "ConnectionLostError", "UnreachableError",
]  # fmt: skip
