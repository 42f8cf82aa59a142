"""The client: AMQP 0-9-1 from the client's side, and the box of the library on a broker.

`penstock.client.connect(url)` opens a plain AMQP connection: channels, publishing with confirms,
consumers. It works with any broker of AMQP 0-9-1. `penstock.open(url)` opens a `penstock.Box`,
which needs Penstock at the other end. From the box down:

    box, queue, stream     RemoteBox, RemoteQueue, RemoteStream: what the methods of a box do
    driver                 runs the calls, and reconnects when the connection was lost
    message, stream_tail   a message that a broker delivered; the records of a stream, as they come
    connection             a connection, its channels, and the handshake
    publish_window         many publishes, and their confirms
    wire                   a socket, its thread, heartbeats

URLs are read by penstock.amqp_url, because tasks of Spark need that and none of this.
"""

from penstock.amqp_url import AmqpUrl
from penstock.client.connection import ClientChannel, ClientConnection, Received, connect
from penstock.errors import ConnectionLostError, UnreachableError

__all__ = [
    "connect", "AmqpUrl", "ClientConnection", "ClientChannel", "Received",
    "ConnectionLostError", "UnreachableError",
]  # fmt: skip
