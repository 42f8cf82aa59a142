"""The bytes of AMQP 0-9-1 for scripted sessions: any frame a client may send, and what servers say.

Client libraries check names and types before they send; a session that asks how a broker answers
to wrong ones cannot use them. Methods are built from a table of their fields, and the server's are
shown as one line of text each, with every field. Nothing here is Penstock's own code.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# name -> class, method, fields: o octet, s short, l long, L long long, n shortstr, S longstr,
# T table, b bit (bits in a row share octets).
METHODS: dict[str, tuple[int, int, str]] = {
    "connection.start": (10, 10, "ooTSS"),
    "connection.start-ok": (10, 11, "TnSn"),
    "connection.secure": (10, 20, "S"),
    "connection.tune": (10, 30, "sls"),
    "connection.tune-ok": (10, 31, "sls"),
    "connection.open": (10, 40, "nnb"),
    "connection.open-ok": (10, 41, "n"),
    "connection.close": (10, 50, "snss"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "n"),
    "connection.unblocked": (10, 61, ""),
    "connection.update-secret": (10, 70, "Sn"),
    "connection.update-secret-ok": (10, 71, ""),
    "channel.open": (20, 10, "n"),
    "channel.open-ok": (20, 11, "S"),
    "channel.flow": (20, 20, "b"),
    "channel.flow-ok": (20, 21, "b"),
    "channel.close": (20, 40, "snss"),
    "channel.close-ok": (20, 41, ""),
    "access.request": (30, 10, "nbbbbb"),
    "access.request-ok": (30, 11, "s"),
    "exchange.declare": (40, 10, "snnbbbbbT"),
    "exchange.declare-ok": (40, 11, ""),
    "exchange.delete": (40, 20, "snbb"),
    "exchange.delete-ok": (40, 21, ""),
    "exchange.bind": (40, 30, "snnnbT"),
    "exchange.bind-ok": (40, 31, ""),
    "exchange.unbind": (40, 40, "snnnbT"),
    "exchange.unbind-ok": (40, 51, ""),
    "queue.declare": (50, 10, "snbbbbbT"),
    "queue.declare-ok": (50, 11, "nll"),
    "queue.bind": (50, 20, "snnnbT"),
    "queue.bind-ok": (50, 21, ""),
    "queue.purge": (50, 30, "snb"),
    "queue.purge-ok": (50, 31, "l"),
    "queue.delete": (50, 40, "snbbb"),
    "queue.delete-ok": (50, 41, "l"),
    "queue.unbind": (50, 50, "snnnT"),
    "queue.unbind-ok": (50, 51, ""),
    "basic.qos": (60, 10, "lsb"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (60, 20, "snnbbbbT"),
    "basic.consume-ok": (60, 21, "n"),
    "basic.cancel": (60, 30, "nb"),
    "basic.cancel-ok": (60, 31, "n"),
    "basic.publish": (60, 40, "snnbb"),
    "basic.return": (60, 50, "snnn"),
    "basic.deliver": (60, 60, "nLbnn"),
    "basic.get": (60, 70, "snb"),
    "basic.get-ok": (60, 71, "Lbnnl"),
    "basic.get-empty": (60, 72, "n"),
    "basic.ack": (60, 80, "Lb"),
    "basic.reject": (60, 90, "Lb"),
    "basic.recover-async": (60, 100, "b"),
    "basic.recover": (60, 110, "b"),
    "basic.recover-ok": (60, 111, ""),
    "basic.nack": (60, 120, "Lbb"),
    "confirm.select": (85, 10, "b"),
    "confirm.select-ok": (85, 11, ""),
    "tx.select": (90, 10, ""),
    "tx.select-ok": (90, 11, ""),
    "tx.commit": (90, 20, ""),
    "tx.commit-ok": (90, 21, ""),
    "tx.rollback": (90, 30, ""),
    "tx.rollback-ok": (90, 31, ""),
}
BY_NUMBER = {(one, two): name for name, (one, two, _) in METHODS.items()}
PROPERTIES = (  # of basic, from flag bit 15 down
    ("content-type", "n"), ("content-encoding", "n"), ("headers", "T"), ("delivery-mode", "o"),
    ("priority", "o"), ("correlation-id", "n"), ("reply-to", "n"), ("expiration", "n"),
    ("message-id", "n"), ("timestamp", "L"), ("type", "n"), ("user-id", "n"), ("app-id", "n"),
    ("cluster-id", "n"),
)  # fmt: skip
# What Penstock's deliveries from streams have beside x-stream-offset.
OURS_ALONE = ("'x-stream-partition'", "'x-stream-timestamp'")
DEPTH_SHOWN = 50  # tables that stand deeper are told by their bytes
SIZES = {"o": 1, "s": 2, "l": 4, "L": 8}


class Typed(NamedTuple):
    """A field value with its letter, and its bytes as they are."""

    letter: str
    data: bytes


def i8(value: int) -> Typed:
    return Typed("b", struct.pack(">b", value))


def i16(value: int) -> Typed:
    return Typed("s", struct.pack(">h", value))


def i64(value: int) -> Typed:
    return Typed("l", struct.pack(">q", value))


def f32(value: float) -> Typed:
    return Typed("f", struct.pack(">f", value))


def time(seconds: int) -> Typed:
    return Typed("T", struct.pack(">Q", seconds))


def decimal(scale: int, digits: int) -> Typed:
    return Typed("D", struct.pack(">Bi", scale, digits))


# ---- building ----------------------------------------------------------------------------------


def text_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def shortstr(text: str | bytes) -> bytes:
    data = text_bytes(text)
    return bytes((len(data),)) + data


def longstr(text: str | bytes) -> bytes:
    data = text_bytes(text)
    return len(data).to_bytes(4, "big") + data


def value_bytes(value: object) -> bytes:
    """A field value with its letter. bool t, int I or l, float d, str S, bytes x, None V."""
    if isinstance(value, Typed):
        return value.letter.encode() + value.data
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t" + bytes((value,))
    if isinstance(value, int):
        is_short = -(1 << 31) <= value < 1 << 31
        return b"I" + struct.pack(">i", value) if is_short else b"l" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"S" + longstr(value)
    if isinstance(value, bytes):
        return b"x" + longstr(value)
    if isinstance(value, dict):
        return b"F" + table(value)
    assert isinstance(value, list), value
    return b"A" + longstr(b"".join(value_bytes(one) for one in value))


def table(values: Mapping[Any, object] | bytes) -> bytes:
    """A table with its length; bytes: its inside as it is."""
    if isinstance(values, bytes):
        return longstr(values)
    return longstr(b"".join(shortstr(name) + value_bytes(one) for name, one in values.items()))


def fields_bytes(fields: str, values: tuple[Any, ...]) -> bytes:
    out, bits, count = b"", 0, 0
    for kind, value in zip(fields, values, strict=True):
        if kind == "b":
            bits |= bool(value) << count
            count += 1
            continue
        if count:
            out, bits, count = out + bytes((bits,)), 0, 0
        if kind in SIZES:
            out += int(value).to_bytes(SIZES[kind], "big")
        else:
            out += {"n": shortstr, "S": longstr, "T": table}[kind](value)
    return out + bytes((bits,)) if count else out


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def method_payload(name: str, *values: Any) -> bytes:
    class_id, method_id, fields = METHODS[name]
    return struct.pack(">HH", class_id, method_id) + fields_bytes(fields, values)


def header_payload(size: int, properties: bytes, class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQ", class_id, weight, size) + properties


def properties_bytes(**given: object) -> bytes:
    """Flags and values of basic's properties; `_` in names stands for `-`."""
    flags, out = 0, b""
    for bit, (name, kind) in enumerate(PROPERTIES):
        value = given.get(name.replace("-", "_"))
        if value is not None:
            flags |= 1 << (15 - bit)
            out += fields_bytes(kind, (value,))
    return flags.to_bytes(2, "big") + out


