"""Properties of a message: the content header after its class, weight and size.

    properties  flags 2 | [more flags 2 ...] | the properties whose flag is set, in this order

    bit 15 content-type      13 headers (table)          12 delivery-mode 1   11 priority 1
        14 content-encoding  10 correlation-id            9 reply-to           8 expiration
         7 message-id         6 timestamp 8 (seconds)     5 type               4 user-id
         3 app-id             2 cluster-id                1 (none)             0 more flags follow

A property without a width here is a short string. A second flag word has no properties, so it may
only be zero. A property that does not exist, one that runs over the end, or bytes after the last
one raise AMQPConnectionError SYNTAX_ERROR.

A message keeps its properties as the bytes received: they are stored and delivered unchanged.
`scan` checks them and returns the two numbers that decide how a message is treated; `expiration_at`
returns its time to live. Both walk the bytes and build nothing. BasicProperties is the decoded form
for clients, the headers exchange and dead letters.
"""

from typing import ClassVar, Final

from penstock.codec.fields import Table, check_table, decode_table, encode_shortstr, encode_table
from penstock.errors import SYNTAX_ERROR, AMQPConnectionError

HAS_CONTENT_TYPE: Final = 1 << 15
HAS_CONTENT_ENCODING: Final = 1 << 14
HAS_HEADERS: Final = 1 << 13
HAS_DELIVERY_MODE: Final = 1 << 12
HAS_PRIORITY: Final = 1 << 11
HAS_CORRELATION_ID: Final = 1 << 10
HAS_REPLY_TO: Final = 1 << 9
HAS_EXPIRATION: Final = 1 << 8
HAS_MESSAGE_ID: Final = 1 << 7
HAS_TIMESTAMP: Final = 1 << 6
HAS_TYPE: Final = 1 << 5
HAS_USER_ID: Final = 1 << 4
HAS_APP_ID: Final = 1 << 3
HAS_CLUSTER_ID: Final = 1 << 2
HAS_MORE_FLAGS: Final = 1 << 0

_NO_SUCH_PROPERTY: Final = 1 << 1

# In the order of the wire, the first is bit 15.
PROPERTY_NAMES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


class BasicProperties:
    """A message's properties, each None if absent. Equal to another object with equal properties.

    timestamp: seconds since 1970. delivery_mode: 2 is persistent. priority: 0 to 255.
    expiration: milliseconds, as text. headers: a field table.
    """

    __slots__ = PROPERTY_NAMES

    def __init__(
        self,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: Table | None = None,
        delivery_mode: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        expiration: str | None = None,
        message_id: str | None = None,
        timestamp: int | None = None,
        type: str | None = None,  # noqa: A002  # AMQP's name
        user_id: str | None = None,
        app_id: str | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.headers = headers
        self.delivery_mode = delivery_mode
        self.priority = priority
        self.correlation_id = correlation_id
        self.reply_to = reply_to
        self.expiration = expiration
        self.message_id = message_id
        self.timestamp = timestamp
        self.type = type
        self.user_id = user_id
        self.app_id = app_id
        self.cluster_id = cluster_id

    def encode(self) -> bytes:
        """Return flags and list as bytes. Raises ValueError or OverflowError for large values."""
        flags = 0
        parts: list[bytes] = []
        bit = HAS_CONTENT_TYPE
        for name in PROPERTY_NAMES:
            value: object = getattr(self, name)
            if value is not None:
                flags |= bit
                parts.append(_encode_property(bit, value))
            bit >>= 1
        return flags.to_bytes(2, "big") + b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "BasicProperties":
        """Return the properties in the bytes of a content header."""
        scan(data)
        properties = BasicProperties()
        flags = (data[0] << 8) | data[1]
        at = _list_at(data)
        bit = HAS_CONTENT_TYPE
        for name in PROPERTY_NAMES:
            if flags & bit:
                end = _end_of(data, at, bit)
                setattr(properties, name, _decode_property(data, at, end, bit))
                at = end
            bit >>= 1
        return properties

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BasicProperties):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in PROPERTY_NAMES)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # its headers can change

    def given(self) -> dict[str, object]:
        """Return those that are set, by their names."""
        values = {name: getattr(self, name) for name in PROPERTY_NAMES}
        return {name: value for name, value in values.items() if value is not None}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.given().items())
        return f"BasicProperties({fields})"


