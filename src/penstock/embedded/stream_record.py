"""StreamRecord and NewRecord: a record read from a stream, and one to be appended.

After a record's body a stream stores its exchange, routing key and properties in the broker's own
format (`penstock.queues.amqp_headers`). The key of the library is that routing key, its headers are
those of the properties; so a broker, Spark and a box read each other's streams. What a box appends
has no exchange and no other properties. They are decoded when they are first asked for: most
readers look at the body only.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from penstock.clock import moment_of
from penstock.codec.properties import BasicProperties
from penstock.embedded.box_headers import attached
from penstock.embedded.option_parsing import Body, Headers, body_of, header_of
from penstock.errors import AMQPError, OptionError
from penstock.queues.amqp_headers import FORMAT_BYTE, AmqpHeaders, short_string, split_address
from penstock.queues.headers import HeaderValue
from penstock.queues.raw_fields import EMPTY

KEY_BYTES_MAX: Final = 255
OWN_PREFIX: Final = "x-stream-"  # what a broker adds to the headers of a delivery
OPTIONS: Final = ("key", "headers")
_AMQP: Final = AmqpHeaders()

Records: TypeAlias = Body | tuple[Body, Mapping[str, object]]  # one of append_many


class StreamRecord:
    """One record of a stream.

    body: bytes. offset: its number in its partition, from 0, without holes. partition: from 0.
    time_us: when it was appended, in microseconds since 1970; never less than that of the record
    before. gap: how many records before this one the reader has missed, because retention had
    deleted them; 0 nearly always.
    """

    __slots__ = ("_meta", "_properties", "body", "gap", "offset", "partition", "time_us")

    def __init__(
        self, body: bytes, offset: int, partition: int, time_us: int, meta: bytes, gap: int = 0
    ) -> None:
        self.body: bytes = body
        self.offset: int = offset
        self.partition: int = partition
        self.time_us: int = time_us
        self.gap: int = gap
        self._meta = meta
        self._properties: BasicProperties | None = None

    @property
    def time(self) -> datetime:
        """When the record was appended, as an aware datetime in UTC."""
        return moment_of(self.time_us)

    @property
    def key(self) -> str:
        """The key that chose its partition; for a record of an AMQP client its routing key."""
        return self._address()[1].decode("utf-8", "surrogateescape")

    @property
    def exchange(self) -> str:
        """The exchange that an AMQP client published the record to; "" for what a box appended."""
        return self._address()[0].decode("utf-8", "surrogateescape")

    @property
    def properties(self) -> BasicProperties:
        """The record's properties as AMQP writes them. AMQPError if they cannot be decoded."""
        if self._properties is None:
            self._properties = BasicProperties.decode(_AMQP.parts(self._meta)[1])
        return self._properties

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers as they were appended; what has no type of ours, as a list, is text."""
        try:
            table = self.properties.headers or {}
        except AMQPError:
            return {}
        return attached(
            {name: value for name, value in table.items() if not name.startswith(OWN_PREFIX)}
        )

    def _address(self) -> tuple[bytes, bytes]:
        return split_address(_AMQP.parts(self._meta)[0])

    def __repr__(self) -> str:
        where = f"{self.partition}:{self.offset}"
        return f"<StreamRecord {where} of {len(self.body)} bytes, {self.time.isoformat()}>"


class NewRecord:
    """A record to be appended. key: in UTF-8. props: properties as AMQP writes them. OptionError,
    TypeError."""

    __slots__ = ("body", "key", "props")

    def __init__(self, body: object, key: object = "", headers: Headers | None = None) -> None:
        self.body: bytes = body_of(body)
        self.key: bytes = key_of(key)
        self.props: bytes = EMPTY
        if headers:
            header_of(headers)  # for its OptionError
            self.props = BasicProperties(headers=dict(headers)).encode()

    @property
    def meta(self) -> bytes:
        """What a stream stores of the record besides its body."""
        return meta_of(b"", self.key, self.props)


def meta_of(exchange: bytes, key: bytes, props: bytes) -> bytes:
    """Return what a stream stores of a record besides its body."""
    return FORMAT_BYTE + short_string(exchange) + short_string(key) + props


def key_of(key: object) -> bytes:
    """Return a key in UTF-8. OptionError."""
    data = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else None
    if data is None or len(data) > KEY_BYTES_MAX:
        raise OptionError("key", key, f"text of at most {KEY_BYTES_MAX} bytes")
    return data


def records_of(items: Iterable[object]) -> list[NewRecord]:
    """Return the records that `append_many` was given: bodies, or pairs (body, options)."""
    if isinstance(items, bytes | str | bytearray | memoryview):
        raise TypeError("append_many takes many bodies, as a list; for one there is append")
    news: list[NewRecord] = []
    for item in items:
        if not isinstance(item, tuple):
            news.append(NewRecord(item))
            continue
        if len(item) != 2 or not isinstance(item[1], Mapping):
            raise TypeError("a record of append_many is its body, or a pair: (body, options)")
        for name in item[1]:
            if name not in OPTIONS:
                raise OptionError(str(name), item[1][name], OPTIONS)
        news.append(NewRecord(item[0], **item[1]))
    return news
