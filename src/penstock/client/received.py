"""Received: a message as it came from a broker, by basic.deliver, get-ok or return.

Its properties are decoded when they are first asked for: most consumers look at the body and
nothing else. Delivery tags belong to the channel that the message came on, and settle it there.
"""

from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import BasicDeliver, BasicGetOk, BasicReturn


class Received:
    """delivery_tag: 0 for a returned one. consumer_tag: "" unless it was delivered to a consumer.
    reply_code, reply_text: why it was returned; 0 and "" for others."""

    __slots__ = (
        "_properties", "body", "consumer_tag", "delivery_tag", "exchange", "header",
        "is_redelivered", "reply_code", "reply_text", "routing_key",
    )  # fmt: skip

    def __init__(self, method: Method, header: bytes, body: bytes) -> None:
        assert isinstance(method, BasicDeliver | BasicGetOk | BasicReturn), method
        self.body: bytes = body
        self.header: bytes = header  # the properties, as on the wire
        self.exchange: str = method.exchange
        self.routing_key: str = method.routing_key
        self.delivery_tag: int = 0
        self.consumer_tag: str = ""
        self.is_redelivered: bool = False
        self.reply_code: int = 0
        self.reply_text: str = ""
        if isinstance(method, BasicReturn):
            self.reply_code = method.reply_code
            self.reply_text = method.reply_text
        else:
            self.delivery_tag = method.delivery_tag
            self.is_redelivered = method.redelivered
            if isinstance(method, BasicDeliver):
                self.consumer_tag = method.consumer_tag
        self._properties: BasicProperties | None = None

    @property
    def properties(self) -> BasicProperties:
        """Content type, headers and the like."""
        if self._properties is None:
            self._properties = BasicProperties.decode(self.header)
        return self._properties

    @property
    def headers(self) -> dict[str, object]:
        """The table of headers, empty if there is none."""
        return self.properties.headers or {}

    def __repr__(self) -> str:
        place = f"{self.exchange!r} {self.routing_key!r}"
        return f"<Received {self.delivery_tag} of {place}, {len(self.body)} bytes>"
