"""VHostRig: a vhost alone, on a simulated disk, with a clock that tests move; no clients.

Consumers are stand-ins: they are ready or not, and keep what they were given. `restart` is a stop
in order, `crash` is not; both open the vhost again on what is left. `answered` waits until what was
declared would be answered to a client.
"""

import random

from penstock.broker.broker_queue import BrokerQueue, Consumer, ConsumerChannel, QueueOrStream
from penstock.broker.exactly_once.leases import lease_manager
from penstock.broker.vhost import VHost, VHostSettings
from penstock.clock import ManualClock
from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.tiny_engine import OPTIONS, PATH, VHOST, make_vhost

MODE = DISK
TURNS_MAX = 1000


class TakingChannel(ConsumerChannel):
    """Keeps what its consumers are given, and which of them were cancelled."""

    def __init__(self) -> None:
        self.can_deliver = True
        self.given: list[tuple[str, Delivery]] = []
        self.gone: list[str] = []

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        self.given.append((consumer.tag, delivery))

    def cancelled(self, consumer: Consumer) -> None:
        self.gone.append(consumer.tag)

    def settle(self, settled: int) -> bool:
        return False

    def bodies(self) -> list[bytes]:
        """Of what was given."""
        return [delivery.message.body or b"" for _, delivery in self.given]


class VHostRig:
    """See the head of this module. `vhost` is the one that is open."""

    def __init__(
        self, fs: FaultyFileSystem | None = None, *, memory_bytes: int = 64 << 20,
        is_strict: bool = False, storage: StorageOptions = OPTIONS, mode: int = MODE,
        path: str = PATH,
    ) -> None:  # fmt: skip
        self.fs = FaultyFileSystem(seed=1) if fs is None else fs
        self.path = path
        if not self.fs.exists(path):
            make_vhost(self.fs)
        self.clock = ManualClock()
        self.settings = VHostSettings(mode, memory_bytes, is_strict, storage)
        self.events: list[tuple[str, str]] = []
        self.seed = 1
        self.is_due = False
        self.vhost = self._open()

    def _open(self) -> VHost:
        self.seed += 1
        vhost = VHost(
            self.fs, self.path, VHOST.decode(), self.settings, clock=self.clock,
            rng=random.Random(self.seed),
            on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip
        lease_manager(vhost)
        vhost.wake = self._wake
        return vhost

    def _wake(self) -> None:
        self.is_due = True

    def restart(self) -> VHost:
        """Stop in order; `verify` finds nothing wrong; open again."""
        self.vhost.close()
        report = verify(self.fs, self.path)
        assert report.is_fine, [f"{p.path}: {p.position}: {p.text}" for p in report.problems]
        self.vhost = self._open()
        return self.vhost

    def crash(self, mode: str = "lost") -> VHost:
        """The machine or the process dies; open what is left."""
        self.fs = self.fs.crash(mode, random.Random(self.seed))
        self.vhost = self._open()
        return self.vhost

    def answered(self, lsn: int) -> None:
        """Turns until this would be answered."""
        done: list[int] = []
        if lsn:
            self.vhost.dispatch.when_settled(lsn, self.vhost.mode, lambda: done.append(lsn))
        self.turn()
        for _ in range(TURNS_MAX):
            if done or not lsn:
                return
            self.vhost.engine.poll(wait=True)
            self.turn()
        raise AssertionError(f"LSN {lsn} is never settled")

    def turn(self) -> None:
        """Turns until there is nothing more to do at once."""
        for _ in range(TURNS_MAX):
            self.is_due = False
            if not self.vhost.turn() and not self.is_due:
                return
        raise AssertionError("it never comes to rest")

    def tick(self, seconds: float = 0.0) -> None:
        """Time passes."""
        self.clock.advance(seconds)
        for _ in range(TURNS_MAX):
            if self.vhost.tick() > 0.001:
                break
        self.turn()

    def told(self, kind: str) -> list[str]:
        """The texts of the events of that kind."""
        return [text for k, text in self.events if k == kind]

    # ---- queues and messages -------------------------------------------------------------------

    def queue(self, name: str = "q", **how: object) -> BrokerQueue:
        """A queue, durable unless it is said otherwise; answered."""
        given: dict[str, object] = {"durable": True, **how}
        queue, lsn = self.vhost.declare_queue(name, **given)  # type: ignore[arg-type]
        self.answered(lsn)
        return classic(queue)

    def put(self, queue: QueueOrStream, *bodies: bytes, **how: int) -> None:
        """Publish to this queue, confirmed."""
        amq = classic(queue).amq
        for body in bodies:
            self.answered(amq.publish(b"", body, self.vhost.mode, **how))
        self.vhost.dispatch.mark(queue)

    def consume(
        self, queue: QueueOrStream, channel: TakingChannel, tag: str = "c", *, no_ack: bool = True
    ) -> Consumer:
        """A consumer."""
        consumer = Consumer(
            tag, channel, queue, no_ack=no_ack, is_exclusive=False, priority=0, prefetch=0,
            arguments={},
        )  # fmt: skip
        queue.attach(consumer)
        self.vhost.dispatch.mark(queue)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """basic.cancel."""
        consumer.queue.consumers.remove(consumer)
        self.vhost.table.consumer_gone(consumer.queue)

    def bodies(self, queue: QueueOrStream) -> list[bytes]:
        """Of all that is ready, in order; nothing changes."""
        return [d.message.body or b"" for d in classic(queue).amq.browse(None, TURNS_MAX)]


def classic(queue: QueueOrStream | None) -> BrokerQueue:
    """The same, which is there and no stream."""
    assert isinstance(queue, BrokerQueue)
    return queue
