"""AmqpHeaders: the header of a broker's message, on disk nearly as it was on the wire.

A publish is stored with one concatenation and delivered with two slices: exchange, routing key and
properties are kept raw and never decoded on the way. What queues want to remember of a message
besides (HeaderCodec) stands before them, and mostly there is nothing:

    format and flags 1      low three bits: 2; the others: which of these follow, in this order
    0x10  attempts 4        deliveries in earlier lives
    0x20  expiry 8          ms since 1970: its own, while it waits for a delay
    0x40  priority 1        where it is another than that in the properties
    0x80  hidden keys 2 + n a length, and routing keys that were in its BCC header, each 1 + n
    0x08  attempts of deaths 2 + 4n   a length in bytes, and for each death in x-death, in its
                            order, how often the message had been delivered then (x_death.py)
    exchange 1 + n | routing key 1 + n | properties: flag words and list, as on the wire

A header of another format, or b"", is one of the embedded library (PlainHeaders): its directory was
given to a broker. It is shown as a message of the default exchange with its queue's name as the
key, and becomes one of this format when it dies.

Deaths are RabbitMQ's x-death, as its documentation of dead letter exchanges has it: an array of
tables, the last death first, one for each queue and reason, with a count that goes up; x-first-
death-queue, -reason and -exchange beside it; the expiration goes away and stands in the death as
original-expiration. Headers that are not concerned keep their bytes. How often the message had been
delivered is kept apart, where the reason does not say it already: RabbitMQ's x-death has no field
for it, and `told_props` writes one for clients that ask.

What cannot be understood in the headers (a table that is damaged, an x-death that is none) counts
as not there: a message that dies must go somewhere.

Not here: what is refused of a publish (penstock.codec.properties), the route of what died
(dead_letters.py), keys in CC and BCC when a message is published (publish.py).
"""

import struct
from typing import Final

from penstock.queues import raw_tables
from penstock.queues.headers import U32_MAX, Death, HeaderCodec, HeaderError, PlainHeaders
from penstock.queues.plain_messages import amqp_of
from penstock.queues.raw_properties import PropertiesError, RawProperties
from penstock.queues.raw_tables import RawEntry
from penstock.queues.x_death import (
    CC,
    NO_ATTEMPTS,
    add_death,
    deaths_in,
    first_death_in,
    implied_attempts,
    routing_keys_in,
    with_attempts,
)

FORMAT: Final = 2
FORMAT_MASK: Final = 0x07
_DEATHS: Final = 0x08
_ATTEMPTS: Final = 0x10
_EXPIRY: Final = 0x20
_PRIORITY: Final = 0x40
_HIDDEN: Final = 0x80

FORMAT_BYTE: Final = b"\x02"
CC_FIELD: Final = b"\x02CC"  # the header of that name as it stands in a table
BYTES_MIN: Final = 5  # format, no exchange, no key, no properties
DEATHS_MAX: Final = 256  # of which the attempts are kept

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_PLAIN: Final = PlainHeaders()


class Prefix:
    """What stands before the exchange. priority: -1 for none. hidden: short strings. deaths: the
    attempts of each, packed. at: where the exchange begins."""

    __slots__ = ("at", "attempts", "deaths", "expiry_ms", "hidden", "priority")

    def __init__(self) -> None:
        self.attempts: int = 0
        self.expiry_ms: int = 0
        self.priority: int = -1
        self.hidden: bytes = b""
        self.deaths: bytes = b""
        self.at: int = 1

    def encode(self) -> bytes:
        """With the format octet."""
        flags = FORMAT
        parts: list[bytes] = []
        if self.attempts:
            flags |= _ATTEMPTS
            parts.append(_U32.pack(min(self.attempts, U32_MAX)))
        if self.expiry_ms:
            flags |= _EXPIRY
            parts.append(_U64.pack(self.expiry_ms))
        if self.priority >= 0:
            flags |= _PRIORITY
            parts.append(bytes((self.priority,)))
        if self.hidden:
            flags |= _HIDDEN
            parts += [_U16.pack(len(self.hidden)), self.hidden]
        if self.deaths:
            flags |= _DEATHS
            parts += [_U16.pack(len(self.deaths)), self.deaths]
        return bytes((flags,)) + b"".join(parts)


