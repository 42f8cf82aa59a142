"""What can go wrong between a client and its broker, apart from what the broker says.

What it says is an AMQPError with its reply code: ChannelError, and the channel is closed;
AMQPConnectionError, and the connection is. What it does not say any more is here. Both errors are
`ConnectionError`s as well, which programs that talk to networks catch anyway.

After a lost connection nobody knows what became of the calls that were under way: a put may be
there or not, and what was acknowledged may come again.
"""

from penstock.errors import PenstockError


class ConnectionLostError(PenstockError, ConnectionError):
    """The connection ended while it was in use: url (without the password), reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"the connection to {url} was lost: {reason}")
        self.url = url
        self.reason = reason


class UnreachableError(PenstockError, ConnectionError):
    """No connection could be made: url (without the password), reason."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no connection to {url}: {reason}")
        self.url = url
        self.reason = reason


class MissingCapabilityError(PenstockError):
    """The broker at the other end is not one that can hold a box: url, product."""

    def __init__(self, url: str, product: str) -> None:
        super().__init__(
            f"{url} is {product}, which lacks the capability 'penstock.box' that a box needs: "
            "use penstock.client.connect, which needs nothing but AMQP 0-9-1"
        )
        self.url = url
        self.product = product
