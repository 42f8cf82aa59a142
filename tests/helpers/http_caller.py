"""A client of a broker's HTTP API that really runs: one kept connection, blocking, JSON or bytes.

Whoever wants to see what goes over the wire takes `socket` and says every byte by himself.
"""

import contextlib
import http.client
import importlib
import json
import socket
from collections.abc import Iterator
from typing import Any

from tests.helpers.asgi_client import basic
from tests.helpers.chunk_maker import PageMaker
from tests.helpers.live_broker import Broker, LiveBroker

TIMEOUT_S = 60
Token = dict[str, Any]
Records = list[tuple[bytes, bytes]]


class HttpCaller:
    """user: its password is its name. `close`, or a with block, disconnects."""

    def __init__(self, broker: Broker, user: str = "guest") -> None:
        assert broker.http_port is not None
        self.address = (broker.host, broker.http_port)
        self.headers = {"Authorization": basic(user, user)}
        self._connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)

    def __enter__(self) -> "HttpCaller":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, address: str, body: object = None) -> tuple[int, bytes]:
        """(status, body) of /api/<address>. body: bytes, pieces of them (chunked), or of JSON."""
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        self._connection.request(method, f"/api/{address}", body, headers)  # type: ignore[arg-type]
        reply = self._connection.getresponse()
        return reply.status, reply.read()

    def json(self, method: str, address: str, body: object = None, status: int = 200) -> Any:
        """The answer, whose status must be this."""
        found, data = self.ask(method, address, body)
        assert found == status, (found, data)
        return json.loads(data)

    def stage(
        self, query: str, batch: int, pages: list[Records], *, partition: int = 0,
        attempt: str = "0-00000000", chunk_records: int = 1000,
    ) -> Token:  # fmt: skip
        """The token of an upload of pages; each is given a number of its own."""
        chunks = (
            page.chunk(records[at : at + chunk_records])
            for number, records in enumerate(pages)
            for page in [
                PageMaker(hash((query, batch, partition, attempt, number)) & (1 << 64) - 1)
            ]
            for at in range(0, len(records), chunk_records)
        )
        address = f"staging/%2F/{query}/{batch}/{partition}/{attempt}"
        token = self.json("POST", address, chunks, 201)
        assert isinstance(token, dict)
        return token

    def commit(
        self, query: str, batch: int, target: dict[str, Any], tokens: list[Token], **more: Any
    ) -> Any:
        """What a commit is answered."""
        body = {"target": target, "tokens": tokens, **more}
        return self.json("PUT", f"staging/%2F/{query}/{batch}", body)

    @contextlib.contextmanager
    def socket(self, head: str) -> Iterator[socket.socket]:
        """A connection of its own, on which a request's head was sent: its first line, and headers
        besides who asks."""
        line, _, more = head.partition("\r\n")
        who = self.headers["Authorization"]
        text = f"{line}\r\nhost: localhost\r\nauthorization: {who}\r\n{more}\r\n"
        with socket.create_connection(self.address, timeout=TIMEOUT_S) as sock:
            sock.sendall(text.encode())
            yield sock


def meta(exchange: str, key: str) -> bytes:
    """The header of a message without properties, as a sink makes it."""
    names = b"".join(bytes([len(name)]) + name for name in (exchange.encode(), key.encode()))
    return b"\x02" + names + b"\0\0"


def ready_bodies(broker: LiveBroker, queue: str) -> list[bytes]:
    """What an ordinary client gets of a queue; it goes back. Needs pika."""
    pika: Any = importlib.import_module("pika")
    bodies: list[bytes] = []
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        ready = channel.queue_declare(queue, passive=True).method.message_count
        if ready:
            for _, _, body in channel.consume(queue):
                bodies.append(body)
                if len(bodies) == ready:
                    break
    return bodies
