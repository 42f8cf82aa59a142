"""Headers: what a message carries besides its body, in one of two formats.

Queues treat a header as opaque bytes and use a `HeaderCodec` to read or change what they need: the
number of earlier deliveries, the priority, the expiry while the message waits for a delay, and its
deaths. The broker's codec is amqp_headers.py; the library's is `PlainHeaders`, here. Most messages
have none of these: b"" means all defaults, and costs nothing on disk or in time.

Format of PlainHeaders, big-endian; parts at their default are omitted, and no parts at all is b"":

    version 1 (=1) | flags 1 | the parts whose bits are set, in this order
    1  attempts 4           earlier deliveries, from before the message was moved
    2  priority 1
    4  expiry 8             ms since 1970: the message's own, while it waits for a delay
    8  first death          queue (length 2, UTF-8) | reason 1
       deaths 2 x           queue | reason 1 | count 4 | attempts 4 | time 8 (ms since 1970)
    16 headers 2 x          name (length 2, UTF-8) | type 1 | value
                            s text, b bytes (length 4 first); i integer 8, signed; f float 8;
                            t true, n false (no bytes)
    32 no bytes             put with a time to live of 0, and has not died since
    reason: 0 rejected, 1 expired, 2 maxlen, 3 delivery_limit

Deaths are as in RabbitMQ's x-death: the last first, one per queue and reason, with a count. The
very first is kept apart, as x-first-death-queue and -reason are, because counting reorders them.

Bytes that are not such a header raise HeaderError (a ValueError) with what was expected. They
passed the engine's checksums, so they were not written by this codec.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.native import mypyc_attr

REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"
REASONS: Final = (REJECTED, EXPIRED, MAXLEN, DELIVERY_LIMIT)

HeaderValue = str | bytes | int | float | bool

VERSION: Final = 1
_ATTEMPTS: Final = 1
_PRIORITY: Final = 2
_EXPIRY: Final = 4
_DEATHS: Final = 8
_HEADERS: Final = 16
_FOR_NOW: Final = 32
_ALL: Final = 63

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_DEATH: Final = struct.Struct(">BIIQ")
U16_MAX: Final = (1 << 16) - 1
U32_MAX: Final = (1 << 32) - 1


class HeaderError(ValueError):
    """Bytes are not a header of this codec, or a value does not fit into one."""


@dataclass(frozen=True, slots=True)
class Death:
    """A message's deaths in one queue for one reason: how often (`count`), when first (ms since
    1970), and how often it had been delivered when it last died (`attempts`)."""

    queue: str
    reason: str
    time_ms: int
    attempts: int = 0
    count: int = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class HeaderCodec(ABC):
    """Reads and changes the header of one message. Every header may be b"": all defaults. Raises
    HeaderError for bytes of another format."""

    @abstractmethod
    def attempts(self, header: bytes) -> int:
        """Return how often the message came back before it was moved."""

    def fresh_byte(self) -> int:
        """Return the first byte that most headers have, if `attempts` is 0 for all that begin with
        it, so that nobody need ask; -1 if there is none."""
        return -1

    @abstractmethod
    def priority(self, header: bytes) -> int:
        """Return 0 to 255; 0 if none is set."""

    @abstractmethod
    def expiry_ms(self, header: bytes) -> int:
        """Return the message's own expiry while it waits for a delay: ms since 1970, 0 for
        never."""

    @abstractmethod
    def is_for_now(self, header: bytes) -> bool:
        """Return whether the publisher gave the message a time to live of 0, if that is
        recorded."""

    @abstractmethod
    def with_(
        self, header: bytes, *, attempts: int | None = None, priority: int | None = None,
        expiry_ms: int | None = None,
    ) -> bytes:  # fmt: skip
        """Return the header with these changed; None keeps a value."""

    @abstractmethod
    def with_death(self, header: bytes, death: Death) -> bytes:
        """Return the header with one more death. One of the same queue and reason is counted and
        comes first again, keeping its time."""

    @abstractmethod
    def deaths(self, header: bytes) -> list[Death]:
        """Return the deaths, the last first."""

    @abstractmethod
    def first_death(self, header: bytes) -> tuple[str, str] | None:
        """Return queue and reason of the very first death, or None."""


class Plain:
    """The fields of a PlainHeaders header."""

    __slots__ = ("attempts", "deaths", "expiry_ms", "first", "is_for_now", "priority", "values")

    def __init__(self) -> None:
        self.attempts: int = 0
        self.priority: int = 0
        self.expiry_ms: int = 0
        self.first: tuple[str, str] | None = None
        self.deaths: list[Death] = []
        self.values: dict[str, HeaderValue] = {}
        self.is_for_now: bool = False


class PlainHeaders(HeaderCodec):
    """The embedded library's codec; see the head of this module."""

    def attempts(self, header: bytes) -> int:
        if not header:
            return 0
        if header[0] == VERSION and len(header) > 1 and not header[1] & ~(_ALL ^ _ATTEMPTS):
            return 0  # the usual case, without parsing
        return _parse(header).attempts

    def priority(self, header: bytes) -> int:
        return _parse(header).priority if header else 0

    def expiry_ms(self, header: bytes) -> int:
        return _parse(header).expiry_ms if header else 0

    def is_for_now(self, header: bytes) -> bool:
        return len(header) > 1 and header[1] & _FOR_NOW != 0

    def for_now(self, header: bytes) -> bytes:
        """Return the header of a message that is put with a time to live of 0."""
        plain = _parse(header)
        plain.is_for_now = True
        return _encode(plain)

    def with_(
        self, header: bytes, *, attempts: int | None = None, priority: int | None = None,
        expiry_ms: int | None = None,
    ) -> bytes:  # fmt: skip
        plain = _parse(header)
        if attempts is not None:
            plain.attempts = attempts
        if priority is not None:
            plain.priority = priority
        if expiry_ms is not None:
            plain.expiry_ms = expiry_ms
        return _encode(plain)

    def with_death(self, header: bytes, death: Death) -> bytes:
        plain = _parse(header)
        plain.is_for_now = False
        for i, old in enumerate(plain.deaths):
            if old.queue == death.queue and old.reason == death.reason:
                del plain.deaths[i]
                count = min(old.count + death.count, U32_MAX)
                death = replace(death, count=count, time_ms=old.time_ms)
                break
        plain.deaths.insert(0, death)
        if plain.first is None:
            plain.first = (death.queue, death.reason)
        return _encode(plain)

    def deaths(self, header: bytes) -> list[Death]:
        return _parse(header).deaths

    def first_death(self, header: bytes) -> tuple[str, str] | None:
        return _parse(header).first

    # ---- values that the publisher attached ----------------------------------------------------

    def values(self, header: bytes) -> dict[str, HeaderValue]:
        """Return the headers that the publisher attached."""
        return _parse(header).values if header else {}

    def with_values(self, header: bytes, values: Mapping[str, HeaderValue]) -> bytes:
        """Return the header with these values instead. Raises HeaderError for a name or value of
        another type, an integer beyond 64 bits, or a name beyond 65535 bytes."""
        _check_values(values)
        plain = _parse(header)
        plain.values = dict(values)
        return _encode(plain)


