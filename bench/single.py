"""Single messages: what a wake-up of the server costs when it brings one message only.

    python bench/single.py PORT PID [CELL ...]      prints one line of JSON for each cell

A client of plain sockets, without a client library, sends one request and waits for its answer.
Measured is the CPU of the server's process tree, so what the client itself takes does not count.
It checks each answer: the kind of method, and the body where there is one.
"""

import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

FRAME_END = b"\xce"
BODY = b"b" * 256
GET_OK, GET_EMPTY, DELIVER, ACK = (60, 71), (60, 72), (60, 60), (60, 80)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", class_id, method_id) + arguments)


def publish(
    exchange: str, key: str, body: bytes, *, is_persistent: bool = False, reply_to: str = "",
    channel: int = 1,
) -> bytes:  # fmt: skip
    """The three frames of one basic.publish."""
    flags, properties = 0, b""
    if is_persistent:
        flags |= 1 << 12
        properties += b"\x02"
    if reply_to:
        flags |= 1 << 9
        properties += short(reply_to)
    header = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    called = method(channel, 60, 40, b"\x00\x00" + short(exchange) + short(key) + b"\x00")
    return called + frame(2, channel, header) + (frame(3, channel, body) if body else b"")


class Client:
    """One connection with one open channel."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.sock.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait((10, 10))
        answer = b"\x00\x00\x00\x00" + short("PLAIN")
        self.sock.sendall(
            method(0, 10, 11, answer + struct.pack(">I", 12) + b"\0guest\0guest" + short("en_US"))
        )
        limits = self.wait((10, 30))
        self.sock.sendall(method(0, 10, 31, limits[4:10] + b"\x00\x00"))
        self.call(method(0, 10, 40, short("/") + b"\x00\x00"), (10, 41))
        self.open_channel(1)

    def open_channel(self, channel: int) -> None:
        self.call(method(channel, 20, 10, b"\x00"), (20, 11))

    def next_frame(self) -> tuple[int, bytes]:
        """The kind and payload of the next frame."""
        while True:
            data = self._data
            if len(data) >= 7:
                kind, _, size = struct.unpack_from(">BHI", data)
                if len(data) >= size + 8:
                    self._data = data[size + 8 :]
                    return kind, data[7 : 7 + size]
            more = self.sock.recv(1 << 16)
            if not more:
                raise SystemExit("the server has closed a connection")
            self._data += more

    def wait(self, *expected: tuple[int, int]) -> bytes:
        """The payload of the next method, which must be one of these; heartbeats are passed."""
        while True:
            kind, payload = self.next_frame()
            if kind == 8:
                continue
            found = struct.unpack_from(">HH", payload)
            if kind != 1 or found not in expected:
                raise SystemExit(f"expected a method of {expected}, got {found}: {payload!r}")
            return payload

    def content(self) -> bytes:
        """The body that follows."""
        _, header = self.next_frame()
        size = struct.unpack_from(">Q", header, 4)[0]
        body = b""
        while len(body) < size:
            body += self.next_frame()[1]
        return body

    def call(self, request: bytes, *expected: tuple[int, int]) -> bytes:
        self.sock.sendall(request)
        return self.wait(*expected)

    def declare(self, queue: str, *, is_durable: bool = False, is_private: bool = False) -> str:
        """Declare a queue; its name."""
        flags = (2 if is_durable else 0) | (12 if is_private else 0)
        found = self.call(
            method(1, 50, 10, b"\x00\x00" + short(queue) + bytes([flags]) + b"\x00\x00\x00\x00"),
            (50, 11),
        )  # fmt: skip
        return found[5 : 5 + found[4]].decode()

    def delete(self, queue: str) -> None:
        self.call(method(1, 50, 40, b"\x00\x00" + short(queue) + b"\x00"), (50, 41))

    def consume(self, queue: str, *, prefetch: int = 0, no_ack: bool = False) -> None:
        if prefetch:
            self.call(method(1, 60, 10, struct.pack(">IHB", 0, prefetch, 0)), (60, 11))
        flags = 2 if no_ack else 0
        self.call(
            method(1, 60, 20, b"\x00\x00" + short(queue) + b"\x00" + bytes([flags]) + b"\0\0\0\0"),
            (60, 21),
        )  # fmt: skip

    def confirms(self) -> None:
        self.call(method(1, 85, 10, b"\x00"), (85, 11))

    def close(self) -> None:
        self.call(method(0, 10, 50, b"\x00\xc8\x00\x00\x00\x00\x00"), (10, 51))
        self.sock.close()


def ack(tag: bytes) -> bytes:
    return method(1, 60, 80, tag + b"\x00")


def tag_of(deliver: bytes) -> bytes:
    """The delivery tag of a basic.deliver, behind its consumer tag."""
    at = 5 + deliver[4]
    return deliver[at : at + 8]


# ---- cells: each prepares, and returns what is done once --------------------------------------


def empty_get(port: int) -> Callable[[], None]:
    client = Client(port)
    queue = client.declare("", is_private=True)
    request = method(1, 60, 70, b"\x00\x00" + short(queue) + b"\x00")

    def once() -> None:
        client.call(request, GET_EMPTY)

    return once


def get_ack(port: int) -> Callable[[], None]:
    client = Client(port)
    queue = client.declare("", is_private=True)
    request = method(1, 60, 70, b"\x00\x00" + short(queue) + b"\x00")
    message = publish("", queue, BODY)
    client.sock.sendall(message * 200)

    def once() -> None:
        found = client.call(request, GET_OK)
        assert client.content() == BODY
        client.sock.sendall(ack(found[4:12]) + message)

    return once


def rpc(port: int, *, is_direct: bool = False) -> Callable[[], None]:
    client, server = Client(port), Client(port)
    queue = server.declare("", is_private=True)
    server.consume(queue, no_ack=True)
    reply_to = "amq.rabbitmq.reply-to" if is_direct else client.declare("", is_private=True)
    client.consume(reply_to, no_ack=True)
    # The queue of the server is exclusive to its connection, so requests go by an exchange.
    name = f"single.{os.getpid()}.{is_direct}"
    server.call(
        method(1, 40, 10, b"\x00\x00" + short(name) + short("fanout") + b"\x04\0\0\0\0"), (40, 11)
    )
    server.call(
        method(1, 50, 20, b"\x00\x00" + short(queue) + short(name) + b"\x00\x00\0\0\0\0"), (50, 21)
    )
    request = publish(name, "", BODY, reply_to=reply_to)

    def once() -> None:
        client.sock.sendall(request)
        server.wait(DELIVER)
        _, header = server.next_frame()
        at = 14
        to = header[at + 1 : at + 1 + header[at]].decode()
        assert server.next_frame()[1] == BODY
        server.sock.sendall(publish("", to, BODY))
        client.wait(DELIVER)
        assert client.content() == BODY

    return once


def direct_rpc(port: int) -> Callable[[], None]:
    return rpc(port, is_direct=True)


def prefetch_one(port: int, *, is_persistent: bool = False) -> Callable[[], None]:
    client, publisher = Client(port), Client(port)
    queue = client.declare(f"single.prefetch.{is_persistent}", is_durable=is_persistent)
    message = publish("", queue, BODY, is_persistent=is_persistent)
    publisher.sock.sendall(message * 100)
    client.consume(queue, prefetch=1)
    left = 100

    def once() -> None:
        nonlocal left
        if left < 50:
            publisher.sock.sendall(message * 500)
            left += 500
        found = client.wait(DELIVER)
        assert client.content() == BODY
        client.sock.sendall(ack(tag_of(found)))
        left -= 1

    return once


def prefetch_one_persistent(port: int) -> Callable[[], None]:
    return prefetch_one(port, is_persistent=True)


def confirm(port: int) -> Callable[[], None]:
    client = Client(port)
    queue = client.declare("single.confirm", is_durable=True)
    client.call(method(1, 50, 30, b"\x00\x00" + short(queue) + b"\x00"), (50, 31))
    client.confirms()
    message = publish("", queue, BODY, is_persistent=True)

    def once() -> None:
        client.call(message, ACK)

    return once


def slow_connections(port: int, count: int = 200) -> Callable[[], None]:
    clients = [Client(port) for _ in range(count)]
    queue = clients[0].declare("single.slow")
    for client in clients:
        client.confirms()
    message = publish("", queue, BODY)
    at = 0

    def once() -> None:
        nonlocal at
        clients[at].call(message, ACK)
        at = (at + 1) % count

    return once


def connections(port: int) -> Callable[[], None]:
    Client(port).declare("single.connections")

    def once() -> None:
        client = Client(port)
        client.sock.sendall(publish("", "single.connections", BODY))
        client.close()

    return once


def channels(port: int) -> Callable[[], None]:
    client = Client(port)

    def once() -> None:
        client.open_channel(2)
        client.call(method(2, 20, 40, b"\x00\xc8\x00\x00\x00\x00\x00"), (20, 41))

    return once


CELLS: dict[str, tuple[Callable[[int], Callable[[], None]], int]] = {
    "get of an empty queue": (empty_get, 4000),
    "get and ack, publish": (get_ack, 4000),
    "RPC, private reply queue": (rpc, 2000),
    "RPC, direct reply-to": (direct_rpc, 2000),
    "prefetch 1, transient": (prefetch_one, 6000),
    "prefetch 1, persistent": (prefetch_one_persistent, 6000),
    "one publish, one confirm, persistent": (confirm, 2000),
    "200 connections, one confirm each": (slow_connections, 4000),
    "connection: open, publish, close": (connections, 200),
    "channel open and close": (channels, 3000),
}


def cpu_s(root: int) -> float:
    """CPU seconds of all threads of a process and of those below it."""
    from brokers import tree

    total = 0
    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def main() -> None:
    port, pid = int(sys.argv[1]), int(sys.argv[2])
    names = sys.argv[3:] or list(CELLS)
    for name in names:
        prepare, count = CELLS[name]
        once = prepare(port)
        for _ in range(max(count // 10, 20)):
            once()
        before, since = cpu_s(pid), time.monotonic()
        for _ in range(count):
            once()
        spent, seconds = cpu_s(pid) - before, time.monotonic() - since
        print(
            json.dumps(
                {"cell": name, "us": round(spent / count * 1e6, 2), "per_s": round(count / seconds)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
