"""The errors that the library alone raises; all others are in `penstock.errors`.

What a broker says is an AMQPError with its reply code: a ChannelError, after which the channel is
closed, or an AMQPConnectionError, after which the connection is. What goes wrong on the way to the
broker is here. Both errors of connections are also a `ConnectionError`, which programs that talk to
networks catch anyway. After a lost connection the calls that were under way may or may not have
taken effect: a message may have been put, and what was acknowledged may be delivered again.
"""

from penstock.errors import PenstockError, StoppedError


class BoxClosedError(StoppedError):
    """The box, or the stream without a box, was closed: path. Open it again to use it."""

    def __init__(self, path: str, what: str = "box") -> None:
        super().__init__(f"the {what} {path} is closed")
        self.path = path


class TransactionError(PenstockError):
    """A transaction was begun inside another one, or entered a second time."""


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
    """The broker cannot hold a box: url, product."""

    def __init__(self, url: str, product: str) -> None:
        super().__init__(
            f"{url} is {product}, which lacks the capability 'penstock.box' that a box needs: "
            "use penstock.client.connect, which needs nothing but AMQP 0-9-1"
        )
        self.url = url
        self.product = product
