"""The process of TLS: `python -m penstock.server.tls_process <descriptor>`.

A client's socket is handed from the supervisor to the process of its vhost, but the state of TLS is
in the memory of a process and cannot go along. So this process does the handshakes. Then, for AMQP
over TLS 1.3, it sends the client's socket to the supervisor with the secrets of its records
(tls_records), and has nothing more to do with it. OpenSSL gives the secrets away only as lines for
a file of keys (`keylog`), which is a pipe here.

For TLS 1.2, for HTTP, and without the package cryptography, it keeps the socket: it makes a pair of
sockets, pumps between the client and one end (tls_pump), and sends the other to the supervisor,
which treats it as a client's socket. The facts come with both.

Its only argument is its end of the link to the supervisor (watched_http has the messages).

**Handshakes** are limited by a Listener for each kind, as logins are: in number, of one address, in
time. OpenSSL's part of them runs in a thread, because a signature takes up to a millisecond, in
which no other connection would be served.

**Certificates** are read again at `reload`, and when a file has changed, looked at every LOOK_S. A
wrong file is logged once as an error, and the old certificates stay.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from penstock.access.tls_options import TlsOptions
from penstock.config import Config
from penstock.errors import AMQPError, OptionError
from penstock.server.certificates import Certificates, tls_facts
from penstock.server.control import Facts
from penstock.server.descriptors import OWN
from penstock.server.linked_process import LinkedProcess, main
from penstock.server.listener import Listener
from penstock.server.log_lines import set_level, set_up
from penstock.server.login import Gone, Origin, Silent, Steps
from penstock.server.polling_loop import PollingLoop
from penstock.server.proxy_protocol import (
    Network,
    WrongProxyHeader,
    is_of,
    networks_of,
    read_header,
)
from penstock.server.tls_pump import TlsPump
from penstock.server.tls_records import (
    CIPHERS,
    HEAD_BYTES,
    TlsRecords,
    TrafficKey,
    load,
)
from penstock.storage.files.filesystem import OsFileSystem

LOOK_S: Final = 2.0  # between two looks at the files
READ_BYTES: Final = 16 << 10
HANDSHAKE_BYTES_MAX: Final = 64 << 10  # with chains of certificates
HANDSHAKE: Final = b"\x16"  # the first byte of one
ALERT: Final = b"\x15\x03\x01\0\x02\x02\x46"  # fatal, protocol_version: clients know it
EX_CONFIG: Final = 78
THREADS: Final = 1  # so that the secrets of two handshakes cannot be mixed up
AMQP: Final = "amqp"  # the kind
CLIENT: Final = "CLIENT_TRAFFIC_SECRET_0"
SERVER: Final = "SERVER_TRAFFIC_SECRET_0"
KEYS_BYTES: Final = 64 << 10

logger = logging.getLogger(__name__)


class TlsHandshake:
    """The handshake of one client, for a Listener."""

    def __init__(
        self, sock: socket.socket, certificates: Certificates, options: TlsOptions,
        executor: ThreadPoolExecutor, networks: list[Network], keys: "Keys | None",
    ) -> None:  # fmt: skip
        self.sock = sock
        self.origin = Origin.of(sock)
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = certificates.context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self._options = options
        self._executor = executor
        self._networks = networks
        self._keys = keys
        self._secrets: dict[str, str] = {}
        self._records = 0  # of data that OpenSSL has sent
        self._loop = asyncio.get_running_loop()

    @property
    def peer_host(self) -> str:
        """The client's address."""
        return self.origin.peer_host

    @property
    def name(self) -> str:
        """The connection as people see it."""
        return self.origin.name

    def forget(self) -> None:
        """Nothing is kept that the end of the connection does not free."""

    def refuse(self, error: AMQPError) -> None:
        """Not used: a handshake has no answer of AMQP."""

    @property
    def read_bytes(self) -> int:
        """Return how many bytes it takes at once."""
        return READ_BYTES

    def steps(self) -> Steps[Origin]:
        """Do the handshake. Raises Silent, Gone, OSError."""
        data = yield from self._proxy_header()
        if not data:
            data = yield from self._recv()
        if data[:1] != HANDSHAKE:
            yield self._loop.sock_sendall(self.sock, ALERT)
            raise Silent(f"no TLS: it began with {data[:8]!r}; plain AMQP has a port of its own")
        total = 0
        while True:
            total += len(data)
            if total > HANDSHAKE_BYTES_MAX:
                raise Silent(f"a TLS handshake of more than {HANDSHAKE_BYTES_MAX} bytes")
            self.incoming.write(data)
            try:
                yield self._loop.run_in_executor(self._executor, self._step)
            except ssl.SSLWantReadError:
                yield from self._flush()
                data = yield from self._recv()
                continue
            except ssl.SSLError as error:
                yield from self._flush()  # the alert
                raise Silent(f"TLS handshake failed: {reason(error)}") from None
            last = self.outgoing.read()  # tickets, with the keys of data
            self._records = records_in(last)
            if last:
                yield self._loop.sock_sendall(self.sock, last)
            return self.origin._replace(tls=tls_facts(self.tls, self._options))

    def _step(self) -> None:
        """Do what can be done now; in the one thread for this, so the secrets are of this client.
        Raises SSLError."""
        try:
            self.tls.do_handshake()
        finally:
            if self._keys is not None:
                self._secrets |= self._keys.take()

    def records(self) -> TlsRecords | None:
        """Return what the rest of the connection needs instead of OpenSSL; None if only OpenSSL
        can have it."""
        cipher = self.tls.cipher()
        if cipher is None or cipher[0] not in CIPHERS or not {CLIENT, SERVER} <= set(self._secrets):
            return None
        client, server = (bytes.fromhex(self._secrets[name]) for name in (CLIENT, SERVER))
        incoming, outgoing = TrafficKey(cipher[0], client), TrafficKey(cipher[0], server)
        outgoing.number = self._records
        return TlsRecords(cipher[0], incoming, outgoing, self.incoming.read())

    def _proxy_header(self) -> Steps[bytes]:
        """Read the header of a trusted proxy. Returns the bytes after it."""
        if not is_of(self._networks, self.origin.peer_host):
            return b""
        data = b""
        while True:
            data += yield from self._recv()
            try:
                found = read_header(data)
            except WrongProxyHeader as error:
                raise Silent(str(error)) from None
            if found is not None:
                self.origin = self.origin.behind(found)
                return data[found.size :]

    def _recv(self) -> Steps[bytes]:
        data: bytes = yield None
        if not data:
            raise Gone("the client left in the TLS handshake")
        return data

    async def receive(self, most: int) -> bytes:
        """Return what the client sends next; b"" at its end."""
        return await self._loop.sock_recv(self.sock, most)

    def shut(self) -> None:
        """Not used: nothing is said to a client whose handshake fails but OpenSSL's alert."""

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()

    def _flush(self) -> Steps[None]:
        data = self.outgoing.read()
        if data:
            yield self._loop.sock_sendall(self.sock, data)