def scan(data: bytes) -> int:
    """Check a message's properties. Returns delivery_mode | priority << 8 | flag word << 16.

    An absent property is 0. Raises AMQPConnectionError if the bytes are malformed.
    """
    end = len(data)
    if end < 2:
        raise _wrong("a content header without property flags")
    flags = (data[0] << 8) | data[1]
    at = 2
    if flags & 3:
        at = _list_at(data)
    found = flags << 16
    if flags & 0xC000:
        at = _skip_shortstr(data, at, end)
        if flags & 0xC000 == 0xC000:
            at = _skip_shortstr(data, at, end)
    if flags & HAS_HEADERS:
        at = check_table(data, at, end)
    if flags & HAS_DELIVERY_MODE:
        if at >= end:
            raise _too_short()
        found |= data[at]
        at += 1
    if flags & HAS_PRIORITY:
        if at >= end:
            raise _too_short()
        found |= data[at] << 8
        at += 1
    if flags & 0x07FC:
        at = _scan_rest(data, at, end, flags)
    if at != end:
        raise _wrong(f"{end - at} bytes after the last property")
    return found


def expiration_at(data: bytes) -> bytes | None:
    """Return a message's expiration as it was published (it should be digits), or None.

    data: properties that passed `scan`.
    """
    flags = (data[0] << 8) | data[1]
    if not flags & HAS_EXPIRATION:
        return None
    at = _list_at(data)
    bit = HAS_CONTENT_TYPE
    while bit != HAS_EXPIRATION:
        if flags & bit:
            at = _end_of(data, at, bit)
        bit >>= 1
    return data[at + 1 : at + 1 + data[at]]


# ------------------------------------------------------------------------------------- walk


def _wrong(text: str) -> AMQPConnectionError:
    return AMQPConnectionError(SYNTAX_ERROR, text, 60, 0)


def _too_short() -> AMQPConnectionError:
    return _wrong("a property runs over the end of the content header")


def _list_at(data: bytes) -> int:
    """Check the flag words. Returns where they end and the list begins."""
    flags = (data[0] << 8) | data[1]
    at = 2
    if flags & _NO_SUCH_PROPERTY:
        raise _wrong("the flag of a property that does not exist")
    while flags & HAS_MORE_FLAGS:
        if at + 2 > len(data):
            raise _too_short()
        flags = (data[at] << 8) | data[at + 1]
        at += 2
        if flags & ~HAS_MORE_FLAGS:
            raise _wrong("the flag of a property that does not exist")
    return at


def _skip_shortstr(data: bytes, at: int, end: int) -> int:
    if at >= end:
        raise _too_short()
    at += 1 + data[at]
    if at > end:
        raise _too_short()
    return at


def _end_of(data: bytes, at: int, bit: int) -> int:
    """Return where the property of this flag ends that begins at `at`."""
    end = len(data)
    if bit == HAS_HEADERS:
        return check_table(data, at, end)
    if bit in (HAS_DELIVERY_MODE, HAS_PRIORITY):
        at += 1
    elif bit == HAS_TIMESTAMP:
        at += 8
    else:
        return _skip_shortstr(data, at, end)
    if at > end:
        raise _too_short()
    return at


def _scan_rest(data: bytes, at: int, end: int, flags: int) -> int:
    """Skip the properties after priority. Returns where they end."""
    bit = HAS_CORRELATION_ID
    while bit >= HAS_CLUSTER_ID:
        if flags & bit:
            if bit != HAS_TIMESTAMP:
                at = _skip_shortstr(data, at, end)
            else:
                at += 8
                if at > end:
                    raise _too_short()
        bit >>= 1
    return at


# ------------------------------------------------------------------------------------ values


def _encode_property(bit: int, value: object) -> bytes:
    if isinstance(value, str):
        return encode_shortstr(value)
    if isinstance(value, dict):
        return encode_table(value)
    if not isinstance(value, int):
        raise TypeError(f"a property cannot be {type(value).__name__}: {value!r}")
    return value.to_bytes(8 if bit == HAS_TIMESTAMP else 1, "big")


def _decode_property(data: bytes, at: int, end: int, bit: int) -> object:
    if bit == HAS_HEADERS:
        return decode_table(data, at)[0]
    if bit in (HAS_DELIVERY_MODE, HAS_PRIORITY):
        return data[at]
    if bit == HAS_TIMESTAMP:
        return int.from_bytes(data[at:end], "big")
    return data[at + 1 : end].decode("utf-8", "surrogateescape")
