"""A hypothesis state machine over the whole BackingQueue contract, against an ordered map.

What RabbitMQ's property test of its backing queue does, with what its later one for classic queues
adds: restarts and crashes, and what may be left afterwards. Two queues share an engine, so that
messages move between them, stand in both, and come and go in transactions. Limits, targets, modes,
paging, reading ahead and checkpoints happen at any time and must change nothing that is seen.

Each implementation is a subclass that says how a queue is opened.
"""

import errno
import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from penstock.errors import CorruptionError, DiskFullError
from penstock.queues import paging
from penstock.queues.backing_queue import (
    UNLIMITED,
    BackingQueue,
    Delivery,
    NewMessage,
)
from penstock.queues.priority_queue import PriorityQueue
from penstock.queues.queue_ram import QueueRam
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.parts.transaction import Transaction
from tests.helpers.engine_rig import EngineRig
from tests.helpers.faults import Fault
from tests.helpers.queue_machine import QueueMachine
from tests.helpers.queue_model import Sent
from tests.helpers.queue_world import Opener, up_to
from tests.helpers.reference_queue import open_reference
from tests.helpers.variable_queues import LIMIT, opens, opens_parts, real

STEPS = 50
MODES = st.sampled_from([DISK, DISK, OS, NONE])
ACK_MODES = st.sampled_from([DISK, OS])
NAMES = st.sampled_from([b"q", b"q", b"other"])
BYTES = st.sampled_from([0, 1, 600, 2000, 6000, UNLIMITED])
COUNTS = st.integers(0, 8)
PRIORITIES = st.integers(0, 3)
DATA = st.data()


def push_pending_far(state: QueueRam, quota: int) -> int:
    """Page out pending messages, and leave no row of any that is paged out."""
    left = paging.push_pending(state, quota)
    paging.roll_pending(state, 0)
    return left


PUSHES = (
    paging.push_q1, paging.push_q4, paging.push_alphas_to_betas, paging.push_betas_to_deltas,
    paging.push_pending, push_pending_far,
)  # fmt: skip


