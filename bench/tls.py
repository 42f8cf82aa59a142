"""TLS: what a message costs a broker over TLS, and over a plain connection of the same kind.

    python bench/tls.py PORT PID [--ca FILE] [--scale S]    prints one line of JSON for each cell

--ca makes it a connection of TLS, to a broker whose certificate is of that authority. Messages
have 256 B. `published` has 100 of them in a write and at most 1,000 unconfirmed, `consumed` a
prefetch of 1,000 and an ack for each 100, `one at a time` waits for each confirm, `RPC` for the
answer to each request. Measured is the CPU of the broker's process tree per message, or per request
with its answer, what its TLS takes included. `make bench ARGS='--part tls'` runs it against several
brokers in turn (tls_bench.py).
"""

import argparse
import json
import ssl
from collections.abc import Callable

from single import ACK, BODY, DELIVER, Client, cpu_s, method, publish, rpc, tag_of

AT_ONCE = 100
WINDOW = 1_000
PUBLISHED, CONSUMED, ONE = "published", "consumed", "one at a time"
RPC = "RPC, one client"
MANY, FEW = 60_000, 3_000

Run = Callable[[int], None]


def publishing(
    client: Client, queue: str, *, is_persistent: bool, at_once: int, window: int
) -> Run:
    """Publish so many at a time, with so many unconfirmed."""
    messages = publish("", queue, BODY, is_persistent=is_persistent) * at_once
    client.confirms()
    published = confirmed = 0

    def run(count: int) -> None:
        nonlocal published, confirmed
        last = published + count
        while published < last:
            client.sock.sendall(messages)
            published += at_once
            while confirmed < (published - window if published < last else last):
                confirmed = int.from_bytes(client.wait(ACK)[4:12], "big")

    return run


def consuming(client: Client, queue: str) -> Run:
    """Consume all along, and stop reading after each call."""
    client.consume(queue, prefetch=WINDOW)

    def run(count: int) -> None:
        for i in range(1, count + 1):
            tag = tag_of(client.wait(DELIVER))
            assert client.content() == BODY
            if i % AT_ONCE == 0:
                client.sock.sendall(method(1, 60, 80, tag + b"\x01"))

    return run


def asking(port: int, context: ssl.SSLContext | None) -> Run:
    """Ask for each answer, and wait for it."""
    once = rpc(port, context=context)

    def run(count: int) -> None:
        for _ in range(count):
            once()

    return run


def measured(run: Run, count: int, pid: int) -> float:
    """Do some for warmth; then CPU of the broker in µs per message of those that count."""
    run(count // 10)
    before_s = cpu_s(pid)
    run(count)
    return round((cpu_s(pid) - before_s) / count * 1e6, 2)


def found(
    port: int, pid: int, context: ssl.SSLContext | None, many: int, few: int, is_persistent: bool
) -> dict[str, float]:
    """CPU in µs per message, by what is done with it."""
    queue = Client(port, context).fresh("tls", is_durable=True)

    def publisher(at_once: int, window: int) -> Run:
        client = Client(port, context)
        return publishing(
            client, queue, is_persistent=is_persistent, at_once=at_once, window=window
        )

    us = {PUBLISHED: measured(publisher(AT_ONCE, WINDOW), many, pid)}
    publisher(AT_ONCE, WINDOW)(WINDOW)  # what the consumer is sent beyond those that count
    us[CONSUMED] = measured(consuming(Client(port, context), queue), many, pid)
    us[ONE] = measured(publisher(1, 1), few, pid)
    Client(port, context).delete(queue)
    return us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int, help="of the server; processes below it count too")
    parser.add_argument("--ca", help="a PEM file: over TLS")
    parser.add_argument("--scale", type=float, default=1.0, help="of how many messages")
    given = parser.parse_args()
    context = ssl.create_default_context(cafile=given.ca) if given.ca else None
    many, few = (max(int(n * given.scale) // 1000, 1) * 1000 for n in (MANY, FEW))

    for is_persistent in (False, True):
        kind = "persistent" if is_persistent else "transient"
        for what, us in found(given.port, given.pid, context, many, few, is_persistent).items():
            print(json.dumps({"cell": f"{kind}, {what}", "us": us}), flush=True)
    us = measured(asking(given.port, context), few, given.pid)
    print(json.dumps({"cell": RPC, "us": us}), flush=True)


if __name__ == "__main__":
    main()
