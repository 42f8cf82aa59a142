"""Plain messages: what the embedded library put into a queue, shown as if it had been published.

A box's directory may be served by a broker. Its messages then go to AMQP clients: from the default
exchange, with the name of their queue as the routing key, their attached values and deaths in the
headers table. Integers are signed 64 bits, bytes are a byte array.

Nothing is said of the delivery mode: the header does not know it.
"""

import struct
from typing import Final

from penstock.queues import raw_properties, raw_tables, x_death
from penstock.queues.headers import HeaderValue, PlainHeaders
from penstock.queues.raw_tables import RawEntry

NAME_BYTES_MAX: Final = 255  # of a field, and of a routing key

_F64: Final = struct.Struct(">d")


def amqp_of(plain: PlainHeaders, header: bytes, queue: str) -> bytes:
    """Exchange, routing key and properties for a header of the embedded library. HeaderError: it is
    none. What is longer than AMQP can say is cut. Not among it: the attempts of its deaths."""
    key = queue.encode("utf-8", "surrogateescape")[:NAME_BYTES_MAX]
    headers: list[RawEntry] = []
    for name, value in plain.values(header).items():
        at = name.encode("utf-8", "surrogateescape")[:NAME_BYTES_MAX]
        raw_tables.put(headers, at, _value(value))
    for death in reversed(plain.deaths(header)):
        where = death.queue.encode("utf-8", "surrogateescape")
        x_death.add_death(headers, death, b"", where, None, x_death.NO_ATTEMPTS)
    first = plain.first_death(header)
    if first is not None:
        where = first[0].encode("utf-8", "surrogateescape")
        raw_tables.put(headers, x_death.FIRST_QUEUE, raw_tables.long_string(where))
        raw_tables.put(headers, x_death.FIRST_REASON, raw_tables.long_string(first[1].encode()))
    flags = raw_properties.HEADERS if headers else 0
    parts = [raw_tables.nested(headers)[1:]] if headers else []
    priority = plain.priority(header)
    if priority:
        flags |= raw_properties.PRIORITY
        parts.append(bytes((priority,)))
    return b"".join([b"\0", bytes((len(key),)), key, flags.to_bytes(2, "big"), *parts])


def _value(value: HeaderValue) -> bytes:
    if isinstance(value, bool):  # before int, which it is as well
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return raw_tables.signed(value)
    if isinstance(value, float):
        return b"d" + _F64.pack(value)
    if isinstance(value, str):
        return raw_tables.long_string(value.encode("utf-8", "surrogateescape"))
    return raw_tables.binary(value)