def _check_values(values: Any) -> None:
    """Raise a HeaderError that names the wrong value; compiled code would raise a vague
    TypeError."""
    for name, value in values.items():
        if not isinstance(name, str):
            raise HeaderError(f"a header's name is a str, not {type(name).__name__}")
        if not isinstance(value, (str, bytes, int, float)):
            kind = type(value).__name__
            raise HeaderError(
                f"header {name!r} is of type {kind}, expected str, bytes, int, float or bool"
            )


# ---- the format ----------------------------------------------------------------------------------


def _encode(plain: Plain) -> bytes:
    flags = 0
    parts: list[bytes] = []
    if plain.attempts:
        flags |= _ATTEMPTS
        parts.append(_U32.pack(min(plain.attempts, U32_MAX)))
    if plain.priority:
        flags |= _PRIORITY
        parts.append(bytes((plain.priority,)))
    if plain.expiry_ms:
        flags |= _EXPIRY
        parts.append(_U64.pack(plain.expiry_ms))
    if plain.deaths:
        flags |= _DEATHS
        first = plain.first or (plain.deaths[-1].queue, plain.deaths[-1].reason)
        parts += [_name(first[0]), bytes((REASONS.index(first[1]),)), _U16.pack(len(plain.deaths))]
        for death in plain.deaths:
            reason = REASONS.index(death.reason)
            parts.append(_name(death.queue))
            parts.append(_DEATH.pack(reason, death.count, death.attempts, death.time_ms))
    if plain.values:
        flags |= _HEADERS
        if len(plain.values) > U16_MAX:
            raise HeaderError(f"{len(plain.values)} headers, expected at most {U16_MAX}")
        parts.append(_U16.pack(len(plain.values)))
        for name, value in plain.values.items():
            parts += [_name(name), _value(name, value)]
    if plain.is_for_now:
        flags |= _FOR_NOW
    return bytes((VERSION, flags)) + b"".join(parts) if flags else b""


