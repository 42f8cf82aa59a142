"""Taken: a delivery in somebody's hands: by which channel and tag it is settled.

Both change when a transaction adopts it (remote_transaction.py). Once its channel is closed, the
broker has given it to its queue again.
"""

from penstock.client.client_channel import ClientChannel
from penstock.client.received import Received


class Taken:
    """message: as it came."""

    __slots__ = ("channel", "delivery_tag", "message")

    def __init__(self, channel: ClientChannel, message: Received) -> None:
        self.channel: ClientChannel = channel
        self.delivery_tag: int = message.delivery_tag
        self.message: Received = message

    def move(self, channel: ClientChannel, delivery_tag: int) -> None:
        """It is a delivery of this channel now."""
        self.channel = channel
        self.delivery_tag = delivery_tag
