"""AmqpHeaders: the header of a broker's message, on disk nearly as it was on the wire.

A publish is stored with one concatenation and delivered with two slices: exchange, routing key and
properties stay raw. What queues must remember besides (HeaderCodec) comes before them; usually
there is nothing:

    format and flags 1      low three bits: 2; the others: which of these follow, in this order
    0x10  attempts 4        earlier deliveries, from before the message was moved
    0x20  expiry 8          ms since 1970: the message's own, while it waits for a delay
    0x40  priority 1        if it differs from the priority in the properties
    0x80  hidden keys 2 + n a length, and the routing keys of its BCC header, each 1 + n
    0x08  attempts of deaths 2 + 4n   the message has died: a length in bytes, and for each death
                            in x-death, in its order, how often the message had been delivered then
    exchange 1 + n | routing key 1 + n | properties: flag words and list, as on the wire

A header of another format, or b"", is one of the embedded library (PlainHeaders), whose directory
was given to a broker. Such a message is delivered as if it had been published to the default
exchange with its queue's name as the key; its values and deaths are in the headers table, integers
as signed 64 bits, bytes as a byte array. The header does not record the delivery mode. When the
message dies, its header is rewritten in this format.

**Deaths** are in the headers, in RabbitMQ's form:

    x-death                an array of tables, the last death first
        count l, reason S, queue S, time T (seconds), exchange S, routing-keys A of S,
        original-expiration S (if there was one)
    x-first-death-queue, x-first-death-reason, x-first-death-exchange    S

Another death in the same queue for the same reason increases the count of its table, which moves to
the front and otherwise stays: exchange, keys and time are those of the first such death. The
routing keys are that of the publish and those in CC, not those in BCC. The expiration property is
removed.

Only these deaths count. What a client publishes as x-death, x-first-death-* or x-last-death-* is a
header like any other, as in RabbitMQ 4: `deaths` does not return it, and the first death replaces
it. A message that is republished with the headers it came with, as Celery does for a retry, has not
died yet. The flag 0x08 tells who wrote x-death. (Earlier versions set it only if there were numbers
to keep. Deaths without it, from before an upgrade, count as a client's.)

How often the message had been delivered when it died (its attempts) is not part of RabbitMQ's
x-death, so the numbers are kept apart, in the order of the array; none at all if the reasons imply
them: a rejected message had been delivered once, one that expired or did not fit never. For
clients that ask for it, `props_with_attempts` writes a field `attempts` into the tables. Stores of
earlier versions have that field in the array; it is read.

Values stay raw (raw_fields.py), so deaths that a client returned with other types are read but not
rewritten. A damaged table or x-death counts as missing: a dead message must go somewhere.
"""

import struct
from typing import Final

from penstock.queues import raw_fields
from penstock.queues.headers import (
    REJECTED,
    U32_MAX,
    Death,
    HeaderCodec,
    HeaderError,
    HeaderValue,
    PlainHeaders,
)
from penstock.queues.raw_fields import PropertiesError, RawEntry, RawProperties, TableError

X_DEATH: Final = b"x-death"
ATTEMPTS: Final = b"attempts"
FIRST_QUEUE: Final = b"x-first-death-queue"
FIRST_REASON: Final = b"x-first-death-reason"
FIRST_EXCHANGE: Final = b"x-first-death-exchange"
FIRST_DEATH: Final = b"x-first-death-"
LAST_DEATH: Final = b"x-last-death-"
CC: Final = b"CC"
COUNT_MAX: Final = (1 << 63) - 1
NO_ATTEMPTS: Final[list[int]] = []

# ---- x-death -------------------------------------------------------------------------------------