class AmqpHeaders(HeaderCodec):
    """The broker's codec; see the head of this module."""

    # ---- per message ---------------------------------------------------------------------------

    def make(self, route: bytes, props: bytes) -> bytes:
        """The header of a message that is published. route: exchange and routing key as short
        strings and the octet of bits, as basic.publish has them; props: flag words and list."""
        return FORMAT_BYTE + route[:-1] + props

    def parts(self, header: bytes, queue: str = "") -> tuple[bytes, bytes]:
        """(exchange and routing key as two short strings, properties), raw. queue: where the
        message is, for one that the embedded library published."""
        n = len(header)
        if n < BYTES_MIN or header[0] & FORMAT_MASK != FORMAT:
            return self.parts(_from_plain(header, queue))
        at = 1 if header[0] == FORMAT else _prefix(header).at
        key_at = at + 1 + header[at]
        if key_at >= n:
            raise HeaderError(f"a header of {n} bytes ends within the exchange")
        end = key_at + 1 + header[key_at]
        if end + 2 > n:
            raise HeaderError(f"a header of {n} bytes ends before its properties")
        return header[at:end], header[end:]

    def attempts(self, header: bytes) -> int:
        if not header:
            return 0
        first = header[0]
        if first & FORMAT_MASK != FORMAT:
            return _PLAIN.attempts(header)
        return _prefix(header).attempts if first & _ATTEMPTS else 0

    def delivered_props(self, props: bytes, attempts: int) -> bytes:
        """Properties for a delivery with x-delivery-count among the headers, as RabbitMQ's quorum
        queues have it."""
        try:
            raw = RawProperties(props)
        except PropertiesError:
            return props
        headers = raw.headers()
        raw_tables.put(headers, b"x-delivery-count", raw_tables.signed(attempts))
        return raw.changed(headers)

    def told_props(self, header: bytes, props: bytes) -> bytes:
        """Properties for a client that asks for attempts: with those of the header's deaths."""
        if not header or header[0] == FORMAT:
            return props
        attempts = _attempts_of_deaths(self.amqp(header, ""))
        if not attempts:
            return props
        try:
            raw = RawProperties(props)
        except PropertiesError:
            return props
        headers = raw.headers()
        with_attempts(headers, attempts)
        return raw.changed(headers)

    # ---- of one message ------------------------------------------------------------------------

    def priority(self, header: bytes) -> int:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.priority(header)
        if header[0] & _PRIORITY:
            return _prefix(header).priority
        return max(_priority_of(self.parts(header)[1]), 0)

    def expiry_ms(self, header: bytes) -> int:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.expiry_ms(header)
        return _prefix(header).expiry_ms if header[0] & _EXPIRY else 0

    def with_(
        self, header: bytes, *, attempts: int | None = None, priority: int | None = None,
        expiry_ms: int | None = None,
    ) -> bytes:  # fmt: skip
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.with_(header, attempts=attempts, priority=priority, expiry_ms=expiry_ms)
        if header[0] == FORMAT and not attempts and not expiry_ms and priority is None:
            return header
        prefix = _prefix(header)
        if attempts is not None:
            prefix.attempts = attempts
        if expiry_ms is not None:
            prefix.expiry_ms = expiry_ms
        if priority is not None:
            own = max(_priority_of(self.parts(header)[1]), 0)
            prefix.priority = -1 if priority == own else priority
        return prefix.encode() + header[prefix.at :]

    # ---- deaths --------------------------------------------------------------------------------

    def with_death(self, header: bytes, death: Death) -> bytes:
        header = self.amqp(header, death.queue)
        address, props = self.parts(header)
        try:
            raw = RawProperties(props)
        except PropertiesError:
            return header  # nothing can be written into it; it goes its way all the same
        exchange, key = split_address(address)
        headers = raw.headers()
        prefix = _prefix(header)
        known = _attempts_of_deaths(header)
        attempts = add_death(headers, death, exchange, key, raw.expiration(), known)
        prefix.deaths = _packed(attempts)
        changed = raw.changed(headers, has_expiration=False)
        return prefix.encode() + address + changed

    def deaths(self, header: bytes) -> list[Death]:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.deaths(header)
        return deaths_in(self.headers(header), _attempts_of_deaths(header))

    def first_death(self, header: bytes) -> tuple[str, str] | None:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.first_death(header)
        return first_death_in(self.headers(header))

    # ---- its route -----------------------------------------------------------------------------

    def amqp(self, header: bytes, queue: str) -> bytes:
        """The header in this format, whichever it had. queue: as for `parts`."""
        if header and header[0] & FORMAT_MASK == FORMAT:
            return header
        return _from_plain(header, queue)

    def headers(self, header: bytes) -> list[RawEntry]:
        """The entries of its headers table, raw; none if it is damaged."""
        try:
            return RawProperties(self.parts(header)[1]).headers()
        except PropertiesError:
            return []

    def keys(self, header: bytes) -> list[bytes]:
        """Its routing keys: that of the publish, those in CC, and those that were in BCC."""
        _, key = split_address(self.parts(header)[0])
        return [
            key,
            *routing_keys_in(self.headers(header)),
            *_short_strings(_prefix(header).hidden),
        ]

    def with_hidden(self, header: bytes, keys: list[bytes]) -> bytes:
        """The header with these routing keys, which the consumer does not see (BCC)."""
        prefix = _prefix(header)
        prefix.hidden = b"".join([short_string(key) for key in keys])
        if len(prefix.hidden) > 0xFFFF:
            raise HeaderError(f"hidden routing keys of {len(prefix.hidden)} bytes, at most 65535")
        return prefix.encode() + header[prefix.at :]

    def readdressed(self, header: bytes, exchange: bytes, key: bytes | None) -> bytes:
        """The header as if published to this exchange: with its own routing keys (None), or with
        this one alone, CC and BCC taken away."""
        prefix = _prefix(header)
        address, props = self.parts(header)
        if key is None:
            key = split_address(address)[1]
        else:
            prefix.hidden = b""
            if CC_FIELD in props:
                props = _without_cc(props)
        return prefix.encode() + short_string(exchange) + short_string(key) + props


