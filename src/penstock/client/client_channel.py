"""ClientChannel: a channel of a connection to a broker, for any number of threads.

What is asked is answered in order, so each question's future stands in a queue, and an answer goes
to the first of it. Apart from that come, unasked:

    basic.ack, nack      to publishers in confirm mode: up to this tag, or this one alone
    basic.return         of a message that no queue got; in confirm mode its ack follows
    basic.deliver        to a consumer, by its tag
    basic.cancel         the broker ended a consumer: its queue is gone
    channel.close        an error: the channel is no more

`publish` in confirm mode gives a future that is True (the broker has it, as safe as it was asked
to be) or False (refused). Operations of Penstock's own (`call`) are answered by call-ok and
call-error, which have a queue of their own: they may take longer than what is asked after them.

A consumer is two callbacks, which the connection's thread calls; they must not wait for anything of
this connection.

Not here: the frames (protocol), waiting (concurrent.futures).
"""

import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from penstock.client.client_errors import ConnectionLostError
from penstock.client.received import Received
from penstock.client.replies import OF_CALLS, call_error, close_error, is_answer
from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
)
from penstock.errors import AMQPError, ChannelError

if TYPE_CHECKING:
    from penstock.client.client_connection import ClientConnection

OnMessage = Callable[[Received], None]
OnEnd = Callable[[Exception], None]

CALL_OVERHEAD_BYTES: Final = 512  # of a frame with a call, more than enough
NO_PROPERTIES: Final = BasicProperties().encode()


def settle(future: "Future[Any]", value: object, error: Exception | None = None) -> None:
    """Give a future its outcome, unless it has one or nobody wants it any more."""
    if not future.done() and future.set_running_or_notify_cancel():
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