class Keys:
    """The secrets of handshakes, as OpenSSL writes them into the file of keys `path`: here a pipe,
    which takes what one step of a handshake brings, a few hundred bytes."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.path = f"/dev/fd/{self._writing}"

    def close(self) -> None:
        """Close the pipe; the contexts that write into it are not used any more."""
        os.close(self._reading)
        os.close(self._writing)

    def take(self) -> dict[str, str]:
        """Return the secrets since the last call, by OpenSSL's name, in hex."""
        try:
            lines = os.read(self._reading, KEYS_BYTES).decode().splitlines()
        except BlockingIOError:
            return {}
        words = [line.split() for line in lines if not line.startswith("#")]
        return {name: secret for name, _random, secret in words}


def records_in(data: bytes) -> int:
    """Return how many records these are."""
    found = at = 0
    while at < len(data):
        at += HEAD_BYTES + int.from_bytes(data[at + 3 : at + HEAD_BYTES], "big")
        found += 1
    return found


def reason(error: ssl.SSLError) -> str:
    """Return what is wrong, in OpenSSL's words: "unsupported protocol"."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()


class TlsProcess(LinkedProcess):
    """Serves until it is stopped; `run` returns the exit status."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, OsFileSystem(0))
        assert isinstance(self._loop, PollingLoop)
        self._poller = self._loop.poller
        self._executor = ThreadPoolExecutor(THREADS, "penstock-tls")
        self._socks: dict[str, list[socket.socket]] = {}
        self._listeners: list[Listener[Origin]] = []
        self._pumps: set[TlsPump] = set()
        self._certificates: Certificates | None = None
        self._keys = Keys() if load() else None
        self._most = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN) // 2
        self._accepted = 0

    async def _finish(self, why: str) -> None:
        logger.info("stops%s", f": {why}" if why else "")
        for listener in self._listeners:
            await listener.stop()
        for pump in list(self._pumps):
            pump.close()
        self._executor.shutdown(wait=False)
        self._fs.close()
        self._link.send({"do": "stopped"})

    # ---- the link ------------------------------------------------------------------------------

    def _on_message(self, facts: dict[str, Any], data: bytes, descriptors: list[int]) -> None:
        do = facts["do"]
        if do == "ping":
            self._link.send(self._pong(facts))
        elif do == "socket":
            socks = self._socks.setdefault(facts["kind"], [])
            socks += [socket.socket(fileno=descriptor) for descriptor in descriptors]
        elif do == "start":
            self._start(facts)
        elif do == "reload":
            self._reload()
        elif do == "settings":
            set_level(facts["log_level"])
        elif do == "stop":
            self._end("")

    def _pong(self, facts: Facts) -> Facts:
        now_ms = self._clock.wall_ms()
        found = self._certificates.facts if self._certificates is not None else ()
        return {
            "do": "pong",
            "n": facts["n"],
            "rss_bytes": self._rss_bytes(),
            "connections": len(self._pumps),
            "half_open": sum(one.half_open for one in self._listeners),
            "accepted": self._accepted,
            "certificates": [
                {"file": one.file, "names": list(one.names), "expires_ms": one.expires_ms}
                for one in found
            ],
            "warnings": [text for one in found if (text := one.warning(now_ms))],
        }

    def _start(self, facts: dict[str, Any]) -> None:
        set_up(facts["log_level"], "tls", self._send_line)
        options = TlsOptions(
            **{**facts["options"], "more_certs": tuple(facts["options"]["more_certs"])}
        )
        try:
            keylog = "" if self._keys is None else self._keys.path
            self._certificates = Certificates(options, self._fs, keylog)
        except OptionError as error:
            self._give_up(EX_CONFIG, str(error))
            return
        self._warn()
        settings = Config(**facts["settings"])
        for kind, socks in self._socks.items():
            networks = networks_of(facts["networks"][kind])
            make = partial(self._handshake, options, networks)
            listener = Listener(socks, settings, self._clock, make, partial(self._admit, kind))
            listener.start()
            self._listeners.append(listener)
        self._loop.call_later(LOOK_S, self._look)
        self._heap.freeze_start()
        self._link.send({"do": "ready"})

    # ---- certificates --------------------------------------------------------------------------

    def _look(self) -> None:
        assert self._certificates is not None
        if self._certificates.has_changed():
            self._reload()
        self._loop.call_later(LOOK_S, self._look)

    def _reload(self) -> None:
        if self._certificates is None:
            return
        try:
            self._certificates.reload()
        except OptionError as error:
            logger.error("the certificates are not replaced: %s", error)
            return
        logger.info("the certificates were read again")
        self._warn()

    def _warn(self) -> None:
        assert self._certificates is not None
        for one in self._certificates.facts:
            text = one.warning(self._clock.wall_ms())
            if text:
                logger.warning("%s", text)

    # ---- clients -------------------------------------------------------------------------------

    def _handshake(
        self, options: TlsOptions, networks: list[Network], sock: socket.socket,
        _on_held: Callable[[int], None],
    ) -> TlsHandshake:  # fmt: skip
        assert self._certificates is not None
        return TlsHandshake(sock, self._certificates, options, self._executor, networks, self._keys)

    async def _admit(self, kind: str, handshake: TlsHandshake, origin: Origin) -> None:
        """Hand a client to the supervisor, or pump for it and hand the other end. Raises Silent."""
        message: Facts = {
            "do": "client", "kind": kind, "origin": origin._asdict(), "records": None
        }  # fmt: skip
        records = handshake.records() if kind == AMQP else None
        if records is not None:
            self._accepted += 1
            self._link.send({**message, "records": records.facts()}, b"", handshake.sock)
            return
        if len(self._pumps) >= self._most:
            raise Silent(f"{len(self._pumps)} TLS connections are open, more have no descriptors")
        inner, theirs = socket.socketpair()
        inner.setblocking(False)
        theirs.setblocking(False)
        self._link.send(message, b"", theirs)
        pump = TlsPump(
            self._poller, handshake.sock, inner, handshake.tls, handshake.incoming,
            handshake.outgoing, self._pumps.discard,
        )  # fmt: skip
        self._accepted += 1
        self._pumps.add(pump)
        pump.start()


def run_process(arguments: list[str]) -> int:
    """Run the program, as linked_process.main."""
    return main("tls", TlsProcess, arguments)


if __name__ == "__main__":
    sys.exit(run_process(sys.argv[1:]))
