"""kill -9 of a whole broker while clients append to streams and read by name.

What was confirmed is there, once, in order; the named reader goes on at or before the first record
that it had not acknowledged.
"""

import threading
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from tests.helpers.live_broker import LiveBroker, wait_until

pytestmark = [pytest.mark.crash, pytest.mark.real]

STREAM = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 65_536}
KILLS = 3


class Appender(threading.Thread):
    """Publishes with confirms, one by one, until the broker is gone. confirmed: how many were."""

    def __init__(self, url: str, begin: int) -> None:
        super().__init__()
        self.url = url
        self.confirmed = begin
        self.sent = begin

    def run(self) -> None:
        try:
            channel = pika.BlockingConnection(pika.URLParameters(self.url)).channel()
            channel.confirm_delivery()
            while True:
                self.sent += 1
                channel.basic_publish("", "s", b"%d " % (self.sent - 1) + b"x" * 500)
                self.confirmed = self.sent
        except (AMQPError, OSError):
            return


def read_all(url: str) -> list[tuple[int, int]]:
    """(offset, number) of all records."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    n = int(channel.queue_declare("s", passive=True).method.message_count)
    channel.basic_qos(prefetch_count=200)
    found: list[tuple[int, int]] = []

    def take(_: object, method: Any, properties: Any, body: bytes) -> None:
        found.append((properties.headers["x-stream-offset"], int(body.partition(b" ")[0])))
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("s", take, arguments={"x-stream-offset": "first"})
    wait_until(lambda: channel.connection.process_data_events(0.05) or len(found) >= n)
    channel.connection.close()
    return found


def read_named(url: str, n: int) -> list[int]:
    """The offsets that the reader "r" is given now, some of them acknowledged."""
    channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
    channel.basic_qos(prefetch_count=20)
    found: list[int] = []

    def take(_: object, method: Any, properties: Any, body: bytes) -> None:
        found.append(properties.headers["x-stream-offset"])
        channel.basic_ack(method.delivery_tag)

    channel.basic_consume("s", take, arguments={"x-stream-reader": "r"})
    wait_until(lambda: channel.connection.process_data_events(0.05) or len(found) >= n)
    channel.connection.close()
    return found


def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        channel = pika.BlockingConnection(pika.URLParameters(broker.url)).channel()
        channel.queue_declare("s", durable=True, arguments=STREAM)
        start = {"x-stream-reader": "r", "x-stream-offset": "first"}
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume("s", lambda *_: None, arguments=start)
        channel.connection.close()
        appended, told = 0, 0
        for _ in range(KILLS):
            appender = Appender(broker.url, appended)
            appender.start()
            wait_until(lambda a=appender, n=appended: a.confirmed >= n + 150)  # type: ignore[misc]
            seen = read_named(broker.url, 30)
            assert seen[0] <= told, "the reader was moved beyond what it acknowledged"
            assert seen == list(range(seen[0], seen[0] + len(seen)))
            told = max(told, seen[-1] + 1)
            broker.kill()
            appender.join()
            broker.start()
            found = read_all(broker.url)
            assert [number for _, number in found[: appender.confirmed]] == list(
                range(appender.confirmed)
            )
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert len(found) <= appender.sent
            appended = len(found)