class ClientChannel:
    """See the head of this module. on_return(message): it was published with `mandatory`, and no
    queue got it."""

    def __init__(self, connection: "ClientConnection", number: int) -> None:
        self.connection = connection
        self.number: int = number
        self.error: Exception | None = None  # why it is no more
        self.has_confirms: bool = False
        self.on_return: OnMessage | None = None
        self._lock = connection.lock
        self._answers: deque[Future[Method | Received]] = deque()
        self._calls: deque[Future[object]] = deque()
        self._confirms: dict[int, Future[bool]] = {}  # in the order of their tags
        self._next_tag = 1
        self._consumers: dict[str, tuple[OnMessage, OnEnd]] = {}
        self._next_consumer = 1

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.error is None

    # ---- asking --------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask for the channel; done by the connection."""
        self.ask(ChannelOpen())

    def ask(self, method: Method) -> "Future[Method | Received]":
        """Send a method that has an answer: its future. An error of the channel or the connection
        goes there too, ConnectionLostError and the like."""
        future: Future[Method | Received] = Future()
        with self._lock:
            if not self._fails(future):
                self._answers.append(future)
                self._post(self._answers, method)
        return future

    def tell(self, method: Method) -> None:
        """Send a method that has no answer, as basic.ack. The error of the channel, if it is no
        more."""
        with self._lock:
            if self.error is not None:
                raise self.error
            self.connection.send(self.number, method)

    def call(self, op: str, arguments: dict[str, object]) -> "Future[object]":
        """An operation of Penstock's own: its future, a value as of JSON. ChannelError: it was
        refused, and the channel stays open."""
        future: Future[object] = Future()
        data = json.dumps(arguments).encode()
        if len(data) > self.connection.frame_max - CALL_OVERHEAD_BYTES:
            raise ValueError(f"arguments of {len(data)} bytes do not fit into a frame")
        with self._lock:
            if not self._fails(future):
                self._calls.append(future)
                self._post(self._calls, PenstockCall(op=op, arguments=data))
        return future

    def _fails(self, future: "Future[Any]") -> bool:
        error = self.error or self.connection.error
        if error is not None:
            settle(future, None, error)
        return error is not None

    def _send(self, method: Method) -> None:
        """What cannot be sent any more ends the channel, and so the futures."""
        try:
            self.connection.send(self.number, method)
        except (ConnectionLostError, AMQPError) as error:
            self.on_end(error)

    def _post(self, waiting: "deque[Future[Any]]", method: Method) -> None:
        """Send what the last future of this queue waits for. What could not be written (a name that
        is too long) is not waited for; what was interrupted may have been sent in part."""
        try:
            self._send(method)
        except Exception:
            waiting.pop()
            raise
        except BaseException:
            self.connection.abort()
            raise

    # ---- publishing ----------------------------------------------------------------------------

    def select_confirms(self) -> "Future[Method | Received]":
        """From now on `publish` gives futures."""
        with self._lock:
            self.has_confirms = True
            return self.ask(ConfirmSelect())

    def publish(
        self, exchange: str, routing_key: str, body: bytes,
        properties: BasicProperties | bytes = NO_PROPERTIES, *, mandatory: bool = False,
    ) -> "Future[bool] | None":  # fmt: skip
        """Publish a message. In confirm mode: a future that says whether the broker took it. Never
        waits: a publisher without confirms calls `connection.wait_for_room` now and then."""
        header = properties if isinstance(properties, bytes) else properties.encode()
        method = BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        with self._lock:
            if not self.has_confirms:
                if self.error is not None:
                    raise self.error
                self.connection.send_content(self.number, method, header, body)
                return None
            future: Future[bool] = Future()
            if self._fails(future):
                return future
            tag = self._next_tag
            self._confirms[tag] = future
            try:
                self.connection.send_content(self.number, method, header, body)
                self._next_tag = tag + 1
            except (ConnectionLostError, AMQPError) as error:
                self.on_end(error)
            except Exception:
                del self._confirms[tag]
                raise
            except BaseException:
                self.connection.abort()
                raise
            return future

    # ---- getting -------------------------------------------------------------------------------

    def get(self, queue: str, *, no_ack: bool = False) -> "Future[Received | None]":
        """basic.get: the next message, None if there is none."""
        found: Future[Received | None] = Future()

        def answered(answer: "Future[Method | Received]") -> None:
            error = answer.exception()
            if error is not None:
                assert isinstance(error, Exception)
                settle(found, None, error)
                return
            message = answer.result()
            settle(found, None if isinstance(message, BasicGetEmpty) else message)

        self.ask(BasicGet(queue=queue, no_ack=no_ack)).add_done_callback(answered)
        return found

    def consume(
        self, queue: str, on_message: OnMessage, on_end: OnEnd, *, no_ack: bool = False,
        exclusive: bool = False, arguments: dict[str, object] | None = None,
    ) -> tuple[str, "Future[Method | Received]"]:  # fmt: skip
        """Begin to consume: the consumer's tag, and a future that is done when the broker agrees.

        on_message(message): in the connection's thread. on_end(error): the consumer is no more,
        because its queue, the channel or the connection is not; not after `cancel`.
        """
        with self._lock:
            tag = f"penstock-{self.number}-{self._next_consumer}"
            self._next_consumer += 1
            self._consumers[tag] = (on_message, on_end)
            method = BasicConsume(
                queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive,
                arguments=arguments or {},
            )  # fmt: skip
            begun = self.ask(method)
        return tag, begun

    def cancel(self, tag: str) -> "Future[Method | Received]":
        """End a consumer. What was on its way until the future is done still comes."""
        return self.ask(BasicCancel(consumer_tag=tag))

    def forget_consumer(self, tag: str) -> None:
        """Its callbacks are not called any more; what still comes to it goes back to its queue."""
        self._consumers.pop(tag, None)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to it."""
        self.tell(BasicAck(delivery_tag=delivery_tag, multiple=multiple))

    def reject(self, delivery_tag: int, *, requeue: bool) -> None:
        """Give a delivery back to its queue, or away."""
        self.tell(BasicReject(delivery_tag=delivery_tag, requeue=requeue))

    # ---- the connection's thread ---------------------------------------------------------------

    def on_method(self, method: Method) -> None:
        """A method came; in the connection's thread."""
        if isinstance(method, OF_CALLS):
            self._answered_call(method)
        elif is_answer(method):
            if self._answers:
                settle(self._answers.popleft(), method)
        elif isinstance(method, BasicNack):
            self._confirmed(method.delivery_tag, method.multiple, is_taken=False)
        elif isinstance(method, BasicCancel):
            found = self._consumers.pop(method.consumer_tag, None)
            if found is not None:
                text = f"the queue of consumer '{method.consumer_tag}' is gone"
                found[1](ChannelError(404, text))
        elif isinstance(method, ChannelFlow):
            self._send(ChannelFlowOk(active=method.active))
        elif isinstance(method, ChannelClose):
            self._send(ChannelCloseOk())
            self.on_end(close_error(method))
        elif isinstance(method, ChannelCloseOk):
            self.connection.forget_channel(self)

    def on_acks(self, tags: list[int], multiples: list[bool]) -> None:
        """Confirms came; in the connection's thread."""
        for tag, is_multiple in zip(tags, multiples, strict=True):
            self._confirmed(tag, is_multiple, is_taken=True)

    def on_message(self, method: Method, header: bytes, body: bytes) -> None:
        """A message came; in the connection's thread."""
        message = Received(method, header, body)
        if isinstance(method, BasicReturn):
            if self.on_return is not None:
                self.on_return(message)
        elif message.consumer_tag:
            found = self._consumers.get(message.consumer_tag)
            if found is not None:
                found[0](message)
            else:
                self.reject(message.delivery_tag, requeue=True)
        elif self._answers:
            settle(self._answers.popleft(), message)

    def on_end(self, error: Exception) -> None:
        """It is no more: whoever waits gets the error, and its number is free."""
        with self._lock:
            self._finish(error)
            self.connection.forget_channel(self)

    def _finish(self, error: Exception) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting: list[Future[Any]] = [*self._answers, *self._calls, *self._confirms.values()]
            consumers = list(self._consumers.values())
            for some in (self._answers, self._calls, self._confirms, self._consumers):
                some.clear()
        for future in waiting:
            settle(future, None, error)
        for _, ended in consumers:
            ended(error)

    def _answered_call(self, method: Method) -> None:
        if not self._calls:
            return
        future = self._calls.popleft()
        if isinstance(method, PenstockCallOk):
            try:
                settle(future, json.loads(method.result))
            except ValueError as error:
                settle(future, None, ChannelError(502, f"a result that is no JSON: {error}"))
        elif isinstance(method, PenstockCallError):
            settle(future, None, call_error(method))

    def _confirmed(self, tag: int, multiple: bool, *, is_taken: bool) -> None:
        with self._lock:
            if multiple:
                tags = []
                for one in self._confirms:
                    if one > tag:
                        break
                    tags.append(one)
            else:
                tags = [tag] if tag in self._confirms else []
            futures = [self._confirms.pop(one) for one in tags]
        for future in futures:
            settle(future, is_taken)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it, without waiting. What is unacknowledged goes back to its queues; whoever waits
        for an answer gets a ChannelError, for none comes any more."""
        with self._lock:
            if self.error is None:
                self._send(ChannelClose(reply_code=200, reply_text="Goodbye"))
                self._finish(ChannelError(504, "the channel was closed"))

    def __repr__(self) -> str:
        return f"<ClientChannel {self.number} of {self.connection.url}>"
