"""BoxHeaders: the headers of messages in a directory, those of a box and those of a broker.

A vhost's directory, or its backup, may be opened as a box: the engine and the queues are the same,
and only the header of a message says who published it. What a broker stored keeps its format here,
through retries, delays and deaths, so that a broker may serve the directory again. What a box puts
has PlainHeaders.

The values of a broker's message are its headers without those that brokers write themselves. What
has no type of ours (a list, a date) is returned as text.
"""

from collections.abc import Mapping
from typing import Final

from penstock.codec.properties import BasicProperties
from penstock.errors import AMQPError
from penstock.queues.amqp_headers import FORMAT, FORMAT_MASK, AmqpHeaders
from penstock.queues.headers import Death, HeaderValue, PlainHeaders

OWN: Final = ("x-death", "x-delay", "x-delivery-count")
OWN_PREFIXES: Final = ("x-first-death-", "x-last-death-")
_PLAIN: Final = PlainHeaders()


def is_amqp(header: bytes) -> bool:
    """Return whether a broker wrote this header."""
    return bool(header) and header[0] & FORMAT_MASK == FORMAT


class BoxHeaders(AmqpHeaders):
    """See the head of this module. AmqpHeaders reads both formats, and makes its own of every
    header that dies; here each keeps its own."""

    def with_death(self, header: bytes, death: Death) -> bytes:
        if is_amqp(header):
            return super().with_death(header, death)
        return _PLAIN.with_death(header, death)

    def for_now(self, header: bytes) -> bytes:
        """Return the header of a message that a box puts with a time to live of 0."""
        return _PLAIN.for_now(header)

    def values(self, header: bytes) -> dict[str, HeaderValue]:
        """Return the headers as they were put."""
        if not is_amqp(header):
            return _PLAIN.values(header)
        try:
            return attached(BasicProperties.decode(self.parts(header)[1]).headers or {})
        except AMQPError:
            return {}

    def properties(self, header: bytes, priority: int, time_s: int) -> BasicProperties:
        """Return the AMQP properties of a message: those that a broker stored, or equivalent ones
        of a message that a box put. priority, time_s: of that message."""
        if is_amqp(header):
            return BasicProperties.decode(self.parts(header)[1])
        return BasicProperties(
            headers=dict(_PLAIN.values(header)) or None,
            priority=priority or None,
            timestamp=time_s or None,
        )

    def with_values(self, header: bytes, values: Mapping[str, HeaderValue]) -> bytes:
        """Return a box's header with these values instead; see PlainHeaders."""
        return _PLAIN.with_values(header, values)


def attached(table: Mapping[str, object]) -> dict[str, HeaderValue]:
    """Return the headers of a broker's message that its publisher wrote."""
    found: dict[str, HeaderValue] = {}
    for name, value in table.items():
        if name in OWN or name.startswith(OWN_PREFIXES):
            continue
        found[name] = value if isinstance(value, (str, bytes, int, float)) else str(value)
    return found
