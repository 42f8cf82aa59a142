"""PriorityBox: what tests of the PriorityQueue share: an engine, and a queue of a few priorities.

Bodies are b"priority.text", so they say where they belong; `MIXED` are eight of them as they are
published, `SORTED` the same as they come out.
"""

from penstock.queues.backing_queue import Delivery
from penstock.queues.priority_queue import PriorityQueue, open_backing
from penstock.storage.files.durability import DISK
from tests.helpers.engine_rig import EngineRig

MIXED = [b"1.a", b"3.a", b"0.a", b"2.a", b"3.b", b"1.b", b"0.b", b"2.b"]
SORTED = [b"3.a", b"3.b", b"2.a", b"2.b", b"1.a", b"1.b", b"0.a", b"0.b"]


def opened(rig: EngineRig, n: int = 4) -> PriorityQueue:
    """The queue "q" of n parts; the first block of each mark is settled."""
    q = open_backing(rig.engine, b"q", priorities=n - 1)
    assert isinstance(q, PriorityQueue)
    rig.engine.sync()
    return q


class PriorityBox:
    """An engine and its queue "q" of n parts, 4 unless asked for."""

    def __init__(self, n: int = 4) -> None:
        self.rig = EngineRig()
        self.n = n
        self.q = opened(self.rig, n)

    def put(self, *bodies: bytes, mode: int = DISK) -> list[int]:
        tags = [
            self.q.publish(b"", body, mode, priority=int(body.split(b".")[0])) for body in bodies
        ]
        self.rig.engine.sync()
        self.q.check()
        return tags

    def fetch(self) -> Delivery:
        delivery = self.q.fetch()
        assert delivery is not None
        self.q.check()
        return delivery

    def take(self, n: int) -> list[Delivery]:
        return [self.fetch() for _ in range(n)]

    def drain(self) -> list[bytes]:
        found = bodies(self.take(self.q.len()))
        assert self.q.fetch() is None
        return found

    def seen(self) -> list[tuple[bytes, bool]]:
        found: list[tuple[bytes, bool]] = []

        def look(delivery: Delivery, is_pending: bool, acc: None) -> tuple[bool, None]:
            found.append((delivery.message.body or b"", is_pending))
            return True, None

        self.q.fold(look, None)
        return found

    def stop(self, how: str) -> None:
        if how == "restart":
            self.q.terminate()
            self.rig.restart()
        else:
            self.rig.crash(how)
        self.q = opened(self.rig, self.n)
        self.q.check()


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.body or b"" for delivery in deliveries]


def tags_of(deliveries: list[Delivery]) -> list[int]:
    return [delivery.tag for delivery in deliveries]
