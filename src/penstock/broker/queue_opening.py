"""QueueOpener: makes the AMQQueue of a name: declared anew, or as the directory has it.

Everything that an AMQQueue is given by a vhost is put together here, and nowhere else: its backing
queue and its parts for delayed messages, each registered with the memory monitor; the codec of its
headers; where its dead letters go; whom it tells that something is ready.

A stored queue whose arguments cannot be understood (a later version wrote them) is opened with
none, and that is an event: its messages are worth more than its options.

Not here: which queues there are (queue_table.py), opening one again after its own failure
(queue_restart.py).
"""

from collections.abc import Callable
from functools import partial

from penstock.broker.arguments import decode_arguments
from penstock.broker.dead_letters import DeadLetterRoutes
from penstock.errors import OptionError
from penstock.queues import factory
from penstock.queues.alerts import Alert
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.backing_queue import UNLIMITED, BackingQueue
from penstock.queues.delays import find_parts
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_options import QueueOptions
from penstock.storage.dump_text import queue_title
from penstock.storage.durability import OS
from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex


class QueueOpener:
    """Of one vhost. mode: durability of what moves by itself. routes: where dead letters go.
    on_ready(name): messages became ready by themselves. For people: on_alert, at the threshold of a
    queue's alert and below it again; on_event(kind, text); on_queue_event(name, kind, text), of one
    queue. on_gone(name): it has been deleted.

    opened_seq: number of an index -> its next seq when it was opened; all below was on disk then.
    """

    def __init__(
        self, engine: StorageEngine, monitor: MemoryMonitor, headers: AmqpHeaders, *, mode: int,
        routes: DeadLetterRoutes, on_ready: Callable[[bytes], None],
        on_alert: Callable[[Alert], None], on_event: Callable[[str, str], None],
        on_queue_event: Callable[[str, str, str], None], on_gone: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._monitor = monitor
        self._headers = headers
        self._mode = max(mode, OS)
        self._routes = routes
        self._on_ready = on_ready
        self._on_alert = on_alert
        self._on_event = on_event
        self._on_queue_event = on_queue_event
        self._on_gone = on_gone
        self.opened_seq: dict[int, int] = {}
        self._delay_parts = find_parts(engine.routing.queues)

    def stored(self, name: bytes) -> tuple[dict[str, object], QueueOptions, int]:
        """Arguments, options and flags of a durable queue of the directory. UnknownQueueError."""
        data, flags = factory.stored(self._engine, name)
        try:
            arguments = decode_arguments(data)
            return arguments, QueueOptions.from_arguments(arguments), flags
        except (OptionError, ValueError) as error:
            text = name.decode("utf-8", "replace")
            self._on_event("warning", f"queue {text!r}: its arguments are left out: {error}")
        priorities = factory.priorities_of(self._engine, name) or 0
        return {}, QueueOptions(priorities=priorities), flags

    def stored_arguments(self, name: bytes) -> dict[str, object]:
        """Its arguments alone; {} if they cannot be understood. UnknownQueueError."""
        try:
            return decode_arguments(factory.stored(self._engine, name)[0])
        except ValueError:
            return {}

    def stored_flags(self, name: bytes) -> int:
        """Flags of a durable queue of the directory. UnknownQueueError."""
        return factory.stored(self._engine, name)[1]

    def warn(self, text: str) -> None:
        """Something that people should know."""
        self._on_event("warning", text)

    def tell(self, kind: str, text: str) -> None:
        """Something happened to a queue of the table."""
        self._on_event(kind, text)

    def has_delays(self, name: bytes) -> bool:
        """Whether there are parts for delayed messages that nobody has opened yet."""
        return name in self._delay_parts

    def open(
        self, name: bytes, options: QueueOptions, *, arguments: bytes = b"", flags: int = 0,
        is_durable: bool = True,
    ) -> AMQQueue:  # fmt: skip
        """The queue as the directory has it, or, when it has none, a new one with these arguments
        and flags. OptionError (of the memory limits, if they are strict): nothing happened."""
        engine = self._engine
        on_event = self._teller(name)
        backing = factory.open_backing(
            engine, name, arguments=arguments, flags=flags, priorities=options.priorities,
            is_durable=is_durable, mode=self._mode, policy=options.policy, on_event=on_event,
        )  # fmt: skip
        self.register(backing, options)
        for index in backing.indexes() if is_durable else ():
            self._note_opened(index)
        return AMQQueue(
            engine, name, options, backing, headers=self._headers, open_part=self._open_part,
            route_of=self._routes.of(name), mode=self._mode, is_durable=is_durable,
            close_part=self.close_part, on_event=on_event, on_alert=self._on_alert,
            on_alert_over=self._on_alert, on_ready=self._on_ready,
            delay_parts=self._delay_parts.pop(name, []),
        )  # fmt: skip

    def _teller(self, name: bytes) -> Callable[[str, str], None]:
        """on_event(kind, text) of a queue, or of a part of it."""
        whole = name.partition(factory.SEPARATOR)[0]
        return partial(self._on_queue_event, whole.decode("utf-8", "surrogateescape"))

    def reopen(self, name: bytes, options: QueueOptions, parts: list[bytes]) -> AMQQueue:
        """A durable queue of which another AMQQueue was there before; parts: names of its parts
        for delayed messages."""
        if parts:
            self._delay_parts[name] = parts
        return self.open(name, options)

    def register(self, backing: BackingQueue, options: QueueOptions) -> None:
        """The monitor knows of this one, and of the limit of its own; again: another limit."""
        memory = options.memory_bytes
        self._monitor.register(backing, UNLIMITED if memory is None else memory[0])

    def _open_part(self, name: bytes, is_durable: bool) -> BackingQueue:
        part = factory.open_backing(
            self._engine, name, is_durable=is_durable, mode=self._mode, on_event=self._teller(name)
        )
        self._monitor.register(part)
        if is_durable:
            self._note_opened(part.index())
        return part

    def _note_opened(self, index: QueueIndex) -> None:
        self.opened_seq[index.number] = index.next_seq

    def close_part(self, part: BackingQueue) -> None:
        """A part of delayed messages is about to go."""
        self._monitor.unregister(part)
        self.opened_seq.pop(part.index().number, None)
        if part.info()["is_flowed"]:  # nobody is to wait for it
            name = part.index().name
            text = f"queue {queue_title(name)!r}: the part is gone"
            self._teller(name)("recovered", text)

    def forget(self, amq: AMQQueue) -> None:
        """This queue has been deleted."""
        self._monitor.unregister(amq.backing)
        for index in amq.backing.indexes():
            self.opened_seq.pop(index.number, None)
        self._on_gone(amq.text_name)
