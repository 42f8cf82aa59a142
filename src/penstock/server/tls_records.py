"""TlsRecords: the records of a TLS 1.3 connection after its handshake (RFC 8446, 5 and 7).

OpenSSL does the handshake in the process of TLS, and its state cannot leave that process. What can
is little: two secrets, the number of records in each direction, and the name of the cipher. So
whoever has the socket next, the supervisor and then the process of the vhost, goes on from there,
and a message takes no way through another process.

    opened    bytes of the socket -> plain bytes; a part of a record is kept
    sealed    plain bytes -> records
    facts     the state, for the next process; this object must not be used after that

The ciphers themselves are those of the package cryptography, which are OpenSSL's. A record is
encrypted with its number, so no number may be used twice: `facts` ends the object.

After the handshake a client may send data, alerts and key updates, nothing else: everything else is
a WrongRecord, whose alert the client is to get before the end. Keys are replaced when the client
asks for it, and ours after KEY_RECORDS (RFC 8446, 5.5).
"""

import hmac
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any, Final

AEADS: Final = "cryptography.hazmat.primitives.ciphers.aead"
EXCEPTIONS: Final = "cryptography.exceptions"
# OpenSSL's name of a cipher -> class, bytes of its key, hash.
CIPHERS: Final = {
    "TLS_AES_256_GCM_SHA384": ("AESGCM", 32, "sha384"),
    "TLS_AES_128_GCM_SHA256": ("AESGCM", 16, "sha256"),
    "TLS_CHACHA20_POLY1305_SHA256": ("ChaCha20Poly1305", 32, "sha256"),
}
HEAD_BYTES: Final = 5
PLAIN_BYTES_MAX: Final = 16 << 10  # of a record
SEALED_BYTES_MAX: Final = PLAIN_BYTES_MAX + 256
TAG_BYTES: Final = 16
IV_BYTES: Final = 12
HEAD: Final = b"\x17\x03\x03"
KEY_RECORDS: Final = 1 << 24  # RFC 8446 permits 2^24.5 full records of AES-GCM

ALERT: Final = 21
HANDSHAKE: Final = 22
DATA: Final = 23
DATA_END: Final = b"\x17"  # the same, as it stands after the data
KEY_UPDATE: Final = b"\x18\0\0\1"  # with one more byte: whether the other side shall, too
CLOSE_NOTIFY: Final = 0
UNEXPECTED_MESSAGE: Final = 10
BAD_RECORD_MAC: Final = 20
RECORD_OVERFLOW: Final = 22
USER_CANCELED: Final = 90
WARNING: Final = 1
FATAL: Final = 2


class WrongRecord(Exception):
    """What came is no record of this connection. alert: for the client, 0 for none."""

    def __init__(self, text: str, alert: int) -> None:
        super().__init__(text)
        self.alert: int = alert


def load() -> bool:
    """Load the package cryptography, and return whether it is installed. It takes 40 ms, so a
    process does it when it starts, not while a client waits."""
    if importlib.util.find_spec("cryptography") is None:
        return False
    importlib.import_module(AEADS)
    return True


def expanded(secret: bytes, label: str, size: int, digest: str) -> bytes:
    """Return HKDF-Expand-Label without a context (RFC 8446, 7.1), of at most one hash."""
    name = f"tls13 {label}".encode()
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0\1"
    return hmac.digest(secret, info, digest)[:size]


class TrafficKey:
    """One direction: its key, and the number of its next record."""

    def __init__(self, cipher: str, secret: bytes, number: int = 0) -> None:
        aead, key_bytes, digest = CIPHERS[cipher]
        self.secret: bytes = secret
        self.number: int = number
        self._cipher: str = cipher
        make: Any = getattr(importlib.import_module(AEADS), aead)
        found: Any = make(expanded(secret, "key", key_bytes, digest))
        self.encrypt: Any = found.encrypt
        self.decrypt: Any = found.decrypt
        self.invalid: type[Exception] = importlib.import_module(EXCEPTIONS).InvalidTag
        self._iv: int = int.from_bytes(expanded(secret, "iv", IV_BYTES, digest), "big")

    def nonce(self) -> bytes:
        """Return the nonce of the next record, and count it."""
        number = self.number
        self.number = number + 1
        return (self._iv ^ number).to_bytes(IV_BYTES, "big")

    def next(self) -> "TrafficKey":
        """Return the key after this one."""
        digest = CIPHERS[self._cipher][2]
        secret = expanded(self.secret, "traffic upd", len(self.secret), digest)
        return TrafficKey(self._cipher, secret)


def is_record(data: bytes) -> bool:
    """Return whether it is one whole record of data."""
    size = len(data) - HEAD_BYTES
    return (
        TAG_BYTES < size <= SEALED_BYTES_MAX and data[0] == DATA and data[3] << 8 | data[4] == size
    )


