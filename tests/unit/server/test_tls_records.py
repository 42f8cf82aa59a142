"""TlsRecords against OpenSSL: a handshake in memory, whose server side goes on with TlsRecords."""

import json
import os
import ssl
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from penstock.server.tls_process import CLIENT, SERVER, Keys, records_in
from penstock.server.tls_records import (
    BAD_RECORD_MAC,
    CIPHERS,
    HANDSHAKE,
    KEY_UPDATE,
    PLAIN_BYTES_MAX,
    RECORD_OVERFLOW,
    UNEXPECTED_MESSAGE,
    TlsRecords,
    TrafficKey,
    WrongRecord,
    expanded,
)
from tests.helpers.tls_files import TlsFiles


class Pair:
    """tls: the client, of OpenSSL; records: the server. early: what the client sends with the last
    message of its handshake."""

    def __init__(self, files: TlsFiles, keys: Keys, early: bytes = b"") -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.path("server.pem"), files.path("server.key"))
        context.keylog_filename = keys.path
        to_server, from_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = context.wrap_bio(to_server, from_server, server_side=True)
        self._to_client, self._from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = files.client().wrap_bio(
            self._to_client, self._from_client, server_hostname="localhost"
        )
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.do_handshake()
        to_server.write(self._from_client.read())
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        self._to_client.write(from_server.read())
        self.tls.do_handshake()
        if early:
            self.tls.write(early)
        to_server.write(self._from_client.read())
        server.do_handshake()
        tickets = from_server.read()
        self.deliver(tickets)
        secrets = keys.take()
        client, own = (bytes.fromhex(secrets[name]) for name in (CLIENT, SERVER))
        self.cipher = server.cipher()[0]  # type: ignore[index]
        assert records_in(tickets) == 2
        self.records = TlsRecords(
            self.cipher, TrafficKey(self.cipher, client), TrafficKey(self.cipher, own, 2),
            to_server.read(),
        )  # fmt: skip
        # What a client would make of the same keys: it seals what the server opens.
        self.mirror = TlsRecords(
            self.cipher, TrafficKey(self.cipher, own, 2), TrafficKey(self.cipher, client)
        )

    def sent(self, data: bytes) -> bytes:
        """Return the records of what the client sends."""
        self.tls.write(data)
        return self._from_client.read()

    def deliver(self, data: bytes) -> None:
        self._to_client.write(data)

    def received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.tls.read(size - len(data))
        return data


@pytest.fixture
def keys() -> Iterator[Keys]:
    made = Keys()
    yield made
    made.close()


def test_both_directions_go_on_after_the_handshake(tls_files: TlsFiles, keys: Keys) -> None:
    pair = Pair(tls_files, keys)
    assert pair.records.opened(pair.sent(b"ping")) == b"ping"
    pair.deliver(b"".join(pair.records.sealed([b"po", b"ng"])))
    assert pair.received(4) == b"pong"
    assert pair.records.opened(pair.sent(b"again")) == b"again"


def test_what_came_with_the_handshake_is_opened_first(tls_files: TlsFiles, keys: Keys) -> None:
    pair = Pair(tls_files, keys, early=b"early")
    assert pair.records.opened(b"") == b"early"


def test_large_data_and_bytes_one_by_one(tls_files: TlsFiles, keys: Keys) -> None:
    pair = Pair(tls_files, keys)
    data = os.urandom(3 * PLAIN_BYTES_MAX + 7)
    sealed = pair.sent(data)
    assert b"".join(pair.records.opened(bytes([one])) for one in sealed) == data
    records = pair.records.sealed([data])
    assert len(records) == 4
    pair.deliver(b"".join(records))
    assert pair.received(len(data)) == data


def test_the_next_process_goes_on(tls_files: TlsFiles, keys: Keys) -> None:
    pair = Pair(tls_files, keys)
    first, second = pair.sent(b"first"), pair.sent(b"second")
    assert pair.records.opened(first + second[:9]) == b"first"
    pair.deliver(b"".join(pair.records.sealed([b"one "])))
    after = TlsRecords.of(json.loads(json.dumps(pair.records.facts())))
    with pytest.raises(AssertionError):
        pair.records.sealed([b"a number twice"])
    assert after.opened(second[9:]) == b"second"
    pair.deliver(b"".join(after.sealed([b"two"])))
    assert pair.received(7) == b"one two"


