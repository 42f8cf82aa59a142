"""Publisher: what one task of the Spark sink sends, at least once, with confirms.

The broker confirms a message when it is as safe as its durability mode says. Up to `in_flight` rows
are ahead of their confirms; `finish` returns when all are confirmed, and nothing less is success:

    nack, returned (no queue took it)     the task fails, with the broker's words
    no confirm in `timeout` seconds       the task fails; a broker that is short of memory or disk
                                          blocks its publishers, and says why
    the connection is lost                a new one is made, for `timeout` seconds; what was not
                                          confirmed is sent again, so it may be there twice

A connection is made once in a Python worker of Spark, kept for its next tasks, and made anew when
it has been lost. A task has a channel of its own on it. Workers are forked, and a connection is of
the process that made it: a child makes its own.

Not here: rows (sink.py), what the options mean (sink_options.py).
"""

import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from penstock.client import ClientChannel, ClientConnection, Received, connect
from penstock.client.amqp_url import AmqpUrl
from penstock.embedded.library_errors import ConnectionLostError, UnreachableError
from penstock.errors import AMQPConnectionError, PenstockError
from penstock.spark.sink_options import SinkOptions

BACK_OFF_S: Final = 0.2
IN_FLIGHT_BYTES: Final = 16 << 20
GOING_DOWN: Final = (320, 541)  # reply codes of a broker that ends a connection on its own account

Row = tuple[str, str, bytes, bytes]  # exchange, routing key, body, properties as on the wire

_connections: dict[str, ClientConnection] = {}


class PublishError(PenstockError):
    """Rows were not taken: what was to be published where, and why it failed."""


class Publisher:
    """See the head of this module. sleep, monotonic: of `time`, but for tests."""

    def __init__(
        self, options: SinkOptions, *, sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._options = options
        self._url = AmqpUrl.of(options.url, os.environ)
        self._sleep = sleep
        self._monotonic = monotonic
        self._waiting: deque[tuple[Future[bool], Row]] = deque()
        self._waiting_bytes = 0
        self._returned: Received | None = None
        self._channel: ClientChannel | None = None
        self.confirmed = 0

    def publish(self, exchange: str, routing_key: str, body: bytes, properties: bytes) -> None:
        """Send one; waits when too many are ahead of their confirms. PublishError."""
        row = (exchange, routing_key, body, properties)
        self._waiting.append((self._send(row), row))
        self._waiting_bytes += len(body)
        while (
            len(self._waiting) > self._options.in_flight_max
            or self._waiting_bytes > IN_FLIGHT_BYTES
        ):
            self._settle_oldest()

    def finish(self) -> None:
        """Wait for all confirms, and give the channel back. PublishError."""
        while self._waiting:
            self._settle_oldest()
        self._check_returned()
        self.close()

    def close(self) -> None:
        """Give the channel back; what has no confirm has none."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    # ---- confirms ------------------------------------------------------------------------------

    def _settle_oldest(self) -> None:
        future, row = self._waiting[0]
        try:
            is_taken = future.result(self._options.timeout_s)
        except TimeoutError:
            raise self._failed(self._silence()) from None
        except (ConnectionLostError, AMQPConnectionError) as error:
            self._again(error)
            return
        except PenstockError as error:
            raise self._failed(str(error)) from None
        self._check_returned()
        if not is_taken:
            raise self._failed("the broker refused it (basic.nack)")
        self._waiting.popleft()
        self._waiting_bytes -= len(row[2])
        self.confirmed += 1

    def _check_returned(self) -> None:
        message = self._returned
        if message is None:
            return
        if self._options.queue is not None:
            raise self._failed("there is no such queue: declare it first")
        raise self._failed(
            f"no queue got the row with routing key {message.routing_key!r} ({message.reply_text})"
        )

    def _silence(self) -> str:
        reason = self._channel.connection.blocked_reason if self._channel is not None else ""
        why = f": the broker blocks publishers, {reason}" if reason else ""
        return f"no confirm in {self._options.timeout_s:g} s{why}"

    def _failed(self, why: str) -> PublishError:
        self.close()
        place = f"{self._options.target} at {self._url}"
        return PublishError(
            f"publishing to {place}: {why}; {self.confirmed:,} rows of this task are confirmed"
        )

    # ---- connections ---------------------------------------------------------------------------

    def _send(self, row: Row) -> "Future[bool]":
        exchange, routing_key, body, properties = row
        future = self._opened().publish(
            exchange, routing_key, body, properties, mandatory=self._options.is_mandatory
        )
        assert future is not None
        return future

    def _again(self, error: PenstockError) -> None:
        """The connection is gone: on a new one, all that has no confirm."""
        if isinstance(error, AMQPConnectionError) and error.code not in GOING_DOWN:
            raise self._failed(str(error))
        self._channel = None
        rows = []
        for future, row in self._waiting:
            is_confirmed = future.done() and future.exception() is None and future.result()
            if is_confirmed:
                self.confirmed += 1
                self._waiting_bytes -= len(row[2])
            else:
                rows.append(row)
        self._waiting = deque((self._send(row), row) for row in rows)

    def _opened(self) -> ClientChannel:
        if self._channel is None:
            self._channel = self._open()
        return self._channel

    def _open(self) -> ClientChannel:
        deadline = self._monotonic() + self._options.timeout_s
        while True:
            try:
                channel = connection_to(self._url).channel()
                channel.on_return = self._on_return
                channel.select_confirms()
                return channel
            except (UnreachableError, ConnectionLostError, AMQPConnectionError) as error:
                is_lasting = isinstance(error, AMQPConnectionError) and error.code not in GOING_DOWN
                if is_lasting or self._monotonic() >= deadline:
                    raise self._failed(str(error)) from None
            self._sleep(BACK_OFF_S)

    def _on_return(self, message: Received) -> None:
        """In the connection's thread; its confirm follows."""
        self._returned = self._returned or message


def connection_to(url: AmqpUrl) -> ClientConnection:
    """The connection of this process to there, a new one if there is none that works."""
    key = repr(url)
    connection = _connections.get(key)
    if connection is not None and connection.pid == os.getpid() and connection.is_open:
        return connection
    _connections[key] = connection = connect(url)
    return connection