def _name(name: str) -> bytes:
    data = name.encode("utf-8", "surrogateescape")
    if len(data) > U16_MAX:
        raise HeaderError(f"a name of {len(data)} bytes, expected at most {U16_MAX}")
    return _U16.pack(len(data)) + data


def _value(name: str, value: HeaderValue) -> bytes:
    if isinstance(value, bool):  # bool is an int, too
        return b"t" if value else b"n"
    if isinstance(value, int):
        if not -1 << 63 <= value < 1 << 63:
            raise HeaderError(f"header {name!r}: {value} does not fit into 64 bits")
        return b"i" + _I64.pack(value)
    if isinstance(value, float):
        return b"f" + _F64.pack(value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        return b"s" + _U32.pack(len(data)) + data
    return b"b" + _U32.pack(len(value)) + value


def _parse(header: bytes) -> Plain:
    plain = Plain()
    if not header:
        return plain
    r = _HeaderReader(header)
    version = r.take(1)[0]
    if version != VERSION:
        raise HeaderError(f"a header of version {version}, expected {VERSION}")
    flags = r.take(1)[0]
    if flags & ~_ALL:
        raise HeaderError(f"a header with flags {flags:#04x}, expected some of {_ALL:#04x}")
    if flags & _ATTEMPTS:
        plain.attempts = r.u32()
    if flags & _PRIORITY:
        plain.priority = r.take(1)[0]
    if flags & _EXPIRY:
        plain.expiry_ms = r.u64()
    if flags & _DEATHS:
        plain.first = (r.name(), r.reason(r.take(1)[0]))
        plain.deaths = [r.death() for _ in range(r.u16())]
    if flags & _HEADERS:
        for _ in range(r.u16()):
            name = r.name()
            plain.values[name] = r.value()
    plain.is_for_now = flags & _FOR_NOW != 0
    r.end()
    return plain


class _HeaderReader:
    def __init__(self, data: bytes) -> None:
        self._data: bytes = data
        self._at: int = 0

    def take(self, n: int) -> bytes:
        piece = self._data[self._at : self._at + n]
        if len(piece) != n:
            raise HeaderError(
                f"a header of {len(self._data)} bytes ends within {n} expected at {self._at}"
            )
        self._at += n
        return piece

    def u16(self) -> int:
        value: int = _U16.unpack(self.take(2))[0]
        return value

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def name(self) -> str:
        return self.take(self.u16()).decode("utf-8", "surrogateescape")

    def reason(self, code: int) -> str:
        if code >= len(REASONS):
            raise HeaderError(f"a death of reason {code}, expected 0 to {len(REASONS) - 1}")
        return REASONS[code]

    def death(self) -> Death:
        queue = self.name()
        reason, count, attempts, time_ms = _DEATH.unpack(self.take(_DEATH.size))
        return Death(queue, self.reason(reason), time_ms, attempts, count)

    def value(self) -> HeaderValue:
        kind = self.take(1)
        if kind == b"s":
            return self.take(self.u32()).decode("utf-8", "surrogateescape")
        if kind == b"b":
            return self.take(self.u32())
        if kind == b"i":
            number: int = _I64.unpack(self.take(8))[0]
            return number
        if kind == b"f":
            real: float = _F64.unpack(self.take(8))[0]
            return real
        if kind in (b"t", b"n"):
            return kind == b"t"
        raise HeaderError(f"a header value of type {kind!r}, expected s, b, i, f, t or n")

    def end(self) -> None:
        if self._at != len(self._data):
            raise HeaderError(f"a header has {len(self._data) - self._at} bytes too many")