@pytest.mark.parametrize("cipher", CIPHERS)
def test_keys_are_replaced(cipher: str) -> None:
    """In both directions, when the client asks for it."""
    size = 48 if CIPHERS[cipher][2] == "sha384" else 32
    secrets = os.urandom(size), os.urandom(size)
    client = TlsRecords(cipher, *(TrafficKey(cipher, one) for one in secrets))
    server = TlsRecords(cipher, *(TrafficKey(cipher, one) for one in reversed(secrets)))
    asked = client.key_update(asks=True)
    after = b"".join(client.sealed([b"after"]))
    assert server.opened(asked + after) == b"after"
    answer = server.answer()
    assert answer
    assert server.answer() == b""
    assert client.opened(answer + b"".join(server.sealed([b"too"]))) == b"too"
    assert client.answer() == b""


def test_ours_are_replaced_after_many_records() -> None:
    cipher = "TLS_AES_128_GCM_SHA256"
    server = TlsRecords(cipher, *(TrafficKey(cipher, bytes(32), 1 << 24) for _ in "io"))
    client = TlsRecords(cipher, *(TrafficKey(cipher, bytes(32), 1 << 24) for _ in "io"))
    data = b"".join(server.sealed([b"x"])) + b"".join(server.sealed([b"y"]))
    assert client.opened(data) == b"xy"
    assert client._incoming.number == 2  # type: ignore[union-attr]


def test_close_notify_ends_what_the_client_sends(tls_files: TlsFiles, keys: Keys) -> None:
    pair = Pair(tls_files, keys)
    last = pair.sent(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.tls.unwrap()
    assert pair.records.opened(last + pair._from_client.read()) == b"last"
    assert pair.records.is_ended
    pair.deliver(pair.records.goodbye())
    pair.tls.unwrap()


def damaged(record: bytes) -> bytes:
    return record[:-1] + bytes([record[-1] ^ 1])


WRONG: Final[dict[str, tuple[int, Callable[[Pair], bytes]]]] = {
    "damaged": (BAD_RECORD_MAC, lambda pair: damaged(pair.sent(b"x"))),
    "twice": (BAD_RECORD_MAC, lambda pair: pair.sent(b"x") * 2),
    "short": (BAD_RECORD_MAC, lambda _: b"\x17\3\3\0\x10" + bytes(16)),
    "long": (RECORD_OVERFLOW, lambda _: b"\x17\3\3\x41\1"),
    "too much": (RECORD_OVERFLOW, lambda pair: pair.mirror._sealed(bytes(PLAIN_BYTES_MAX + 1), 23)),
    "plain alert": (UNEXPECTED_MESSAGE, lambda _: b"\x15\3\3\0\2\1\0"),
    "change cipher spec": (UNEXPECTED_MESSAGE, lambda _: b"\x14\3\3\0\1\1"),
    "handshake": (UNEXPECTED_MESSAGE, lambda pair: pair.mirror._sealed(b"\1\0\0\0", HANDSHAKE)),
    "key update": (
        UNEXPECTED_MESSAGE, lambda pair: pair.mirror._sealed(KEY_UPDATE + b"\2", HANDSHAKE)
    ),
    "only padding": (UNEXPECTED_MESSAGE, lambda pair: pair.mirror._sealed(b"\0\0", 0)),
    "type": (UNEXPECTED_MESSAGE, lambda pair: pair.mirror._sealed(b"x", 99)),
    "alert": (0, lambda pair: pair.mirror.goodbye(BAD_RECORD_MAC)),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_record(tls_files: TlsFiles, keys: Keys, kind: str) -> None:
    pair = Pair(tls_files, keys)
    alert, make = WRONG[kind]
    with pytest.raises(WrongRecord) as caught:
        pair.records.opened(make(pair))
    assert caught.value.alert == alert


def test_padding_is_taken_off() -> None:
    cipher = "TLS_CHACHA20_POLY1305_SHA256"
    client, server = (
        TlsRecords(cipher, *(TrafficKey(cipher, bytes(32)) for _ in "io")) for _ in "cs"
    )
    assert server.opened(client._sealed(b"text\x17\0\0", 0)) == b"text"


def test_the_derivation_is_that_of_rfc_8448() -> None:
    """Its section 3: the server's keys of data."""
    secret = bytes.fromhex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643")
    assert expanded(secret, "key", 16, "sha256").hex() == "9f02283b6c9c07efc26bb9f2ac92e356"
    assert expanded(secret, "iv", 12, "sha256").hex() == "cf782b88dd83549aadf1e984"