# ---- showing -----------------------------------------------------------------------------------


@dataclass
class Reader:
    data: bytes
    at: int = 0
    depth: int = 0

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        assert len(piece) == size, "a frame that is too short"
        self.at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self, size: int) -> str:
        return self.take(self.number(size)).decode("utf-8", "backslashreplace")

    def _inner(self) -> "Reader":
        return Reader(self.take(self.number(4)), depth=self.depth + 1)

    def table(self) -> str:
        """A table as text, sorted by name, as its order means nothing."""
        inner = self._inner()
        if inner.depth > DEPTH_SHOWN:
            return f"<{len(inner.data)} bytes, {zlib.crc32(inner.data):08x}>"
        found = []
        while inner.at < len(inner.data):
            name = shown(inner.text(1))
            if (value := inner.value()) and name not in OURS_ALONE:
                found.append((name, value))
        return "{" + ", ".join(f"{name}: {value}" for name, value in sorted(found, key=_name)) + "}"

    def value(self) -> str:
        """A field value as text. Integers are shown without their width."""
        letter = self.take(1).decode("latin-1")
        if letter in "bBsuIilL":
            size = {"b": 1, "s": 2, "u": 2, "I": 4, "i": 4}.get(letter.replace("B", "b"), 8)
            return str(int.from_bytes(self.take(size), "big", signed=letter not in "Bui"))
        if letter == "F":
            return self.table()
        if letter == "A":
            inner = self._inner()
            if inner.depth > DEPTH_SHOWN:
                return f"<{len(inner.data)} bytes, {zlib.crc32(inner.data):08x}>"
            found = []
            while inner.at < len(inner.data):
                found.append(inner.value())
            return "[" + ", ".join(found) + "]"
        if letter in "Sx":
            return ("x" if letter == "x" else "") + shown(self.text(4))
        sizes = {"t": 1, "f": 4, "d": 8, "T": 8, "D": 5, "V": 0}
        data = self.take(sizes[letter])
        if letter == "t":
            return "true" if data[0] else "false"
        if letter == "T":
            return "<time>"
        return f"{letter}:{data.hex()}"