class BackingQueueMachine(QueueMachine):
    """The rules. Subclasses say how a queue is opened, and how many parts it has."""

    def preload(self, n: int) -> None:
        for name in (b"q", b"other"):
            self.publish_many(name, n, [0, 1, 0, 2])
            self.fetch(name, n // 3, True)
        self.settle()

    # ---- arrival -------------------------------------------------------------------------------

    @rule(name=NAMES, mode=MODES, priority=PRIORITIES, expiry=st.integers(0, 3))
    def publish(self, name: bytes, mode: int, priority: int, expiry: int) -> None:
        message = self._new(mode, expiry)
        tag = self._next_tag(name, priority)
        given = self.world.queues[name].publish(
            message.header, self.world.body(message.number), mode, expiry_ms=expiry,
            priority=priority,
        )  # fmt: skip
        assert given == tag
        self._add(name, tag, message)
        self._note()

    @rule(name=NAMES, mode=MODES, n=st.integers(0, 12), priority=PRIORITIES)
    def batch_publish(self, name: bytes, mode: int, n: int, priority: int) -> None:
        first = self._next_tag(name, priority)
        sent = [self._new(mode) for _ in range(n)]
        batch = [NewMessage(m.header, self.world.body(m.number), 0, priority) for m in sent]
        tags = self.world.queues[name].batch_publish(batch, mode)
        assert tags == list(range(first, first + n))
        for tag, message in zip(tags, sent, strict=True):
            self._add(name, tag, message)
            self._note()

    @rule(name=NAMES, n=st.integers(8, 40), priorities=st.lists(PRIORITIES, min_size=1, max_size=3))
    def publish_many(self, name: bytes, n: int, priorities: list[int]) -> None:
        for i in range(n):
            mode = (DISK, OS, DISK, NONE)[i % 4]
            self.publish(name, mode, priorities[i % len(priorities)], 0)

    @rule(name=NAMES, n=st.integers(4, 30))
    def fetch_many(self, name: bytes, n: int) -> None:
        self.fetch(name, n, True)

    @rule(mode=MODES, priority=PRIORITIES)
    def publish_to_both(self, mode: int, priority: int) -> None:
        self.mend_disk()
        message = self._new(mode)
        tags = {name: self._next_tag(name, priority) for name in self.models}
        indexes = [q.index(priority) for q in self.world.queues.values()]
        self.engine.publish(indexes, message.header, self.world.body(message.number), mode)
        for name, tag in tags.items():
            self._add(name, tag, Sent(message.number, message.size, mode != NONE, message.header))
        self._note()

    # ---- delivery ------------------------------------------------------------------------------

    @rule(name=NAMES, n=st.integers(1, 8), ack_required=st.booleans())
    def fetch(self, name: bytes, n: int, ack_required: bool) -> None:
        q = self.world.queues[name]
        for _ in range(min(n, len(self.models[name].ready()))):
            delivery = self.world.fetch(q, ack_required=ack_required)
            self._take(name, delivery, ack_required=ack_required)
        if not self.models[name].ready():
            assert q.fetch(ack_required=ack_required) is None

    @rule(name=NAMES, ack_required=st.booleans())
    def drop(self, name: bytes, ack_required: bool) -> None:
        head = self.world.queues[name].drop(ack_required=ack_required)
        ready = self.models[name].ready()
        if not ready:
            assert head is None
            return
        assert head is not None
        message = self.models[name].sent[ready[0]]
        assert (head.tag, head.size, head.expiry_ms) == (ready[0], message.size, message.expiry_ms)
        message.id = head.id
        message.is_delivered = message.is_delivered or None
        message.is_pending = True
        if not ack_required:
            self._kill(name, ready[:1])

    @rule(name=NAMES, n=COUNTS, mode=ACK_MODES)
    def dropwhile(self, name: bytes, n: int, mode: int) -> None:
        self.world.settle()
        ready = self.models[name].ready()
        head = self.world.queues[name].dropwhile(up_to(n), mode)
        assert (head.tag if head else None) == (ready[n] if n < len(ready) else None)
        for tag in ready[:n]:
            self._kill(name, [tag])

    # ---- settling ------------------------------------------------------------------------------

    @rule(name=NAMES, data=DATA, mode=ACK_MODES)
    def ack(self, name: bytes, data: Any, mode: int) -> None:
        tags = self._some_pending(data, name)
        known = [tag for tag in tags if tag in self.models[name].pending()]
        ids = [self.models[name].sent[tag].id for tag in known]
        assert self.world.queues[name].ack(tags, mode) == ids
        self._kill(name, known)

    @rule(name=NAMES, data=DATA, mode=ACK_MODES, attempted=st.booleans())
    def requeue(self, name: bytes, data: Any, mode: int, attempted: bool) -> None:
        tags = self._some_pending(data, name)
        known = [tag for tag in self.models[name].pending() if tag in tags]
        messages = [self.models[name].sent[tag] for tag in known]
        ids = self.world.queues[name].requeue(tags, mode, attempted=attempted)
        assert ids == [message.id for message in messages]
        for message in messages:
            message.is_pending = False
            message.attempts += attempted
        self._note()

    @rule(name=NAMES, data=DATA, to=st.sets(NAMES), priority=PRIORITIES, mode=ACK_MODES)
    def move(self, name: bytes, data: Any, to: set[bytes], priority: int, mode: int) -> None:
        pending = self.models[name].pending()
        if not pending:
            with pytest.raises(KeyError):
                self.world.queues[name].move(1 << 50, [], b"", mode)
            return
        tag = data.draw(st.sampled_from(pending))
        places = {target: self._next_tag(target, priority) for target in sorted(to)}
        indexes = [self.world.queues[target].index(priority) for target in places]
        lsn = self.world.queues[name].move(tag, indexes, b"moved", mode, 9)
        old = self.models[name].sent.pop(tag)
        for target, place in places.items():
            self.world.queues[target].hold(place, lsn, mode)
            self._add(target, place, Sent(old.number, old.size, old.is_persistent, b"moved", 9))
        self._note()

    @rule(name=NAMES, data=DATA, n=st.integers(0, 3), mode=ACK_MODES, commits=st.booleans())
    def transaction(self, name: bytes, data: Any, n: int, mode: int, commits: bool) -> None:
        pending = self.models[name].pending()
        tags = data.draw(st.lists(st.sampled_from(pending), unique=True)) if pending else []
        if self.parts > 1:
            tags.sort()
        self.mend_disk()
        q = self.world.queues[name]
        tx: Transaction = self.engine.begin()
        for index, entries in q.entries(tags):
            tx.dequeue(index, entries)
        placed: list[tuple[bytes, int, Sent]] = []
        first = {name: self._next_tag(name, 0) for name in self.models}
        for i in range(n):
            message = self._new(mode)
            indexes = [q.index() for q in self.world.queues.values()]
            tx.publish(indexes, message.header, self.world.body(message.number))
            for target, start in first.items():
                copy = Sent(message.number, message.size, True, message.header)
                placed.append((target, start + i, copy))
        if not commits:
            tx.rollback()
            return
        lsn = tx.commit(mode)
        for target, tag, copy in placed:
            self.world.queues[target].hold(tag, lsn, mode)
            self._add(target, tag, copy)
        q.forget(tags)
        self._kill(name, tags)

    @rule(name=NAMES, mode=ACK_MODES, way=st.sampled_from(["purge", "purge_acks", "delete"]))
    def clear(self, name: bytes, mode: int, way: str) -> None:
        """One rule, so that queues grow long between two of these."""
        model, q = self.models[name], self.world.queues[name]
        if way == "purge":
            ready = model.ready()
            assert q.purge(mode) == len(ready)
            self._kill(name, ready)
        elif way == "purge_acks":
            pending = model.pending()
            assert q.purge_acks(mode) == len(pending)
            self._kill(name, pending)
        else:
            self._delete_the_other(mode)

    # ---- looking -------------------------------------------------------------------------------

    @rule(name=NAMES, data=DATA)
    def look_at_pending(self, name: bytes, data: Any) -> None:
        model, q = self.models[name], self.world.queues[name]
        tags = sorted(self._some_pending(data, name))
        known = [tag for tag in tags if tag in model.pending()]
        for tag in tags:
            one = q.pending(tag, with_body=True)
            assert (one is not None) == (tag in known)
            if one is not None:
                assert self.world.numbers([one]) == [model.sent[tag].number]
                assert one.attempts == model.sent[tag].attempts

    @rule(name=NAMES, cut=st.integers(1, 40))
    def fold(self, name: bytes, cut: int) -> None:
        model = self.models[name]
        found: list[tuple[int, bool]] = []

        def look(delivery: Delivery, is_pending: bool, acc: int) -> tuple[bool, int]:
            assert self.world.numbers([delivery]) == [model.sent[delivery.tag].number]
            found.append((delivery.tag, is_pending))
            return acc + 1 < cut, acc + 1

        assert self.world.queues[name].fold(look, 0) == len(found)
        tags = model.all()[:cut]
        assert found == [(tag, model.sent[tag].is_pending) for tag in tags]

    @rule(name=NAMES, data=DATA, n=COUNTS)
    def browse(self, name: bytes, data: Any, n: int) -> None:
        model = self.models[name]
        after = data.draw(st.sampled_from([None, *model.all()]))
        tags = model.ready_behind(after)[:n]
        found = self.world.queues[name].browse(after, n)
        assert [d.tag for d in found] == tags
        assert self.world.numbers(found) == [model.sent[tag].number for tag in tags]

    @rule(name=NAMES, n=COUNTS)
    def browse_the_end(self, name: bytes, n: int) -> None:
        queue, ready = self.world.queues[name], self.models[name].ready_behind(None)
        assert queue.before_last(n) == (ready[-1 - n] if n < len(ready) else None)
        states = [queue.state_of(tag) for tag in ready]
        info = queue.info()
        for state, count in (("alpha", "alphas"), ("beta", "betas"), ("gamma", "gammas")):
            assert states.count(state) == info[count]

    # ---- memory --------------------------------------------------------------------------------

    @rule(name=NAMES, one=BYTES, two=BYTES)
    def set_limits(self, name: bytes, one: int, two: int) -> None:
        self.world.queues[name].set_limits(max(one, two), min(one, two))

    @rule(name=NAMES, share=BYTES)
    def set_share(self, name: bytes, share: int) -> None:
        self.world.queues[name].set_share(share)

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 1.0, 2.0, 0.01, 37.5, float("inf")]))
    def set_duration(self, name: bytes, seconds: float) -> None:
        self.world.queues[name].set_ram_duration_target(seconds)

    @rule(name=NAMES, seconds=st.sampled_from([0.0, 0.2, 5.0]))
    def ram_duration(self, name: bytes, seconds: float) -> None:
        self.world.rig.clock.advance(seconds)
        assert self.world.queues[name].ram_duration() >= 0

    @rule(name=NAMES, mode=st.sampled_from(["default", "lazy"]))
    def set_mode(self, name: bytes, mode: str) -> None:
        self.world.queues[name].set_queue_mode(mode)

    @rule(name=NAMES)
    def resume(self, name: bytes) -> None:
        self.world.queues[name].resume()

    @rule()
    def page_out(self) -> None:
        self.world.page()

    @rule(name=NAMES, waits=st.booleans())
    def inhale(self, name: bytes, waits: bool) -> None:
        if self.world.queues[name].inhale() and waits:
            self.engine.poll(wait=True)

    # ---- the engine ----------------------------------------------------------------------------

    @rule()
    def settle(self) -> None:
        self.mend_disk()
        self.world.settle()
        self.history.settle(self.engine.log.settled(DISK))

    @rule(seconds=st.sampled_from([0.0, 0.1, 2.0]))
    def tick(self, seconds: float) -> None:
        self.mend()
        self.world.rig.clock.advance(seconds)
        self.engine.tick()
        self.engine.flush()

    @rule()
    def begin_checkpoint(self) -> None:
        self.mend()
        self.engine.upkeep.begin_checkpoint()

    @rule()
    def step_checkpoint(self) -> None:
        self.mend()
        if self.engine.checkpoints.phase == SLICES:
            self.engine.checkpoints.step(0.0)
        self.engine.poll()

    @rule()
    def finish_checkpoint(self) -> None:
        self.mend()
        if self.engine.checkpoints.phase != IDLE:
            self.world.rig.finish_checkpoint()

    # ---- life ----------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.mend()
        self.world.restart()
        for model in self.models.values():
            model.stop()
        self._begin_life()

    @rule(mode=st.sampled_from(["lost", "kept", "subset", "torn"]))
    def crash(self, mode: str) -> None:
        self.mend()
        self.history.settle(self.engine.log.settled(OS if mode == "kept" else DISK))
        self.world.crash(mode)
        found = {name: self._found(q) for name, q in self.world.queues.items()}
        assert self.history.allows(found), f"{found} is none of\n{self.history}"
        for name, model in self.models.items():
            model.recover(found[name], self.known[name])
        self._begin_life()

    # ---- what holds at all times ---------------------------------------------------------------

    @invariant()
    @precondition(lambda self: hasattr(self, "models"))
    def the_queue_is_the_map(self) -> None:
        for name, model in self.models.items():
            q = self.world.queues[name]
            ready = model.ready()
            assert (q.len(), q.depth()) == (len(ready), len(model.sent))
            assert q.body_bytes() == model.body_bytes()
            head = q.head()
            assert (head.tag if head else None) == (ready[0] if ready else None)
            assert q.ram_bytes() >= 0

    def teardown(self) -> None:
        """A run that went well ends with all that is left, drained in order, and a restart that
        verifies."""
        if hasattr(self, "models") and sys.exc_info()[0] is None:
            self.mend()
            for name, model in self.models.items():
                self.fold(name, 1 << 30)
                self.fetch(name, len(model.sent), True)
            self.restart()


