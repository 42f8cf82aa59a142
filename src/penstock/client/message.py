"""RemoteDelivery: a message that a broker delivered, read from its AMQP properties.

    id            the message id, which a put of the library makes: 16 hexadecimal digits; for a
                  message of another publisher a number made from its text; 0 without one
    time          the timestamp, 0 without one
    priority      as published
    headers       as published, without those that the broker writes itself
    attempts      x-delivery-count: how often the message was returned
    deaths        x-death: where, why and how often it was dead-lettered, the last first

`properties_of` is the reverse: the properties with which a put publishes its message.
"""

import functools
import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Final, cast

from penstock.client.connection import ClientChannel, Received
from penstock.codec.properties import BasicProperties
from penstock.embedded.messages import DeliveredMessage
from penstock.embedded.option_parsing import NewBody
from penstock.queues.amqp_headers import implied_attempts
from penstock.queues.headers import Death, HeaderValue, PlainHeaders
from penstock.storage.files.durability import NONE

ATTEMPTS: Final = "x-delivery-count"
DEATHS: Final = "x-death"
DELAY: Final = "x-delay"
# What the broker writes for itself; whoever put the message did not.
OWN: Final = (ATTEMPTS, DEATHS, DELAY)
OWN_PREFIXES: Final = ("x-first-death-", "x-last-death-")
PERSISTENT: Final = 2
TRANSIENT: Final = 1
HEADERS: Final = PlainHeaders()
ID_PLACE: Final = "-" * 16  # stands for a message id


class RemoteDelivery(DeliveredMessage):
    """See the head of this module. tag: the delivery tag. channel: where that settles the message;
    None for a message that was only looked at.

    A transaction that acknowledges a delivery moves it to its own channel, with another tag. When
    the channel is closed, the broker has returned the message to its queue.
    """

    __slots__ = ("_header", "_properties", "channel")

    def __init__(
        self, header: bytes, body: bytes, *, is_redelivered: bool,
        channel: ClientChannel | None = None, tag: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(tag, body, is_redelivered)
        self.channel: ClientChannel | None = channel
        self._header = header
        self._properties: BasicProperties | None = None

    @classmethod
    def of(cls, channel: ClientChannel, message: Received) -> "RemoteDelivery":
        """Return the delivery of a message that came on this channel."""
        return cls(
            message.header, message.body, is_redelivered=message.is_redelivered, channel=channel,
            tag=message.delivery_tag,
        )  # fmt: skip

    @property
    def used_channel(self) -> ClientChannel:
        """The channel of a delivery that can be settled."""
        assert self.channel is not None, "a message that was looked at is not settled"
        return self.channel

    @property
    def properties(self) -> BasicProperties:
        if self._properties is None:
            self._properties = BasicProperties.decode(self._header)
        return self._properties

    @property
    def _table(self) -> dict[str, object]:
        return self.properties.headers or {}

    @property
    def id(self) -> int:
        return id_of(self.properties.message_id)

    @property
    def attempts(self) -> int:
        found = self._table.get(ATTEMPTS)
        return found if isinstance(found, int) else 0

    @property
    def headers(self) -> dict[str, HeaderValue]:
        found = {
            name: value
            for name, value in self._table.items()
            if name not in OWN and not name.startswith(OWN_PREFIXES)
        }
        return cast("dict[str, HeaderValue]", found)  # or what another client has put

    @property
    def priority(self) -> int:
        return self.properties.priority or 0

    @property
    def time(self) -> int:
        return self.properties.timestamp or 0

    @property
    def deaths(self) -> list[Death]:
        found = self._table.get(DEATHS)
        entries = found if isinstance(found, list) else []
        return [death_of(entry) for entry in entries if isinstance(entry, dict)]


def id_of(text: str | None) -> int:
    """Return the number that stands for a message id."""
    if not text:
        return 0
    if len(text) == 16:
        try:
            return int(text, 16)
        except ValueError:
            pass
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def death_of(entry: dict[str, object]) -> Death:
    """Return an entry of x-death as a Death; what is missing or of a wrong type is 0 or empty."""
    when = entry.get("time")
    reason = str(entry.get("reason", ""))
    return Death(
        str(entry.get("queue", "")),
        reason,
        round(when.timestamp() * 1000) if isinstance(when, datetime) else 0,
        _number(entry.get("attempts", implied_attempts(reason))),
        _number(entry.get("count")),
    )


def messages_of(
    routing_key: str, news: Sequence[NewBody | bytes], mode: int, ids: list[str], now_s: int
) -> list[tuple[str, bytes, bytes]]:
    """Return the messages to be put, each with this routing key, as `ClientChannel.publish_many`
    takes them. The rest as `properties_of`."""
    before, after = plain_properties(mode, now_s)
    return [
        (routing_key, before + one.encode() + after, new)
        if isinstance(new, bytes)
        else (routing_key, properties_of(new, mode, one, now_s), new.body)
        for new, one in zip(news, ids, strict=True)
    ]


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


@functools.lru_cache(maxsize=4)  # puts of one second have the same
def plain_properties(mode: int, now_s: int) -> tuple[bytes, bytes]:
    """Return the encoded properties of a message without options, but for the 16 characters of its
    id, which stand between the two."""
    whole = properties_of(b"", mode, ID_PLACE, now_s)
    before, _, after = whole.partition(ID_PLACE.encode())
    return before, after


def properties_of(new: NewBody | bytes, mode: int, message_id: str, now_s: int) -> bytes:
    """Return the encoded properties of a message to be put. mode: of storage.durability. now_s:
    seconds since 1970."""
    persistence = TRANSIENT if mode == NONE else PERSISTENT
    if isinstance(new, bytes):
        return BasicProperties(
            delivery_mode=persistence, message_id=message_id, timestamp=now_s
        ).encode()
    values: dict[str, HeaderValue] = HEADERS.values(new.header)
    table: dict[str, object] = {**values}
    if new.delay_ms is not None:
        table[DELAY] = new.delay_ms
    return BasicProperties(
        headers=table or None,
        delivery_mode=persistence,
        priority=new.priority or None,
        expiration=None if new.ttl_ms is None else str(new.ttl_ms),
        message_id=message_id,
        timestamp=now_s,
    ).encode()
