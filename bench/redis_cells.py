"""Redis streams as queues: what a message costs the server. Beside it, the same of Penstock.

    python bench/redis_cells.py KIND PORT PID [--scale S]    prints one line of JSON for each cell

KIND is `redis` or `penstock`. Messages have 256 B; a client of plain sockets sends them and checks
what comes back. `published` has 100 of them in a write and at most 1,000 that are not answered.
`consumed` takes 100 (XREADGROUP; of Penstock a prefetch of 1,000), and acknowledges and removes
them together (XACK and XDEL; one ack). `one at a time` waits for each answer. Measured is the CPU
of the server's process tree per message; `round trip` is the time of one at a time, its median.
"""

import argparse
import json
import socket
import statistics
import time
from typing import Any

from single import BODY, Client
from tls import AT_ONCE, CONSUMED, ONE, PUBLISHED, WINDOW, Run, consuming, measured, publishing

STREAM, GROUP = "bench", "workers"
MANY, FEW = 60_000, 3_000
ROUND_TRIP = "round trip, µs"


class Redis:
    """One connection, that speaks RESP."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self.sock.makefile("rb")

    def reply(self) -> Any:
        """The next answer: bytes, a number, None, or a list of such. Ends the program on an
        error."""
        line = self._file.readline()
        kind, text = line[:1], line[1:-2]
        if kind == b"-" or not line:
            raise SystemExit(f"redis: {text.decode() or 'the server has closed the connection'}")
        if kind == b":":
            return int(text)
        if kind == b"+":
            return text
        count = int(text)
        if count < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(count)]
        return self._file.read(count + 2)[:-2]

    def call(self, *words: str | bytes | int) -> Any:
        self.sock.sendall(command(*words))
        return self.reply()

    def close(self) -> None:
        self._file.close()
        self.sock.close()


def command(*words: str | bytes | int) -> bytes:
    """One command as it goes over the wire."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"*%d\r\n" % len(parts), *(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)])


def adding(client: Redis, *, at_once: int, window: int) -> Run:
    """Add so many at a time, with so many that are not answered."""
    messages = command("XADD", STREAM, "*", "b", BODY) * at_once

    def run(count: int) -> None:
        sent = answered = 0
        while sent < count:
            client.sock.sendall(messages)
            sent += at_once
            while answered < (sent - window if sent < count else count):
                client.reply()
                answered += 1

    return run


def taking(client: Redis) -> Run:
    """Take AT_ONCE, acknowledge and remove them."""
    client.call("XGROUP", "CREATE", STREAM, GROUP, 0)
    ask = ("XREADGROUP", "GROUP", GROUP, "one", "COUNT", AT_ONCE, "STREAMS", STREAM, ">")

    def run(count: int) -> None:
        for _ in range(0, count, AT_ONCE):
            rows = client.call(*ask)[0][1]
            assert len(rows) == AT_ONCE
            assert all(row[1] == [b"b", BODY] for row in rows)
            ids = [row[0] for row in rows]
            client.sock.sendall(command("XACK", STREAM, GROUP, *ids))
            client.sock.sendall(command("XDEL", STREAM, *ids))
            assert client.reply() == client.reply() == AT_ONCE

    return run


def round_trip_us(run: Run, count: int) -> float:
    """The median time of one message."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        run(1)
        times.append(time.perf_counter() - began)
    return round(statistics.median(times) * 1e6, 1)


def cells(many: Run, take: Run, one: Run, pid: int, scale: float) -> dict[str, float]:
    """All of them, of a queue that is empty at first."""
    count = max(int(MANY * scale) // 1000, 1) * 1000
    few = max(int(FEW * scale), 100)
    many(1000)  # warm
    found = {PUBLISHED: measured(many, count, pid)}
    # What the consumer is sent ahead of what it acknowledges is there.
    found[CONSUMED] = measured(take, count, pid)
    found[ONE] = measured(one, few, pid)
    found[ROUND_TRIP] = round_trip_us(one, few)
    return found


def of_redis(port: int, pid: int, scale: float) -> dict[str, float]:
    """The cells of a Redis that is empty."""
    first, second = Redis(port), Redis(port)
    first.call("DEL", STREAM)
    first.call("XADD", STREAM, "0-1", "b", BODY)
    taking_run = taking(second)
    assert first.call("XDEL", STREAM, "0-1") == 1
    found = cells(
        adding(first, at_once=AT_ONCE, window=WINDOW), taking_run,
        adding(first, at_once=1, window=0), pid, scale,
    )  # fmt: skip
    first.call("DEL", STREAM)
    first.close()
    second.close()
    return found


def of_penstock(port: int, pid: int, scale: float) -> dict[str, float]:
    """The cells of a durable queue and persistent messages."""
    queue = Client(port).fresh(STREAM, is_durable=True)
    taken: list[Run] = []

    def take(count: int) -> None:
        if not taken:  # a consumer from now on
            taken.append(consuming(Client(port), queue))
        taken[0](count)

    found = cells(
        publishing(Client(port), queue, is_persistent=True, at_once=AT_ONCE, window=WINDOW), take,
        publishing(Client(port), queue, is_persistent=True, at_once=1, window=1), pid, scale,
    )  # fmt: skip
    Client(port).delete(queue)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["redis", "penstock"])
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int, help="of the server; processes below it count too")
    parser.add_argument("--scale", type=float, default=1.0, help="of how many messages")
    given = parser.parse_args()
    measure = of_redis if given.kind == "redis" else of_penstock
    for what, value in measure(given.port, given.pid, given.scale).items():
        print(json.dumps({"cell": what, "value": value}), flush=True)


if __name__ == "__main__":
    main()