class ReferenceMachine(BackingQueueMachine):
    """The reference itself."""

    def opener(self, choice: int) -> Opener:
        return open_reference


class PagingMachine(BackingQueueMachine):
    """What cannot be paged out stays in RAM, and nothing else is to be seen of it."""

    @rule(times=st.sampled_from([1, 2, 5, None]), effect=st.sampled_from([errno.EIO, "short"]))
    def break_writes(self, times: int | None, effect: int | str) -> None:
        """Paging out fails so many times, or until a checkpoint needs those files too."""
        self.world.rig.fs.fail(effect, kinds=["pwrite"], path="/queues/", times=times)

    def mend(self) -> None:
        self.world.rig.fs.clear_faults()


class VariableMachine(PagingMachine):
    """VariableQueues of all policies, that read one body at a time or many."""

    def opener(self, choice: int) -> Opener:
        return opens(
            policy=("ratio", "eager", "even")[choice % 3],
            mode=("default", "default", "lazy")[choice % 3],
            limit=(UNLIMITED, LIMIT, 0)[choice // 2 % 3],
            read_bytes=(0, 256, 256 << 10)[choice // 4],
        )

    def queue(self, name: bytes) -> VariableQueue:
        return real(self.world.queues[name])

    @rule(name=NAMES, push=st.sampled_from(PUSHES), n=st.integers(1, 12))
    def page(self, name: bytes, push: Callable[[QueueRam, int], int], n: int) -> None:
        """Into places, q2 first of all, where the present rules of paging hardly ever go."""
        state = self.queue(name).state
        if not (state.is_lazy or state.becomes_lazy or state.lift_below):
            with suppress(OSError):  # broken writes: nothing has changed place
                push(state, n)
            state.check()


# A call of these that fails has done a part, or has called back.
ONE_TRY = ("batch_publish", "dropwhile", "purge_acks", "delete_and_terminate", "fold")
# Calls that do not look at the order of messages.
ORDERLESS = (
    "len", "depth", "body_bytes", "ram_bytes", "index", "info", "publish", "requeue", "purge",
    "resume", "set_limits", "set_share", "hold",
)  # fmt: skip


class RetryingQueue:
    """A VariableQueue. Calls that raise OSError, CorruptionError or DiskFullError must have changed
    nothing; they are made again after `mend`."""

    def __init__(self, queue: VariableQueue, mend: Callable[[], None]) -> None:
        self.queue = queue
        self._mend = mend

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, getattr(self.queue, name), name)

    def _call(self, method: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        queue = self.queue
        if name in ONE_TRY:
            self._mend()
        if queue.state.lift_below and name not in ORDERLESS:
            self._mend()
            queue.resume()
        before = (queue.len(), queue.depth(), queue.body_bytes())
        try:
            result = method(*args, **options)
            if result is not None or name != "fetch":  # None: held, and a full log never settles
                return result
        except (OSError, CorruptionError, DiskFullError):
            queue.state.check()
            assert (queue.len(), queue.depth(), queue.body_bytes()) == before
        self._mend()
        return method(*args, **options)


class RunMachine(VariableMachine):
    """VariableQueues with segments and targets for runs of many messages, on a disk that becomes
    full, and whose reads fail, or are wrong once."""

    slots = 64

    def opener(self, choice: int) -> Opener:
        self.broken_reads: list[Fault] = []
        inner = opens(
            policy=("ratio", "eager", "even")[choice % 3],
            mode=("default", "default", "default", "lazy")[choice % 4],
            limit=(UNLIMITED, 40_000, 12_000, LIMIT)[choice // 3],
            read_bytes=256 << 10,
        )

        def open_one(rig: EngineRig, name: bytes, is_durable: bool) -> BackingQueue:
            queue = RetryingQueue(real(inner(rig, name, is_durable)), self.mend_disk)
            return cast("BackingQueue", queue)

        return open_one

    def queue(self, name: bytes) -> VariableQueue:
        return cast("RetryingQueue", self.world.queues[name]).queue

    def preload(self, n: int) -> None:
        """More than a segment, or as few as a section of a checkpoint holds."""
        super().preload(3 * n if n > 25 else n)

    @invariant()
    @precondition(lambda self: hasattr(self, "models"))
    def the_queue_is_the_map(self) -> None:
        """A look at the head would read what could not be read, or mend the disk."""
        if all(self.queue(name).state.read_error is None for name in self.models):
            super().the_queue_is_the_map()

    @rule(
        effect=st.sampled_from([errno.EIO, errno.EIO, "flip", "misdirect", "short"]),
        times=st.sampled_from([1, 2, None]), nth=st.integers(1, 6),
        path=st.sampled_from([".qi", ".qs", "/"]),
    )  # fmt: skip
    def break_reads(self, effect: int | str, times: int | None, nth: int, path: str) -> None:
        """Reads fail so many times, or one is wrong."""
        self.mend_disk()
        times = times if effect == errno.EIO else 1
        fault = self.world.rig.fs.fail(effect, kinds=["read"], path=path, nth=nth, times=times)
        self.broken_reads.append(fault)

    @rule(room=st.sampled_from([0, 0, 300]))
    def fill_disk(self, room: int) -> None:
        """There is room for so many bytes, and for records in what the log has allocated."""
        self.world.rig.fs.capacity = self.world.rig.fs.used_bytes() + room

    def mend_disk(self) -> None:
        for fault in self.broken_reads:
            fault.times = 0
        if self.world.rig.fs.capacity is not None:
            self.world.rig.fs.capacity = None
            self.world.rig.fs.clear_faults()  # the tick may begin a checkpoint
            self.world.rig.clock.advance(2.0)
            self.engine.tick()

    def mend(self) -> None:
        super().mend()
        self.mend_disk()

    @rule(name=NAMES, n=st.sampled_from([0, 100]), restarts=st.booleans())
    def checkpoint(self, name: bytes, n: int, restarts: bool) -> None:
        """A whole one, which may write the slots of a queue that was small when it was opened."""
        if restarts:
            self.restart()
        self.publish_many(name, n, [0])
        self.begin_checkpoint()
        self.finish_checkpoint()

    @rule(name=NAMES, share=st.sampled_from([20_000, 60_000, 150_000]), n=st.integers(4, 32))
    def set_large_share(self, name: bytes, share: int, n: int) -> None:
        """Steps of as many messages as a target of MiBs has."""
        self.set_share(name, share)
        self.queue(name).state.step_messages = n


class PriorityMachine(PagingMachine):
    """Priorities."""

    parts = 3

    def opener(self, choice: int) -> Opener:
        return opens_parts(policy=("ratio", "eager")[choice % 2])

    @invariant()
    def the_parts_add_up(self) -> None:
        for q in self.world.queues.values() if hasattr(self, "world") else ():
            assert isinstance(q, PriorityQueue)
            q.check()


def case_of(machine: type[BackingQueueMachine], examples: float = 1.0) -> Any:
    """The machine as a test case, with this part of the profile's examples."""
    case, profile = machine.TestCase, settings()
    case.settings = settings(
        profile, stateful_step_count=STEPS, database=None,
        max_examples=int(profile.max_examples * examples),
    )  # fmt: skip
    return case


TestReferenceQueue = case_of(ReferenceMachine, 0.3)
TestVariableQueue = case_of(VariableMachine)
TestRuns = case_of(RunMachine, 0.5)
TestPriorityQueue = case_of(PriorityMachine, 0.5)