def add_death(
    headers: list[RawEntry], death: Death, exchange: bytes, key: bytes, expiration: bytes | None,
    attempts: list[int],
) -> list[int]:  # fmt: skip
    """Add a death to the headers. exchange, key: as the message was published. expiration: the
    property, which the caller removes. attempts: of the deaths so far, as an earlier call returned
    them. Return those of all deaths, or [] if the reasons imply them."""
    long_string = raw_fields.long_string
    queue = death.queue.encode("utf-8", "surrogateescape")
    reason = death.reason.encode()
    known = raw_fields.get(headers, X_DEATH)
    if known is None:
        raw_fields.put(headers, FIRST_REASON, long_string(reason))
        raw_fields.put(headers, FIRST_QUEUE, long_string(queue))
        raw_fields.put(headers, FIRST_EXCHANGE, long_string(exchange))
    keys = [long_string(each) for each in [key, *routing_keys_in(headers)]]
    entry: list[RawEntry] = [
        (b"count", raw_fields.signed(death.count)),
        (b"reason", long_string(reason)),
        (b"queue", long_string(queue)),
        (b"time", raw_fields.timestamp(death.time_ms // 1000)),
        (b"exchange", long_string(exchange)),
        (b"routing-keys", raw_fields.array(keys)),
    ]
    if expiration is not None:
        entry.append((b"original-expiration", long_string(expiration)))
    others: list[bytes] = []
    numbers = [death.attempts]
    is_implied = death.attempts == implied_attempts(death.reason)
    is_counted = False
    values = _values(known)
    for i in range(len(values)):
        value = values[i]
        old = _table(value)
        if old is None or not _is_of(old, queue, reason):
            others.append(value)
            own = 0 if old is None else _attempts(old)
            numbers.append(attempts[i] if i < len(attempts) else own)
            is_implied = is_implied and numbers[-1] == own
        elif not is_counted:
            is_counted = True
            n = _number(old, b"count", 1)
            raw_fields.put(old, b"count", raw_fields.signed(min(n + death.count, COUNT_MAX)))
            entry = [field for field in old if field[0] != ATTEMPTS]
    raw_fields.put(headers, X_DEATH, raw_fields.array([raw_fields.nested(entry), *others]))
    return [] if is_implied else numbers


def without_deaths(headers: list[RawEntry]) -> list[RawEntry]:
    """Return the headers without what a client published about deaths."""
    kept: list[RawEntry] = []
    for entry in headers:
        name = entry[0]
        if name != X_DEATH and not name.startswith(FIRST_DEATH) and not name.startswith(LAST_DEATH):
            kept.append(entry)
    return kept


def with_attempts(headers: list[RawEntry], attempts: list[int]) -> None:
    """Write these numbers, which `add_death` returned, into the tables of x-death."""
    values = _values(raw_fields.get(headers, X_DEATH))
    for i in range(min(len(values), len(attempts))):
        entry = _table(values[i])
        if entry is not None and attempts[i] != implied_attempts(_text(entry, b"reason")):
            raw_fields.put(entry, ATTEMPTS, raw_fields.signed(attempts[i]))
            values[i] = raw_fields.nested(entry)
    raw_fields.put(headers, X_DEATH, raw_fields.array(values))


def deaths_in(headers: list[RawEntry], attempts: list[int]) -> list[Death]:
    """Return the deaths, the last first. attempts: what `add_death` returned. An entry of x-death
    that is not a table, which earlier versions took from clients, counts as rejected in no
    queue."""
    found: list[Death] = []
    values = _values(raw_fields.get(headers, X_DEATH))
    for i in range(len(values)):
        entry = _table(values[i])
        if entry is None:
            found.append(Death("", REJECTED, 0))
            continue
        reason = _text(entry, b"reason")
        number = attempts[i] if i < len(attempts) else _attempts(entry)
        time_ms = _number(entry, b"time", 0) * 1000
        count = _number(entry, b"count", 1)
        found.append(Death(_text(entry, b"queue"), reason, time_ms, number, count))
    return found


def first_death_in(headers: list[RawEntry]) -> tuple[str, str] | None:
    """Return queue and reason of the first death, or None."""
    if raw_fields.get(headers, FIRST_QUEUE) is None:
        return None
    return _text(headers, FIRST_QUEUE), _text(headers, FIRST_REASON)


def routing_keys_in(headers: list[RawEntry], name: bytes = CC) -> list[bytes]:
    """Return the routing keys in the CC header, or another one: the long strings of its array."""
    found: list[bytes] = []
    for value in _values(raw_fields.get(headers, name)):
        key = raw_fields.content(value, b"S")
        if key is not None and len(key) < 256:
            found.append(key)
    return found


def implied_attempts(reason: str) -> int:
    """Return how often a message that died for this reason had been delivered, by default."""
    return 1 if reason == REJECTED else 0


# ---- within a death ------------------------------------------------------------------------------


def _values(value: bytes | None) -> list[bytes]:
    """Return the values of an array; none if it is missing, of another type, or damaged."""
    if value is None:
        return []
    try:
        return raw_fields.split_array(value)
    except TableError:
        return []


def _table(value: bytes) -> list[RawEntry] | None:
    """Return the entries of a table; None for another type or damage."""
    data = raw_fields.content(value, b"F")
    if data is None:
        return None
    try:
        return raw_fields.split(data)
    except TableError:
        return None


def _is_of(entry: list[RawEntry], queue: bytes, reason: bytes) -> bool:
    found = raw_fields.get(entry, b"queue")
    if found is None or raw_fields.content(found, b"Sx") != queue:
        return False
    found = raw_fields.get(entry, b"reason")
    return found is not None and raw_fields.content(found, b"Sx") == reason


def _attempts(entry: list[RawEntry]) -> int:
    """Return the attempts in the table itself."""
    return _number(entry, ATTEMPTS, implied_attempts(_text(entry, b"reason")))


def _text(entries: list[RawEntry], name: bytes) -> str:
    value = raw_fields.get(entries, name)
    data = None if value is None else raw_fields.content(value, b"Sx")
    return "" if data is None else data.decode("utf-8", "surrogateescape")


def _number(entries: list[RawEntry], name: bytes, default: int) -> int:
    value = raw_fields.get(entries, name)
    number = None if value is None else raw_fields.integer(value)
    return default if number is None or number < 0 else number


# ---- headers of the embedded library -------------------------------------------------------------

NAME_BYTES_MAX: Final = 255  # of a field, and of a routing key

_F64: Final = struct.Struct(">d")


def amqp_of(plain: PlainHeaders, header: bytes, queue: str) -> bytes:
    """Return exchange, routing key and properties for a header of the embedded library, without the
    attempts of its deaths. Names that are too long for AMQP are cut. Raises HeaderError."""
    key = queue.encode("utf-8", "surrogateescape")[:NAME_BYTES_MAX]
    headers: list[RawEntry] = []
    for name, value in plain.values(header).items():
        at = name.encode("utf-8", "surrogateescape")[:NAME_BYTES_MAX]
        raw_fields.put(headers, at, _value(value))
    for death in reversed(plain.deaths(header)):
        where = death.queue.encode("utf-8", "surrogateescape")
        add_death(headers, death, b"", where, None, NO_ATTEMPTS)
    first = plain.first_death(header)
    if first is not None:
        where = first[0].encode("utf-8", "surrogateescape")
        raw_fields.put(headers, FIRST_QUEUE, raw_fields.long_string(where))
        raw_fields.put(headers, FIRST_REASON, raw_fields.long_string(first[1].encode()))
    flags = raw_fields.HEADERS if headers else 0
    parts = [raw_fields.nested(headers)[1:]] if headers else []
    priority = plain.priority(header)
    if priority:
        flags |= raw_fields.PRIORITY
        parts.append(bytes((priority,)))
    return b"".join([b"\0", bytes((len(key),)), key, flags.to_bytes(2, "big"), *parts])


def _value(value: HeaderValue) -> bytes:
    if isinstance(value, bool):  # bool is an int, too
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return raw_fields.signed(value)
    if isinstance(value, float):
        return b"d" + _F64.pack(value)
    if isinstance(value, str):
        return raw_fields.long_string(value.encode("utf-8", "surrogateescape"))
    return raw_fields.binary(value)


# ---- the header ----------------------------------------------------------------------------------

FORMAT: Final = 2
FORMAT_MASK: Final = 0x07
_DEATHS: Final = 0x08
_ATTEMPTS: Final = 0x10
_EXPIRY: Final = 0x20
_PRIORITY: Final = 0x40
_HIDDEN: Final = 0x80

FORMAT_BYTE: Final = b"\x02"
DIED_BYTES: Final = b"\x0a\0\0"  # what nearly every dead letter begins with: it died, no attempts
PRIORITY_IN_FIRST_OCTET: Final = raw_fields.PRIORITY >> 8
# Looked for by `find`: of bytes, `in` makes and forgets a TypeError first, which takes longer.
CC_FIELD: Final = b"\x02CC"  # the header of that name as it stands in a table
BYTES_MIN: Final = 5  # format, no exchange, no key, no properties
DEATHS_MAX: Final = 256  # of which the attempts are kept

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_PLAIN: Final = PlainHeaders()


class Prefix:
    """The part before the exchange. priority: -1 for none. hidden: short strings. has_died: x-death
    is ours. deaths: the attempts of each, packed. at: where the exchange begins."""

    __slots__ = ("at", "attempts", "deaths", "expiry_ms", "has_died", "hidden", "priority")

    def __init__(self) -> None:
        self.attempts: int = 0
        self.expiry_ms: int = 0
        self.priority: int = -1
        self.hidden: bytes = b""
        self.has_died: bool = False
        self.deaths: bytes = b""
        self.at: int = 1

    def encode(self) -> bytes:
        """Return it as bytes, with the format octet."""
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
        if self.has_died:
            flags |= _DEATHS
            parts += [_U16.pack(len(self.deaths)), self.deaths]
        return bytes((flags,)) + b"".join(parts)


class AmqpHeaders(HeaderCodec):
    """The broker's codec; see the head of this module."""

    _first_of: tuple[bytes, bytes | None, str, str, int] | None = None  # what _first_fields are of
    _first_fields: bytes = b""

    # ---- per message ---------------------------------------------------------------------------

    def make(self, route: bytes, props: bytes) -> bytes:
        """Return the header of a published message. route: exchange and routing key as short
        strings and the octet of bits, as in basic.publish. props: flag words and list."""
        return FORMAT_BYTE + route[:-1] + props

    def parts(self, header: bytes, queue: str = "") -> tuple[bytes, bytes]:
        """Return (exchange and routing key as two short strings, properties), raw. queue: where the
        message is, for one that the embedded library published."""
        n = len(header)
        if n < BYTES_MIN or header[0] & FORMAT_MASK != FORMAT:
            return self.parts(_from_plain(header, queue))
        if header[0] == FORMAT:
            at = 1
        elif header.startswith(DIED_BYTES):
            at = len(DIED_BYTES)
        else:
            at = _prefix(header).at
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

    def fresh_byte(self) -> int:
        return FORMAT

    def delivered_props(self, props: bytes, attempts: int) -> bytes:
        """Return the properties with x-delivery-count among the headers, as RabbitMQ's quorum
        queues do."""
        try:
            raw = RawProperties(props)
        except PropertiesError:
            return props
        headers = raw.headers()
        raw_fields.put(headers, b"x-delivery-count", raw_fields.signed(attempts))
        return raw.changed(headers)

    def props_with_attempts(self, header: bytes, props: bytes) -> bytes:
        """Return the properties for a client that asks for attempts: with those of the header's
        deaths."""
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
        props = self.parts(header)[1]
        return max(_priority_of(props), 0) if props[0] & PRIORITY_IN_FIRST_OCTET else 0

    def expiry_ms(self, header: bytes) -> int:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.expiry_ms(header)
        return _prefix(header).expiry_ms if header[0] & _EXPIRY else 0

    def is_for_now(self, header: bytes) -> bool:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.is_for_now(header)
        try:
            expiration = RawProperties(self.parts(header)[1]).expiration()
        except PropertiesError:
            return False
        return expiration is not None and not expiration.strip(b"0")

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
            return header  # nothing can be written into it
        headers = raw.headers()
        is_usual = death.count == 1 and death.attempts == implied_attempts(death.reason)
        if is_usual and header[0] == FORMAT and props.find(b"-death") < 0 > props.find(CC_FIELD):
            table = raw.table() if headers else b""
            fields = self._first_death(death, address, raw.expiration())
            return DIED_BYTES + address + raw.with_table(table + fields, has_expiration=False)
        exchange, key = split_address(address)
        prefix = _prefix(header)
        if not prefix.has_died:
            prefix.has_died = True
            headers = without_deaths(headers)
        known = _attempts_of_deaths(header)
        attempts = add_death(headers, death, exchange, key, raw.expiration(), known)
        prefix.deaths = _packed(attempts)
        changed = raw.changed(headers, has_expiration=False)
        return prefix.encode() + address + changed

    def _first_death(self, death: Death, address: bytes, expiration: bytes | None) -> bytes:
        """Return the fields that the first death adds to a table without CC. They are kept for the
        next message, which mostly adds the same."""
        seconds = death.time_ms // 1000
        of = (address, expiration, death.queue, death.reason, seconds)
        if of != self._first_of:
            headers: list[RawEntry] = []
            exchange, key = split_address(address)
            add_death(headers, death, exchange, key, expiration, NO_ATTEMPTS)
            self._first_of, self._first_fields = of, raw_fields.join(headers)
        return self._first_fields

    def deaths(self, header: bytes) -> list[Death]:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.deaths(header)
        if not header[0] & _DEATHS:
            return []
        return deaths_in(self.headers(header), _attempts_of_deaths(header))

    def first_death(self, header: bytes) -> tuple[str, str] | None:
        if not header or header[0] & FORMAT_MASK != FORMAT:
            return _PLAIN.first_death(header)
        if not header[0] & _DEATHS:
            return None
        return first_death_in(self.headers(header))

    # ---- its route -----------------------------------------------------------------------------

    def amqp(self, header: bytes, queue: str) -> bytes:
        """Return the header in this format. queue: as for `parts`."""
        if header and header[0] & FORMAT_MASK == FORMAT:
            return header
        return _from_plain(header, queue)

    def headers(self, header: bytes) -> list[RawEntry]:
        """Return the entries of its headers table, raw; none if it is damaged."""
        try:
            return RawProperties(self.parts(header)[1]).headers()
        except PropertiesError:
            return []

    def keys(self, header: bytes) -> list[bytes]:
        """Return its routing keys: that of the publish, those in CC, and those of BCC."""
        _, key = split_address(self.parts(header)[0])
        return [
            key,
            *routing_keys_in(self.headers(header)),
            *_short_strings(_prefix(header).hidden),
        ]

    def address(self, header: bytes) -> bytes | None:
        """Return exchange and routing key, raw; None if these are not all that route it, or it is
        one of the embedded library."""
        if header[:1] != FORMAT_BYTE:
            return None
        address, props = self.parts(header)
        return address if props.find(CC_FIELD) < 0 else None

    def with_hidden(self, header: bytes, keys: list[bytes]) -> bytes:
        """Return the header with these routing keys, which consumers do not see (BCC). Raises
        HeaderError if they are longer than 65535 bytes."""
        prefix = _prefix(header)
        prefix.hidden = b"".join([short_string(key) for key in keys])
        if len(prefix.hidden) > 0xFFFF:
            raise HeaderError(f"hidden routing keys of {len(prefix.hidden)} bytes, at most 65535")
        return prefix.encode() + header[prefix.at :]

    def readdressed(self, header: bytes, exchange: bytes, key: bytes | None) -> bytes:
        """Return the header as if published to this exchange: with its own routing keys (None), or
        with only this one, without CC and BCC."""
        address, props = self.parts(header)
        front = header[: len(header) - len(address) - len(props)]
        if key is None:
            key = split_address(address)[1]
        else:
            if header[0] & _HIDDEN:
                prefix = _prefix(header)
                prefix.hidden = b""
                front = prefix.encode()
            if props.find(CC_FIELD) >= 0:
                props = _without_cc(props)
        return front + short_string(exchange) + short_string(key) + props


def short_string(data: bytes) -> bytes:
    """Return the bytes with their length before them. Raises ValueError beyond 255 bytes."""
    return bytes((len(data),)) + data


def split_address(address: bytes) -> tuple[bytes, bytes]:
    """Return (exchange, routing key) of two short strings."""
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
    """Return the priority in the properties, or -1."""
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
    """Return a header of this format for one of the embedded library. Raises HeaderError."""
    prefix = Prefix()
    prefix.attempts = _PLAIN.attempts(header)
    prefix.expiry_ms = _PLAIN.expiry_ms(header)
    deaths = _PLAIN.deaths(header)
    prefix.has_died = bool(deaths)
    if [each for each in deaths if each.attempts != implied_attempts(each.reason)]:
        prefix.deaths = _packed([each.attempts for each in deaths])
    return prefix.encode() + amqp_of(_PLAIN, header, queue)


def _prefix(header: bytes) -> Prefix:
    """Return the part before the exchange. Raises HeaderError if the header ends within it."""
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
        prefix.has_died = True
        prefix.deaths = header[at + 2 : end]
        at = end
    prefix.at = at
    return prefix


def _packed(attempts: list[int]) -> bytes:
    return b"".join([_U32.pack(min(n, U32_MAX)) for n in attempts[:DEATHS_MAX]])


def _attempts_of_deaths(header: bytes) -> list[int]:
    """Return the numbers as `add_death` returned them."""
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