def short_string(data: bytes) -> bytes:
    """With its length before it. ValueError beyond 255 bytes."""
    return bytes((len(data),)) + data


def split_address(address: bytes) -> tuple[bytes, bytes]:
    """(exchange, routing key) of two short strings."""
    key_at = 1 + address[0]
    return address[1:key_at], address[key_at + 1 :]


def _short_strings(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 1 + data[at]
        found.append(data[at + 1 : end])
        at = end
    return found


def _priority_of(props: bytes) -> int:
    """The priority in the properties, -1 if there is none."""
    try:
        return RawProperties(props).priority
    except PropertiesError:
        return -1


def _without_cc(props: bytes) -> bytes:
    try:
        raw = RawProperties(props)
    except PropertiesError:
        return props
    headers = raw.headers()
    kept = [entry for entry in headers if entry[0] != CC]
    return props if len(kept) == len(headers) else raw.changed(kept)


def _from_plain(header: bytes, queue: str) -> bytes:
    """A header of this format for one of the embedded library. HeaderError: it is none."""
    prefix = Prefix()
    prefix.attempts = _PLAIN.attempts(header)
    prefix.expiry_ms = _PLAIN.expiry_ms(header)
    deaths = _PLAIN.deaths(header)
    if [each for each in deaths if each.attempts != implied_attempts(each.reason)]:
        prefix.deaths = _packed([each.attempts for each in deaths])
    return prefix.encode() + amqp_of(_PLAIN, header, queue)


def _prefix(header: bytes) -> Prefix:
    """What stands before the exchange. HeaderError if the header ends within it."""
    prefix = Prefix()
    flags = header[0]
    at = 1
    if len(header) < BYTES_MIN + _prefix_bytes(flags):
        raise HeaderError(f"a header of {len(header)} bytes is too short for flags {flags:#04x}")
    if flags & _ATTEMPTS:
        prefix.attempts = int.from_bytes(header[at : at + 4], "big")
        at += 4
    if flags & _EXPIRY:
        prefix.expiry_ms = int.from_bytes(header[at : at + 8], "big")
        at += 8
    if flags & _PRIORITY:
        prefix.priority = header[at]
        at += 1
    if flags & _HIDDEN:
        end = at + 2 + int.from_bytes(header[at : at + 2], "big")
        if end + BYTES_MIN - 1 > len(header):
            raise HeaderError(f"a header of {len(header)} bytes ends within its hidden keys")
        prefix.hidden = header[at + 2 : end]
        at = end
    if flags & _DEATHS:
        end = at + 2 + int.from_bytes(header[at : at + 2], "big")
        if end + BYTES_MIN - 1 > len(header):
            raise HeaderError(f"a header of {len(header)} bytes ends within its deaths")
        prefix.deaths = header[at + 2 : end]
        at = end
    prefix.at = at
    return prefix


def _packed(attempts: list[int]) -> bytes:
    return b"".join([_U32.pack(min(n, U32_MAX)) for n in attempts[:DEATHS_MAX]])


def _attempts_of_deaths(header: bytes) -> list[int]:
    """As `add_death` returned them."""
    if not header[0] & _DEATHS:
        return NO_ATTEMPTS
    data = _prefix(header).deaths
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


def _prefix_bytes(flags: int) -> int:
    n = 4 if flags & _ATTEMPTS else 0
    if flags & _EXPIRY:
        n += 8
    if flags & _PRIORITY:
        n += 1
    if flags & _DEATHS:
        n += 2
    return n + 2 if flags & _HIDDEN else n