def _name(entry: tuple[str, str]) -> str:
    return entry[0]


def shown(text: str) -> str:
    """A text in quotes, on one line."""
    return "'" + text.encode("unicode_escape").decode() + "'"


FIELD_NAMES: dict[str, str] = {
    "basic.deliver": "tag delivery redelivered exchange key",
    "basic.get-ok": "delivery redelivered exchange key left",
    "basic.return": "code text exchange key",
    "basic.ack": "delivery multiple",
    "basic.nack": "delivery multiple requeue",
    "basic.cancel": "tag nowait",
    "basic.consume-ok": "tag",
    "basic.cancel-ok": "tag",
    "queue.declare-ok": "queue messages consumers",
    "queue.delete-ok": "messages",
    "queue.purge-ok": "messages",
    "channel.close": "code text class method",
    "connection.close": "code text class method",
    "connection.tune": "channels frame heartbeat",
}


def frame_line(kind: int, payload: bytes) -> tuple[str, str]:
    """(method's name or "header" or "body", the frame as one line of text)."""
    reader = Reader(payload)
    if kind == 3:
        return "body", "body " + shown(payload.decode("utf-8", "backslashreplace"))
    if kind == 2:
        reader.take(4)
        words = [f"size={reader.number(8)}"]
        flags = reader.number(2)
        for bit, (name, form) in enumerate(PROPERTIES):
            if flags & 1 << (15 - bit):
                words.append(f"{name}={_field(reader, form)}")
        return "header", " ".join(["header", *words])
    name = BY_NUMBER.get((reader.number(2), reader.number(2)), "unknown")
    if name in ("unknown", "connection.start"):
        return name, name
    names = FIELD_NAMES.get(name, "").split()
    fields = METHODS[name][2]
    words = []
    bits, left = 0, 0
    for at, form in enumerate(fields):
        if form == "b":
            if not left:
                bits, left = reader.number(1), 8
            value, bits, left = str(bits & 1), bits >> 1, left - 1
        else:
            left = 0
            value = _field(reader, form)
        words.append(f"{names[at]}={value}" if names else value)
    return name, " ".join([name, *words])


def _field(reader: Reader, form: str) -> str:
    if form in SIZES:
        return str(reader.number(SIZES[form]))
    if form == "T":
        return reader.table()
    return shown(reader.text(1 if form == "n" else 4))
