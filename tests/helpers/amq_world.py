"""AmqWorld: an engine with AMQQueues, as their owner would have them, on a clock that tests move.

Messages have names, and their bodies are the names; so what is where is a list of names. A queue is
opened with any options over a backing queue of one of two kinds: what the factory makes, or the
ReferenceQueue. `restart` and `crash` open everything again that is durable, parts for delayed
messages included, with the options that the queues had. `everywhere` counts every message in every
queue and every part: the sum that no crash may change.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

from penstock.errors import DiskFullError, QueueFullError
from penstock.message import QueuedMessage
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import BackingQueue, Delivery
from penstock.queues.dead_letter import DeadLetterRoute, Destination, QueueTarget
from penstock.queues.delays import MARK
from penstock.queues.headers import HeaderCodec, PlainHeaders
from penstock.queues.priority_queue import open_backing
from penstock.queues.queue_options import QueueOptions
from penstock.queues.thresholds import Alert
from penstock.storage.files.durability import DISK, OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.reference_queue import ReferenceQueue

STEPS_MAX: Final = 10_000  # of one thing: more is a hang
REFERENCE: Final = "reference"
VARIABLE: Final = "variable"
HEADERS: Final = PlainHeaders()


class FullTaker(QueueTarget):
    """Has no room for dead letters, because the disk is full."""

    def destination(self, header: bytes, priority: int) -> Destination:
        raise DiskFullError("/vhost", 0, 1)

    def accept(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        raise DiskFullError("/vhost", 0, 1)

    def after_dead_letters(self, hops: int = 0) -> None:
        """None have come."""


class AmqWorld:
    """An engine, and AMQQueues by name; `q` is the one named "q", if there is one. mode: of the
    queues and of what is put; headers: their codec."""

    def __init__(
        self, kind: str = VARIABLE, *, mode: int = DISK, rig: EngineRig | None = None,
        headers: HeaderCodec = HEADERS,
    ) -> None:  # fmt: skip
        self.headers = headers
        self.rig = EngineRig() if rig is None else rig
        self.kind = kind
        self.mode = mode
        self.queues: dict[str, AMQQueue] = {}
        self.options: dict[str, QueueOptions] = {}
        self.events: list[tuple[str, str]] = []
        self.alerts: list[Alert] = []
        self.woken: list[bytes] = []
        self.closed: list[BackingQueue] = []
        self.instead: dict[bytes, QueueTarget] = {}  # found instead of the queues of these names
        # Where dead letters of the queues of these names go, instead of to one queue.
        self.routes: dict[str, Callable[[QueueOptions], DeadLetterRoute | None]] = {}

    @property
    def q(self) -> AMQQueue:
        return self.queues["q"]

    @property
    def now_ms(self) -> int:
        return self.rig.clock.wall_ms()

    # ---- queues --------------------------------------------------------------------------------

    def open(self, name: str = "q", *, is_durable: bool = True, **options: object) -> AMQQueue:
        """Open a queue with these options, declared if it is missing."""
        self.options[name] = QueueOptions.of(options)
        self._open(name, is_durable=is_durable)
        self.rig.engine.sync()
        return self.queues[name]

    def _open(self, name: str, *, is_durable: bool = True) -> None:
        options = self.options[name]
        at = name.encode()
        self.queues[name] = AMQQueue(
            self.rig.engine, at, options,
            self._backing(at, is_durable, priorities=options.priorities),
            headers=self.headers, open_part=self._backing, find=self._find,
            route_of=self.routes.get(name), mode=self.mode, is_durable=is_durable,
            close_part=self.closed.append,
            on_event=lambda kind, text: self.events.append((kind, text)),
            on_alert=self.alerts.append, on_ready=self.woken.append,
        )  # fmt: skip

    def _find(self, name: bytes) -> QueueTarget | None:
        return self.instead.get(name) or self.queues.get(name.decode())

    def _backing(self, name: bytes, is_durable: bool, priorities: int = 0) -> BackingQueue:
        engine = self.rig.engine
        if self.kind == VARIABLE:
            return open_backing(
                engine, name, priorities=priorities, is_durable=is_durable, mode=self.mode
            )
        if not is_durable:
            return ReferenceQueue(engine, engine.declare_queue(name, is_durable=False))
        if name not in engine.state.routing.queues:
            engine.declare_queue(name)
        return ReferenceQueue(engine, engine.queue(name), mode=self.mode)

    def restart(self) -> None:
        """Stop in order, verify, open again."""
        for queue in self.queues.values():
            queue.terminate()
        self.rig.restart()
        self._reopen()

    def crash(self, mode: str = "lost") -> None:
        """Power fails, or the process dies (FaultyFileSystem.crash has the modes); open what is
        left."""
        self.rig.crash(mode)
        self._reopen()

    def _reopen(self) -> None:
        names = [name for name, queue in self.queues.items() if queue.is_durable]
        self.queues = {}
        known = {name.partition(b"\0")[0] for name in self.rig.engine.state.routing.queues}
        for name in names:
            if name.encode() in known:
                self._open(name)

    # ---- messages ------------------------------------------------------------------------------

    def put(
        self, *names: str, queue: str = "q", priority: int = 0, ttl_ms: int | None = None,
        delay_ms: int | None = None, mode: int | None = None, header: bytes = b"",
    ) -> None:  # fmt: skip
        """Publish, and wait until it is confirmed."""
        mode = self.mode if mode is None else mode
        for name in names:
            lsn = self.queues[queue].publish(
                header, name.encode(), mode, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms
            )
            if lsn:
                self.rig.engine.wait(lsn, mode)

    def refused(self, name: str, **how: int) -> QueueFullError:
        """The error that this publish to "q" ends in."""
        try:
            self.q.publish(b"", name.encode(), self.mode, **how)
        except QueueFullError as error:
            return error
        raise AssertionError(f"{name} was not refused")

    def get(self, queue: str = "q") -> Delivery | None:
        """The next message, pending; what it is held for is waited for."""
        q = self.queues[queue]
        for _ in range(STEPS_MAX):
            delivery = q.fetch()
            if delivery is not None:
                return delivery
            if q.has_more_expired:
                continue
            held = q.held()
            if held is None:
                return None
            self.rig.engine.wait(*held)
        raise AssertionError("it is held for ever")

    def take(self, queue: str = "q") -> Delivery:
        """The next message, which is there."""
        delivery = self.get(queue)
        assert delivery is not None, f"nothing is in {queue}"
        return delivery

    def drain(self, queue: str = "q") -> list[str]:
        """The names of all that can be had, which is acknowledged."""
        found: list[str] = []
        while (delivery := self.get(queue)) is not None:
            found.append(name_of(delivery))
            assert self.queues[queue].ack([delivery.tag]) == 1
        return found

    def ready(self, queue: str = "q") -> list[str]:
        """The names of all that is ready, in order; nothing changes."""
        return [name_of(d) for d in self.queues[queue].browse(None, STEPS_MAX)]

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes, and all queues do what is due until nothing is."""
        self.rig.clock.advance(seconds)
        for _ in range(STEPS_MAX):
            has_more = [queue.tick(self.now_ms) for queue in self.queues.values()]
            if not any(has_more):
                return
        raise AssertionError("ticking never ends")

    def settle(self) -> None:
        """Everything is durable."""
        self.rig.engine.sync()

    # ---- the sum -------------------------------------------------------------------------------

    def parts(self, queue: str = "q") -> list[str]:
        """What comes behind the mark in the names of the queue's parts for delayed messages."""
        start = queue.encode() + MARK
        names = self.rig.engine.state.routing.queues
        return sorted(name[len(start) :].decode() for name in names if name.startswith(start))

    def everywhere(self) -> Counter[str]:
        """How often each message is anywhere, pending ones included."""
        found: Counter[str] = Counter()

        def look(delivery: Delivery, is_pending: bool, n: int) -> tuple[bool, int]:
            found[name_of(delivery)] += 1
            return True, n + 1

        for queue in self.queues.values():
            for backing in [queue.backing, *queue.delays.parts()]:
                assert backing.fold(look, 0) == backing.depth()
        return found

    def told(self, kind: str) -> list[str]:
        """The texts of the events of that kind."""
        return [text for k, text in self.events if k == kind]


def name_of(delivery: Delivery) -> str:
    body = delivery.message.body
    assert body is not None
    return body.decode()


__all__ = ["DISK", "HEADERS", "OS", "REFERENCE", "VARIABLE", "AmqWorld", "FullTaker", "name_of"]
