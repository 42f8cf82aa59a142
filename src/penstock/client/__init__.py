"""The client: AMQP 0-9-1 from the other side, and the box of the library on a broker.

`penstock.client.connect(url)` gives a plain AMQP connection (client_connection.py): channels,
publishing with confirms, consumers; it works with any broker of AMQP 0-9-1. `penstock.open(url)`
gives a Box (remote_box.py), which wants Penstock at the other end.

    opening                        penstock.open: a directory or a broker
    remote_aio | remote_box        the box, for loops and for threads
    remote_queue, remote_job       its queues and jobs
    remote_calls                   what their methods do, once for both
    remote_transaction, remote_asking, remote_message
    remote_driver                  runs calls, and has a connection again when it was lost
    link                           a connection and its channels, by what a box uses them for
    client_connection, client_channel, greeting
    wire                           a socket, its thread, heartbeats
"""

from penstock.client.amqp_url import AmqpUrl
from penstock.client.client_channel import ClientChannel
from penstock.client.client_connection import ClientConnection, connect
from penstock.client.client_errors import ConnectionLostError, UnreachableError
from penstock.client.received import Received

__all__ = [
    "connect", "AmqpUrl", "ClientConnection", "ClientChannel", "Received",
    "ConnectionLostError", "UnreachableError",
]  # fmt: skip