class TlsRecords:
    """Of the server's side. incoming, outgoing: the keys. unread: bytes of the socket that were
    read and not opened. is_ended: the client has sent close_notify, and nothing follows."""

    def __init__(
        self, cipher: str, incoming: TrafficKey, outgoing: TrafficKey, unread: bytes = b""
    ) -> None:
        self.is_ended: bool = False
        self._cipher: str = cipher
        self._incoming: TrafficKey | None = incoming
        self._outgoing: TrafficKey | None = outgoing
        self._unread: bytes = unread
        self._must_update: bool = False  # the client has asked for a new key of ours

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "TlsRecords":
        """Return what `facts` of another process describes."""
        cipher = facts["cipher"]
        incoming = TrafficKey(cipher, bytes.fromhex(facts["incoming"]), facts["opened"])
        outgoing = TrafficKey(cipher, bytes.fromhex(facts["outgoing"]), facts["sealed"])
        return cls(cipher, incoming, outgoing, bytes.fromhex(facts["unread"]))

    def facts(self) -> dict[str, object]:
        """Return the state as JSON, for the next process, and end this object."""
        incoming, outgoing = self._incoming, self._outgoing
        assert incoming is not None
        assert outgoing is not None
        self._incoming = self._outgoing = None
        return {
            "cipher": self._cipher, "incoming": incoming.secret.hex(), "opened": incoming.number,
            "outgoing": outgoing.secret.hex(), "sealed": outgoing.number,
            "unread": self._unread.hex(),
        }  # fmt: skip

    def opened(self, data: bytes) -> bytes:
        """Return the plain bytes of what came. Raises WrongRecord; what came before it is lost."""
        if self._unread:
            data = self._unread + data
        elif is_record(data) and not self.is_ended:  # a single message
            text = self._decrypted(data[HEAD_BYTES:], data[:HEAD_BYTES])
            if text[-1] == DATA:
                return text[:-1]
            padded: list[bytes] = []
            self._other(text.rstrip(b"\0"), padded)
            return b"".join(padded)
        plain: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= HEAD_BYTES and not self.is_ended:
            size = data[at + 3] << 8 | data[at + 4]
            if data[at] != DATA:
                raise WrongRecord(f"a record of type {data[at]}", UNEXPECTED_MESSAGE)
            if size > SEALED_BYTES_MAX:
                raise WrongRecord(f"a record of {size} bytes", RECORD_OVERFLOW)
            head, at = at, at + HEAD_BYTES
            if end - at < size:
                at = head
                break
            text = self._decrypted(data[at : at + size], data[head:at])
            at += size
            if text[-1] == DATA:
                plain.append(text[:-1])
            else:
                self._other(text.rstrip(b"\0"), plain)
        self._unread = data[at:]
        return plain[0] if len(plain) == 1 else b"".join(plain)

    def _decrypted(self, sealed: bytes, head: bytes) -> bytes:
        """Return what a record holds: content, the byte of its type, and padding."""
        key = self._incoming
        assert key is not None
        if len(sealed) <= TAG_BYTES:
            raise WrongRecord(f"a record of {len(sealed)} bytes", BAD_RECORD_MAC)
        try:
            text: bytes = key.decrypt(key.nonce(), sealed, head)
        except key.invalid as error:
            raise WrongRecord("a record that is damaged", BAD_RECORD_MAC) from error
        if len(text) > PLAIN_BYTES_MAX + 1:
            raise WrongRecord(f"a record with {len(text)} plain bytes", RECORD_OVERFLOW)
        return text

    def _other(self, text: bytes, plain: list[bytes]) -> None:
        """Handle a record with padding, or one of another type than data."""
        kind = text[-1] if text else 0
        content = text[:-1]
        if kind == DATA:
            plain.append(content)
        elif kind == ALERT and len(content) == 2:
            if content[1] == CLOSE_NOTIFY:
                self.is_ended = True
            elif content[1] != USER_CANCELED:
                raise WrongRecord(f"the client's alert {content[1]}", 0)
        elif kind == HANDSHAKE and content[:4] == KEY_UPDATE and content[4:] in (b"\0", b"\1"):
            assert self._incoming is not None
            self._incoming = self._incoming.next()
            self._must_update = self._must_update or content[4] == 1
        else:
            raise WrongRecord(f"a message of type {kind} after the handshake", UNEXPECTED_MESSAGE)

    def answer(self) -> bytes:
        """Return what the client's records ask for, to be sent at once: b"", or a key update."""
        return self.key_update() if self._must_update else b""

    def sealed(self, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
        """Return records of these plain bytes, to be sent in this order before any others."""
        data = b"".join(parts)
        if len(data) <= PLAIN_BYTES_MAX:
            return [self._sealed(data, DATA)]
        starts = range(0, len(data), PLAIN_BYTES_MAX)
        return [self._sealed(data[at : at + PLAIN_BYTES_MAX], DATA) for at in starts]

    def goodbye(self, alert: int = CLOSE_NOTIFY) -> bytes:
        """Return the record of an alert, the last one that is sent."""
        return self._sealed(bytes([FATAL if alert else WARNING, alert]), ALERT)

    def _sealed(self, content: bytes, kind: int) -> bytes:
        key = self._outgoing
        assert key is not None
        if key.number >= KEY_RECORDS:
            return self.key_update() + self._sealed(content, kind)
        head = HEAD + (len(content) + 1 + TAG_BYTES).to_bytes(2, "big")
        end = DATA_END if kind == DATA else bytes((kind,))
        sealed: bytes = key.encrypt(key.nonce(), content + end, head)
        return head + sealed

    def key_update(self, *, asks: bool = False) -> bytes:
        """Take the next key, and return the record that says so. asks: the other side shall too."""
        key = self._outgoing
        assert key is not None
        content = KEY_UPDATE + bytes((asks, HANDSHAKE))
        head = HEAD + (len(content) + TAG_BYTES).to_bytes(2, "big")
        record: bytes = head + key.encrypt(key.nonce(), content, head)
        self._outgoing = key.next()
        self._must_update = False
        return record
