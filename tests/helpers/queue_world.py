"""World: an engine with BackingQueues, which tests close and open again, in order or not.

Messages have numbers, and their bodies say which; so a test can tell what came out by a list of
numbers, and every body that is looked at is checked. A queue comes from an ``Opener`` with any
limits and modes, and `page` lets it page out to the end: nothing here depends on where its messages
are. Bodies are as long as ``body_bytes`` says, so that they stand in the queue's own segments or in
the store.
"""

from collections.abc import Callable
from typing import Final

from penstock.queues.backing_queue import BackingQueue, Delivery, ReadyHead
from penstock.storage.files.durability import DISK
from tests.helpers.engine_rig import EngineRig

STEPS_MAX: Final = 10_000  # of paging: more is a hang

Opener = Callable[[EngineRig, bytes, bool], BackingQueue]  # rig, name, is_durable


class World:
    """An engine with queues. `q` is the one that most tests use."""

    def __init__(self, rig: EngineRig, opens: Opener, body_bytes: int = 0) -> None:
        self.rig = rig
        self._opens = opens
        self._body_bytes = body_bytes
        self.queues: dict[bytes, BackingQueue] = {}
        self.q = self.open(b"q")

    def open(self, name: bytes, *, is_durable: bool = True) -> BackingQueue:
        """The queue of this name, with its first block of deliveries reserved for good."""
        self.queues[name] = self._opens(self.rig, name, is_durable)
        self.rig.engine.sync()
        return self.queues[name]

    def body(self, i: int) -> bytes:
        """The body of message i."""
        return (b"m%d;" % i).ljust(self._body_bytes, b".")

    def put(self, *numbers: int, mode: int = DISK, queue: BackingQueue | None = None) -> list[int]:
        """Publish messages of these numbers, with a header each. Returns the tags."""
        q = queue or self.q
        tags = [q.publish(b"h%d" % i, self.body(i), mode) for i in numbers]
        self.page()
        return tags

    def page(self) -> None:
        """Let every queue page out until it has done."""
        for q in self.queues.values():
            for _ in range(STEPS_MAX):
                if not q.resume():
                    break
            else:
                raise AssertionError("paging out never ends")

    def inhale(self) -> None:
        """Let every queue read ahead until it has done."""
        for q in self.queues.values():
            for _ in range(STEPS_MAX):
                if not q.inhale():
                    break
                self.rig.engine.poll(wait=True)
            else:
                raise AssertionError("reading ahead never ends")

    def fetch(self, queue: BackingQueue | None = None, *, ack_required: bool = True) -> Delivery:
        """The next message, waited for."""
        q = queue or self.q
        for _ in range(STEPS_MAX):
            delivery = q.fetch(ack_required=ack_required)
            if delivery is not None:
                return delivery
            held = q.held()
            assert held is not None, "nothing is there, and nothing to wait for"
            self.rig.engine.wait(*held)
        raise AssertionError("it is held for ever")

    def take(self, n: int, queue: BackingQueue | None = None) -> list[Delivery]:
        """The next n messages, pending."""
        return [self.fetch(queue) for _ in range(n)]

    def drain(self, queue: BackingQueue | None = None) -> list[int]:
        """The numbers of all that is ready, which is dequeued; every body and header is right."""
        q = queue or self.q
        numbers = self.numbers([self.fetch(q, ack_required=False) for _ in range(q.len())])
        assert q.len() == 0
        assert q.fetch() is None
        return numbers

    def numbers(self, deliveries: list[Delivery]) -> list[int]:
        """Which messages these are."""
        found: list[int] = []
        for delivery in deliveries:
            body = delivery.message.body
            assert body is not None
            number = int(body[1 : body.index(b";")])
            assert body == self.body(number)
            assert delivery.message.size == len(body)
            found.append(number)
        return found

    def seen(self, queue: BackingQueue | None = None) -> list[tuple[int, bool]]:
        """(number, is it pending) of all that is in the queue, by `fold`."""
        found: list[tuple[int, bool]] = []

        def look(delivery: Delivery, is_pending: bool, acc: int) -> tuple[bool, int]:
            found.extend((number, is_pending) for number in self.numbers([delivery]))
            return True, acc + 1

        assert (queue or self.q).fold(look, 0) == len(found)
        return found

    def settle(self) -> None:
        """Everything is durable."""
        self.rig.engine.sync()

    def restart(self) -> None:
        """Stop in order, verify, open again; transient queues are gone."""
        for q in self.queues.values():
            q.terminate()
        self.rig.restart()
        self._reopen()

    def crash(self, mode: str = "lost") -> None:
        """Power fails ("lost") or the process dies ("kept"); open what is left."""
        self.rig.crash(mode)
        self._reopen()

    def _reopen(self) -> None:
        names = [name for name, q in self.queues.items() if q.index().is_durable]
        self.queues = {}
        for name in names:
            self.open(name)
        self.q = self.queues[b"q"]


def up_to(n: int) -> Callable[[ReadyHead], bool]:
    """A predicate that says yes n times, then no."""
    left = iter(range(n))
    return lambda _: next(left, None) is not None


def tags_of(deliveries: list[Delivery]) -> list[int]:
    return [delivery.tag for delivery in deliveries]
