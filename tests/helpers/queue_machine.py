"""QueueMachine: what a hypothesis machine over BackingQueues knows, without its rules.

Two queues, `q` and `other`, in one engine; a QueueModel of each; the History of their log; and what
each rule says to those when it has done something. The rules are in
tests/property/test_backing_queue_machine.py.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize

from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from penstock.storage.files.durability import DISK, NONE
from tests.helpers.engine_rig import EngineRig
from tests.helpers.queue_model import History, QueueModel, Sent
from tests.helpers.queue_world import Opener, World

SIZES = (0, 40, 90, 150, 300, 1500)  # of bodies, beside the number in them


class SizedWorld(World):
    """Bodies of many lengths."""

    def body(self, i: int) -> bytes:
        return (b"m%d;" % i).ljust(SIZES[i % len(SIZES)], b".")


class QueueMachine(RuleBasedStateMachine):
    """Two queues of an engine, their models, and what the log has of them."""

    parts = 1
    slots = 4  # of a segment

    def opener(self, choice: int) -> Opener:
        raise AssertionError("a subclass says which")

    def preload(self, n: int) -> None:
        """A run that begins with something to lose finds more."""

    def mend(self) -> None:
        """No planned fault strikes any more."""

    def mend_disk(self) -> None:
        """The disk can be read again, and has room."""

    @initialize(
        sections=st.booleans(), choice=st.integers(0, 11), n=st.sampled_from([60, 90, 25, 0])
    )
    def start(self, sections: bool, choice: int, n: int) -> None:
        rig = EngineRig(sections=sections, segment_slots=self.slots)
        self.world = SizedWorld(rig, self.opener(choice))
        self.world.open(b"other")
        self.models = {b"q": QueueModel(), b"other": QueueModel()}
        self.known: dict[bytes, dict[int, Sent]] = {b"q": {}, b"other": {}}
        self.history = History()
        self.number = 0
        self._begin_life()
        self.preload(n)

    def _begin_life(self) -> None:
        self.history.restart(self.engine.log.last_lsn, self._state())

    # ---- the model's side ----------------------------------------------------------------------

    @property
    def engine(self) -> Any:
        return self.world.rig.engine

    def _state(self) -> dict[bytes, dict[int, tuple[int, int]]]:
        return {name: model.durable() for name, model in self.models.items()}

    def _note(self) -> None:
        """The log has changed: a crash may leave this. (Each of several parts has records of its
        own: then there are states in between.)"""
        if self.parts > 1:
            self.world.settle()
        self.history.note(self.engine.log.last_lsn, self._state())
        self.history.settle(self.engine.log.settled(DISK))

    def _new(self, mode: int, expiry_ms: int = 0) -> Sent:
        self.number += 1
        body = self.world.body(self.number)
        header = b"h%d" % self.number if self.number % 3 else b""
        return Sent(self.number, len(body), mode != NONE, header, expiry_ms)

    def _add(self, name: bytes, tag: int, message: Sent) -> None:
        self.models[name].sent[tag] = message
        self.known[name][tag] = message

    def _next_tag(self, name: bytes, priority: int) -> int:
        """Of what is published next to this part."""
        part = min(priority, self.parts - 1)
        return part << PART_SHIFT | self.world.queues[name].index(priority).next_seq

    def _take(self, name: bytes, delivery: Delivery, *, ack_required: bool = True) -> None:
        """It was delivered, as the first of the ready."""
        model = self.models[name]
        tag = model.ready()[0]
        message = model.sent[tag]
        assert delivery.tag == tag
        assert self.world.numbers([delivery]) == [message.number]
        assert delivery.message.header == message.header
        assert delivery.message.expiry_ms == message.expiry_ms
        assert delivery.attempts == message.attempts
        if message.is_delivered is not None:
            assert delivery.is_redelivered == message.is_delivered, f"tag {tag}"
        message.is_delivered = True
        message.id = delivery.message.id
        if ack_required:
            message.is_pending = True
        else:
            del model.sent[tag]
            self._note()

    def _some_pending(self, data: Any, name: bytes) -> list[int]:
        """Pending tags, in any order, maybe with one that is not."""
        pending = self.models[name].pending()
        strange = [(1 << 50) + 1, *self.models[name].ready()[:1]]
        return list(data.draw(st.lists(st.sampled_from([*pending, *strange]), unique=True)))

    def _kill(self, name: bytes, tags: list[int]) -> None:
        for tag in tags:
            del self.models[name].sent[tag]
        self._note()

    def _found(self, q: BackingQueue) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}

        def look(delivery: Delivery, is_pending: bool, acc: None) -> tuple[bool, None]:
            assert not is_pending
            found[delivery.tag] = (self.world.numbers([delivery])[0], delivery.attempts)
            return True, None

        q.fold(look, None)
        return found

    def _delete_the_other(self, mode: int) -> None:
        self.world.queues.pop(b"other").delete_and_terminate(mode)
        self.world.open(b"other")
        self.models[b"other"] = QueueModel()
        self.known[b"other"] = {}
        self.history.restart(self.engine.log.last_lsn, self._state())
