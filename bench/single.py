"""Single messages: the CPU of a server whose wake-ups bring one message each.

And what else a message may meet: expiry, requeue, transactions, fan-out.

    python bench/single.py PORT PID [--scale S] [--profile] [CELL ...]

It prints one line of JSON for each cell.

A client of plain sockets, without a client library, sends one request and waits for its answer.
Measured is the CPU of the server's process tree, so what the client itself takes does not count.
It checks each answer: the kind of method, and the body where there is one. `make bench ARGS='--part
single'` runs it against several brokers in turn (single_bench.py).
"""

import argparse
import json
import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brokers import tree
from cpu_profile import CpuProfile

FRAME_END = b"\xce"
BODY = b"b" * 256
GET_OK, GET_EMPTY, DELIVER, ACK = (60, 71), (60, 72), (60, 60), (60, 80)


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def table(fields: bytes = b"") -> bytes:
    return struct.pack(">I", len(fields)) + fields


def text_field(name: str, value: str) -> bytes:
    return short(name) + b"S" + struct.pack(">I", len(value)) + value.encode()


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
    """One connection with one open channel. context: it is one of TLS."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.sock = context.wrap_socket(self.sock, server_hostname="localhost")
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

    def declare(
        self, queue: str, *, is_durable: bool = False, is_private: bool = False,
        arguments: bytes = b"",
    ) -> str:  # fmt: skip
        """Declare a queue; its name. arguments: a table without its length."""
        flags = (2 if is_durable else 0) | (12 if is_private else 0)
        found = self.call(
            method(1, 50, 10, b"\x00\x00" + short(queue) + bytes([flags]) + table(arguments)),
            (50, 11),
        )
        return found[5 : 5 + found[4]].decode()

    def fresh(self, queue: str, *, is_durable: bool = False, arguments: bytes = b"") -> str:
        """Declare a queue that is empty, whatever an earlier run has left; its name."""
        self.delete(queue)
        return self.declare(queue, is_durable=is_durable, arguments=arguments)

    def ready(self, queue: str) -> int:
        """How many messages of the queue are ready."""
        found = self.call(
            method(1, 50, 10, b"\x00\x00" + short(queue) + b"\x01" + table()), (50, 11)
        )
        return int(struct.unpack_from(">I", found, 5 + found[4])[0])

    def fanout(self, exchange: str, queues: list[str]) -> None:
        """Declare a fanout exchange, bound to these queues."""
        self.call(
            method(1, 40, 10, b"\x00\x00" + short(exchange) + short("fanout") + b"\x00" + table()),
            (40, 11),
        )  # fmt: skip
        for queue in queues:
            where = short(queue) + short(exchange) + short("")
            self.call(method(1, 50, 20, b"\x00\x00" + where + b"\x00" + table()), (50, 21))

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


def requeue(tag: bytes) -> bytes:
    return method(1, 60, 90, tag + b"\x01")


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


def rpc(
    port: int, *, is_direct: bool = False, context: ssl.SSLContext | None = None
) -> Callable[[], None]:
    client, server = Client(port, context), Client(port, context)
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


def rpc_of_twenty(port: int) -> Callable[[], None]:
    """Twenty clients ask at once; one server answers all."""
    server, clients = Client(port), [Client(port) for _ in range(20)]
    queue = server.fresh("single.rpc")
    server.consume(queue, no_ack=True)
    requests = []
    for client in clients:
        private = client.declare("", is_private=True)
        client.consume(private, no_ack=True)
        requests.append((client, publish("", queue, BODY, reply_to=private)))

    def once() -> None:
        for client, request in requests:
            client.sock.sendall(request)
        for _ in requests:
            server.wait(DELIVER)
            _, header = server.next_frame()
            assert server.next_frame()[1] == BODY
            server.sock.sendall(publish("", header[15 : 15 + header[14]].decode(), BODY))
        for client, _ in requests:
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


def paced(port: int, per_s: int) -> Callable[[], None]:
    """As `confirm`, so many times a second."""
    send = confirm(port)
    due = time.monotonic()

    def once() -> None:
        nonlocal due
        send()
        due = max(due + 1 / per_s, time.monotonic() - 0.01)
        time.sleep(max(due - time.monotonic(), 0))

    return once


def slow_connections(port: int, count: int) -> Callable[[], None]:
    clients = [Client(port) for _ in range(count)]
    queue = clients[0].fresh("single.slow")
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


RUN = 500  # publishes that are sent at once where nothing is waited for


def unconfirmed(port: int) -> Callable[[], None]:
    client = Client(port)
    queue = client.fresh("single.unconfirmed", is_durable=True)
    messages = publish("", queue, BODY, is_persistent=True) * RUN

    def once() -> None:
        client.sock.sendall(messages)
        client.ready(queue)

    return once


EXPIRED = 20_000


def expiry(port: int, scale: float) -> Callable[[], None]:
    """All messages of a queue expire at the same time into another queue."""
    client = Client(port)
    dead = client.fresh("single.dead")
    arguments = (
        short("x-message-ttl") + b"I" + struct.pack(">i", 5000)
        + text_field("x-dead-letter-exchange", "") + text_field("x-dead-letter-routing-key", dead)
    )  # fmt: skip
    queue = client.fresh("single.expiring", arguments=arguments)
    count = int(EXPIRED * scale)
    client.sock.sendall(publish("", queue, BODY) * count)
    while client.ready(queue) < count:
        assert not client.ready(dead), "messages have expired before all were published"

    def once() -> None:
        while client.ready(dead) < count:
            time.sleep(0.02)
        client.delete(queue)
        client.delete(dead)

    return once


def requeues(port: int, count: int) -> Callable[[], None]:
    """A consumer that rejects each delivery, in a queue of so many messages."""
    client = Client(port)
    queue = client.fresh("single.requeue")
    client.sock.sendall(publish("", queue, BODY) * count)
    client.ready(queue)
    client.consume(queue)

    def once() -> None:
        rejected = []
        for _ in range(min(count, 50)):
            rejected.append(requeue(tag_of(client.wait(DELIVER))))
            assert client.content() == BODY
        client.sock.sendall(b"".join(rejected))

    return once


def transactions(port: int, count: int) -> Callable[[], None]:
    """A commit after each so many publishes."""
    client = Client(port)
    queue = client.fresh("single.tx", is_durable=True)
    client.call(method(1, 90, 10), (90, 11))
    request = publish("", queue, BODY, is_persistent=True) * count + method(1, 90, 20)

    def once() -> None:
        client.call(request, (90, 21))

    return once


FAN_OUT, FANNED, KIB = 10, 2_000, b"k" * 1024


def fanned(scale: float) -> int:
    """How many messages a fan-out publishes before it is drained: hundreds."""
    return max(int(FANNED * scale) // 100, 1) * 100


def fan_out(port: int) -> Callable[[], None]:
    client = Client(port)
    queues = [client.fresh(f"single.fan.{i}", is_durable=True) for i in range(FAN_OUT)]
    client.fanout("single.fan", queues)
    messages = publish("single.fan", "", KIB, is_persistent=True) * 100

    def once() -> None:
        client.sock.sendall(messages)
        client.ready(queues[0])

    return once


def fan_out_drain(port: int, scale: float) -> Callable[[], None]:
    send = fan_out(port)
    for _ in range(fanned(scale) // 100):
        send()
    client = Client(port)

    def once() -> None:
        for i in range(FAN_OUT):
            client.consume(f"single.fan.{i}", no_ack=True)
            for _ in range(fanned(scale)):
                client.wait(DELIVER)
                assert client.content() == KIB

    return once


@dataclass(frozen=True)
class Cell:
    """prepare(port): returns what is done `count` times. messages: in each of them."""

    prepare: Callable[[int], Callable[[], None]]
    count: int
    messages: int = 1
    is_once: bool = False  # it is done once, without a warm-up


def cells(scale: float) -> dict[str, Cell]:
    """All cells, by their names. scale: of how often each is done."""

    def often(count: int) -> int:
        return max(int(count * scale), 20)

    return {
        "get of an empty queue": Cell(empty_get, often(4000)),
        "get and ack, publish": Cell(get_ack, often(4000)),
        "RPC, private reply queue": Cell(rpc, often(2000)),
        "RPC, direct reply-to": Cell(direct_rpc, often(2000)),
        "RPC, 20 clients": Cell(rpc_of_twenty, often(200), 20),
        "prefetch 1, transient": Cell(prefetch_one, often(6000)),
        "prefetch 1, persistent": Cell(prefetch_one_persistent, often(6000)),
        "one publish, one confirm, persistent": Cell(confirm, often(2000)),
        "1,000 messages/s with confirms": Cell(lambda port: paced(port, 1000), often(2000)),
        "5,000 messages/s with confirms": Cell(lambda port: paced(port, 5000), often(5000)),
        "200 connections, one confirm each": Cell(
            lambda port: slow_connections(port, 200), often(4000)
        ),
        "1,000 connections, one confirm each": Cell(
            lambda port: slow_connections(port, 1000), often(4000)
        ),
        "connection: open, publish, close": Cell(connections, often(200)),
        "channel open and close": Cell(channels, often(3000)),
        "expiry into a dead-letter queue": Cell(
            lambda port: expiry(port, scale), 1, int(EXPIRED * scale), is_once=True
        ),
        "published without confirms, persistent": Cell(unconfirmed, often(100), RUN),
        "fan-out of 1 KiB to 10 queues: publish": Cell(fan_out, often(40), 100),
        "fan-out of 1 KiB to 10 queues: drain": Cell(
            lambda port: fan_out_drain(port, scale), 1, fanned(scale) * FAN_OUT, is_once=True
        ),
        "tx.commit of each message": Cell(lambda port: transactions(port, 1), often(2000)),
        "tx.commit of each 100": Cell(lambda port: transactions(port, 100), often(200), 100),
        "reject and requeue, queue of 1": Cell(lambda port: requeues(port, 1), often(4000)),
        "reject and requeue, queue of 1,000": Cell(
            lambda port: requeues(port, 1000), often(200), 50
        ),
    }


def cpu_s(root: int) -> float:
    """CPU seconds of all threads of a process and of those below it."""
    total = 0
    for pid in tree(root):
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measured(cell: Cell, port: int, pid: int, *, is_profiled: bool = False) -> dict[str, float]:
    """CPU of the server's process tree in µs per message, and messages per second. is_profiled:
    the shares of what it is spent in instead."""
    once = cell.prepare(port)
    if is_profiled:
        with CpuProfile(tree(pid)) as profile:
            for _ in range(cell.count):
                once()
        return profile.parts()
    if not cell.is_once:
        for _ in range(max(cell.count // 10, 20)):
            once()
    before, since = cpu_s(pid), time.monotonic()
    for _ in range(cell.count):
        once()
    spent, seconds = cpu_s(pid) - before, time.monotonic() - since
    number = cell.count * cell.messages
    return {"us": round(spent / number * 1e6, 2), "per_s": round(number / seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int, help="of the server; processes below it count too")
    parser.add_argument("cell", nargs="*", help="the cells to measure [all]")
    parser.add_argument("--scale", type=float, default=1.0, help="of how often each is done")
    parser.add_argument(
        "--profile", action="store_true", help="what the CPU is spent in, by samples of perf"
    )
    given = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    there = cells(given.scale)
    unknown = [name for name in given.cell if name not in there]
    if unknown:
        parser.error(f"no cell {unknown[0]!r}; there are: {', '.join(there)}")
    for name in given.cell or there:
        found = measured(there[name], given.port, given.pid, is_profiled=given.profile)
        print(json.dumps({"cell": name, **found}), flush=True)


if __name__ == "__main__":
    main()
