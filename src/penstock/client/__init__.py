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
"""

from penstock.client.amqp_url import AmqpUrl
from penstock.client.connection import ClientChannel, ClientConnection, Received, connect
from penstock.embedded.library_errors import ConnectionLostError, UnreachableError

__all__ = [
    "connect", "AmqpUrl", "ClientConnection", "ClientChannel", "Received",
    "ConnectionLostError", "UnreachableError",
]  # fmt: skip
