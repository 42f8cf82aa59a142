"""Publishing from Python: what a confirmed message costs with `penstock.open` and with pika.

    python bench/publishers.py PORT PID CLIENT [--scale S]    prints one line of JSON for each cell

CLIENT is "penstock" or "pika". Measured is the CPU of this process and of the broker's process tree
together, per message of 256 B, persistent and mandatory, into a durable queue. One at a time: each
waits for its confirm. In a window: at most 1,000 are unconfirmed, which pika's SelectConnection
leaves to its user to keep. `make bench ARGS='--part single --only publishers'` runs both in turn.
"""

import argparse
import json
import time
from collections.abc import Callable

import pika
from single import cpu_s

import penstock

BODY = b"b" * 256
QUEUE, STREAM = "publishers", "publishers.stream"
WINDOW = 1000
AT_ONCE = 10_000
ONE, MANY, APPENDED = "one at a time", "window of 1,000", "append_many, window of 1,000"
COUNTS = {ONE: 5_000, MANY: 200_000, APPENDED: 200_000}

Publish = Callable[[int], None]


def measured(cell: str, publish: Publish, pid: int, scale: float) -> None:
    """Publish some for warmth, then those that count, and print the cell."""
    count = max(int(COUNTS[cell] * scale), 100)
    publish(count // 10)
    broker_s, own_s = cpu_s(pid), time.process_time()
    publish(count)
    own_s = time.process_time() - own_s
    us = (own_s + cpu_s(pid) - broker_s) / count * 1e6
    found = {"cell": cell, "us": round(us, 2), "client_us": round(own_s / count * 1e6, 2)}
    print(json.dumps(found), flush=True)


def by_penstock(port: int, pid: int, scale: float) -> None:
    with penstock.open(f"amqp://guest:guest@127.0.0.1:{port}/") as box:
        queue, stream = box.queue(QUEUE), box.stream(STREAM)

        def one(count: int) -> None:
            for _ in range(count):
                queue.put(BODY)

        def many(count: int) -> None:
            for at in range(0, count, AT_ONCE):
                queue.put_many([BODY] * min(AT_ONCE, count - at))

        def appended(count: int) -> None:
            for at in range(0, count, AT_ONCE):
                stream.append_many([BODY] * min(AT_ONCE, count - at))

        for cell, publish in ((ONE, one), (MANY, many), (APPENDED, appended)):
            measured(cell, publish, pid, scale)
        assert queue.purge()
        queue.delete()
        stream.delete()


class Pipelined:
    """pika with a window: a SelectConnection that publishes as confirms come."""

    def __init__(self, parameters: pika.ConnectionParameters) -> None:
        self._sent = self._confirmed = self._end = 0
        self._connection = pika.SelectConnection(
            parameters, on_open_callback=lambda made: made.channel(on_open_callback=self._opened)
        )
        self._connection.ioloop.start()  # until the channel confirms

    def _opened(self, channel: pika.channel.Channel) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._stop())

    def _stop(self) -> None:
        self._connection.ioloop.stop()

    def _on_confirm(self, frame: pika.frame.Method) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        self._confirmed = frame.method.delivery_tag
        if self._confirmed >= self._end:
            self._stop()
        self._fill()

    def _fill(self) -> None:
        while self._sent < min(self._end, self._confirmed + WINDOW):
            self._channel.basic_publish("", QUEUE, BODY, PERSISTENT, mandatory=True)
            self._sent += 1

    def publish(self, count: int) -> None:
        self._end = self._sent + count
        self._fill()
        self._connection.ioloop.start()


PERSISTENT = pika.BasicProperties(delivery_mode=2)


def by_pika(port: int, pid: int, scale: float) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare(QUEUE, durable=True)
    channel.confirm_delivery()

    def one(count: int) -> None:
        for _ in range(count):
            channel.basic_publish("", QUEUE, BODY, PERSISTENT, mandatory=True)

    measured(ONE, one, pid, scale)
    connection.close()
    measured(MANY, Pipelined(parameters).publish, pid, scale)
    connection = pika.BlockingConnection(parameters)
    connection.channel().queue_delete(QUEUE)
    connection.close()


CLIENTS = {"penstock": by_penstock, "pika": by_pika}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("port", type=int)
    parser.add_argument("pid", type=int)
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--scale", type=float, default=1.0)
    given = parser.parse_args()
    CLIENTS[given.client](given.port, given.pid, given.scale)


if __name__ == "__main__":
    main()
