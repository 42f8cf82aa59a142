"""AMQQueues that retry, delay, expire, overflow and dead-letter, against the sum of their messages.

Every message has a number, and everything that dies goes to a queue without limits. So at any time
each message that was confirmed and not acknowledged is in exactly one place: a queue, a part for
delayed messages, or the dead-letter queue; pending or not. A crash may bring back what was
acknowledged and not settled, and may take what was not confirmed; it never takes or doubles more.

Also asked: nothing is delivered before it is due, or with more attempts than it was nacked, and
once everything is settled, a crash changes nothing at all.
"""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import QueueFullError
from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK, NONE, OS
from tests.helpers.amq_world import REFERENCE, VARIABLE, AmqWorld, name_of
from tests.helpers.engine_rig import STORED, EngineRig

QUEUES: Final = ("jobs", "ranked", "short", "dead")
BUSY: Final = st.sampled_from(("jobs", "ranked", "short"))
DELAYS_MS: Final = st.sampled_from((0, 1, 400, 1000, 5000, 61_000, 4_000_000))
SECONDS: Final = st.sampled_from((0.0, 0.001, 0.4, 1.0, 30.0, 60.0, 3600.0, 80_000.0))
TTLS_MS: Final = st.sampled_from((None, None, 500, 10_000))


class AmqQueueMachine(RuleBasedStateMachine):
    """Queues of both kinds, small segments, memory limits that page out nearly everything."""

    def __init__(self) -> None:
        super().__init__()
        self.next = 0
        self.here: set[str] = set()  # confirmed, not acknowledged
        self.unsure: set[str] = set()  # neither confirmed nor settled: a crash may take it
        self.acked: set[str] = set()  # and not settled: a crash may bring it back
        self.transient: set[str] = set()
        self.due_ms: dict[str, int] = {}  # the least that a crash could have left
        self.nacks: dict[str, int] = {}
        self.pending: list[tuple[str, Delivery]] = []

    @initialize(kind=st.sampled_from((VARIABLE, REFERENCE)), sections=st.booleans())
    def open(self, kind: str, sections: bool) -> None:
        self.world = AmqWorld(kind, rig=EngineRig(sections=sections))
        self.world.open("dead", max_memory_bytes=900)
        self.world.open("jobs", dead_letter_to="dead", max_attempts=3, lazy=True)
        self.world.open(
            "ranked", priorities=2 if kind == VARIABLE else 0, max_length=4,
            dead_letter_to="jobs", retry_delay_ms_min=0, max_memory_bytes=900,
        )  # fmt: skip
        self.world.open(
            "short", max_length_bytes=700, overflow="reject-publish", ttl_ms=70_000,
            dead_letter_to="ranked", max_memory_bytes=900,
        )  # fmt: skip

    # ---- what people do ------------------------------------------------------------------------

    @rule(
        queue=BUSY, delay_ms=DELAYS_MS, ttl_ms=TTLS_MS, priority=st.integers(0, 4),
        is_large=st.booleans(), mode=st.sampled_from((DISK, DISK, OS, NONE)),
        is_waited_for=st.booleans(),
    )  # fmt: skip
    def put(
        self, queue: str, delay_ms: int, ttl_ms: int | None, priority: int, is_large: bool,
        mode: int, is_waited_for: bool,
    ) -> None:  # fmt: skip
        self.next += 1
        name = f"{self.next}".ljust(STORED if is_large else 0, ".")
        try:
            lsn = self.world.queues[queue].publish(
                b"", name.encode(), mode, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms
            )
        except QueueFullError:
            return
        self.due_ms[name] = self.world.now_ms + delay_ms
        self.nacks[name] = 0
        if mode == NONE:
            self.transient.add(name)
        elif is_waited_for:
            self.world.rig.engine.wait(lsn, DISK)
            self.here.add(name)
        else:
            self.unsure.add(name)

    @rule(queue=st.sampled_from(QUEUES))
    def get(self, queue: str) -> None:
        delivery = self.world.get(queue)
        if delivery is None:
            return
        name = name_of(delivery)
        assert self.due_ms[name] <= self.world.now_ms, "it is early"
        assert delivery.attempts <= self.nacks[name]
        assert delivery.is_redelivered or not delivery.attempts
        self.pending.append((queue, delivery))

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        for queue, delivery in self._one(data):
            name = name_of(delivery)
            assert self.world.queues[queue].ack([delivery.tag]) == 1
            if name in self.transient:
                self.transient.discard(name)
            else:
                self.acked.add(name)
                self.here.discard(name)
                self.unsure.discard(name)

    @rule(data=st.data(), delay_ms=st.none() | DELAYS_MS)
    def nack(self, data: st.DataObject, delay_ms: int | None) -> None:
        for queue, delivery in self._one(data):
            self.nacks[name_of(delivery)] += 1
            self.world.queues[queue].nack(delivery.tag, delay_ms=delay_ms)

    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        for queue, delivery in self._one(data):
            if queue == "dead":
                self.world.queues[queue].release([delivery.tag])
            else:
                self.world.queues[queue].reject(delivery.tag)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        for queue, delivery in self._one(data):
            assert self.world.queues[queue].release([delivery.tag]) == 1

    def _one(self, data: st.DataObject) -> list[tuple[str, Delivery]]:
        """One of the pending messages, if there are any."""
        if not self.pending:
            return []
        return [self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))]

    # ---- what time does ------------------------------------------------------------------------

    @rule(seconds=SECONDS)
    def pass_time(self, seconds: float) -> None:
        self.world.tick(seconds)
        assert self.world.queues["ranked"].len() <= 4, "a start may exceed it, until it is ticked"

    @rule(seconds=SECONDS)
    def tick_once(self, seconds: float) -> None:
        self.world.rig.clock.advance(seconds)
        for queue in self.world.queues.values():
            queue.tick(self.world.now_ms)

    @rule()
    def settle(self) -> None:
        self.world.settle()
        self.here |= self.unsure
        self.unsure.clear()
        self.acked.clear()

    @rule()
    def checkpoint(self) -> None:
        self.world.rig.engine.checkpoint()
        self.world.rig.settle()

    @rule()
    def restart(self) -> None:
        self.settle()
        self.world.restart()
        self._after_a_start()

    @rule(
        image=st.sampled_from(("lost", "kept", "killed", "torn", "subset", "zeros")),
        is_written=st.booleans(),
    )
    def crash(self, image: str, is_written: bool) -> None:
        if is_written:  # else what was logged since the last wait never left the process
            self.world.rig.engine.flush()
        self.world.crash(image)
        self._after_a_start()

    def _after_a_start(self) -> None:
        self.pending.clear()
        self.transient.clear()
        found = self.world.everywhere()
        came_back = {name for name in self.acked if found[name]}
        stayed = {name for name in self.unsure if found[name]}
        self.here |= came_back | stayed
        self.acked.clear()
        self.unsure.clear()

    # ---- what holds ----------------------------------------------------------------------------

    @invariant()
    def each_message_is_in_one_place(self) -> None:
        if hasattr(self, "world"):
            there = self.here | self.unsure | self.transient
            assert self.world.everywhere() == dict.fromkeys(there, 1)

    @invariant()
    def nothing_is_damaged(self) -> None:
        assert not hasattr(self, "world") or not self.world.told("corruption")


TestAmqQueueMachine = AmqQueueMachine.TestCase
