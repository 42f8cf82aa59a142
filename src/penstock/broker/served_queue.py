"""ServedQueue: a queue as the broker has it: an AMQQueue, who consumes it, and to whom it belongs.

What a queue does with messages is the AMQQueue's (penstock.queues), shared with the embedded
library. What only a broker knows is here: its consumers, the connection that has it to itself, that
it goes with its last consumer or when nobody uses it, and the counters that people look at. What
queues and streams (served_stream.py) have in common as far as clients see it is `Served`.

`serve` does the same before the turn ends: whoever waits is served before a limit, a ttl of 0, a
get, a purge, a cancel or a delete that comes behind the messages, as RabbitMQ does by delivering at
once. It costs a publish nothing unless one of these acts and there are consumers.

`deliver` is what a turn does with a queue: consumers take turns until none is ready or nothing is
left. A queue whose head is held (a transaction's message that is not durable yet, or a first
delivery beyond the settled delivered mark) is marked again when that is settled.

Hot: `deliver` runs for each message delivered.

Not here: when it is called (dispatch.py), declaring and deleting (vhost.py).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.arguments import decode_arguments, encode_arguments
from penstock.broker.consumers import Consumer, Consumers
from penstock.broker.roles import Source
from penstock.errors import DiskFullError
from penstock.native import mypyc_attr
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.priority_queue import PriorityQueue
from penstock.storage.durability import OS

if TYPE_CHECKING:
    from penstock.broker.dispatch import Dispatch

QUEUE_BYTES: Final = 10 << 10  # measured: a queue without messages, in all its places
PART_BYTES: Final = 2 << 10  # measured: a priority more, without a message
OPEN_PART_BYTES: Final = 7 << 10  # measured: what a priority's first message adds to that
QUEUE_SLICE: Final = 1024  # messages that one queue delivers before the others have their turn


@mypyc_attr(allow_interpreted_subclasses=True)
class Served(Source):
    """What clients declare, bind, publish to and consume: a queue, or a stream.

    arguments: as they were declared; kept encoded, and decoded at each call. owner: the connection
    that an exclusive queue belongs to.
    used_at_ms: when it was last declared, got from or consumed (ms since 1970), for x-expires.
    """

    def __init__(
        self, name: str, *, is_durable: bool, is_exclusive: bool, is_auto_delete: bool,
        arguments: dict[str, object], owner: object | None,
    ) -> None:  # fmt: skip
        self.name: str = name
        self.is_durable: bool = is_durable
        self.is_exclusive: bool = is_exclusive
        self.is_auto_delete: bool = is_auto_delete
        self._arguments: bytes = encode_arguments(arguments)
        self.owner: object | None = owner
        self.consumers: Consumers = Consumers(
            is_single_active=arguments.get("x-single-active-consumer") is True
        )
        self.why: str = ""  # it is crashed
        self.parts_bytes: int = 0  # of priorities or partitions besides the first
        self.on_parts: Callable[[int], None] = not_counted  # so many bytes more
        self.had_consumer: bool = False  # an auto-delete queue goes only after its last one
        self.used_at_ms: int = 0
        # Called, once, when a message may be there: whoever waits without being a consumer.
        self.waiters: list[Callable[[], None]] = []
        self.published: int = 0
        self.delivered: int = 0
        self.redelivered: int = 0
        self.acked: int = 0
        self.got: int = 0

    @property
    def arguments(self) -> dict[str, object]:
        """As the queue was declared."""
        return decode_arguments(self._arguments)

    @arguments.setter
    def arguments(self, arguments: dict[str, object]) -> None:
        self._arguments = encode_arguments(arguments)

    @property
    def held_bytes(self) -> int:
        """What the queue takes in RAM without a message in it, about."""
        return QUEUE_BYTES + 2 * len(self._arguments) + self.parts_bytes

    @abstractmethod
    def len(self) -> int:
        """Messages that are ready: those that a queue.declare-ok tells."""

    def check_consume(self, *, prefetch: int, no_ack: bool, is_global: bool) -> None:
        """Whether a channel whose consumers have this prefetch (0: no limit), or one limit for all
        (is_global), may consume. ChannelError, AMQPConnectionError."""

    def attach(self, consumer: Consumer) -> None:
        """One consumer more. ChannelError, AMQPConnectionError: it asks for what is not to be had,
        and nothing happened."""
        self.consumers.add(consumer)
        self.had_consumer = True

    def detach(self, consumer: Consumer) -> None:
        """One consumer less; unknown ones are ignored."""
        self.consumers.remove(consumer)

    def serve(self, most: int = 0) -> int:
        """Deliver at once what consumers have room for; how many messages they would take besides,
        as far as `most`. What they have not got is held, and theirs once it is not. A stream's
        readers miss nothing: there is nothing to be done."""
        return 0

    def cancel_all(self) -> None:
        """It is gone: its consumers are told."""
        self.consumers.cancel_all()

    def wake_waiters(self) -> None:
        """Something may be there, or the queue is gone."""
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                waiter()

    def counters(self) -> dict[str, int]:
        """How many messages were published, delivered, redelivered, got and acknowledged."""
        return {
            "publish": self.published,
            "deliver": self.delivered,
            "redeliver": self.redelivered,
            "get": self.got,
            "ack": self.acked,
        }


class ServedQueue(Served):
    """One queue of a vhost."""

    def __init__(
        self, name: str, amq: AMQQueue, *, is_durable: bool, is_exclusive: bool = False,
        is_auto_delete: bool = False, arguments: dict[str, object] | None = None,
        owner: object | None = None, dispatch: "Dispatch",
    ) -> None:  # fmt: skip
        super().__init__(
            name, is_durable=is_durable, is_exclusive=is_exclusive, is_auto_delete=is_auto_delete,
            arguments=arguments or {}, owner=owner,
        )  # fmt: skip
        self.amq: AMQQueue = amq
        self._dispatch: Dispatch = dispatch
        self._is_delivering: bool = False
        self._failure: Exception | None = None  # of `serve`, raised by the next turn's `deliver`
        amq.serve = self.serve
        self.priorities: int = amq.options.priorities
        backing = amq.backing
        if isinstance(backing, PriorityQueue):
            backing.on_opened = self._part_opened
            self.parts_bytes = PART_BYTES * (len(backing.parts) - 1)
            self.parts_bytes += OPEN_PART_BYTES * (len(backing.opened) - 1)
        self._owed: list[int] = []  # tags of what was delivered without a need to acknowledge it
        self.is_waiting: bool = False  # its head is held, and a call will come when it no longer is
        self.due_ms: int = 0  # the time for which the vhost has noted it

    def len(self) -> int:
        return self.amq.len()

    def _part_opened(self) -> None:
        self.parts_bytes += OPEN_PART_BYTES
        self.on_parts(OPEN_PART_BYTES)

    # ---- delivery ------------------------------------------------------------------------------

    def attach(self, consumer: Consumer) -> None:
        super().attach(consumer)
        self.amq.has_consumers = True

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self._look_at_consumers()

    def cancel_all(self) -> None:
        super().cancel_all()
        self._look_at_consumers()

    def _look_at_consumers(self) -> None:
        self.amq.has_consumers = self.consumers.count > 0
        if not self.consumers.count:
            self.amq.takers = 0

    def serve(self, most: int = 0) -> int:
        consumers = self.consumers
        if not consumers.count:
            return 0
        if not self._is_delivering and self._failure is None and self.amq.backing.len():
            dispatch = self._dispatch
            dispatch.is_serving = True
            try:
                while self.deliver(dispatch) >= QUEUE_SLICE:
                    pass
            except Exception as error:
                if dispatch.engine.failed is not None:
                    raise
                self._failure = error
                dispatch.mark(self)
            finally:
                dispatch.is_serving = False
        return consumers.room(most) if most else 0

    def deliver(self, dispatch: "Dispatch") -> int:
        self._raise_failure()
        amq = self.amq
        consumers = self.consumers
        n = 0
        self._ack_owed()
        done = self._owed
        self._is_delivering = True
        try:
            while consumers.count and amq.backing.len():
                if n >= QUEUE_SLICE:
                    dispatch.mark(self)
                    break
                consumer = consumers.next_ready()
                if consumer is None:
                    break
                if consumer.channel.is_shared and self._is_turn_of_others(consumer, dispatch):
                    break
                delivery = amq.fetch(in_pieces=True)
                if delivery is None:
                    if amq.has_more_expired:
                        dispatch.mark(self)
                    else:
                        self._wait_for_head(dispatch)
                    break
                n += 1
                self.redelivered += delivery.is_redelivered
                consumer.channel.deliver(consumer, delivery)
                if consumer.no_ack:
                    if delivery.message.body is not None:  # else `sent` comes
                        done.append(delivery.tag)
                elif consumer.channel.is_shared and not dispatch.is_serving:
                    dispatch.again(self)
                    break
        finally:
            self._is_delivering = False
            self._ack_owed()
        if n:
            self.delivered += n
            amq.backing.inhale()
        if self.waiters and amq.backing.len():
            self.wake_waiters()
        return n

    def _raise_failure(self) -> None:
        """What `serve` met is this turn's to deal with."""
        failure = self._failure
        if failure is not None:
            self._failure = None
            raise failure

    def _is_turn_of_others(self, consumer: Consumer, dispatch: "Dispatch") -> bool:
        """Whether a place that consumers share is for one of another queue; that queue comes first
        then, and this one again."""
        if consumer.no_ack or dispatch.is_serving or dispatch.is_taking_turns:
            return False
        first = consumer.channel.before(consumer)
        if first is None:
            return False
        dispatch.again(first.source)
        dispatch.again(self)
        return True

    def _ack_owed(self) -> None:
        """Acknowledge what was delivered without a need to. DiskFullError: the log has no room for
        it now, and it stays owed."""
        if self._owed:
            self.amq.ack(self._owed, OS)
            self.acked += len(self._owed)
            self._owed.clear()

    def _wait_for_head(self, dispatch: "Dispatch") -> None:
        held = self.amq.held()
        if held is None or self.is_waiting:
            return
        self.is_waiting = True

        def settled() -> None:
            self.is_waiting = False
            dispatch.mark(self)

        lsn, mode = held
        dispatch.when_settled(lsn, mode, settled)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int]) -> None:
        self.amq.ack(tags, OS)
        self.acked += len(tags)

    def sent(self, tags: list[int]) -> None:
        self._owed += tags
        try:
            self._ack_owed()
        except DiskFullError:
            self._dispatch.without_space(self)

    def requeue(self, tags: list[int]) -> None:
        """Back to their places, one attempt more. Without room to log that, they go back all the
        same, and the attempt is not counted."""
        try:
            self.amq.requeue(tags, OS)
        except DiskFullError:
            self.amq.release(tags, OS)

    def discard(self, tags: list[int]) -> None:
        """Dead-letter them, or drop them. Without room to move one, it goes back to its place."""
        for tag in tags:
            try:
                self.amq.reject(tag, OS)
            except DiskFullError:
                self.amq.release([tag], OS)

    def release(self, tags: list[int]) -> None:
        self.amq.release(tags, OS)

    def give_back(self, tags: list[int]) -> None:
        if self.amq.options.max_attempts is None:
            self.release(tags)
        else:
            self.requeue(tags)


def not_counted(_: int) -> None:
    """Of a queue that no table has."""
